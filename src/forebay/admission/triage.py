"""Who goes when not all can stay: room for a newcomer at a bound, sets that cannot all be on time, waits in vain.

It chooses and does nothing: `controller` evicts those named here. The rules of who may go are in `shedding`, the
arithmetic of deadlines in `feasibility`; this looks them up for one pool.

- **A bound is reached** (`queue_full`): who waits in vain is told so first, whatever its class and whatever `displace`
  says, as far as a few looks find any. If that is not enough, waiters of less important classes, or with
  `displace: same` those of the newcomer's own class that go before it, make room, at most four and only if that is
  enough. First go those of tenants above their fair share of what waits in their class, then the less important class,
  then the lowest value per GPU-second, then the youngest. The newcomer has its own place in that order, as if it waited
  already: so a tenant that floods a class pushes out no modest one of it, and a modest one gets in whatever its request
  is worth.
- **A set cannot be on time**: with `displace: same`, the class's waiters of the lowest value per GPU-second go until
  the others can, four at a time.
- **In vain**: a waiter is looked at when half and when four fifths of its wait are over, and given up if the chance to
  start in time is below a tenth; and at the very end, when its prompt, if it is not a long one, would take longer
  than is left for the first token. Not while the pool is learning.
"""

from __future__ import annotations

from math import inf
from typing import Final

from forebay.admission.class_state import ClassState
from forebay.admission.feasibility import DeadlineBuckets
from forebay.admission.gate import CLASS_BOUNDS, HOPELESS, POOL_BOUNDS, Verdict
from forebay.admission.model import MICRO, Check
from forebay.admission.pools import Pool
from forebay.admission.settings import Displace
from forebay.admission.shedding import HOPELESS_BELOW, cannot_finish, cannot_start, may_displace
from forebay.admission.tickets import WAITING, Ticket
from forebay.admission.victims import Entry
from forebay.admission.work_ahead import weight_units

VICTIMS_MAX: Final = 4
SOONEST_MAX: Final = 8
"""Waiters of a class that are looked at for one who waits in vain when a bound refuses an arrival."""
HOPEFUL_PART: Final = 1 / 64
"""Part of a class's wait budget for which nobody of it is looked at again, if all had a chance."""
SHORT_PREFILL: Final = 0.2
LOOKED_AT: Final[tuple[float, ...]] = (0.5, 0.8)
"""Parts of its wait after which a waiter is looked at."""

_OFF: Final = Displace.OFF
_SAME: Final = Displace.SAME


def room_for(ticket: Ticket, verdict: Verdict, displace: Displace, now: float) -> list[Ticket]:
    """Waiters whose going lets this arrival pass the bounds that refuse it; none if it would not be enough.

    One that takes bounds over comes in whatever goes, and so many go as may.
    """
    if displace is _OFF:
        return []
    choice = _Choice(ticket, displace, now)
    takes_over = verdict.outcome is None
    failed = [check for check in verdict.checks if not check.passed and check.name != HOPELESS]
    if ticket.never_refuse:
        # What holds it is no bound; and where bytes refuse it, the bounds that it takes over need not be mended.
        failed = [c for c in failed if c.name in POOL_BOUNDS and (takes_over or c.name == "waiting_bytes")]
    enough = choice.go_on(failed)
    choice.end()
    return choice.chosen if enough or takes_over else []


def in_vain(newcomer: Ticket, verdict: Verdict, now: float) -> list[tuple[Ticket, Check]]:
    """Those who go first where a bound refuses an arrival: they wait in vain, whatever their class, and all the same.

    With the comparison that says so. Of each class, the least important first, a few who must start soonest are looked
    at, until a few were in all; and where none of them goes, nobody of it for a while: what is in vain becomes so as
    time goes by.
    """
    pool = newcomer.pool
    found: list[tuple[Ticket, Check]] = []
    if not pool.learning.may_refuse or not pool.has_up():
        return found
    in_pool = any(not check.passed and check.name in POOL_BOUNDS for check in verdict.checks)
    looked_at = 0
    for state in reversed(pool.classes.values()):
        if (state.index == newcomer.rank or in_pool) and now >= state.hopeful_until_s:
            before, soonest = len(found), state.deadlines.soonest(SOONEST_MAX)
            looked_at += len(soonest)
            for entry in soonest:
                ticket = _ticket_of(entry)
                check = None if ticket.never_refuse else waits_in_vain(ticket, now)
                if check is not None:
                    found.append((ticket, check))
                    if len(found) == VICTIMS_MAX:
                        return found
            if len(found) == before:
                state.hopeful_until_s = now + HOPEFUL_PART * state.settings.wait_budget_s
            if looked_at >= SOONEST_MAX:
                break  # the others at the next arrival
    return found


