"""The OpenAI SDK as client: what it shows its users of answers, refusals and broken streams."""

from __future__ import annotations

import asyncio
import contextlib

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    FakeEngine,
    Served,
    Stack,
    answer_chat,
    event,
    plain,
    running,
    usage_event,
)

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def sdk(stack: Stack, *, max_retries: int = 0) -> openai.AsyncOpenAI:
    """The asynchronous client, without proxies of the environment."""
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{stack.port}/v1",
        api_key="sk-test",
        max_retries=max_retries,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


async def test_plain_and_streamed_answers() -> None:
    """The asynchronous client gets whole answers, streams with their usage, and the model list."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack, sdk(stack) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
        assert answer.choices[0].message.content == "hello"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
        assert answer._request_id
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "abc"
        assert chunks[-1].usage is not None
        assert [MODEL] == [model.id async for model in client.models.list()]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        assert "Bearer sk-test" == engine.requests[0].header("authorization")
        await stack.idle()


async def test_the_synchronous_client() -> None:
    """The synchronous client works the same, in a thread of its own."""

    def ask(port: int) -> tuple[str | None, str]:
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key="sk-test",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        ) as client:
            answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream:
                text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
            return answer.choices[0].message.content, text

    async with running(Stack([FakeEngine()])) as stack:
        assert await asyncio.to_thread(ask, stack.port) == ("hello", "abc")
        await stack.idle()


async def test_legacy_completions() -> None:
    """/v1/completions takes strings, lists and token ids."""
    answer = (
        b'{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"yes",'
        b'"finish_reason":"stop","logprobs":null}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}'
    )

    async def script(served: Served) -> None:
        await served.send(plain(answer))

    async with running(Stack([FakeEngine(script)])) as stack, sdk(stack) as client:
        for prompt in ("hello", ["a", "b"], [1, 2, 3], [[1, 2], [3]]):
            given = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)
            assert given.choices[0].text == "yes"
        await stack.settled(4)
        await stack.idle()


async def test_errors_have_the_classes_that_users_catch() -> None:
    """Bad requests, unknown models and refusals are the SDK's own exceptions, with our code in them."""
    pool = PoolSettings("default", max_inflight_requests=0, max_queue=0)
    async with (
        running(Stack([FakeEngine()], settings=Settings(pools=(pool,)))) as stack,
        sdk(stack) as client,
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="none", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=0)
        assert (bad.value.code, bad.value.param) == ("invalid_request", "max_tokens")
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert refused.value.code == "queue_full"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        await stack.idle()


async def test_a_refused_call_comes_back_as_told_and_is_served() -> None:
    """The SDK waits as long as it was told and then gets its answer; nothing is retried that cannot pass."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await answer_chat(served)

    engine = FakeEngine(script)
    pool = PoolSettings("default", max_inflight_requests=1, max_queue=0)
    async with (
        running(Stack([engine], settings=Settings(pools=(pool,)))) as stack,
        sdk(stack, max_retries=2) as client,
    ):
        first = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=MESSAGES))
        await engine.until(lambda: len(engine.requests) == 1)
        second = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=MESSAGES))
        await stack.settled(1)
        release.set()
        assert (await first).choices[0].message.content == "hello"
        assert (await second).choices[0].message.content == "hello"
        assert len(engine.requests) == 2
        before = len(stack.settlements)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=0)
        assert stack.gateway.early.counts["invalid_request"] == 1
        assert len(stack.settlements) == before
        await stack.idle()


async def test_a_broken_stream_raises() -> None:
    """A stream that an engine leaves in the middle is an error for the SDK's user, not a short answer."""

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"))
        await asyncio.sleep(0.02)
        served.reset()

    async with running(Stack([FakeEngine(script)])) as stack, sdk(stack) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        pieces = aiter(stream)
        assert (await anext(pieces)).choices[0].delta.content == "a"
        with pytest.raises(openai.APIError):
            await anext(pieces)
        await stack.idle()


async def test_closing_a_stream_stops_the_engine() -> None:
    """Closing a stream in the SDK closes the engine's connection."""

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        while not served.closed.is_set():
            await served.send_events(event("x"), gap_s=0.01)

    engine = FakeEngine(script)
    async with running(Stack([engine])) as stack, sdk(stack) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await asyncio.wait_for(engine.served[0].closed.wait(), 2.0)
        await stack.idle()


async def test_streams_that_were_read_to_their_end_are_completed() -> None:
    """The synchronous client closes at `[DONE]`, often before the body's end: each such stream counts as served."""

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"), event("b", finish="stop"), usage_event(7, 2), DONE)
        if len(engine.requests) % 2:  # an engine that is slow to end the body
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(served.closed.wait(), 0.2)
        await served.send(LAST_CHUNK)

    def ask(port: int) -> list[str]:
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key="sk-test",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        ) as client:
            texts = []
            for _ in range(50):
                stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
                texts.append("".join(c.choices[0].delta.content or "" for c in stream if c.choices))
            return texts

    engine = FakeEngine(script)
    async with running(Stack([engine])) as stack:
        assert ["ab"] * 50 == await asyncio.to_thread(ask, stack.port)
        settlements = await stack.settled(50)
        assert {(Outcome.COMPLETED, 7, 2)} == {
            (settlement.outcome, settlement.prompt_tokens, settlement.output_tokens)
            for settlement in settlements
        }
        await stack.idle()
