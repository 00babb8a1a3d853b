"""Every baseline in front of modelled engines, at one and a half times what these can serve."""

from __future__ import annotations

import pytest

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.load.felt import End
from forebay.load.workload import DEMO_MIX, Phase, arrivals
from forebay.profiles import load_profile
from forebay.simulate.baselines.per_pool import PerPool
from forebay.simulate.faults import ReplicaLost
from forebay.simulate.place import fleet
from forebay.simulate.policies import find_policy
from forebay.simulate.request import planned
from forebay.simulate.world import World

PROFILE = load_profile("llama3-8b-h100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE, kv_tokens=60_000)
SETTINGS = Settings(pools=(PoolSettings("p"),), classes=ZERO_CONFIGURATION_CLASSES)
SECONDS = 30.0
# Requests a second at which these engines just keep up (found by trying; twice as much drowns them).
RATE = 34.0


def run(name: str, load: float) -> World:
    """Two engines, half a minute of the demo's requests, and time to finish."""
    world = World(SETTINGS, fleet("p", PROFILE, CONFIG, 2), policy=find_policy(name))
    coming = planned(arrivals(DEMO_MIX, [Phase(SECONDS, load, swing=0.5)], RATE, 7))
    world.run(coming, SECONDS + 150.0)
    assert len(coming) == len(world.felt)
    assert isinstance(world.policy, PerPool)
    world.policy.verify()
    return world


def ttft_p90_s(world: World, class_name: str) -> float:
    """Of those that were answered."""
    times = sorted(
        one.first_token_s
        for one in world.felt
        if one.class_name == class_name and one.first_token_s is not None
    )
    return times[int(0.9 * len(times))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "least-request",
        "static:24",
        "fixed-depth:24",
        "vllm-caps:reqs=40,tokens=16000",
        "litellm:tpm=600000",
        "kong:tpm=600000",
        "token-bucket:tpm=600000",
        "gradient2",
        "llm-d",
        "llm-d-static",
        "vtc",
    ],
)
def test_every_request_ends_once_and_the_engines_empty(name: str) -> None:
    """Nothing is lost, nothing is told twice, and afterwards nothing runs or waits."""
    world = run(name, 1.5)
    ends = [one.end for one in world.felt]
    assert End.UNANSWERED not in ends
    assert ends.count(End.COMPLETED) > 100
    assert [] == world.end()


@pytest.mark.slow
def test_a_ranked_queue_and_bands_spare_the_important() -> None:
    """Under overload first tokens of realtime requests come sooner than where nobody is held back."""
    open_s = ttft_p90_s(run("least-request", 2.0), "realtime")
    assert ttft_p90_s(run("static:24", 2.0), "realtime") < 0.5 * open_s
    assert ttft_p90_s(run("llm-d", 2.0), "realtime") < 0.5 * open_s


@pytest.mark.slow
def test_nothing_is_refused_where_there_is_room() -> None:
    """At a third of what the engines can do, limits that are wide enough refuse nobody."""
    for name in ("static:64", "fixed-depth:96", "gradient2", "llm-d", "vtc"):
        assert {End.COMPLETED} == {one.end for one in run(name, 0.33).felt}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["least-request", "static:24", "vllm-caps:tokens=16000", "gradient2", "llm-d", "vtc"]
)
def test_an_engine_that_is_lost_takes_nobody_along_for_ever(name: str) -> None:
    """What ran there ends or goes elsewhere, and the books balance afterwards."""
    world = World(
        SETTINGS,
        fleet("p", PROFILE, CONFIG, 2),
        policy=find_policy(name),
        faults=(ReplicaLost(endpoint=0, at_s=8.0, until_s=16.0),),
    )
    coming = planned(arrivals(DEMO_MIX, [Phase(SECONDS, 1.0, swing=0.5)], RATE, 7))
    world.run(coming, SECONDS + 150.0)
    assert len(coming) == len(world.felt)
    assert End.UNANSWERED not in {one.end for one in world.felt}
    assert [] == world.end()
