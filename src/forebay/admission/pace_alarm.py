"""Prompts that only their pace holds up, on time: looks for room again when the first of them may enter.

Pacing opens by time alone, so no event says that it has. `filling` finds the moment for those that it looks at; a
newcomer that begins to wait was not among them. One timer serves a pool; one that was set before an earlier moment
became known means nothing any more when it is due.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from forebay.admission.pools import Pool
from forebay.admission.tickets import Ticket
from forebay.admission.timers import Timers


class PaceAlarm:
    """The alarms of one controller's pools."""

    def __init__(self, timers: Timers, fill: Callable[[Pool, float], None]) -> None:
        self._timers = timers
        self._fill = fill

    def arm(self, pool: Pool, until_s: float) -> None:
        """Pacing lets somebody enter at `until_s`; infinite if it holds up nobody."""
        if until_s < pool.pace_armed_s:
            pool.pace_armed_s = until_s
            self._timers.at(until_s, self._due, pool)

    def held(self, ticket: Ticket, now: float) -> None:
        """A newcomer begins to wait."""
        pool = ticket.pool
        if pool.has_place(now):
            for endpoint in pool.endpoints.values():
                self.arm(pool, min(endpoint.paced_until_s(ticket, now), endpoint.opens_s(now)))
            if pool.ceilings is not None:
                self.arm(pool, pool.ceilings.opens_s(now))

    def _due(self, pool: Pool, now: float) -> None:
        if now < pool.pace_armed_s:
            return
        pool.pace_armed_s = inf
        self._fill(pool, now)