class _Choice:
    """Who makes room for one newcomer.

    Meanwhile shares are those that there would be then: of its class the newcomer has its part, those chosen have none.
    """

    __slots__ = ("_displace", "_newcomer", "_now", "_own", "_shares", "chosen")

    def __init__(self, newcomer: Ticket, displace: Displace, now: float) -> None:
        self._newcomer = newcomer
        self._displace = displace
        self._now = now
        self.chosen: list[Ticket] = []
        self._shares = _buckets_of(newcomer).shares
        self._own = self._shares.visit(
            newcomer.tenant, weight_units(newcomer.weight), newcomer.booking.work_us
        )

    def go_on(self, failed: list[Check]) -> bool:
        """Choose until no bound fails. False: that cannot be."""
        while failed and len(self.chosen) < VICTIMS_MAX:
            in_own_class = False
            for check in failed:
                if check.name in CLASS_BOUNDS:
                    in_own_class = True
                elif check.name not in POOL_BOUNDS:
                    return False  # no going of others mends that
            victim = self._first(in_own_class)
            if victim is None:
                return False
            self.chosen.append(victim)
            entry = victim.entry
            if entry is not None and entry.share is not None:
                _buckets_of(victim).shares.leave(entry.share, entry.work_us)
            failed = [check for check in failed if not _is_mended(check, self.chosen, self._newcomer.pool)]
        return not failed

    def end(self) -> None:
        """All are counted again as they wait."""
        self._shares.leave(self._own, self._newcomer.booking.work_us)
        for victim in self.chosen:
            entry = victim.entry
            if entry is not None and entry.share is not None:
                shares = _buckets_of(victim).shares
                shares.enter(entry.share, entry.work_us)
                shares.list_again(entry.share)

    def _first(self, own_class_only: bool) -> Ticket | None:
        """The next to go."""
        newcomer, now = self._newcomer, self._now
        may_go: list[ClassState] = []
        """The least important first."""
        for state in newcomer.pool.classes.values():
            if may_displace(self._displace, newcomer.rank, state.index) and (
                state.index == newcomer.rank or not own_class_only
            ):
                may_go.insert(0, state)
        density = newcomer.settings.value / max(newcomer.booking.work_us, 1)
        is_above = self._displace is _SAME and self._shares.is_above(self._own)
        for state in may_go:
            below = density if state.index == newcomer.rank and is_above else inf
            found = state.deadlines.first_above_share(now, self._is_left, below)
            if found is not None:
                return _ticket_of(found)
        for state in may_go:
            if state.index == newcomer.rank and is_above:
                continue
            below = density if state.index == newcomer.rank else inf
            found = state.deadlines.least_valuable(now, self._is_left, below)
            if found is not None:
                return _ticket_of(found)
        return None

    def _is_left(self, entry: Entry) -> bool:
        return entry.owner not in self.chosen


def late_ones(state: ClassState, pool: Pool, displace: Displace, now: float) -> list[Ticket]:
    """Waiters of a class that are given up so that the rest can be on time."""
    if displace is not _SAME or not pool.learning.may_refuse:
        return []
    # At the most that the class can get: nobody may be given up where all fit.
    rate, at_once_us = pool.most_of_class(state.settings.name)
    victims = state.deadlines.take_victims(now, rate, VICTIMS_MAX, ahead_us=-int(at_once_us))
    return [_ticket_of(entry) for entry in victims]


def why_displaced(victim: Ticket, newcomer: Ticket, *, late: bool) -> tuple[Check, str]:
    """For the record of a victim: what was compared, and one sentence.

    Args:
        late: not all that wait in its class can start in time; else it made room at a bound.
    """
    to_gpu_s = victim.pool.settings.to_gpu_s
    if late:
        own = victim.pool.classes[victim.demand.class_name]
        waiting_gpu_s = to_gpu_s(own.deadlines.work_us + victim.booking.work_us)
        return Check("set_on_time", waiting_gpu_s, None, False), (
            "Not all that wait in its class can start in time, and this one was to go first."
        )
    detail = f"A request of class {newcomer.demand.class_name!r} took its place."
    if victim.rank != newcomer.rank:
        return Check("rank", victim.rank, newcomer.rank, False), detail
    costs = to_gpu_s(victim.booking.work_us), to_gpu_s(newcomer.booking.work_us)
    return Check("same_class", *costs, False), (
        f"{detail} Its tenant had more than its share waiting, or it was worth less for its GPU time."
    )


