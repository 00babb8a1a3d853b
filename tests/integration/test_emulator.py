"""The emulator over real sockets, with clients that are not ours."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import openai
import pytest

from forebay.emulator import EmulatorServer, EmulatorSettings
from forebay.enginemodel import EngineConfig
from forebay.profiles import DEFAULT_PROFILE, load_profile

PROFILE = load_profile(DEFAULT_PROFILE)
DEADLINE_S = 20.0
POLL_S = 0.005


def _settings(*, speed: float = 50.0, seed: int = 0, **config: Any) -> EmulatorSettings:
    return EmulatorSettings(
        profile=PROFILE, config=EngineConfig.from_profile(PROFILE, **config), speed=speed, seed=seed
    )


@pytest.fixture
async def server() -> AsyncIterator[EmulatorServer]:
    """An engine fifty times as fast as an H100."""
    async with EmulatorServer(_settings()) as running:
        yield running


@pytest.fixture
async def small() -> AsyncIterator[EmulatorServer]:
    """An engine at real speed with two sequences and little KV cache: requests queue in it."""
    async with EmulatorServer(_settings(speed=1.0, max_num_seqs=2, kv_tokens=4096)) as running:
        yield running


async def _metrics(server: EmulatorServer) -> dict[str, float]:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{server.url}/metrics")).text
    return {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(("vllm:", "emulator:")) and "_bucket" not in line and "_created" not in line
    }


async def _wait_until(server: EmulatorServer, **gauges: float) -> None:
    """Wait until the engine's gauges are as said, without touching its HTTP side."""
    for _ in range(int(DEADLINE_S / POLL_S)):
        if all(getattr(server.statistics, name) == value for name, value in gauges.items()):
            return
        await asyncio.sleep(POLL_S)
    pytest.fail(f"the engine never came to {gauges}: {server.statistics}")


