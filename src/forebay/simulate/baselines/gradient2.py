"""Netflix Gradient2: a concurrency limit per engine that follows the gradient of latency.

Read in Netflix/concurrency-limits: `Gradient2Limit`, `WindowedLimit`, `ExpAvgMeasurement`, `AbstractPartitionedLimiter`
(their newest form, with `rttTolerance`). With its defaults:

    gradient = max(0.5, min(1, 1.5 · long / short))
    limit    = 0.8 · limit + 0.2 · (limit · gradient + 4),   within 20 and 200, and 20 at first

`short` is the mean latency (dispatch to end) of a window of one second; `long` is its moving average over 600 windows
(plain mean of the first ten), shrunk by a twentieth where it is more than twice `short`. Windows with fewer than ten
ends are thrown away. Nothing changes while fewer than half of the limit was in flight.

At the limit the newcomer is refused at once, unless its class is below its guaranteed part (a partition; here by the
classes' weights, rounded up). There is no queue, and no word of when to come back. One limiter for each engine; the
request goes to the engine with the fewest in flight.

Not faithful: a limiter measures at the client of one service, and this one sits in a gateway. A client that leaves
gives no sample (`onIgnore`); a failed attempt gives none either, though a limiter would be told of a drop, which
Gradient2 ignores.
"""

from __future__ import annotations

import math
from typing import Final

from forebay.admission.model import Check, EndpointId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.simulate.baselines.pool_law import Place, PoolLaw, Request

__all__ = ["Gradient2", "Gradient2Limit", "WindowedLimit"]

INITIAL_LIMIT: Final = 20
MIN_LIMIT: Final = 20
MAX_LIMIT: Final = 200
SMOOTHING: Final = 0.2
QUEUE_SIZE: Final = 4
TOLERANCE: Final = 1.5
LONG_WINDOW: Final = 600
WARM_UP: Final = 10
"""Windows of which `long` is the plain mean."""
WINDOW_S: Final = 1.0
WINDOW_SAMPLES: Final = 10
LEAST_RTT_S: Final = 100e-6


class Gradient2Limit:
    """The law of the limit. Owns one limit; is told one mean latency per window."""

    def __init__(self) -> None:
        self.estimate = float(INITIAL_LIMIT)
        self.long_s = 0.0
        self._windows = 0
        self._sum_s = 0.0

    @property
    def limit(self) -> int:
        """Requests that may be in flight."""
        return int(self.estimate)

    def update(self, short_s: float, in_flight: int) -> None:
        """A window has ended: its mean latency, and the most that were in flight."""
        long_s = self._add(short_s)
        if long_s / short_s > 2:
            self.long_s *= 0.95
        if in_flight < self.estimate / 2:
            return
        gradient = max(0.5, min(1.0, TOLERANCE * long_s / short_s))
        wanted = self.estimate * gradient + QUEUE_SIZE
        smoothed = self.estimate * (1 - SMOOTHING) + wanted * SMOOTHING
        self.estimate = max(MIN_LIMIT, min(MAX_LIMIT, smoothed))

    def _add(self, short_s: float) -> float:
        if self._windows < WARM_UP:
            self._windows += 1
            self._sum_s += short_s
            self.long_s = self._sum_s / self._windows
        else:
            factor = 2 / (LONG_WINDOW + 1)
            self.long_s = self.long_s * (1 - factor) + short_s * factor
        return self.long_s


class WindowedLimit:
    """Gathers latencies into windows of a second."""

    def __init__(self) -> None:
        self.law = Gradient2Limit()
        self._until_s = 0.0
        self._samples = 0
        self._sum_s = 0.0
        self._most_in_flight = 0

    def sample(self, rtt_s: float, in_flight: int, now: float) -> None:
        """A request has ended; so many were in flight when it started, itself among them."""
        if rtt_s < LEAST_RTT_S:
            return
        self._samples += 1
        self._sum_s += rtt_s
        self._most_in_flight = max(self._most_in_flight, in_flight)
        if now <= self._until_s:
            return
        if self._samples >= WINDOW_SAMPLES:
            self.law.update(self._sum_s / self._samples, self._most_in_flight)
        self._until_s = now + WINDOW_S
        self._samples, self._sum_s, self._most_in_flight = 0, 0.0, 0


class Gradient2(PoolLaw):
    """One limiter for each engine, partitioned by class."""

    def __init__(self, pool: str, settings: Settings) -> None:
        super().__init__(pool, settings)
        total = sum(c.weight for c in settings.classes)
        self._shares = [c.weight / total for c in settings.classes]
        self.limits: dict[EndpointId, WindowedLimit] = {}

    def changed(self, now: float) -> None:
        """Engines that are gone take their limits with them."""
        self.limits = {endpoint: self.limits.get(endpoint) or WindowedLimit() for endpoint in self.places}

    def arrived(self, request: Request, now: float) -> None:
        """Start it, or refuse it."""
        place = self.least_loaded()
        if place is None:
            return
        limit = self.limits[place.id].law.limit
        if len(place.running) < limit or self._below_its_part(request, place, limit):
            self.start(request, place, now)
        else:
            check = Check("concurrency", len(place.running), limit, False)
            self.refuse(request, Outcome.QUEUE_FULL, check, now)

    def stopped(self, request: Request, outcome: Outcome | None, usage: Usage | None, now: float) -> None:
        """A whole answer is a sample of the engine's latency."""
        limit = None if request.last_place is None else self.limits.get(request.last_place)
        if outcome is Outcome.COMPLETED and limit is not None:
            limit.sample(now - request.started_s, request.started_as, now)

    def _below_its_part(self, request: Request, place: Place, limit: int) -> bool:
        part = max(1, math.ceil(limit * self._shares[request.rank]))
        return sum(running.rank == request.rank for running in place.running.values()) < part
