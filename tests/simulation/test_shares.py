"""What classes get of the GPU time when one of them asks for too much, and when one only fills the gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from forebay.admission.settings import (
    ZERO_CONFIGURATION_CLASSES,
    ClassSettings,
    PoolSettings,
    Settings,
)
from forebay.config.mapping import law_of
from forebay.enginemodel.profile import EngineConfig
from forebay.load.felt import End, Felt
from forebay.load.workload import DEMO_MIX, Phase, arrivals, capacity_rps
from forebay.profiles import load_profile
from tests.simulation.world import World

PROFILE = load_profile("llama3-8b-a100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE, kv_tokens=60_000)
LAW = replace(law_of(PROFILE), kv_tokens=CONFIG.kv_tokens, max_requests=CONFIG.max_num_seqs)
PARTS = {part.class_name: replace(part, share=1.0) for part in DEMO_MIX}
CLASSES = {c.name: c for c in ZERO_CONFIGURATION_CLASSES}


def run(
    loads: Mapping[str, tuple[Phase, ...]], classes: tuple[ClassSettings, ...], until_s: float, seed: int
) -> World:
    """Traffic of each class as a multiple of what two engines can serve of it; the same for each seed and class."""
    planned = sorted(
        (
            arrival
            for number, (name, phases) in enumerate(loads.items())
            for arrival in arrivals(
                (PARTS[name],), phases, capacity_rps((PARTS[name],), LAW, 2), 10 * seed + number
            )
        ),
        key=lambda arrival: arrival.at_s,
    )
    numbered = [replace(arrival, index=index) for index, arrival in enumerate(planned)]
    world = World(Settings(pools=(PoolSettings("p", law=LAW),), classes=classes), PROFILE, CONFIG, engines=2)
    world.run(numbered, until_s)
    world.controller.verify()
    return world


def shares(world: World, from_s: float, until_s: float) -> dict[str, float]:
    """Parts of the GPU time of what was started in this time."""
    started = {ticket: at_s for at_s, ticket in world.dispatched}
    work: Counter[str] = Counter()
    for settlement in world.settled:
        if from_s <= started.get(settlement.ticket, -1.0) < until_s:
            work[settlement.class_name] += int(settlement.charged_gpu_s * 1e6)
    total = sum(work.values())
    return {name: amount / total for name, amount in work.items()}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_surge_of_realtime_leaves_the_others_their_shares() -> None:
    """Realtime asks for five times what there is and may have 0.3: the others get what their weights guarantee."""
    classes = (replace(CLASSES["realtime"], max_share=0.3), CLASSES["standard"], CLASSES["batch"])
    loads = {"realtime": (Phase(80.0, 5.0),), "standard": (Phase(80.0, 2.0),), "batch": (Phase(80.0, 2.0),)}
    world = run(loads, classes, 100.0, 1)
    got = shares(world, 20.0, 80.0)
    assert got["realtime"] <= 0.3 + 0.02
    assert got["standard"] >= 0.5 - 0.025
    assert got["batch"] >= 0.2 - 0.01
    busy_s = sum(place.engine.statistics().busy_s for place in world.places)
    assert busy_s >= 0.95 * 2 * 80.0, "the cap leaves engines idle"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_with_nobody_else_realtime_gets_everything() -> None:
    """Every decision is as without the cap."""
    loads = {"realtime": (Phase(20.0, 3.0),)}
    worlds = [
        run(loads, (replace(CLASSES["realtime"], max_share=share), CLASSES["batch"]), 25.0, 1)
        for share in (0.3, 1.0)
    ]
    assert worlds[0].settled == worlds[1].settled


def interactive_p99(felt: list[Felt]) -> float:
    """Time to first token of chats and ordinary requests."""
    times = sorted(one.first_token_s for one in felt if one.first_token_s is not None)
    return times[int(len(times) * 0.99)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_batch_fills_the_gaps_and_costs_the_others_little() -> None:
    """With `admit_below_utilization: 0.6` all documents are served, and interactive p99 is under 10 % longer."""
    interactive = {
        "realtime": (Phase(60.0, 0.2, swing=0.8),),
        "standard": (Phase(60.0, 0.3, swing=0.8),),
    }
    batch = replace(CLASSES["batch"], admit_below_utilization=0.6, wait_budget_s=300.0, ttft_s=300.0)
    classes = (CLASSES["realtime"], CLASSES["standard"], batch)
    alone: list[Felt] = []
    beside: list[Felt] = []
    for seed in (1, 2, 3):
        alone += run(interactive, classes, 70.0, seed).felt
        world = run({**interactive, "batch": (Phase(60.0, 0.15),)}, classes, 90.0, seed)
        beside += [one for one in world.felt if one.class_name != "batch"]
        documents = [one for one in world.felt if one.class_name == "batch"]
        assert len(documents) >= 20
        assert {End.COMPLETED} == {one.end for one in documents}
    assert interactive_p99(beside) <= 1.1 * interactive_p99(alone)