@asynccontextmanager
async def _raw_request(
    server: EmulatorServer, *, receive_bytes: int | None = None, **fields: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A request on a connection of its own, which is closed at the end."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=client)
    body = json.dumps({"prompt": "x" * 400, "max_tokens": 1000, "ignore_eos": True, **fields}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    try:
        yield reader, writer
    finally:
        await _leave(writer)


async def _leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_the_openai_sdk_streams_a_chat(server: EmulatorServer) -> None:
    """The SDK reads role, text, finish reason and usage of a streamed chat."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="llama3-8b",
            messages=[{"role": "user", "content": "hello world"}],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(text.split()) == 12
    assert chunks[-2].choices[0].finish_reason == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert (10, 12) == (usage.prompt_tokens, usage.completion_tokens)


async def test_the_openai_sdk_gets_a_whole_completion_and_the_models(server: EmulatorServer) -> None:
    """An unstreamed completion with two samples, and the list of models, are what the SDK expects."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        answer = await client.completions.create(
            model="llama3-8b", prompt="hello", n=2, max_tokens=5, extra_body={"emulator_output_tokens": 3}
        )
        models = await client.models.list()
    assert [(len(choice.text.split()), choice.finish_reason) for choice in answer.choices] == [
        (3, "stop")
    ] * 2
    assert [model.id for model in models.data] == ["llama3-8b"]


async def test_the_openai_sdk_raises_what_vllm_makes_it_raise(server: EmulatorServer) -> None:
    """An unknown model is NotFoundError, a too long answer BadRequestError."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="nope", prompt="hello")
        with pytest.raises(openai.BadRequestError, match="max_model_len"):
            await client.completions.create(model="llama3-8b", prompt="hello", max_tokens=10**6)


async def test_the_same_seed_gives_the_same_answers() -> None:
    """Lengths, text and ids repeat under a seed, whatever the order of arrival, and differ under another."""
    bodies = [{"messages": [{"role": "user", "content": f"question {number}"}]} for number in range(6)]

    async def ask(seed: int, order: list[int]) -> list[tuple[str, str]]:
        async with (
            EmulatorServer(_settings(seed=seed, speed=500.0)) as running,
            httpx.AsyncClient() as client,
        ):
            url = f"{running.url}/v1/chat/completions"
            answers = await asyncio.gather(*(client.post(url, json=bodies[number]) for number in order))
        found = {
            number: answer.json()["choices"][0]["message"]["content"]
            for number, answer in zip(order, answers, strict=True)
        }
        return [(str(number), found[number]) for number in sorted(found)]

    first = await ask(7, [0, 1, 2, 3, 4, 5])
    assert first == await ask(7, [5, 3, 1, 0, 2, 4])
    assert first != await ask(8, [0, 1, 2, 3, 4, 5])


async def test_a_queued_stream_has_its_head_at_once_and_no_data(small: EmulatorServer) -> None:
    """The 200 of a request that waits in the engine says nothing: its first data comes when a sequence is free."""
    async with (
        _raw_request(small, stream=True) as (_, first),
        _raw_request(small, stream=True),
        asyncio.timeout(DEADLINE_S),
    ):
        await _wait_until(small, running=2)
        async with _raw_request(small, stream=True, max_tokens=2) as (reader, _):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            await _wait_until(small, running=2, waiting=1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.readexactly(1)
            await _leave(first)
            assert b"data: " in await reader.readuntil(b"\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine_within_a_step(
    small: EmulatorServer, stream: bool
) -> None:
    """Running and waiting requests of clients that went away are gone, streamed or not, and count as no abort."""
    async with AsyncExitStack() as clients:
        for _ in range(4):
            await clients.enter_async_context(_raw_request(small, stream=stream))
        await _wait_until(small, running=2, waiting=2)
        generated = small.statistics.generation_tokens
    await _wait_until(small, running=0, waiting=0, kv_blocks_used=0)
    assert small.statistics.generation_tokens - generated < 500
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{small.url}/metrics")).text
    assert 'vllm:num_requests_running{engine="0",model_name="llama3-8b"} 0.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="llama3-8b"} 0.0' in text


async def test_a_full_cache_preempts_and_loses_nothing() -> None:
    """With a cache for about five of twelve requests some are preempted, and all get their tokens."""
    async with (
        EmulatorServer(_settings(speed=200.0, kv_tokens=2048)) as running,
        httpx.AsyncClient(timeout=DEADLINE_S) as client,
    ):
        url = f"{running.url}/v1/completions"
        prompts = [f"{number:04d}" * 100 for number in range(12)]
        answers = await asyncio.gather(
            *(client.post(url, json={"prompt": p, "max_tokens": 300, "ignore_eos": True}) for p in prompts)
        )
        metrics = await _metrics(running)
    assert all(len(answer.json()["choices"][0]["text"].split()) == 300 for answer in answers)
    assert metrics["vllm:num_preemptions_total"] > 0
    assert metrics["vllm:generation_tokens_total"] == 12 * 300
    assert metrics["vllm:request_num_preemptions_sum"] == metrics["vllm:num_preemptions_total"]
    assert metrics["vllm:iteration_tokens_total_sum"] == 12 * 100 + 12 * 300


async def test_equal_starts_of_prompts_are_reused(server: EmulatorServer) -> None:
    """A second question behind the same long system prompt finds its blocks."""
    system = {"role": "system", "content": "s" * 4000}
    async with httpx.AsyncClient() as client:
        for question in ("first", "second"):
            body = {"messages": [system, {"role": "user", "content": question}], "max_tokens": 2}
            await client.post(f"{server.url}/v1/chat/completions", json=body)
    metrics = await _metrics(server)
    assert 990 <= metrics["vllm:prefix_cache_hits_total"] <= 1008


async def test_the_timing_is_the_profiles() -> None:
    """A lone answer of 60 tokens takes its prefill and 59 decode steps of the profile, and not less."""
    async with EmulatorServer(_settings(speed=1.0)) as running, httpx.AsyncClient() as client:
        body = {"prompt": "x" * 400, "max_tokens": 60, "ignore_eos": True}
        await client.post(f"{running.url}/v1/completions", json=body)
        metrics = await _metrics(running)
    law = PROFILE.law
    step_s = law.step_s(prefill_tokens=0, decoding=1, kv_tokens=130, prefill_attention=0.0, sequences=1)
    # From its arrival: on a loaded machine the first token may be handed over late, and the others are made up for.
    assert metrics["vllm:e2e_request_latency_seconds_sum"] / 59 > 0.95 * step_s
    assert running.statistics.busy_s == pytest.approx(60 * step_s, rel=0.05)


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/health", 200, b""),
        ("GET", "/ping", 200, b""),
        ("GET", "/nope", 404, b'{"detail":"Not Found"}'),
        ("GET", "/v1/chat/completions", 405, b'{"detail":"Method Not Allowed"}'),
        ("HEAD", "/v1/models", 405, b""),
        ("GET", "/version", 200, b'{"version":"0.32.0+forebay.emulator"}'),
        ("GET", "/load", 200, b'{"server_load":0}'),
        ("POST", "/tokenize", 400, None),
    ],
)
async def test_the_small_routes(
    server: EmulatorServer, method: str, path: str, status: int, body: bytes | None
) -> None:
    """Health, version, load and what is not there are answered as vLLM answers them."""
    async with httpx.AsyncClient() as client:
        answer = await client.request(method, f"{server.url}{path}")
    assert answer.status_code == status
    if body is not None:
        assert answer.content == body
    if status == 405:
        assert answer.headers["allow"] in ("GET", "POST")


async def test_the_request_id_becomes_the_answers_id(server: EmulatorServer) -> None:
    """`x-request-id` is part of the id, as with vLLM."""
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            f"{server.url}/v1/completions",
            json={"prompt": "hi", "max_tokens": 1},
            headers={"x-request-id": "abc-1"},
        )
    assert answer.json()["id"] == "cmpl-abc-1"


@pytest.mark.parametrize(
    ("fields", "body", "status"),
    [
        (b"content-type: text/plain\r\ncontent-length: 2", b"{}", 400),
        (b"content-type: application/json\r\ncontent-length: 99999999999", b"", 413),
        (b"content-type: application/json\r\ncontent-length: 2\r\ncontent-length: 3", b"{}", 400),
    ],
)
async def test_what_is_no_request_gets_an_error_in_the_apis_shape(
    server: EmulatorServer, fields: bytes, body: bytes, status: int
) -> None:
    """A wrong media type, an endless body and broken HTTP are answered with an error object."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n%b" % (fields, body))
    async with asyncio.timeout(DEADLINE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        length = next(
            int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"content-length")
        )
        error = json.loads(await reader.readexactly(length))["error"]
    assert error["code"] == status
    await _leave(writer)


