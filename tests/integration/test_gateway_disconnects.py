"""Clients that leave, and clients that do not read: the engine is told, and nothing stays booked."""

from __future__ import annotations

import asyncio

import pytest

from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings
from forebay.http.limits import ServerLimits
from tests.integration.fakes import (
    DONE,
    STREAM_HEAD,
    FakeEngine,
    RawClient,
    Served,
    Stack,
    chat,
    chat_answer,
    chunk,
    event,
    eventually,
    plain,
    post,
    running,
)


def leave(client: RawClient, how: str) -> None:
    """The client goes away."""
    if how == "fin":
        client.close()
    else:
        client.reset()


async def silent(served: Served) -> None:
    """Takes the request and says nothing."""
    await served.closed.wait()


async def headers_only(served: Served) -> None:
    """Sends the head of a stream and nothing else."""
    await served.send(STREAM_HEAD)
    await served.closed.wait()


async def endless(served: Served) -> None:
    """Streams until it is cut off."""
    await served.send(STREAM_HEAD)
    while not served.closed.is_set():
        await served.send(chunk(event("x")))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize(
    ("script", "stream"),
    [(silent, False), (silent, True), (headers_only, True)],
    ids=["plain", "stream", "headers"],
)
async def test_f008_leaving_before_the_first_byte_reaches_the_engine(
    script: object, stream: bool, how: str
) -> None:
    """F008: a client that leaves before the first byte frees its slot and closes the engine's connection at once."""
    engine = FakeEngine(script)  # type: ignore[arg-type]
    async with running(Stack([engine])) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=stream)))
        await engine.until(lambda: bool(engine.served))
        leave(client, how)
        await asyncio.wait_for(engine.served[0].closed.wait(), 1.0)
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.CLIENT_GONE
        await stack.idle()
        assert len(engine.requests) == 1


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_leaving_in_mid_stream_reaches_the_engine(how: str) -> None:
    """A client that leaves a running stream closes the engine's connection within a second."""
    engine = FakeEngine(endless)
    async with running(Stack([engine])) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        await client.head()
        chunks = client.chunks()
        for _ in range(3):
            await anext(chunks)
        leave(client, how)
        await asyncio.wait_for(engine.served[0].closed.wait(), 1.0)
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.CLIENT_GONE
        assert settlement.output_tokens >= 3
        await stack.idle()


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_leaving_while_waiting_frees_the_place_in_line(how: str) -> None:
    """A waiting client that leaves is never dispatched, and its body is let go."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    engine = FakeEngine(script)
    async with running(Stack([engine], pool=PoolSettings("default", max_inflight_requests=1))) as stack:
        first, second = await stack.client(), await stack.client()
        await first.send(post(chat()))
        await engine.until(lambda: len(engine.requests) == 1)
        await second.send(post(chat()))
        await eventually(lambda: stack.waiting == 1)
        leave(second, how)
        await eventually(lambda: stack.waiting == 0 and not stack.gateway.bodies.taken_bytes)
        release.set()
        assert (await first.reply()).status == 200
        assert [Outcome.CLIENT_GONE, Outcome.COMPLETED] == [s.outcome for s in await stack.settled(2)]
        assert len(engine.requests) == 1
        first.close()
        await stack.idle()


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("framing", ["content-length: 100000", "transfer-encoding: chunked"])
async def test_leaving_while_the_body_is_read_leaves_nothing(framing: str, how: str) -> None:
    """A client that leaves in mid-body has cost no ticket, and the room set aside for its body is given back."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:
        client = await stack.client()
        await client.send(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n5\r\nab".encode()
        )
        await eventually(lambda: stack.gateway.bodies.taken_bytes > 0)
        leave(client, how)
        await stack.idle()
        assert stack.settlements == []
        assert engine.requests == []


async def test_leaving_while_another_attempt_is_made() -> None:
    """A client that leaves between two attempts ends its request once, and the second attempt is cut."""
    engines = [FakeEngine(), FakeEngine()]
    first_failed = asyncio.Event()

    async def script(served: Served) -> None:
        if first_failed.is_set():
            await served.closed.wait()
        else:
            first_failed.set()
            served.reset()

    for engine in engines:
        engine.script = script
    async with running(Stack(engines)) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        await eventually(lambda: sum(len(engine.requests) for engine in engines) == 2)
        client.reset()
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.attempts) == (Outcome.CLIENT_GONE, 2)
        await stack.idle()


async def test_a_reader_that_takes_nothing_is_dropped() -> None:
    """A client that stops reading slows the engine down, is dropped at the write limit, and frees its slot."""
    sent_bytes = 0

    async def flood(served: Served) -> None:
        nonlocal sent_bytes
        await served.send(STREAM_HEAD)
        piece = chunk(event("x" * 10_000))
        while not served.closed.is_set():
            await served.send(piece)
            sent_bytes += len(piece)

    engine = FakeEngine(flood)
    stack = Stack([engine], limits=ServerLimits(write_timeout_s=0.5))
    async with running(stack):
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.SLOW_READER
        await asyncio.wait_for(engine.served[0].closed.wait(), 5.0)
        await stack.idle()
        # Socket buffers of two connections and our own high-water mark, but not what an engine can send in that time.
        assert sent_bytes < 40_000_000


async def test_a_slow_reader_slows_the_engine_and_loses_nothing() -> None:
    """Back-pressure holds the engine's stream up, and every byte arrives once the client reads on."""
    count, text = 400, "x" * 20_000
    finished = asyncio.Event()

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        for _ in range(count):
            await served.send(chunk(event(text)))
        await served.send(chunk(event("", finish="stop")) + chunk(DONE) + b"0\r\n\r\n")
        finished.set()

    async with running(Stack([FakeEngine(script)])) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        await client.head()
        received = []
        async for piece in client.chunks():
            received.append(piece)
            await asyncio.sleep(0.001)
        assert b"".join(received) == event(text) * count + event("", finish="stop") + DONE
        assert finished.is_set()
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.output_tokens) == (Outcome.COMPLETED, count + 1)
        client.close()
        await stack.idle()
