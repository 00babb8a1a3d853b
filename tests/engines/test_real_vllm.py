from __future__ import annotations

import asyncio
import signal

import pytest

from forebay.admission.events import Described, Sampled, SampleMissed
from forebay.admission.model import EngineKind
from tests.engines.real import RealEngine
from tests.engines.watch import all_completed, offer, watching

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


async def test_is_found_without_being_told(vllm: RealEngine) -> None:
    """A real vLLM is recognised, with its model, its context and the KV cache that it was started with."""
    async with watching(vllm) as log:
        info = (await log.next(Described)).info
        assert (info.kind, info.models) == (EngineKind.VLLM, ("small",))
        assert (info.context_tokens, info.kv_tokens) == (1024, 2048)
        assert info.reports_load
        assert info.counts_while_running
        assert info.checks_model_names
        sample = (await log.next(Sampled)).sample
        assert (sample.running, sample.waiting, sample.kv_usage, sample.doubtful) == (0, 0, 0.0, ())


async def test_load_is_seen_in_samples(vllm: RealEngine) -> None:
    """Under an overload of the KV cache the samples show requests running and waiting, a full cache and steps."""
    async with watching(vllm) as log:
        before = (await log.next(Sampled)).sample
        felt = await offer(vllm.url, 16, prompt_tokens=200, output_tokens=200)
        assert all_completed(felt)
        samples = [event.sample for event in log.events if isinstance(event, Sampled)]
        log.events.clear()
        after = (await log.next(Sampled, lambda event: event.sample.running == 0)).sample
        assert max(sample.running or 0 for sample in samples) > 4
        assert max(sample.waiting or 0 for sample in samples) > 0
        assert max(sample.kv_usage or 0.0 for sample in samples) > 0.8
        grown = [sample.output_tokens_total for sample in samples if sample.running]
        assert len(set(grown)) > 5
        assert after.output_tokens_total is not None
        assert before.output_tokens_total is not None
        assert after.output_tokens_total - before.output_tokens_total >= 16 * 200
        assert after.steps_total is not None
        assert before.steps_total is not None
        assert after.steps_total - before.steps_total >= 200
        assert (after.preemptions_total or 0) >= (before.preemptions_total or 0)
        assert all(sample.doubtful == () for sample in samples)


async def test_a_client_that_leaves_is_noticed_by_samples(vllm: RealEngine) -> None:
    """When clients leave, streaming or not, the samples show within seconds that the engine stopped."""
    async with watching(vllm) as log:
        await log.next(Sampled)
        for stream in (True, False):
            clients = asyncio.ensure_future(
                offer(vllm.url, 2, prompt_tokens=50, output_tokens=900, stream=stream)
            )
            await log.next(Sampled, lambda event: event.sample.running == 2)
            clients.cancel()
            await asyncio.wait([clients])
            left = await log.next(Sampled, lambda event: event.sample.running == 0, timeout_s=5)
            assert left.sample.kv_usage == 0.0


async def test_hang_is_not_death(vllm: RealEngine) -> None:
    """A stopped vLLM gives missed samples and no outage; it is sampled again when it goes on."""
    async with watching(vllm) as log:
        await log.next(Sampled)
        vllm.signal(signal.SIGSTOP)
        try:
            assert not (await log.next(SampleMissed)).unreachable
        finally:
            vllm.signal(signal.SIGCONT)
        await log.next(Sampled)
