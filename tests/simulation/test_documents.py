"""A burst of long prompts that are not streamed, beside short chats: who waits for whom."""

from __future__ import annotations

import pytest

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.load.workload import Arrival
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.request import planned
from forebay.simulate.world import World

PROFILE = load_profile("llama3-8b-h100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE, context_tokens=65_536)
REALTIME = next(c for c in ZERO_CONFIGURATION_CLASSES if c.name == "realtime")


def chats_met(*, stream: bool) -> float:
    """Part of twenty chats a second that are on time while twenty documents of 30,000 tokens come at once."""
    coming = [Arrival(n, n * 0.05, "realtime", 100, 60, 200, True) for n in range(600)]
    coming += [
        Arrival(1000 + n, (5.0, 15.0)[n >= 8] + 0.001 * n, "batch", 30_000, 4, 4, stream) for n in range(28)
    ]
    coming.sort(key=lambda arrival: arrival.at_s)
    settings = Settings(pools=(PoolSettings("p"),), classes=ZERO_CONFIGURATION_CLASSES)
    world = World(settings, fleet("p", PROFILE, CONFIG, 1))
    world.run(planned(coming), 60.0)
    world.controller.verify()
    felt = [one for one in world.felt if one.class_name == "realtime" and one.at_s >= 15.0]
    return sum(one.met(REALTIME) for one in felt) / len(felt)


@pytest.mark.slow
def test_documents_that_are_not_streamed_wait_their_turn_as_well() -> None:
    """Nobody tells when their prompts are through; they enter one after the other all the same."""
    assert chats_met(stream=False) >= 0.95 * chats_met(stream=True) > 0.6
