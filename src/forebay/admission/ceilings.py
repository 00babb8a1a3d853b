"""Classes that may not start for a time: those at their ceiling, and those that had their share.

A class that is shut is passed over, saves no share meanwhile, is left out of the work that is ahead of others, and
keeps no endpoint free for itself. So it never holds up anybody else. While something is in flight it is shut

    by `admit_below_utilization`   while max(mean, level) ≥ that: for work that fills gaps
    by `max_share`                 while it had more than that of what was charged lately, and a class waits that is
                                   neither; also if what waits there does not fit yet, or small requests of this one
                                   would take each piece of room before it is enough for a large one of the other.
                                   What is left of that fades: hardly anything is above no share

A class that waits at its ceiling, or of which no engine that is up can serve anything, could use nothing of what others
get. It shuts nobody, and what others are charged meanwhile is not held against them (`ClassQueue.wants`).

`mean` is the pool's utilisation, the mean of its endpoints' over ten seconds (`utilization`); `level` the same of what
is booked at this moment. The mean alone would let a whole queue in before it rises; the level alone would take every
lull between two arrivals for a gap. A pool with nothing in flight is never shut, so that nobody waits at idle engines.

Looked at again before each start. The level falls with events only, the mean and what a class had by time
alone: `opens_s` says when.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log

from forebay.admission.class_queue import ClassQueue
from forebay.admission.endpoints import Endpoint
from forebay.admission.ledger import PoolBooks
from forebay.admission.model import MICRO, Check, EndpointId
from forebay.admission.queues import PoolQueue
from forebay.admission.settings import ClassSettings
from forebay.admission.tickets import Ticket
from forebay.admission.utilization import MEAN_S
from forebay.admission.waiter import Waiter


class Ceilings:
    """The classes of one pool that may be shut, and what its use was when last looked at."""

    __slots__ = ("_books", "_capped", "_endpoints", "_limits", "_queue", "level", "mean")

    def __init__(
        self,
        queue: PoolQueue,
        limits: list[tuple[int, float]],
        capped: list[int],
        endpoints: dict[EndpointId, Endpoint],
        books: PoolBooks,
    ) -> None:
        """See the module.

        Args:
            queue: looked at, and its classes are shut and opened.
            limits: rank and ceiling of each class that has one.
            capped: ranks of those with a `max_share`.
            endpoints: of the pool, looked at.
            books: of the pool, looked at.
        """
        self._queue = queue
        self._limits = limits
        self._capped = capped
        self._endpoints = endpoints
        self._books = books
        self.mean = 0.0
        self.level = 0.0

    def look(self, now: float) -> None:
        """Shut and open the classes by how much the pool is used now, and what they had."""
        queue = self._queue
        idle = not self._books.in_flight.requests
        for index in self._capped:
            queue.set_shut(index, shut=False)
        if self._limits:
            self.mean, self.level = use_of(self._endpoints.values(), now)
            used = max(self.mean, self.level)
            for index, ceiling in self._limits:
                queue.set_shut(index, shut=not idle and used >= ceiling)
        if queue.has_shares:
            for of_class in queue.classes:
                of_class.wants = not of_class.count or (not of_class.shut and self._may_be_served(of_class))
        if idle or not self._capped:
            return
        us_per_s = 0.0
        for endpoint in self._endpoints.values():
            if endpoint.is_up:
                us_per_s += endpoint.meter.speed * MICRO
        queue.window.look(us_per_s, now)
        above = [i for i in self._capped if queue.window.is_above(i, queue.classes[i].rules.max_share)]
        if above and self._others_wait(above):
            for index in above:
                queue.set_shut(index, shut=True)

    def is_shut(self, index: int, now: float) -> bool:
        """True if this class may start nothing now, wherever there is room."""
        queue = self._queue.classes[index]
        if queue.rules.may_shut:
            self.look(now)
        return queue.shut

    def what_shuts(self, index: int) -> Check:
        """Why a class that is shut is, as of the last look."""
        used = max(self.mean, self.level)
        for limited, ceiling in self._limits:
            if limited == index and used >= ceiling:
                return Check("admit_below_utilization", used, ceiling, False)
        queue = self._queue
        return Check("max_share", queue.window.share_of(index), queue.classes[index].rules.max_share, False)

    def _others_wait(self, above: list[int]) -> bool:
        for queue in self._queue.classes:  # noqa: SIM110 - a generator costs more than the whole loop
            if queue.count and queue.wants and queue.index not in above:
                return True
        return False

    def _may_be_served(self, queue: ClassQueue) -> bool:
        """False if no engine that is up can ever hold what waits there: neither the next, nor the smallest."""
        head, smallest = queue.head, queue.kv.first()
        return (head is not None and self._is_for_one_up(head)) or (
            smallest is not None and self._is_for_one_up(smallest)
        )

    def _is_for_one_up(self, waiter: Waiter) -> bool:
        assert isinstance(waiter, Ticket)
        for endpoint in self._endpoints.values():
            if (
                endpoint.is_up
                and endpoint.share
                and endpoint.id not in waiter.tried
                and endpoint.can_ever_hold(waiter)
            ):
                return True
        return False

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
        for index in self._capped:
            queue = self._queue.classes[index]
            if queue.shut and queue.count:
                faded_s = self._queue.window.faded_s(index) + 1e-3
                if now < faded_s < first_s:
                    first_s = faded_s
        return first_s


def ceilings_of(
    queue: PoolQueue,
    classes: tuple[ClassSettings, ...],
    endpoints: dict[EndpointId, Endpoint],
    books: PoolBooks,
) -> Ceilings | None:
    """For a pool with these classes; None if none may be shut."""
    limits = [
        (index, c.admit_below_utilization)
        for index, c in enumerate(classes)
        if c.admit_below_utilization is not None
    ]
    capped = [index for index, c in enumerate(classes) if c.max_share < 1.0]
    return Ceilings(queue, limits, capped, endpoints, books) if limits or capped else None


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
