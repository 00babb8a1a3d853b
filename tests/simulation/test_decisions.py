"""What the decisions come to in front of a modelled engine: minutes of traffic in virtual time, the same every run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission.settings import OPTIMISTIC_LAW, ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.config.mapping import law_of
from forebay.enginemodel.profile import EngineConfig
from forebay.load.felt import Felt
from forebay.load.workload import DEMO_MIX, Phase, arrivals, capacity_rps
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.request import planned
from forebay.simulate.world import World

PROFILE = load_profile("llama3-8b-a100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE, kv_tokens=60_000)
CLASSES = {c.name: c for c in ZERO_CONFIGURATION_CLASSES}


def run(
    load: float,
    *,
    seconds: float,
    slow: float = 1.0,
    stretch: float = 1.0,
    seed: int = 1,
    streamed: bool = True,
    mute: bool = False,
    kv_tokens: int | None = None,
) -> World:
    """The demo's traffic at a multiple of what two engines can serve, after ten seconds at half load.

    Args:
        slow: how many times longer the engines' steps take than the profile says. Nobody tells the gateway.
        stretch: the same for what clients ask of them.
        streamed: answers are.
        mute: engines tell nothing of themselves.
        kv_tokens: what the operator says that their caches hold.
    """
    law = replace(law_of(PROFILE), kv_tokens=CONFIG.kv_tokens, max_requests=CONFIG.max_num_seqs)
    capacity = capacity_rps(DEMO_MIX, law, 2) / slow
    phases = (Phase(10.0, 0.5), Phase(seconds, load, swing=0.5))
    classes = tuple(
        replace(
            c,
            ttft_s=c.ttft_s * stretch,
            tpot_s=c.tpot_s * stretch,
            wait_budget_s=c.wait_budget_s * stretch,
        )
        for c in ZERO_CONFIGURATION_CLASSES
    )
    settings = Settings(pools=(PoolSettings("p", max_inflight_tokens=kv_tokens),), classes=classes)
    world = World(settings, fleet("p", PROFILE, CONFIG, 2, slow=(slow, slow), mute=mute))
    mix = tuple(replace(part, stream=streamed) for part in DEMO_MIX)
    world.run(planned(arrivals(mix, phases, capacity, seed)), 10.0 + seconds + 6.0)
    world.controller.verify()
    return world


def felt_by(world: World, class_name: str) -> list[Felt]:
    """What the clients of a class felt once the load had come."""
    return [one for one in world.felt if one.class_name == class_name and one.at_s >= 10.0]


def met_share(world: World, class_name: str) -> float:
    """Part of them that got what they asked for."""
    objective = next(c for c in world.settings.classes if c.name == class_name)
    felt = felt_by(world, class_name)
    return sum(one.met(objective) for one in felt) / len(felt)


@pytest.mark.slow
def test_at_half_load_nothing_is_refused_and_nobody_waits_long() -> None:
    """Below capacity everybody is served, and hardly anybody is held."""
    world = run(0.5, seconds=60.0)
    assert [] == world.refusals
    felt = [one for name in CLASSES for one in felt_by(world, name)]
    assert sum(one.met(CLASSES[one.class_name]) for one in felt) >= 0.99 * len(felt)
    waits = sorted(settlement.waited_s for settlement in world.settled)
    assert waits[int(len(waits) * 0.95)] == 0.0
    assert waits[-1] <= 0.5
    assert 0 == world.preemptions


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_at_twice_the_load_interactive_requests_are_on_time(seed: int) -> None:
    """Chats hardly notice, ordinary requests lose what they must, documents get their share, nothing is preempted."""
    world = run(2.0, seconds=40.0, seed=seed)
    assert met_share(world, "realtime") >= 0.97
    assert met_share(world, "standard") >= 0.7
    assert met_share(world, "batch") >= 0.22
    waits = sorted(one.ttft_s for one in felt_by(world, "realtime") if one.ttft_s is not None)
    assert waits[int(len(waits) * 0.99)] <= CLASSES["realtime"].ttft_s
    assert 0 == world.preemptions


@pytest.mark.slow
def test_documents_get_their_share_over_several_runs() -> None:
    """One run has few of them: over three, three in ten are in time, which is more than their weight of two in ten."""
    worlds = [run(2.0, seconds=40.0, seed=seed) for seed in (1, 2, 3)]
    counts = [len(felt_by(world, "batch")) for world in worlds]
    met = [met_share(world, "batch") * count for world, count in zip(worlds, counts, strict=True)]
    assert sum(met) >= 0.3 * sum(counts)


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "seed"), [(5.0, 2), (3.0, 3)])
def test_what_a_pool_has_learned_it_keeps(slow: float, seed: int) -> None:
    """Engines slower than assumed: speeds are measured before their law is known, and the law puts nothing in doubt."""
    world = run(2.0, seconds=70.0, slow=slow, seed=seed)
    (pool,) = world.controller._pools.values()
    assert (True, 0) == (pool.learning.may_refuse, pool.learning.error_jumps)
    assert pool.pricing.law.c0_s > 2 * OPTIMISTIC_LAW.c0_s


@pytest.mark.slow
def test_refusals_of_a_pool_that_has_learned_come_at_once() -> None:
    """Under overload that lasts, most that are refused are told when they arrive and not after their whole wait."""
    world = run(3.0, seconds=120.0)
    late = [refusal for at_s, refusal in world.refusals if at_s > 60.0]
    at_once = [refusal for refusal in late if refusal.record.waited_s == 0.0]
    assert len(late) >= 100
    assert len(at_once) > 0.5 * len(late)  # over ten seeds 0.56 to 0.77
    assert all(refusal.retry_after_s is not None and refusal.retry_after_s >= 1.0 for refusal in late)


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "stretch", "seconds"), [(0.1, 1.0, 20.0), (10.0, 10.0, 300.0)])
def test_an_engine_unlike_the_prior_is_neither_starved_nor_flooded(
    slow: float, stretch: float, seconds: float
) -> None:
    """From the first request on, at twice the load: an engine ten times faster or slower than the profile is kept busy,
    its cache does not run over, and chats are on time.
    """
    world = run(2.0, seconds=seconds, slow=slow, stretch=stretch)
    busy_s = [place.engine.statistics().busy_s for place in world.places]
    assert min(busy_s) >= 0.85 * seconds
    assert 0 == world.preemptions
    assert met_share(world, "realtime") >= 0.9
    assert not [at_s for at_s, _ in world.refusals if at_s < 10.0], "refused at half load, with nothing known"
    by_guess = [refusal for _, refusal in world.refusals if refusal.record.learning]
    assert not [refusal for refusal in by_guess if refusal.record.waited_s == 0.0]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run() -> None:
    """Every decision of one run is that of another."""
    first, second = run(2.0, seconds=20.0), run(2.0, seconds=20.0)
    assert first.settled == second.settled
    assert first.refusals == second.refusals


@pytest.mark.slow
def test_the_learned_law_is_that_of_the_engine() -> None:
    """After a minute of traffic the cost of a usual request is within a tenth of what the profile's own law says."""
    world = run(2.0, seconds=50.0)
    (pool,) = world.controller._pools.values()
    learned = pool.pricing.usual_work_us()
    law = replace(
        law_of(PROFILE), kv_tokens=pool.pricing.law.kv_tokens, max_requests=pool.pricing.law.max_requests
    )
    pool.pricing.law = law
    assert learned == pytest.approx(pool.pricing.usual_work_us(), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 2.0])
@pytest.mark.parametrize("slow", [1.0, 10.0])
def test_whole_answers_alone_teach_the_law_of_an_engine(slow: float, load: float) -> None:
    """Of engines that tell nothing of themselves, asked only for answers that are not streamed, decode steps are known
    within 6 %, where the operator says what their caches hold: what is preempted teaches nonsense.
    """
    world = run(
        load, seconds=50.0 * slow, slow=slow, stretch=slow, streamed=False, mute=True, kv_tokens=50_000
    )
    (pool,) = world.controller._pools.values()
    for endpoint in pool.endpoints.values():
        learner = endpoint.learner
        assert learner.is_trusted
        for sequences in (4, 16):
            truth_s = slow * PROFILE.law.step_s(
                prefill_tokens=0,
                decoding=sequences,
                kv_tokens=1000 * sequences,
                prefill_attention=0.0,
                sequences=sequences,
            )
            learned_s = learner.step_s(
                prefill_tokens=0.0, sequences=sequences, kv_tokens=1000.0 * sequences, attention=0.0
            )
            assert learned_s == pytest.approx(truth_s, rel=0.06)
