"""What is read of a real SGLang, and how it lets go of requests whose clients left."""

from __future__ import annotations

import asyncio

import pytest

from forebay.admission.events import Described, Sampled
from forebay.admission.model import EngineKind
from forebay.load.felt import End
from tests.engines.real import RealEngine
from tests.engines.test_real_gateway import gateway
from tests.engines.watch import offer, watching

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


async def test_is_found_without_being_told(sglang: RealEngine) -> None:
    """A real SGLang is recognised, with its model, its context and its cache."""
    async with watching(sglang) as log:
        info = (await log.next(Described)).info
        assert (info.kind, info.models) == (EngineKind.SGLANG, ("small",))
        assert (info.context_tokens, info.kv_tokens, info.reports_load) == (2048, 8192, True)
        sample = (await log.next(Sampled)).sample
        assert (sample.running, sample.waiting, sample.doubtful) == (0, 0, ())


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(sglang: RealEngine, stream: bool) -> None:
    """A streamed request at once, another one after seconds: as long as we keep its room."""
    async with gateway(sglang) as (url, _), watching(sglang) as log:
        clients = asyncio.ensure_future(offer(url, 2, prompt_tokens=50, output_tokens=600, stream=stream))
        both = asyncio.ensure_future(log.next(Sampled, lambda event: event.sample.running == 2))
        await asyncio.wait([clients, both], return_when=asyncio.FIRST_COMPLETED)
        assert not clients.done(), clients.result()
        await both
        clients.cancel()
        await asyncio.wait([clients])
        await log.next(Sampled, lambda event: event.sample.running == 0, timeout_s=10)


async def test_a_burst_is_served(sglang: RealEngine) -> None:
    """Forty chats at once, more than the cache takes, are answered or refused, and none is cut."""
    async with gateway(sglang) as (url, _):
        felt = await offer(url, 40, prompt_tokens=80, output_tokens=100)
        assert {one.end for one in felt} <= {End.COMPLETED, End.REFUSED}
        assert len(felt) == 40
