"""How long a waiter waits: the ends of waits, and those who wait in vain.

Each waiter has an end set when its wait begins: its class's budget or the client's stated deadline, the client's own
timeout, the end of a shutdown. It is looked at before (`triage.waits_in_vain`), and given the grace of a
connect timeout when its pool has no endpoint. Like `watch` it sets timers and moves tickets through `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from forebay.admission import triage
from forebay.admission.deadlines import file_waiter
from forebay.admission.events import WaitTold
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.model import Check, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.pools import Pool
from forebay.admission.settings import OnStale
from forebay.admission.tickets import WAITING, Ticket
from forebay.admission.timers import Timers
from forebay.admission.watch import Lingering

ROUNDING_S: Final = 1e-6
"""Two ways to count the same moment are no further apart."""


class Patience:
    """The waits of one controller."""

    def __init__(self, life: Lifecycle, timers: Timers, fill: Callable[[Pool, float], None]) -> None:
        """See the class.

        Args:
            fill: told when somebody's going may let others start.
        """
        self._life = life
        self._timers = timers
        self._fill = fill
        self.drain_until_s: float | None = None
        """The end of all waits, once shutting down."""

    def until_s(self, ticket: Ticket, budget_s: float, now: float) -> float:
        """The end of a wait that would begin now."""
        pool, demand = ticket.pool, ticket.demand
        hold_s = pool.settings.hold_without_endpoints_s
        if hold_s > budget_s > 0 and not pool.has_up() and demand.first_token_by_s is None:
            budget_s = (
                hold_s  # scale from zero: the operator gives engines longer to come than work may queue
            )
        until_s = now + budget_s
        if demand.patience_until_s is not None:
            until_s = min(until_s, max(demand.patience_until_s, now))
        if self.drain_until_s is not None:
            until_s = min(until_s, self.drain_until_s)
        return until_s

    def begin(self, ticket: Ticket, now: float, *, protected: bool = False) -> None:
        """A wait begins now, and ends at the ticket's deadline at the latest."""
        file_waiter(ticket, now, protected=protected)
        self._set_alarm(ticket, now)
        self._timers.compact(len(self._life.tickets), _is_live)
        if not ticket.pool.has_up():
            self._timers.at(now + self._grace_s(ticket.pool), self._no_endpoint_came, ticket)

    def told(self, event: WaitTold, now: float) -> None:
        """The client of a waiter knows that it waits: it is not pushed out for others any more."""
        ticket = self._life.tickets.get(event.ticket)
        if ticket is not None and ticket.phase is WAITING:
            self._life.protect(ticket, now)

    def give_up(self, ticket: Ticket, check: Check, now: float) -> None:
        """A waiter has hardly a chance left, as this says."""
        what = "be answered" if check.name == "whole_answer" else "start"
        detail = f"There was hardly a chance left to {what} in time."
        self._turn_away(ticket, Outcome.QUEUE_TIMEOUT, now, check, detail)

    def absent(self, pool: Pool, now: float) -> None:
        """The pool has no endpoint any more: who waits gets the grace once more."""
        if pool.books.waiting.requests:
            self._timers.at(now + self._grace_s(pool), self._absence_over, pool)

    def drain(self, until_s: float) -> None:
        """Shutting down: no wait goes on for longer."""
        self.drain_until_s = until_s
        for ticket in self._life.tickets.values():
            if ticket.phase is WAITING and ticket.deadline_s > until_s:
                ticket.deadline_s = until_s
                self._timers.at(until_s, self._over, ticket)

    def _grace_s(self, pool: Pool) -> float:
        return max(self._life.settings.connect_timeout_s, pool.settings.hold_without_endpoints_s)

    def _set_alarm(self, ticket: Ticket, now: float) -> None:
        """One timer for each waiter, for the next moment at which something may have to be done about it."""
        due_s = ticket.deadline_s
        if ticket.never_refuse:
            if due_s < inf:
                ticket.alarm_s = due_s
                self._timers.at(due_s, self._alarm, ticket)
            return
        for part in triage.LOOKED_AT:
            look_s = ticket.queued_s + part * (ticket.deadline_s - ticket.queued_s)
            if now < look_s < due_s:
                due_s = look_s
        lost_s = triage.lost_from_s(ticket)
        if now < lost_s < due_s:
            due_s = lost_s
        ticket.alarm_s = due_s
        self._timers.at(due_s, self._alarm, ticket)

    def _alarm(self, ticket: Ticket, now: float) -> None:
        if ticket.phase is not WAITING or now < ticket.alarm_s:
            return  # it is over, or this was set for an earlier wait
        if now < ticket.deadline_s:
            self._look(ticket, now)
            if ticket.phase is WAITING:
                self._set_alarm(ticket, now)
        else:
            self._over(ticket, now)

    def _over(self, ticket: Ticket, now: float) -> None:
        if ticket.phase is not WAITING or now < ticket.deadline_s:
            return
        outcome, detail = Outcome.QUEUE_TIMEOUT, _who_ended_it(ticket)
        if self.drain_until_s is not None and now >= self.drain_until_s:
            outcome, detail = Outcome.DRAINING, "This one had waited, and no place came free in time."
        elif not ticket.pool.has_up():
            outcome, detail = Outcome.NO_ENDPOINTS, "No engine came back in time."
        elif ticket.on_stale is OnStale.REFUSE and ticket.pool.is_stale(now):
            outcome, detail = Outcome.STALE_ENGINE, "No engine has told its load lately."
        check = Check("waited", now - ticket.queued_s, ticket.deadline_s - ticket.queued_s, False)
        self._turn_away(ticket, outcome, now, check, detail)

    def _look(self, ticket: Ticket, now: float) -> None:
        """Part of a wait is over: is there still a chance?"""
        check = triage.waits_in_vain(ticket, now)
        if check is not None:
            self.give_up(ticket, check, now)

    def _no_endpoint_came(self, ticket: Ticket, now: float) -> None:
        since = ticket.pool.absent_since_s
        if since is not None and now < since + self._grace_s(ticket.pool):
            return  # set in an earlier absence
        if ticket.phase is WAITING and not ticket.pool.has_up():
            check = Check("endpoints_up", 0, None, False)
            detail = "No engine of this pool can be reached."
            self._life.evict(ticket, Outcome.NO_ENDPOINTS, now, check, detail)

    def _absence_over(self, pool: Pool, now: float) -> None:
        """The grace of all that waited when the pool's last endpoint went."""
        since = pool.absent_since_s
        if since is None or now < since + self._grace_s(pool):
            return
        for waiter in list(pool.queue):
            ticket = self._life.tickets[TicketId(waiter.sequence)]
            if ticket.queued_s <= since:
                self._no_endpoint_came(ticket, now)

    def _turn_away(self, ticket: Ticket, outcome: Outcome, now: float, check: Check, detail: str) -> None:
        reserved = ticket.pool.reserved
        held_up_others = reserved is not None and reserved.reserved_for == ticket.demand.ticket
        self._life.evict(ticket, outcome, now, check, detail)
        if held_up_others:
            self._fill(ticket.pool, now)


def _who_ended_it(ticket: Ticket) -> str:
    """Why a wait was shorter than its class's budget."""
    demand, until_s = ticket.demand, ticket.deadline_s + ROUNDING_S
    if demand.patience_until_s is not None and demand.patience_until_s <= until_s:
        return "The client's own timeout ended it."
    if demand.first_token_by_s is not None and demand.first_token_by_s <= until_s:
        return "The deadline that the client stated ended it."
    return ""


def _is_live(subject: object) -> bool:
    """False for what nobody need be woken for: a wait that is over, an abandoned request that the engine let go."""
    if isinstance(subject, Ticket):
        return subject.phase is WAITING
    return not isinstance(subject, Lingering) or not subject.draining.released
