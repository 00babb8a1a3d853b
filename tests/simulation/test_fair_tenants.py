"""Two greedy tenants ask for ten times as much as a quiet one, in the same class: what the quiet one feels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from forebay.admission.model import TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.config.mapping import law_of
from forebay.enginemodel.profile import EngineConfig
from forebay.load.workload import Lengths, Part, Phase, arrivals, capacity_rps
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.request import Planned, planned
from forebay.simulate.world import World

PROFILE = load_profile("llama3-8b-a100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE, kv_tokens=60_000)
LAW = replace(law_of(PROFILE), kv_tokens=CONFIG.kv_tokens, max_requests=CONFIG.max_num_seqs)
STANDARD = next(c for c in ZERO_CONFIGURATION_CLASSES if c.name == "standard")
QUIET, GREEDY = "quiet", ("greedy-1", "greedy-2")
QUIET_LOAD = 0.06
"""Part of what two engines can serve. The three together ask for a quarter more than that, and for five times as much
as the slots let through."""
SECONDS, FROM_S = 90.0, 20.0
"""How long it goes on, and what is left out: by then lengths and waits are known."""
EVEN = (Part("standard", 1.0, Lengths(300, 0.0, 40, 2000), Lengths(60, 0.5, 8, 250)),)
"""Requests that look alike when they come; how long their answers are differs."""
UNEVEN = (Part("standard", 1.0, Lengths(300, 0.6, 40, 2000), Lengths(60, 0.5, 8, 250)),)


@dataclass
class Wait:
    """One request of the quiet tenant while it was the first of its tenant to wait."""

    ticket: int
    from_s: float
    until_s: float
    passed: list[int]
    """Requests of others that started in that time."""


@dataclass
class Run:
    """One run, and whose request each was."""

    world: World
    names: list[str]
    coming: list[Planned]

    def ttfts(self) -> list[float]:
        """Times to first token of the quiet tenant, sorted; all of its requests must be served."""
        mine = [s for s in self.world.settled if s.tenant == QUIET and self.came(s.ticket) >= FROM_S]
        assert {Outcome.COMPLETED} == {s.outcome for s in mine}, "a quiet tenant is never turned away"
        return sorted(s.ttft_s for s in mine if s.ttft_s is not None)

    def came(self, ticket: int) -> float:
        return self.coming[ticket - 1].at_s

    def waits(self) -> Iterator[Wait]:
        """Of each quiet request the time for which it was the first of its tenant to wait."""
        since_s = 0.0
        started: list[tuple[float, int]] = []
        for at_s, ticket in self.world.dispatched:
            if self.names[ticket - 1] != QUIET:
                started.append((at_s, ticket))
                continue
            came_s = self.came(ticket)
            if came_s >= FROM_S:
                passed = [other for then_s, other in started if then_s >= came_s]
                yield Wait(ticket, max(came_s, since_s), at_s, passed)
            since_s, started = at_s, []

    def check_order(self) -> None:
        """The bound on what is served before a request of the quiet tenant, for each of them.

        Of each other tenant one request, and beyond it no more than its own cost, what that tenant got back meanwhile
        for requests that were charged too much, and what its own tenant was charged on top for such that took more.
        """
        settled = {s.ticket: s for s in self.world.settled}
        for wait in self.waits():
            own = settled[TicketId(wait.ticket)]
            for name in GREEDY:
                costs = [
                    settled[TicketId(other)].estimated_gpu_s
                    for other in wait.passed
                    if self.names[other - 1] == name
                ]
                allowed = own.estimated_gpu_s + self.corrected(name, wait.from_s, wait.until_s)
                # What requests are expected to cost is learned on meanwhile, and may change by a hair.
                assert sum(costs[1:]) <= allowed * 1.01

    def corrected(self, other: str, from_s: float, until_s: float) -> float:
        """What this tenant got back, and the quiet one was charged on top, for what ended in this time."""
        total = 0.0
        for s in self.world.settled:
            if from_s <= s.at_s <= until_s:
                on_top = s.charged_gpu_s - s.estimated_gpu_s
                if s.tenant == QUIET:
                    total += max(on_top, 0.0)
                elif s.tenant == other:
                    total += max(-on_top, 0.0)
        return total

    def longest_release_s(self) -> float:
        """The longest time in which no slot was given back."""
        ends = sorted(s.at_s for s in self.world.settled if s.outcome is Outcome.COMPLETED)
        return max(later - earlier for earlier, later in pairwise(end for end in ends if end >= FROM_S))


def run(mix: tuple[Part, ...], seed: int, *, alone: bool, slots: int | None) -> Run:
    """The same requests of the quiet tenant, alone or beside the greedy ones."""
    capacity = capacity_rps(mix, LAW, 2)
    names = (QUIET,) if alone else (QUIET, *GREEDY)
    merged = sorted(
        (arrival.at_s, name, arrival)
        for number, name in enumerate(names)
        for arrival in arrivals(
            mix, (Phase(SECONDS, QUIET_LOAD * (1 if name == QUIET else 10)),), capacity, 100 * seed + number
        )
    )
    numbered = [replace(arrival, index=index) for index, (_, _, arrival) in enumerate(merged)]
    owners = [name for _, name, _ in merged]
    pool = PoolSettings("p", law=LAW, max_inflight_requests=slots)
    world = World(Settings(pools=(pool,), classes=(STANDARD,)), fleet("p", PROFILE, CONFIG, 2))
    coming = [replace(one, tenant=owners[one.index]) for one in planned(numbered)]
    world.run(coming, SECONDS + 10.0)
    world.controller.verify()
    return Run(world, owners, coming)


def p99(values: list[float]) -> float:
    """Of sorted values."""
    return values[int(len(values) * 0.99)]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_quiet_tenant_hardly_notices_two_greedy_ones(seed: int) -> None:
    """F056: it is never turned away, waits for three starts of others, and is late by a slot's release and a step.

    By what is charged when requests start it would be two, one of each. A third is what the others get back for
    requests that were charged too much. Over sixteen seeds three starts come before 1.95 % of 4,924 requests, four
    before four of them. What is served before each is besides within what it would be if all were corrected at once.
    """
    alone = run(EVEN, seed, alone=True, slots=48)
    beside = run(EVEN, seed, alone=False, slots=48)
    waited = sorted(len(wait.passed) for wait in beside.waits())
    assert len(waited) >= 200
    assert sum(count > 3 for count in waited) <= 0.005 * len(waited)  # of three hundred: one
    assert waited[-1] <= 4
    beside.check_order()
    step_s = PROFILE.law.step_s(
        prefill_tokens=CONFIG.max_num_batched_tokens,
        decoding=48,
        kv_tokens=48 * 400,
        prefill_attention=0.0,
        sequences=50,
    )
    late = p99(beside.ttfts())
    assert late <= STANDARD.ttft_s
    assert late <= p99(alone.ttfts()) + beside.longest_release_s() + step_s


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nor_where_requests_are_uneven_and_the_cache_is_what_is_short(seed: int) -> None:
    """A large request of its own waits for small ones of others; all are served, and within their objective."""
    beside = run(UNEVEN, seed, alone=False, slots=None)
    assert p99(beside.ttfts()) <= STANDARD.ttft_s / 4


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("mix", [EVEN, UNEVEN])
def test_two_that_always_wait_are_served_alike(mix: tuple[Part, ...]) -> None:
    """F056: their GPU time differs by no more than their largest costs and the errors of what is in flight."""
    beside = run(mix, 1, alone=False, slots=48)
    served = dict.fromkeys(GREEDY, 0.0)
    costs, errors = [0.0], [0.0]
    for settlement in beside.world.settled:
        if settlement.tenant in GREEDY and settlement.outcome is Outcome.COMPLETED:
            served[settlement.tenant] += settlement.charged_gpu_s
            costs.append(settlement.estimated_gpu_s)
            errors.append(abs(settlement.charged_gpu_s - settlement.estimated_gpu_s))
    in_flight = 2 * 48
    bound = 2 * max(costs) + 3 * in_flight * sum(errors) / len(errors)
    assert abs(served[GREEDY[0]] - served[GREEDY[1]]) <= bound <= 0.1 * sum(served.values())
    turned_away = Counter(s.tenant for s in beside.world.settled if s.outcome is not Outcome.COMPLETED)
    assert min(turned_away[name] for name in GREEDY) > 100
