"""A gateway that has just started and has nothing to go by yet."""

from __future__ import annotations

from collections import Counter

import pytest

from forebay.load.chat import ChatBodies
from forebay.load.felt import End
from forebay.load.generator import OpenLoop, Target
from forebay.load.workload import DEMO_MIX, Arrival, Phase, arrivals, capacity_rps
from forebay.profiles import load_profile
from forebay.runtime.children import Child, Children
from forebay.runtime.demo import KV_TOKENS, PROFILE, demo_law

SECONDS_S = 6.0


async def started(children: Children) -> Child:
    """A gateway with no configuration in front of one emulated engine, a moment old."""
    engine = await children.start(
        "engine", ["engine", "--profile", PROFILE, "--kv-tokens", str(KV_TOKENS), "--port", "0"]
    )
    listeners = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    return await children.start("gateway", ["serve", *listeners, "--upstream", engine.url], addresses=2)


async def outcomes(gateway: Child, planned: list[Arrival]) -> Counter[tuple[End, int | None, str]]:
    """How the requests ended."""
    client = OpenLoop([Target.parse(gateway.url)], ChatBodies(load_profile(PROFILE).model, "1"))
    felt = await client.run(planned, tail_s=20.0)
    return Counter((one.end, one.status, one.code) for one in felt)


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_half_load_is_served_whole_from_the_first_second() -> None:
    """At half of what the engine can serve nothing is refused, also while nothing is known of it."""
    planned = arrivals(DEMO_MIX, [Phase(SECONDS_S, 0.5)], capacity_rps(DEMO_MIX, demo_law(), 1), seed=3)
    async with Children() as children:
        ended = await outcomes(await started(children), planned)
    assert {(End.COMPLETED, 200, ""): len(planned)} == dict(ended)


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_a_burst_at_an_idle_engine_is_served_whole() -> None:
    """Fifty requests in the first instant are more than the limit that is begun with, and all are served."""
    planned = [Arrival(index, 0.0, "standard", 100, 30, 64, stream=True) for index in range(50)]
    async with Children() as children:
        ended = await outcomes(await started(children), planned)
    assert {(End.COMPLETED, 200, ""): 50} == dict(ended)
