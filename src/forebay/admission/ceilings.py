"""Classes that start only while their pool is used less than they allow (`admit_below_utilization`).

For work that fills gaps. At or above its ceiling a class is shut: it is passed over, saves no share meanwhile, is left
out of the work that is ahead of others, and keeps no endpoint free for itself. So it never holds up anybody else.

    shut   while  max(mean, level) ≥ ceiling   and the pool has something in flight

`mean` is the pool's utilisation, the mean of its endpoints' over ten seconds (`utilization`); `level` the same of what
is booked at this moment. The mean alone would let a whole queue in before it rises; the level alone would take every
lull between two arrivals for a gap. A pool with nothing in flight is never shut, so that nobody waits at idle engines.

Looked at again before each start. The level falls with events only, the mean by time alone: `opens_s` says when.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log

from forebay.admission.endpoints import Endpoint
from forebay.admission.ledger import PoolBooks
from forebay.admission.model import EndpointId
from forebay.admission.queues import PoolQueue
from forebay.admission.settings import ClassSettings
from forebay.admission.utilization import MEAN_S


class Ceilings:
    """The ceilings of one pool, and what its use was when last looked at."""

    __slots__ = ("_books", "_endpoints", "_limits", "_queue", "level", "mean")

    def __init__(
        self,
        queue: PoolQueue,
        limits: list[tuple[int, float]],
        endpoints: dict[EndpointId, Endpoint],
        books: PoolBooks,
    ) -> None:
        """Rank and ceiling of each class that has one, and what the pool has: looked at, never changed."""
        self._queue = queue
        self._limits = limits
        self._endpoints = endpoints
        self._books = books
        self.mean = 0.0
        self.level = 0.0

    def look(self, now: float) -> None:
        """Shut and open the classes by how much the pool is used now."""
        self.mean, self.level = use_of(self._endpoints.values(), now)
        used = max(self.mean, self.level)
        idle = not self._books.in_flight.requests
        for index, ceiling in self._limits:
            self._queue.set_shut(index, shut=not idle and used >= ceiling)

    def is_shut(self, index: int, now: float) -> bool:
        """True if this class may start nothing now, wherever there is room."""
        queue = self._queue.classes[index]
        if queue.rules.has_ceiling:
            self.look(now)
        return queue.shut

    def opens_s(self, now: float) -> float:
        """When the first shut class with waiters opens if nothing happens till then; infinite if time does not do it.

        As of the last look.
        """
        first_s = inf
        for index, ceiling in self._limits:
            queue = self._queue.classes[index]
            if queue.shut and queue.count and self.level < ceiling <= self.mean:
                # A hair later: at the moment itself, rounding may still call it shut.
                wait_s = MEAN_S * log((self.mean - self.level) / (ceiling - self.level)) + 1e-3
                first_s = min(first_s, now + wait_s)
        return first_s


def ceilings_of(
    queue: PoolQueue,
    classes: tuple[ClassSettings, ...],
    endpoints: dict[EndpointId, Endpoint],
    books: PoolBooks,
) -> Ceilings | None:
    """The ceilings of a pool with these classes; None if none has one."""
    limits = [
        (index, c.admit_below_utilization)
        for index, c in enumerate(classes)
        if c.admit_below_utilization is not None
    ]
    return Ceilings(queue, limits, endpoints, books) if limits else None


def use_of(endpoints: Iterable[Endpoint], now: float) -> tuple[float, float]:
    """Mean over the endpoints that are up of (utilisation, level at this moment); zero if none is."""
    count, mean, level = 0, 0.0, 0.0
    for endpoint in endpoints:
        if endpoint.is_up:
            count += 1
            mean += endpoint.utilization.value(now)
            level += _level_of(endpoint)
    return (mean / count, level / count) if count else (0.0, 0.0)


def _level_of(endpoint: Endpoint) -> float:
    """As `Endpoint.follow` observes it, but of what is booked at this moment: a start raises it at once."""
    limit, _ = endpoint.request_limit
    level = endpoint.books.requests / limit if limit else 1.0
    capacity = endpoint.kv_capacity
    if capacity:
        level = max(level, endpoint.forecast.peak() / capacity)
    return min(max(level, endpoint.utilization.rho), 1.0)
