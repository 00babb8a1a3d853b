"""The guard of what was learned, on time: an engine that stands idle while requests are refused on predictions.

What trips it is `learning`'s business and which engine has been idle for how long is the pool's. This asks when that
may have changed, and once more when it would be due if nothing else happened.
"""

from __future__ import annotations

from math import inf

from forebay.admission.pools import Pool
from forebay.admission.timers import Timers


class IdleGuard:
    """The guards of one controller's pools."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def look(self, pool: Pool, now: float) -> None:
        """An endpoint became idle or busy, came or went, or a request was refused on its predicted wait."""
        pool.watch_idle(now)
        due_s = pool.learning.guard_due_s()
        if due_s is not None and now < due_s < pool.guard_armed_s:
            pool.guard_armed_s = due_s
            self._timers.at(due_s, self._due, pool)

    def _due(self, pool: Pool, now: float) -> None:
        pool.guard_armed_s = inf
        self.look(pool, now)