def lost_from_s(ticket: Ticket) -> float:
    """When a stream that has not started by then cannot have its first token in time: its prompt takes too long.

    Never where the class may wait for longer than its objective: then being late is allowed. Nor for a long prompt, of
    more than `SHORT_PREFILL` of the objective: a request's own service time is not held against it, and this only
    keeps the last moments of a wait from ending in an answer that is late for certain.
    """
    settings = ticket.settings
    if not ticket.demand.stream or settings.wait_budget_s > settings.ttft_s or ticket.never_refuse:
        return inf
    prefill_s = ticket.cost.prefill_us / MICRO / ticket.pool.fastest()
    if prefill_s > SHORT_PREFILL * settings.ttft_s:
        return inf
    return ticket.arrived_s + settings.ttft_s - prefill_s


def waits_in_vain(ticket: Ticket, now: float) -> Check | None:
    """The comparison that says so, if a waiter has hardly a chance to start in time; None if it has one."""
    pool = ticket.pool
    if ticket.phase is not WAITING or not pool.learning.may_refuse or not pool.has_up():
        return None
    if now >= lost_from_s(ticket):
        prefill_s = ticket.cost.prefill_us / MICRO / pool.fastest()
        left_s = ticket.arrived_s + ticket.settings.ttft_s - now
        return Check("own_prefill", prefill_s, left_s, False)
    name = ticket.demand.class_name
    base_s = pool.base_wait_s(name, pool.queue.work_ahead(ticket)[0], ticket, now)
    low_s = pool.classes[name].waits.at_quantile(base_s, HOPELESS_BELOW)
    if cannot_start(now, ticket.deadline_s, low_s):
        return Check("least_wait", low_s, ticket.deadline_s - now, False)
    return _answer_in_vain(ticket, low_s, now)


def _answer_in_vain(ticket: Ticket, low_s: float, now: float) -> Check | None:
    """The same of an answer that is not streamed: by its client's own timeout, or its class's objective for the whole.

    By the objective only where waiting is at fault: not if the class may wait for longer than that, nor if there was no
    chance from the beginning, for a request's own service time is not held against it.
    """
    demand, settings = ticket.demand, ticket.settings
    if demand.stream:
        return None
    by_s, whole_s = demand.patience_until_s, settings.whole_answer_s
    if by_s is not None and _cannot_finish(ticket, by_s, low_s, now):
        return _whole_answer(ticket, by_s, low_s, now)
    if whole_s is None or settings.wait_budget_s > whole_s:
        return None
    by_s = ticket.arrived_s + whole_s
    if _cannot_finish(ticket, by_s, low_s, now) and not _cannot_finish(ticket, by_s, 0.0, ticket.arrived_s):
        return _whole_answer(ticket, by_s, low_s, now)
    return None


def _cannot_finish(ticket: Ticket, by_s: float, wait_s: float, now: float) -> bool:
    """True if the whole answer has hardly a chance to be there by then, if it starts after so long a wait."""
    pool, price = ticket.pool, ticket.price
    law, fastest = pool.pricing.law, pool.fastest()
    # At the best it is alone there.
    return cannot_finish(
        now,
        by_s,
        first_token_s=wait_s + ticket.cost.prefill_us / MICRO / fastest,
        step_s=(law.c0_s + law.c2_s) / fastest,
        limit_tokens=price.cap,
        survival=price.lengths.survival,
    )


def _whole_answer(ticket: Ticket, by_s: float, wait_s: float, now: float) -> Check:
    first_token_s = wait_s + ticket.cost.prefill_us / MICRO / ticket.pool.fastest()
    return Check("whole_answer", first_token_s, by_s - now, False)


def _is_mended(check: Check, chosen: list[Ticket], pool: Pool) -> bool:
    """True if this bound is kept once those chosen are gone."""
    freed: int | float = 0
    for ticket in chosen:
        if check.name == "waiting_bytes":
            freed += ticket.booking.body_bytes
        elif check.name.endswith("_requests"):
            freed += 1
        else:
            freed += pool.settings.to_gpu_s(ticket.booking.work_us)
    return check.limit is None or check.value - freed <= check.limit


def _buckets_of(ticket: Ticket) -> DeadlineBuckets:
    return ticket.pool.classes[ticket.demand.class_name].deadlines


def _ticket_of(entry: Entry) -> Ticket:
    ticket = entry.owner
    assert isinstance(ticket, Ticket)
    return ticket
