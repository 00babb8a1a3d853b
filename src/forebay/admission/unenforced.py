"""Requests that start whatever is decided about them: the modes `shadow` and `bypass`.

They are booked, charged and learned from like any other, so what is enforced beside them knows what the engines hold.
Only two things keep one from starting: that there is no endpoint to send it to, and that the process is shutting down.

In `shadow` the gate is asked as ever, and what follows of its answer in the enforcing mode is said instead of done.
Each request is judged at the engines as they are, on which those run that would have been turned away. So under an
overload that lasts, more is said to be refused than would be.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from forebay.admission import triage
from forebay.admission.class_state import ClassState
from forebay.admission.endpoints import Endpoint
from forebay.admission.errors import MisuseError
from forebay.admission.events import ModeChanged
from forebay.admission.gate import Verdict, examine, wait_budget_s
from forebay.admission.ledger import Ledger
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.model import Mode, TicketId
from forebay.admission.modes import Modes
from forebay.admission.outcomes import Outcome
from forebay.admission.patience import Patience
from forebay.admission.placement import place_anyway
from forebay.admission.pools import Pool
from forebay.admission.settings import Settings
from forebay.admission.tickets import Ticket
from forebay.admission.timers import Timers

EXPECTED_WAIT: Final = "expected_wait"
BYPASSED: Final = "bypass"
LET_GO_AT_ONCE: Final = 100
"""Waiters that start in one call when their mode holds them no longer; the rest with the next wake."""

_ENFORCE: Final = Mode.ENFORCE
_BYPASS: Final = Mode.BYPASS


class Unenforced:
    """The modes of one controller, and what they let through."""

    def __init__(
        self,
        life: Lifecycle,
        timers: Timers,
        patience: Patience,
        pools: dict[str, Pool],
        started: Callable[[Ticket, Endpoint, float], None],
    ) -> None:
        """See the class.

        Args:
            started: told of each request that was dispatched.
        """
        self.modes = Modes(life.settings)
        self._life = life
        self._timers = timers
        self._patience = patience
        self._pools = pools
        self._started = started

    # Modes

    def mode_changed(self, event: ModeChanged, now: float) -> None:
        """An operator changed one. Raises: MisuseError for what is not configured."""
        classes = [entry.name for entry in self._life.settings.classes]
        if (event.pool and event.pool not in self._pools) or (
            event.class_name and event.class_name not in classes
        ):
            raise MisuseError(f"no pool {event.pool!r} with class {event.class_name!r} is configured")
        self.modes.change(event.pool, event.class_name, event.mode)
        self.apply(now)

    def reconfigure(self, settings: Settings, now: float) -> None:
        """The configuration has changed."""
        self.modes.reconfigure(settings)
        self.apply(now)

    def apply(self, now: float) -> None:
        """Each class of each pool goes by what is in force for it from now on."""
        for name, pool in self._pools.items():
            pool.holds_all = True
            for class_name, state in pool.classes.items():
                state.mode = self.modes.of(name, class_name)
                if state.mode is not _ENFORCE:
                    pool.holds_all = False
            self.let_waiters_go(pool, now)

    # Requests

    def enforces_all(self) -> bool:
        """True if every decision is carried out."""
        return all(pool.holds_all for pool in self._pools.values())

    def let_through(self, ticket: Ticket, state: ClassState, now: float) -> bool:
        """An arrival whose mode is not to enforce starts. False if it cannot: then it is decided about as ever."""
        mode = state.mode
        if self._patience.drain_until_s is not None:
            return False
        if mode is _BYPASS:
            verdict = Verdict(decided_by=BYPASSED)
            ticket.debit = None  # what nobody limits is nothing to owe once limits are back
        else:
            verdict = judge(ticket, self._life.ledger, self._life.settings, now)
        endpoint = verdict.endpoint or place_anyway(ticket, ticket.pool.endpoints.values(), now)
        if endpoint is None:
            return False
        self._life.dispatch(ticket, endpoint, now, verdict, mode)
        self._started(ticket, endpoint, now)
        state.arrived(ticket.price.cost.work_us, now)
        return True

    def let_go(self, ticket: Ticket, now: float) -> bool:
        """A waiter starts if its mode says so. False if it does not, or cannot."""
        mode = ticket.pool.classes[ticket.demand.class_name].mode
        if mode is _ENFORCE:
            return False
        endpoint = place_anyway(ticket, ticket.pool.endpoints.values(), now)
        if endpoint is None:
            return False
        self._life.dispatch(ticket, endpoint, now, None, mode)
        self._started(ticket, endpoint, now)
        return True

    def let_waiters_go(self, pool: Pool, now: float) -> None:
        """Those who wait though their mode no longer says so start, some at a time, if there is an endpoint."""
        if pool.holds_all:
            return
        free: list[Ticket] = []
        for waiter in pool.queue:
            ticket = self._life.tickets[TicketId(waiter.sequence)]
            if pool.classes[ticket.demand.class_name].mode is not _ENFORCE:
                free.append(ticket)
                if len(free) > LET_GO_AT_ONCE:
                    break
        for ticket in free[:LET_GO_AT_ONCE]:
            if not self.let_go(ticket, now):
                return
        if len(free) > LET_GO_AT_ONCE:
            self._timers.at(now, self.let_waiters_go, pool)


def judge(ticket: Ticket, ledger: Ledger, settings: Settings, now: float) -> Verdict:
    """The verdict on an arrival, with how its wait would probably have ended. Changes nothing."""
    verdict = examine(ticket, ledger, settings, now, draining=False)
    if verdict.outcome is Outcome.QUEUE_FULL and triage.room_for(ticket, verdict, settings.displace, now):
        verdict.outcome = None
        verdict.detail = "Less important requests would have made room for it."
    if verdict.outcome is None and verdict.endpoint is None and verdict.forecast is not None:
        # Nobody waits, so no prediction ever proves good enough to refuse at arrival: the wait itself would have ended.
        verdict.check(
            EXPECTED_WAIT,
            verdict.forecast.expected_s,
            None if (budget_s := wait_budget_s(ticket, now)) == inf else budget_s,
            Outcome.QUEUE_TIMEOUT,
            "It would have waited, and its time would probably have run out.",
        )
    return verdict
