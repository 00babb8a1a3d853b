"""Waiters that go so that others can stay or come: at a bound that refuses an arrival, and when not all can be on time.

Who goes is `triage`'s to choose. This lets them go, in that order, and has the arrival examined again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from forebay.admission import triage
from forebay.admission.gate import Verdict
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.outcomes import Outcome
from forebay.admission.patience import Patience
from forebay.admission.pools import Pool
from forebay.admission.standing import Standing
from forebay.admission.tickets import WAITING, Ticket
from forebay.admission.timers import Timers

_QUEUE_FULL: Final = Outcome.QUEUE_FULL


class Displacing:
    """The victims of one controller."""

    def __init__(  # noqa: PLR0917 - parts of one controller
        self,
        life: Lifecycle,
        standing: Standing,
        patience: Patience,
        timers: Timers,
        examine: Callable[[Ticket, float], Verdict],
        fill: Callable[[Pool, float], None],
    ) -> None:
        """See the module.

        Args:
            examine: what the gate says of an arrival.
            fill: told when somebody's going may let others start.
        """
        self._life = life
        self._standing = standing
        self._patience = patience
        self._timers = timers
        self._examine = examine
        self._fill = fill

    def make_room(self, ticket: Ticket, verdict: Verdict, now: float) -> Verdict:
        """Bounds refuse it: those who wait in vain go, and others if that lets it in. What the gate says then."""
        hopeless = triage.in_vain(ticket, verdict, now)
        if hopeless:
            for waiter, check in hopeless:
                if waiter.phase is WAITING:  # the going of one may have let another start
                    self._patience.give_up(waiter, check, now)
            verdict = self._examine(ticket, now)
            if verdict.outcome is not _QUEUE_FULL and not verdict.takes_over:
                return verdict
        victims = triage.room_for(ticket, verdict, self._life.settings.displace, now)
        if victims:
            self._displace(victims, ticket, now)
            verdict = self._examine(ticket, now)
        return verdict

    def thin_out(self, newcomer: Ticket, now: float) -> None:
        """Not all of its class can be on time any more: some go now, and if there are more, at the next wake."""
        pool = newcomer.pool
        state = pool.classes[newcomer.demand.class_name]
        late = triage.late_ones(state, pool, self._life.settings.displace, now)
        if late:
            self._displace(late, newcomer, now, late=True)
        if len(late) >= triage.VICTIMS_MAX:
            self._timers.at(now, self.thin_out, newcomer)

    def _displace(self, victims: list[Ticket], newcomer: Ticket, now: float, *, late: bool = False) -> None:
        for victim in victims:
            self._standing.displaced(victim, now)
            check, detail = triage.why_displaced(victim, newcomer, late=late)
            self._life.evict(victim, Outcome.DISPLACED, now, check, detail)
        self._fill(newcomer.pool, now)  # an endpoint may have been kept free for one of them
