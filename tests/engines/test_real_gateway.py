"""`forebay serve` in front of real engines, seen by the OpenAI SDK and by the engines."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from forebay.admission.events import Sampled
from forebay.load.felt import End
from forebay.runtime.children import Children
from tests.engines.real import RealEngine, running, start_llamacpp
from tests.engines.watch import all_completed, offer, watching

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

LISTEN = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


@pytest.fixture(params=["vllm", "llamacpp", "sglang"], scope="module")
def engine(request: pytest.FixtureRequest) -> RealEngine:
    """Each of the engines in turn."""
    found: RealEngine = request.getfixturevalue(request.param)
    return found


@asynccontextmanager
async def gateway(*engines: RealEngine) -> AsyncIterator[tuple[str, openai.AsyncOpenAI]]:
    """A gateway in front of these engines, its address, and the SDK pointed at it."""
    upstreams = [argument for one in engines for argument in ("--upstream", one.url)]
    async with Children() as children:
        child = await children.start("gateway", ("serve", *LISTEN, *upstreams), addresses=2)
        async with openai.AsyncOpenAI(base_url=f"{child.url}/v1", api_key="any", max_retries=0) as client:
            yield child.url, client


def sdk(engine: RealEngine) -> openai.AsyncOpenAI:
    """The SDK pointed at the engine itself."""
    return openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="any", max_retries=0)


async def test_models_are_those_of_the_engine(engine: RealEngine) -> None:
    """The list of models is the engine's."""
    async with gateway(engine) as (_, client):
        assert [model.id async for model in client.models.list()] == ["small"]


async def test_streamed_chat(engine: RealEngine) -> None:
    """A streamed chat arrives piece by piece, with its finish reason and its usage."""
    async with gateway(engine) as (_, client):
        stream = await client.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": "Tell me about weirs."}],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
        assert len(chunks) > 5
        assert [
            choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason
        ] == ["length"]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 20


async def test_plain_answers_are_the_engines_own(engine: RealEngine) -> None:
    """A completion through the gateway is the one that the engine gives to the same body."""
    async with gateway(engine) as (_, through), sdk(engine) as direct:
        texts = []
        for client in (direct, through):
            answer = await client.completions.create(
                model="small", prompt="def main", max_tokens=12, temperature=0
            )
            assert answer.usage is not None
            texts.append((answer.choices[0].text, answer.usage.prompt_tokens))
        assert texts[0] == texts[1]


async def test_engine_errors_pass(engine: RealEngine) -> None:
    """What the engine finds wrong with a body is said by the engine, in its words."""
    async with gateway(engine) as (_, through), sdk(engine) as direct:
        messages = []
        for client in (direct, through):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(
                    model="small",
                    messages=[{"role": "user", "content": "x"}],
                    extra_body={"top_logprobs": "many"},
                )
            messages.append(refused.value.message)
        assert messages[0] == messages[1]


async def test_unknown_model(vllm: RealEngine, llamacpp: RealEngine) -> None:
    """A model that vLLM does not know is our 404; llama.cpp ignores names, so we let it."""
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "x"}]
    async with gateway(vllm) as (_, client):
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="unknown", messages=messages, max_tokens=1)
    async with gateway(llamacpp) as (_, client):
        await client.chat.completions.create(model="unknown", messages=messages, max_tokens=1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(vllm: RealEngine, stream: bool) -> None:
    """When a client leaves the gateway in mid-answer, vLLM stops working on it."""
    async with gateway(vllm) as (url, _), watching(vllm) as log:
        clients = asyncio.ensure_future(offer(url, 2, prompt_tokens=50, output_tokens=600, stream=stream))
        both = asyncio.ensure_future(log.next(Sampled, lambda event: event.sample.running == 2))
        await asyncio.wait([clients, both], return_when=asyncio.FIRST_COMPLETED)
        assert not clients.done(), clients.result()
        await both
        clients.cancel()
        await asyncio.wait([clients])
        await log.next(Sampled, lambda event: event.sample.running == 0, timeout_s=5)


async def test_a_burst_is_served_without_preemptions(vllm: RealEngine) -> None:
    """Forty chats at once on a cache for nine are all answered or refused, and the engine pushes none of them out."""
    async with gateway(vllm) as (url, _), watching(vllm) as log:
        before = (await log.next(Sampled)).sample.preemptions_total
        felt = await offer(url, 40, prompt_tokens=80, output_tokens=100)
        ends = {one.end for one in felt}
        assert len(felt) == 40
        assert ends <= {End.COMPLETED, End.REFUSED}
        log.events.clear()
        after = (await log.next(Sampled)).sample.preemptions_total
        assert before is not None
        assert after is not None
        assert after - before <= 4


async def test_keep_alive_lies_do_not_matter(llamacpp: RealEngine) -> None:
    """llama.cpp announces keep-alive and closes after each stream; no client of ours notices."""
    async with gateway(llamacpp) as (url, _):
        for _ in range(5):
            assert all_completed(await offer(url, 4, prompt_tokens=20, output_tokens=8))


async def test_death_in_mid_stream_and_return() -> None:
    """An engine that dies in mid-stream ends its streams with our error event; restarted, it is used again."""
    with running(start_llamacpp()) as engine:
        async with gateway(engine) as (url, client):
            stream = await client.completions.create(
                model="small", prompt="x", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
            )
            with pytest.raises(openai.APIError) as interrupted:
                await _kill_in_mid_stream(engine, stream)
            assert interrupted.value.code == "upstream_interrupted"
            with pytest.raises(openai.InternalServerError):
                await client.completions.create(model="small", prompt="x", max_tokens=1)
            with running(start_llamacpp(port=engine.port)):
                for _ in range(75):
                    if all_completed(await offer(url, 1, prompt_tokens=20, output_tokens=4)):
                        break
                    await asyncio.sleep(0.2)
                else:
                    pytest.fail("no traffic came back to the restarted engine within 15 s")


async def _kill_in_mid_stream(
    engine: RealEngine, stream: openai.AsyncStream[openai.types.Completion]
) -> None:
    received = 0
    async for _ in stream:
        received += 1
        if received == 5:
            engine.signal(signal.SIGKILL)
