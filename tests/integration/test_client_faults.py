"""R33: `forebay.client` over real sockets, against servers that refuse, hang, break off and speak as Anthropic does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import openai
import pytest

import forebay.client
import forebay.client.httpx
from forebay.client import AsyncRetryTransport, RetryPolicy
from tests.integration.fakes import (
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    FakeEngine,
    Script,
    Served,
    answer_chat,
    chunk,
    event,
    plain,
)

FAST = RetryPolicy(first_backoff_s=0.01, longest_backoff_s=0.01)
SLOT_S = 0.8
TIMEOUT_S = 1.5


def refusal(status: str = "429 Too Many Requests", told_s: float = SLOT_S) -> bytes:
    """A refusal with a slot."""
    return plain(b"{}", status, b"retry-after: 1\r\nretry-after-ms: %d\r\n" % (told_s * 1000))


def then(*scripts: Script) -> Script:
    """One script for each request, in order."""
    left = iter(scripts)

    async def script(served: Served) -> None:
        await next(left)(served)

    return script


async def refuse(served: Served) -> None:
    """A refusal with a slot."""
    await served.send(refusal())


async def drop(served: Served) -> None:
    """No answer: what a server does to a kept connection that it has just closed."""
    served.close()


async def hang(served: Served) -> None:
    """No answer, and no end."""
    await served.closed.wait()


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[FakeEngine]:
    """A server with this script."""
    server = FakeEngine(script)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def calling(library: str) -> AsyncIterator[Any]:
    """A client of that library with the transport as it is by default, but that it does not wait for long."""
    made: Any
    if library == "httpx2":
        made = httpx2.AsyncClient(transport=AsyncRetryTransport(policy=FAST), timeout=TIMEOUT_S)
    else:
        old = forebay.client.httpx.AsyncRetryTransport(policy=FAST)
        made = httpx.AsyncClient(transport=old, timeout=TIMEOUT_S)
    async with made:
        yield made


LIBRARIES = pytest.mark.parametrize("library", ["httpx2", "httpx"])


@LIBRARIES
async def test_a_retry_ends_when_the_call_does(library: str) -> None:
    """The time-out is over all attempts: who waits for a slot has only the rest of it for the answer."""
    module: Any = httpx2 if library == "httpx2" else httpx
    async with serving(then(refuse, hang)) as server, calling(library) as client:
        began = time.monotonic()
        with pytest.raises(module.ReadTimeout):
            await client.post(f"{server.endpoint}/v1/completions", json={})
        took_s = time.monotonic() - began
    assert 2 == len(server.requests)
    assert TIMEOUT_S - 0.1 <= took_s < SLOT_S + TIMEOUT_S


@LIBRARIES
async def test_a_stream_that_began_has_the_callers_time_out_again(library: str) -> None:
    """Once the head of a retried call is there its stream may pause for as long as that of any call."""

    async def slow_stream(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send(chunk(event("a")))
        await asyncio.sleep(SLOT_S + 0.2)  # more than is left, less than the time-out
        await served.send(chunk(event("b")) + LAST_CHUNK)

    async with serving(then(refuse, slow_stream)) as server, calling(library) as client:
        answer = await client.post(f"{server.endpoint}/v1/completions", json={})
    assert event("a") + event("b") == answer.content
    assert 2 == len(server.requests)


@LIBRARIES
async def test_a_connection_that_was_closed_is_made_anew(library: str) -> None:
    """A kept connection on which the server hangs up without a word costs a retry and no call."""
    async with serving(then(answer_chat, drop, answer_chat)) as server, calling(library) as client:
        for _ in range(2):
            answer = await client.post(f"{server.endpoint}/v1/chat/completions", json={})
            assert 200 == answer.status_code
    assert [None, None, "1"] == [r.header("x-stainless-retry-count") for r in server.requests]


@LIBRARIES
async def test_f042_a_stream_that_breaks_is_not_begun_again(library: str) -> None:
    """After a byte of the body there is no second attempt, and the caller is told."""
    module: Any = httpx2 if library == "httpx2" else httpx

    async def broken(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send(chunk(event("a")))
        served.close()

    async with serving(then(broken)) as server, calling(library) as client:
        with pytest.raises(module.RemoteProtocolError):
            await client.post(f"{server.endpoint}/v1/completions", json={})
    assert 1 == len(server.requests)


async def test_an_anthropic_call_is_retried_as_its_sdk_would_be_told() -> None:
    """What the Anthropic SDK sends goes on as it is, and overload in its shape (529) is waited out."""
    body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    headers = {
        "anthropic-version": "2023-06-01",
        "x-api-key": "key",
        "x-stainless-retry-count": "0",
        "x-stainless-timeout": "600",
    }
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    async def overloaded(served: Served) -> None:
        told = b"retry-after-ms: 20\r\nretry-after: 1\r\n"
        await served.send(plain(json.dumps(error).encode(), "529 Overloaded", told))

    async def message(served: Served) -> None:
        await served.send(plain(b'{"type":"message","content":[{"type":"text","text":"yes"}]}'))

    async with serving(then(overloaded, message)) as server, calling("httpx2") as client:
        answer = await client.post(f"{server.endpoint}/v1/messages", json=body, headers=headers)
    assert "yes" == answer.json()["content"][0]["text"]
    first, second = server.requests
    assert first.body == second.body
    assert ["0", "1"] == [r.header("x-stainless-retry-count") for r in server.requests]
    for name in ("anthropic-version", "x-api-key", "x-stainless-timeout"):
        assert headers[name] == first.header(name) == second.header(name)


@pytest.mark.slow
async def test_f043_a_server_that_is_away_is_not_asked_by_two_layers(unused_tcp_port: int) -> None:
    """With the SDK's own retries on, its retries of what got no answer are added to ours, not multiplied."""
    attempts = 0

    class Counting(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            nonlocal attempts
            attempts += 1
            return await super().handle_async_request(request)

    transport = AsyncRetryTransport(Counting(), policy=FAST)
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{unused_tcp_port}/v1",
        api_key="none",
        max_retries=2,
        http_client=openai.DefaultAsyncHttpxClient(transport=transport),
    ) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.models.list()
    assert 1 + FAST.max_retries + 2 == attempts
    assert 10.0 - FAST.max_retries - 2 == transport.budget.retries_left
