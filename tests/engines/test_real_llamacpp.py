from __future__ import annotations

import asyncio
import signal

import pytest

from forebay.admission.events import Described, Sampled, SampleMissed
from forebay.admission.model import EngineKind
from tests.engines.real import RealEngine, running, start_llamacpp
from tests.engines.watch import all_completed, offer, watching

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


async def test_is_found_without_being_told(llamacpp: RealEngine) -> None:
    """A real llama.cpp is recognised, with its model and its slots."""
    async with watching(llamacpp) as log:
        info = (await log.next(Described)).info
        assert (info.kind, info.models) == (EngineKind.LLAMACPP, ("small",))
        assert (info.max_requests, info.context_tokens, info.kv_tokens) == (4, 2048, 8192)
        assert info.reports_load
        assert info.closes_after_stream
        assert not info.aborts_unstreamed
        sample = (await log.next(Sampled)).sample
        assert (sample.running, sample.waiting, sample.kv_usage, sample.doubtful) == (0, 0, None, ())


async def test_load_is_seen_in_samples(llamacpp: RealEngine) -> None:
    """With more requests than slots the samples show four running and the rest waiting."""
    async with watching(llamacpp) as log:
        before = (await log.next(Sampled)).sample
        # Long enough that a scrape, which waits for a step, cannot miss the time before the first of them ends.
        load = asyncio.ensure_future(offer(llamacpp.url, 10, prompt_tokens=60, output_tokens=300))
        await log.next(
            Sampled, lambda event: (event.sample.running, event.sample.waiting) == (4, 6), timeout_s=30
        )
        assert all_completed(await load)
        log.events.clear()
        after = (await log.next(Sampled, lambda event: event.sample.running == 0)).sample
        assert after.output_tokens_total is not None
        assert before.output_tokens_total is not None
        assert after.output_tokens_total - before.output_tokens_total >= 10 * 299


async def test_unstreamed_requests_run_on_when_their_client_leaves(llamacpp: RealEngine) -> None:
    """A request that is not streamed keeps its slot although its client left, a streamed one does not."""
    async with watching(llamacpp) as log:
        await log.next(Sampled)
        for stream in (True, False):
            clients = asyncio.ensure_future(
                offer(llamacpp.url, 2, prompt_tokens=20, output_tokens=400, stream=stream)
            )
            await log.next(Sampled, lambda event: event.sample.running == 2)
            clients.cancel()
            await asyncio.wait([clients])
            if stream:
                await log.next(Sampled, lambda event: event.sample.running == 0, timeout_s=3)
            else:
                await asyncio.sleep(1.0)
                assert (await log.next(Sampled)).sample.running == 2
                await log.next(Sampled, lambda event: event.sample.running == 0, timeout_s=60)


async def test_without_metrics_its_slots_are_counted() -> None:
    """A llama.cpp started without metrics is found and sampled by its slots."""
    with running(start_llamacpp(more=("--no-metrics",))) as engine:
        async with watching(engine) as log:
            info = (await log.next(Described)).info
            assert (info.kind, info.max_requests, info.reports_load) == (EngineKind.LLAMACPP, 4, False)
            clients = asyncio.ensure_future(offer(engine.url, 3, prompt_tokens=20, output_tokens=100))
            await log.next(Sampled, lambda event: event.sample.running == 3)
            assert all_completed(await clients)


async def test_shared_cache_is_counted_once() -> None:
    """With one cache for all slots, of the model's whole length, the capacity is that length, not four times it."""
    with running(start_llamacpp(more=("--unified",))) as engine:
        async with watching(engine) as log:
            info = (await log.next(Described)).info
            assert (info.max_requests, info.context_tokens, info.kv_tokens) == (4, 8192, 8192)


async def test_death_and_return() -> None:
    """A killed llama.cpp is unreachable; started again on its port, with fewer slots, it is described anew."""
    with running(start_llamacpp()) as engine:
        async with watching(engine) as log:
            await log.next(Sampled)
            engine.signal(signal.SIGKILL)
            await log.next(SampleMissed, lambda event: event.unreachable)
            with running(start_llamacpp(port=engine.port, slots=2)):
                assert (await log.next(Described)).info.max_requests == 2
                await log.next(Sampled)


async def test_hang_is_not_death(llamacpp: RealEngine) -> None:
    """A stopped llama.cpp gives missed samples and no outage; it is sampled again when it goes on."""
    async with watching(llamacpp) as log:
        await log.next(Sampled)
        llamacpp.signal(signal.SIGSTOP)
        try:
            assert not (await log.next(SampleMissed)).unreachable
        finally:
            llamacpp.signal(signal.SIGCONT)
        await log.next(Sampled)