async def test_a_reader_that_stops_reading_does_not_stop_the_engine() -> None:
    """The engine finishes a stream whose client takes nothing, and the client then gets all of the text."""
    tokens = 30_000
    async with (
        EmulatorServer(_settings(speed=2000.0)) as running,
        _raw_request(running, receive_bytes=16_384, stream=True, max_tokens=tokens) as (reader, _),
    ):
        await _wait_until(running, requests_finished=1)
        text = b""
        async with asyncio.timeout(DEADLINE_S):
            while b"data: [DONE]" not in text[-200:]:
                text += await reader.read(1 << 20)
    events = re.findall(rb'"text":"([^"]*)"', text)
    assert tokens == sum(len(event.split()) for event in events)
    assert len(events) < tokens


async def test_closing_ends_streams_with_abort() -> None:
    """On a stop every answer under way ends at once as vLLM ends it, and no new connection is taken."""
    server = EmulatorServer(_settings(speed=1.0))
    await server.start()
    port = server.port
    async with _raw_request(server, stream=True, max_tokens=5000) as (reader, _), asyncio.timeout(DEADLINE_S):
        await reader.readuntil(b"data: ")
        await server.close()
        rest = await reader.read()
    assert b'"finish_reason":"abort"' in rest
    assert b"data: [DONE]" in rest
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
