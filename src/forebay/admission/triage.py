"""Who goes when not all can stay: room for a newcomer at a bound, sets that cannot all be on time, waits in vain.

It chooses and does nothing: `controller` evicts those named here. The rules of who may go are in `shedding`, the
arithmetic of deadlines in `feasibility`; this looks them up for one pool.

- **A bound is reached** (`queue_full`): waiters of less important classes, or with `displace: same` of the newcomer's
  own class with less value per GPU-second, make room, at most four and only if that is enough.
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
from forebay.admission.feasibility import Entry
from forebay.admission.gate import CLASS_BOUNDS, HOPELESS, POOL_BOUNDS, Verdict
from forebay.admission.model import MICRO, Check
from forebay.admission.pools import Pool
from forebay.admission.settings import Displace
from forebay.admission.shedding import HOPELESS_BELOW, cannot_start, victim_key
from forebay.admission.tickets import WAITING, Ticket

VICTIMS_MAX: Final = 4
SHORT_PREFILL: Final = 0.2
LOOKED_AT: Final[tuple[float, ...]] = (0.5, 0.8)
"""Parts of its wait after which a waiter is looked at."""

_OFF: Final = Displace.OFF
_SAME: Final = Displace.SAME


class _Spared:
    """Says no to those already chosen, and to those worth no less than the newcomer."""

    __slots__ = ("_chosen", "_density")

    def __init__(self, chosen: list[Ticket], density: float | None) -> None:
        self._chosen = chosen
        self._density = density

    def allows(self, entry: Entry) -> bool:
        """True if this one may go."""
        ticket = entry.owner
        if ticket in self._chosen:
            return False
        return self._density is None or entry.value < self._density * max(entry.work_us, 1)


def room_for(ticket: Ticket, verdict: Verdict, displace: Displace, now: float) -> list[Ticket]:
    """Waiters whose going lets this arrival pass the bounds that refuse it; none if it would not be enough."""
    if displace is _OFF:
        return []
    failed = [check for check in verdict.checks if not check.passed and check.name != HOPELESS]
    chosen: list[Ticket] = []
    while failed and len(chosen) < VICTIMS_MAX:
        in_own_class = False
        for check in failed:
            if check.name in CLASS_BOUNDS:
                in_own_class = True
            elif check.name not in POOL_BOUNDS:
                return []  # no going of others mends that
        victim = _least(ticket, chosen, displace, now, own_class_only=in_own_class)
        if victim is None:
            return []
        chosen.append(victim)
        failed = [check for check in failed if not _is_mended(check, chosen, ticket.pool)]
    return [] if failed else chosen


def late_ones(state: ClassState, pool: Pool, displace: Displace, now: float) -> list[Ticket]:
    """Waiters of a class that are given up so that the rest can be on time."""
    if displace is not _SAME or not pool.learning.may_refuse:
        return []
    rate = pool.class_rate_us_per_s(state.settings.name)
    return [_ticket_of(e) for e in state.deadlines.take_victims(now, rate, VICTIMS_MAX)]


def lost_from_s(ticket: Ticket) -> float:
    """When a stream that has not started by then cannot have its first token in time: its prompt takes too long.

    Never where the class may wait for longer than its objective: then being late is allowed. Nor for a long prompt, of
    more than `SHORT_PREFILL` of the objective: a request's own service time is not held against it, and this only
    keeps the last moments of a wait from ending in an answer that is late for certain.
    """
    settings = ticket.settings
    if not ticket.demand.stream or settings.wait_budget_s > settings.ttft_s:
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
    base_s = pool.base_wait_s(name, pool.queue.work_ahead(ticket)[0], ticket.work_us, now)
    low_s = pool.classes[name].waits.at_quantile(base_s, HOPELESS_BELOW)
    if not cannot_start(now, ticket.deadline_s, low_s):
        return None
    return Check("least_wait", low_s, ticket.deadline_s - now, False)


def _least(
    newcomer: Ticket, chosen: list[Ticket], displace: Displace, now: float, *, own_class_only: bool
) -> Ticket | None:
    """The next to go of all that this newcomer may push out."""
    best: Ticket | None = None
    best_key: tuple[int, int, float, int] | None = None
    density = newcomer.settings.value / max(newcomer.booking.work_us, 1)
    for state in newcomer.pool.classes.values():
        is_own = state.index == newcomer.rank
        if state.index < newcomer.rank or (is_own and displace is not _SAME):
            continue
        if own_class_only and not is_own:
            continue
        found = state.deadlines.least_valuable(now, _Spared(chosen, density if is_own else None).allows)
        if found is None:
            continue
        key = victim_key(
            above_share=found.above_share,
            rank=state.index,
            value=found.value,
            work_us=found.work_us,
            sequence=found.sequence,
        )
        if best_key is None or key < best_key:
            best, best_key = _ticket_of(found), key
    return best


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


def _ticket_of(entry: Entry) -> Ticket:
    ticket = entry.owner
    assert isinstance(ticket, Ticket)
    return ticket
