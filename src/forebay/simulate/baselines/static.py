"""A fixed number of requests per engine: the limit that operators set by hand, in its two usual forms.

`StaticConcurrency`: at most `limit` in flight per engine, the others wait in front, more important classes first and
inside a class in order of arrival, each for its class's wait budget at most. That is a proxy with a concurrency limit
and a queue timeout (Ray Serve's `max_ongoing_requests`, Knative's `containerConcurrency`, nginx Plus `max_conns` with
`queue … timeout=`); ranking the queue is more than most of them do, and is given to it so that it is a strong opponent.

`FixedDepth`: at most `depth` per engine, running and waiting there together; the next is refused at once. That is a
circuit breaker (Envoy's `max_requests`), or a front that answers 429 when an engine's queue is long.

Neither says when to come back. Neither has a right number: the benchmark sweeps it.
"""

from __future__ import annotations

from forebay.admission.model import Check
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.simulate.baselines.pool_law import PoolLaw, Request
from forebay.simulate.baselines.waiting import Key

__all__ = ["FixedDepth", "StaticConcurrency"]


class StaticConcurrency(PoolLaw):
    """At most so many in flight per engine, the rest in a queue."""

    def __init__(self, pool: str, settings: Settings, limit: int) -> None:
        super().__init__(pool, settings)
        self.limit = limit

    def order(self, request: Request) -> Key:
        """By class, then by arrival."""
        return (request.rank, request.number)

    def arrived(self, request: Request, now: float) -> None:
        """Start it, or let it wait. Nobody waits while there is room, so what room there is is for the newcomer."""
        place = self.least_loaded()
        if place is not None and len(place.running) < self.limit:
            self.start(request, place, now)
        else:
            self.hold(request, now)

    def room(self, now: float) -> None:
        """Let waiters start while there is room."""
        while (request := self.first_waiting()) is not None:
            place = self.least_loaded()
            if place is None or len(place.running) >= self.limit:
                return
            self.start(request, place, now)


class FixedDepth(PoolLaw):
    """At most so many per engine, no queue."""

    def __init__(self, pool: str, settings: Settings, depth: int) -> None:
        super().__init__(pool, settings)
        self.depth = depth

    def arrived(self, request: Request, now: float) -> None:
        """Start it, or refuse it."""
        place = self.least_loaded()
        if place is not None and len(place.running) < self.depth:
            self.start(request, place, now)
        else:
            held = 0 if place is None else len(place.running)
            self.refuse(request, Outcome.QUEUE_FULL, Check("depth", held, self.depth, False), now)
