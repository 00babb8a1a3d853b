"""What is offered in each scenario: the requests of a trace, warped in time, and what goes wrong meanwhile.

A scenario is made from requests that come at load 1. Its profile says which load is offered when; times are warped so
that the work offered by each moment is what the profile says, which keeps the order of requests and the shape of their
bursts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forebay.admission.settings import Settings
from forebay.load.synthetic import read_source
from forebay.simulate.faults import Fault, MetricsLost, ReplicaLost, ReplicaSlow
from forebay.simulate.place import EngineSetup
from forebay.simulate.request import Planned
from forebay.simulate.run import Setup
from forebay.simulate.scenario import Workload, build, drawn

Profile = Sequence[tuple[float, float]]
"""Stretches: part of the whole time, and the load in it."""

LOADS: Final = (0.5, 0.8, 1.0, 1.1, 1.5, 2.0, 3.0)
FLOOD: Final = "flood"
FLOOD_LOAD: Final = 3.0
_CALM_LOAD: Final = 0.7
_SHIFT: Final = ("synthetic:chat", "synthetic:documents")
_READ_FOR_WINDOWS: Final = 40_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of them."""

    name: str
    about: str
    replicas: int
    make: Callable[[Source, Settings, Sequence[EngineSetup], int], tuple[Workload, tuple[Fault, ...]]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where requests come from."""

    trace: str
    """A path, or `synthetic:NAME`."""
    requests: int
    """Of a cell."""

    @property
    def name(self) -> str:
        return self.trace.rpartition("/")[2].partition(".")[0].removeprefix("synthetic:")

    def at_load_one(self, settings: Settings, fleet: Sequence[EngineSetup], seed: int) -> Workload:
        """Another stretch of the trace for each seed."""
        if self.trace.startswith("synthetic:"):
            rows = list(read_source(f"{self.trace},seed={seed},seconds=20000", self.requests))
        else:
            known = list(read_source(self.trace, _READ_FOR_WINDOWS))
            first = int(drawn(seed, "window", 0) * max(len(known) - self.requests, 0))
            rows = known[first : first + self.requests]
        return build(rows, settings, fleet, seed=seed, load=1.0)


def warped(workload: Workload, profile: Profile) -> Workload:
    """The same requests, offered at the loads of the profile instead of at load 1."""
    whole = sum(part * load for part, load in profile)
    total_s = workload.duration_s / whole
    starts: list[tuple[float, float, float]] = []
    offered_s = at_s = 0.0
    for part, load in profile:
        starts.append((offered_s, at_s, load))
        offered_s += part * load * total_s
        at_s += part * total_s

    def when(one: Planned) -> float:
        begun_s, from_s, load = next(start for start in reversed(starts) if start[0] <= one.at_s)
        return from_s + (one.at_s - begun_s) / load

    requests = tuple(replace(one, at_s=when(one)) for one in workload.requests)
    return replace(workload, requests=requests, duration_s=total_s, load=whole)


def steady(load: float) -> Scenario:
    """The load of the trace itself, in its own bursts."""
    return Scenario(
        f"load {load:g}",
        f"offered work is {load:g} times what the engine can do",
        1,
        lambda source, settings, fleet, seed: (
            warped(source.at_load_one(settings, fleet, seed), [(1.0, load)]),
            (),
        ),
    )


def _profiled(name: str, about: str, profile: Profile) -> Scenario:
    return Scenario(
        name,
        about,
        1,
        lambda source, settings, fleet, seed: (
            warped(source.at_load_one(settings, fleet, seed), profile),
            (),
        ),
    )


def _faulty(
    name: str, about: str, replicas: int, load: float, fault: Callable[[float, float], tuple[Fault, ...]]
) -> Scenario:
    """Something goes wrong in the middle third."""

    def make(
        source: Source, settings: Settings, fleet: Sequence[EngineSetup], seed: int
    ) -> tuple[Workload, tuple[Fault, ...]]:
        workload = warped(source.at_load_one(settings, fleet, seed), [(1.0, load)])
        return workload, fault(workload.duration_s / 3, 2 * workload.duration_s / 3)

    return Scenario(name, about, replicas, make)


def _flood(
    source: Source, settings: Settings, fleet: Sequence[EngineSetup], seed: int
) -> tuple[Workload, tuple[Fault, ...]]:
    """Some of the requests become one tenant's, and come in the middle third."""
    workload = source.at_load_one(settings, fleet, seed)
    whole = _CALM_LOAD + FLOOD_LOAD / 3
    total_s = workload.duration_s / whole
    requests = []
    for one in workload.requests:
        part = one.at_s / workload.duration_s
        if drawn(seed, "flood", one.index) < _CALM_LOAD / whole:
            tenant = one.tenant if one.tenant != "anonymous" else f"t{one.index % 5}"
            requests.append(replace(one, at_s=part * total_s, tenant=tenant))
        else:
            requests.append(replace(one, at_s=(1 + part) * total_s / 3, tenant=FLOOD))
    requests.sort(key=lambda one: (one.at_s, one.index))
    return replace(workload, requests=tuple(requests), duration_s=total_s, load=whole), ()


def _mix_shift(
    source: Source, settings: Settings, fleet: Sequence[EngineSetup], seed: int
) -> tuple[Workload, tuple[Fault, ...]]:
    """Chats, and from the middle on documents, at the same load."""
    halves = [
        warped(Source(trace, source.requests // 2).at_load_one(settings, fleet, seed), [(1.0, 1.2)])
        for trace in _SHIFT
    ]
    chats, documents = halves
    later = tuple(
        replace(one, at_s=one.at_s + chats.duration_s, index=one.index + len(chats.requests))
        for one in documents.requests
    )
    both = replace(
        chats, requests=(*chats.requests, *later), duration_s=chats.duration_s + documents.duration_s
    )
    return both, ()


SCENARIOS: Final = (
    *(steady(load) for load in LOADS),
    _profiled("step", "load 0.5, then 2, then 0.5 again", [(1 / 3, 0.5), (1 / 3, 2.0), (1 / 3, 0.5)]),
    _profiled("flash crowd", "load 0.6, and five times that for a tenth", [(0.4, 0.6), (0.1, 3.0), (0.5, 0.6)]),
    Scenario("one-tenant flood", "load 0.7 by all, and 3 by one tenant in the middle third", 1, _flood),
    Scenario("mix shift", "chats, then documents, at load 1.2 (not of the trace)", 1, _mix_shift),
    _faulty(
        "replica loss", "one of three is gone in the middle third, at load 0.9", 3, 0.9,
        lambda from_s, to_s: (ReplicaLost(0, from_s, to_s),),
    ),
    _faulty(
        "slow replica", "one of three takes twice as long in the middle third, at load 0.9", 3, 0.9,
        lambda from_s, to_s: (ReplicaSlow(0, from_s, 2.0, to_s),),
    ),
    _faulty(
        "metrics outage", "no metrics of both engines in the middle third, at load 1.2", 2, 1.2,
        lambda from_s, to_s: (MetricsLost(0, from_s, to_s), MetricsLost(1, from_s, to_s)),
    ),
)  # fmt: skip


def setup_of(
    scenario: Scenario, source: Source, settings: Settings, fleet: Sequence[EngineSetup], seed: int
) -> Setup:
    """Everything of a cell but its policy."""
    workload, faults = scenario.make(source, settings, fleet, seed)
    if not workload.shares_prompts:  # nothing to find in their caches: a sixth less to work out
        fleet = [replace(one, config=replace(one.config, prefix_caching=False)) for one in fleet]
    return Setup(settings, fleet, workload, seed, faults=faults)
