"""What is learned of prompts where no answer carries usage: an engine's counters have to do."""

from __future__ import annotations

import pytest

from forebay.admission.model import Demand, TicketId
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.config.mapping import law_of
from forebay.enginemodel.profile import EngineConfig
from forebay.load.workload import DEMO_MIX, Phase, arrivals, capacity_rps
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.request import planned
from forebay.simulate.world import World

PROFILE = load_profile("llama3-8b-a100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE, kv_tokens=60_000)
SHARED = {"batch": 960, "standard": 480}


@pytest.fixture(scope="module", params=[0.3, 2.0], ids=["calm", "overloaded"])
def world(request: pytest.FixtureRequest) -> World:
    """Prompts of 2.5 bytes a token, many of which begin alike; answers without usage."""
    settings = Settings(pools=(PoolSettings("p"),), classes=ZERO_CONFIGURATION_CLASSES)
    found = World(settings, fleet("p", PROFILE, CONFIG, 2), usage=False)
    capacity = capacity_rps(DEMO_MIX, law_of(PROFILE), 2)
    coming = arrivals(DEMO_MIX, (Phase(60.0, request.param, swing=0.5),), capacity, 3)
    found.run(planned(coming, tenants=("a", "b"), bytes_per_token=2.5, shared=SHARED), 66.0)
    found.controller.verify()
    return found


def asking(prefix_hash: int | None, prompt_tokens: int) -> Demand:
    """A request for so many tokens of prompt."""
    return Demand(
        ticket=TicketId(1),
        pool="p",
        class_name="batch",
        model="m",
        stream=True,
        prompt_bytes=round(prompt_tokens * 2.5),
        body_bytes=10_000,
        prefix_hash=prefix_hash,
    )


@pytest.mark.slow
def test_bytes_per_token_are_learned(world: World) -> None:
    """Prompts are known for what they are, within a fiftieth."""
    (pool,) = world.controller._pools.values()
    assert pytest.approx(2.5, rel=0.02) == pool.pricing.ratios.common.bytes_per_token


@pytest.mark.slow
def test_shared_beginnings_are_learned(world: World) -> None:
    """What the engines hold of a beginning is not charged, and nothing is taken off where nothing is shared."""
    (pool,) = world.controller._pools.values()
    for number, tokens in enumerate(SHARED.values(), 1):
        cost = pool.pricing.price(asking(-number, 3000)).cost
        assert pytest.approx(tokens, rel=0.2) == cost.cached_tokens
    assert 0 == pool.pricing.price(asking(77, 3000)).cost.cached_tokens


@pytest.mark.slow
def test_caches_hardly_run_over(world: World) -> None:
    """Prompts that are half as large again as they seemed at first push hardly anybody out."""
    assert world.preemptions <= 3
