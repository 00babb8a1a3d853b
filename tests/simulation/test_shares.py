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
from forebay.load.felt import End
from forebay.load.workload import DEMO_MIX, Lengths, Part, Phase, arrivals, capacity_rps
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.request import planned
from forebay.simulate.world import World

PROFILE = load_profile("llama3-8b-a100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE, kv_tokens=60_000)
LAW = replace(law_of(PROFILE), kv_tokens=CONFIG.kv_tokens, max_requests=CONFIG.max_num_seqs)
PARTS = {part.class_name: replace(part, share=1.0) for part in DEMO_MIX}
CLASSES = {c.name: c for c in ZERO_CONFIGURATION_CLASSES}


def run(
    loads: Mapping[str, tuple[Phase, ...]],
    classes: tuple[ClassSettings, ...],
    until_s: float,
    seed: int,
    parts: Mapping[str, Part] = PARTS,
) -> World:
    """Traffic of each class as a multiple of what two engines can serve of it; the same for each seed and class."""
    coming = sorted(
        (
            arrival
            for number, (name, phases) in enumerate(loads.items())
            for arrival in arrivals(
                (parts[name],), phases, capacity_rps((parts[name],), LAW, 2), 10 * seed + number
            )
        ),
        key=lambda arrival: arrival.at_s,
    )
    numbered = [replace(arrival, index=index) for index, arrival in enumerate(coming)]
    settings = Settings(pools=(PoolSettings("p", law=LAW),), classes=classes)
    world = World(settings, fleet("p", PROFILE, CONFIG, 2))
    world.run(planned(numbered), until_s)
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


GAP_SEEDS = (1, 2, 3, 4, 5, 6)
INTERACTIVE = {
    "realtime": (Phase(60.0, 0.2, swing=0.8),),
    "standard": (Phase(60.0, 0.3, swing=0.8),),
}
FILLING = replace(CLASSES["batch"], admit_below_utilization=0.6, wait_budget_s=300.0, ttft_s=300.0)
GAP_CLASSES = (CLASSES["realtime"], CLASSES["standard"], FILLING)
DOCUMENTS_PER_S = 0.15 * capacity_rps((PARTS["batch"],), LAW, 2)
PROMPTS_ONLY = replace(PARTS["batch"], output=Lengths(1, 0.0, 1, 1))
ANSWERS_ONLY = replace(PARTS["batch"], prompt=Lengths(40, 0.0, 40, 40))


def first_tokens(batch: Part | None) -> dict[str, list[float]]:
    """Times to first token of the interactive classes over all seeds, sorted; batch must be served to the last."""
    times: dict[str, list[float]] = {"realtime": [], "standard": [], "both": []}
    for seed in GAP_SEEDS:
        loads, parts = dict(INTERACTIVE), dict(PARTS)
        if batch is not None:  # as many a second, whatever they take
            parts["batch"] = batch
            loads["batch"] = (Phase(60.0, DOCUMENTS_PER_S / capacity_rps((batch,), LAW, 2)),)
        felt = run(loads, GAP_CLASSES, 90.0, seed, parts).felt
        documents = [one for one in felt if one.class_name == "batch"]
        assert batch is None or len(documents) >= 20
        assert {End.COMPLETED} >= {one.end for one in documents}
        for one in felt:
            if one.class_name in times and one.first_token_s is not None:
                times[one.class_name].append(one.first_token_s)
                times["both"].append(one.first_token_s)
    return {name: sorted(values) for name, values in times.items()}


def p99(values: list[float]) -> float:
    """Of sorted values."""
    return values[int(len(values) * 0.99)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_batch_fills_the_gaps_and_costs_the_others_little() -> None:
    """With `admit_below_utilization: 0.6` all documents are served, and interactive p99 is under 10 % longer.

    Taken class by class it is 11 % and 31 % here, and over twelve seeds 14 % and 25 %: 26 ms of realtime's 1.5 s, 102
    ms of standard's 5 s. That is the prompts. Documents without them cost 4 % and 2 %, without answers the whole of it:
    an engine is at a document of 3,000 tokens for 0.18 s, in which whoever comes shares its steps of up to 0.12 s, or
    the other engine with everybody else. Nothing in front of an engine can split a prompt. What was tried: starting no
    document unless another engine is free of prompts costs standard 22 % instead of 25 %, and realtime the same; lower
    ceilings cost realtime more, since documents gather for the lulls. With `pass_priority` the engine itself does it.
    """
    alone, beside = first_tokens(None), first_tokens(PARTS["batch"])
    assert p99(beside["both"]) <= 1.1 * p99(alone["both"])
    step_s = PROFILE.law.step_s(
        prefill_tokens=CONFIG.max_num_batched_tokens,
        decoding=10,
        kv_tokens=4000,
        prefill_attention=0.0,
        sequences=11,
    )
    for name in ("realtime", "standard"):
        assert p99(beside[name]) <= p99(alone[name]) + step_s
        assert p99(beside[name]) <= 0.15 * CLASSES[name].ttft_s


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_batch_costs_the_others_are_its_prompts() -> None:
    """Answers alone cost each interactive class under 10 % of its p99; prompts alone about what whole documents do."""
    alone, answers, prompts = first_tokens(None), first_tokens(ANSWERS_ONLY), first_tokens(PROMPTS_ONLY)
    for name in ("realtime", "standard"):
        assert p99(answers[name]) <= 1.1 * p99(alone[name])
        assert p99(prompts[name]) > p99(answers[name])
