"""llm-d's flow control: priority bands in front of a saturation gate (llm-d-router, `pkg/epp/flowcontrol`, 8/2026).

- Each class is a band of its own, in order of rank; a band holds at most 5,000 requests and 1 GB. Inside a band the
  earliest deadline goes first (the `edf` and `slo-deadline` orders; the deadline is the client's, else arrival + the
  class's TTFT objective), over all flows alike (`global-strict`, its default).
- Saturation is the mean over the engines of max(queue ÷ 5, KV cache ÷ 0.8) (`utilization-detector`); an engine that was
  last read more than 0.2 s ago counts as 1. The queue is corrected for what has been sent since the engine was read:
  in flight by its own count less running and waiting as read, if that is more than nothing.
- One request may start at each arrival, and one in each millisecond: the first of the highest band that has any. A band
  whose ceiling the saturation has reached stops the whole cycle, also if it is empty.
- Ceilings: `SoftReflective`: 1 - i * saturation / (N - 1) for band i of N; from there on the band is open in one cycle
  of round(saturation / (1 - saturation)). `Static`: 1 for all, its default.
- What has waited for its TTL is turned away: here the class's wait budget, or the client's deadline if that is earlier.
  (The default is 60 s for all, with which deadlines order nothing in a band; a TTL per request came in September.)

Left out: scoring by scraped queue, KV cache and prefix (a request goes to the engine with the fewest in flight, kinder
to it than scores that stand still between two readings), in-flight eviction, the latency predictor, budgets for pools
without endpoints, round-robin and program-aware fairness. The phase of the millisecond ticks is that of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from forebay.admission.events import Event
from forebay.admission.model import Check
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.simulate.baselines.pool_law import Place, PoolLaw, Request
from forebay.simulate.baselines.waiting import Key

__all__ = ["Ceilings", "LlmD", "SoftReflective", "Static"]

QUEUE_THRESHOLD: Final = 5
KV_THRESHOLD: Final = 0.8
STALE_AFTER_S: Final = 0.2
TICKS_PER_S: Final = 1000
BAND_REQUESTS: Final = 5_000
BAND_BYTES: Final = 1_000_000_000

_EPSILON: Final = 1e-6
"""Of a tick, for times that were made by adding up."""


class Ceilings(Protocol):
    """How saturated the pool may be for each band; asked once in every cycle."""

    def ask(self, saturation: float) -> Sequence[float]:
        """The ceilings of this cycle, the most important band first."""
        ...

    def skip(self, saturation: float, cycles: int) -> None:
        """Be as if so many cycles had asked."""
        ...

    def cycles_until_open(self, saturation: float, band: int) -> int | None:
        """In which cycle from now (1 is the next) this band and all above are open; None: in none, as things are."""
        ...


class Static:
    """The same ceiling for all."""

    def __init__(self, bands: int) -> None:
        self._ceilings = (1.0,) * bands

    def ask(self, saturation: float) -> Sequence[float]:
        """They do not depend on anything."""
        return self._ceilings

    def skip(self, saturation: float, cycles: int) -> None:
        """Nothing is counted."""

    def cycles_until_open(self, saturation: float, band: int) -> int | None:
        """At once, or not until the saturation falls."""
        return 1 if saturation < 1 else None


class SoftReflective:
    """Lower bands are closed by degrees as the saturation rises; the highest never is before it is 1."""

    def __init__(self, bands: int) -> None:
        self._bands = bands
        self._counters = [0] * bands
        """Cycles that each band has been asked in while it was past its ceiling."""

    def ask(self, saturation: float) -> Sequence[float]:
        """Of a band past its ceiling, 1 in one cycle of a period and 0 in the others."""
        ceilings = [1.0]
        for band in range(1, self._bands):
            if saturation < self._reflected(saturation, band):
                ceilings.append(1.0)
            elif saturation >= 1:
                ceilings.append(0.0)
            else:
                self._counters[band] += 1
                ceilings.append(1.0 if self._counters[band] % _period(saturation) == 0 else 0.0)
        return ceilings

    def skip(self, saturation: float, cycles: int) -> None:
        """The counters go on."""
        if saturation >= 1:
            return
        for band in range(1, self._bands):
            if saturation >= self._reflected(saturation, band):
                self._counters[band] += cycles

    def cycles_until_open(self, saturation: float, band: int) -> int | None:
        """All bands that are past their ceilings have one period; counters out of step are never open together."""
        if saturation >= 1:
            return None
        period = _period(saturation)
        wanted: int | None = None
        for above in range(1, band + 1):
            if saturation >= self._reflected(saturation, above):
                cycles = period - self._counters[above] % period
                if wanted is not None and cycles != wanted:
                    return None
                wanted = cycles
        return wanted or 1

    def _reflected(self, saturation: float, band: int) -> float:
        return 1 - band * saturation / (self._bands - 1)


def _period(saturation: float) -> int:
    # Rounds halves up, as the original does; Python would round them to even.
    return max(1, math.floor(saturation / (1 - saturation + 1e-9) + 0.5))


class LlmD(PoolLaw):
    """The flow controller and its dispatch cycle."""

    def __init__(self, pool: str, settings: Settings, ceilings: Ceilings) -> None:
        super().__init__(pool, settings)
        self.ceilings = ceilings
        self._requests_of = [0] * len(settings.classes)
        self._bytes_of = [0] * len(settings.classes)
        self._tick = 0
        self._saturation = 1.0
        """As of the last cycle or event: what the ticks since then have seen."""

    def saturation(self, now: float) -> float:
        """How full the pool is: from 1 on nothing starts."""
        places = [place for place in self.places.values() if place.usable]
        return sum(_saturation(place, now) for place in places) / len(places) if places else 1.0

    # The hooks of a law

    def order(self, request: Request) -> Key:
        """By band, then by deadline."""
        stated_s = request.demand.first_token_by_s
        deadline_s = request.arrived_s + request.of_class.ttft_s if stated_s is None else stated_s
        return (request.rank, deadline_s, request.number)

    def arrived(self, request: Request, now: float) -> None:
        """It enters its band, and the dispatch cycle runs once."""
        band, size = request.rank, request.demand.body_bytes
        if self._requests_of[band] >= BAND_REQUESTS or self._bytes_of[band] + size > BAND_BYTES:
            check = Check("band_requests", self._requests_of[band], BAND_REQUESTS, False)
            self.refuse(request, Outcome.QUEUE_FULL, check, now)
            return
        self._requests_of[band] += 1
        self._bytes_of[band] += size
        self.enqueue(request)
        self._cycle(now)
        if request.place is None:
            self.tell_held(request, now)

    def unqueued(self, request: Request) -> None:
        """It no longer counts in its band."""
        self._requests_of[request.rank] -= 1
        self._bytes_of[request.rank] -= request.demand.body_bytes

    def handle(self, event: Event, now: float) -> None:
        """The ticks until now saw the state before the event."""
        self._pass_ticks(now)
        super().handle(event, now)
        self._saturation = self.saturation(now)

    def wake(self, now: float) -> None:
        """A time to live has run out, or there is a tick that lets one start."""
        ticked = self._pass_ticks(now, but_last=True)
        super().wake(now)
        if ticked:
            self._cycle(now)
        self._saturation = self.saturation(now)

    def due_s(self, now: float) -> float | None:
        """The next tick in which the first waiter may start, if nothing else happens until then."""
        request = self.first_waiting()
        if request is None:
            return None
        cycles = self.ceilings.cycles_until_open(self.saturation(now), request.rank)
        return None if cycles is None else (self._tick + cycles) / TICKS_PER_S

    # The cycle

    def _cycle(self, now: float) -> None:
        """Start one request at most."""
        saturation = self.saturation(now)
        ceilings = self.ceilings.ask(saturation)
        request = self.first_waiting()
        place = self.least_loaded()
        if request is None or place is None:
            return
        if all(saturation < ceiling for ceiling in ceilings[: request.rank + 1]):
            self.start(request, place, now)

    def _pass_ticks(self, now: float, *, but_last: bool = False) -> bool:
        """Count the ticks until now, in which nothing could start. True if one is left to run now."""
        tick = math.floor(now * TICKS_PER_S + _EPSILON)
        passed = tick - self._tick
        self._tick = max(tick, self._tick)
        if passed <= 0:
            return False
        self.ceilings.skip(self._saturation, passed - 1 if but_last else passed)
        return but_last


def _saturation(place: Place, now: float) -> float:
    sample = place.sample
    if sample is None or now - sample.at_s > STALE_AFTER_S + _EPSILON:
        return 1.0
    waiting = sample.waiting or 0
    unseen = 0
    if sample.running is not None:
        unseen = max(len(place.running) - waiting - sample.running, 0)
    return max((waiting + unseen) / QUEUE_THRESHOLD, (sample.kv_usage or 0.0) / KV_THRESHOLD)
