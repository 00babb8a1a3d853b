"""Connections to engines: gone stale, black holes, closed after each answer, and as many as are needed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from forebay.admission.model import EngineInfo, EngineKind
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings
from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    FakeEngine,
    Served,
    Stack,
    chat,
    chat_answer,
    event,
    eventually,
    plain,
    post,
    running,
)


@dataclass
class Closing:
    """An engine that closes connections that lie idle for exactly so long, and counts the bodies that it read."""

    idle_s: float
    port: int = 0
    read: int = 0
    closed_idle: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self.idle_s):
                        head = await reader.readuntil(b"\r\n\r\n")
                except TimeoutError:
                    self.closed_idle += 1
                    return
                length = next(
                    int(line.partition(b":")[2])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-l")
                )
                await reader.readexactly(length)
                self.read += 1
                writer.write(plain(chat_answer()))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def closing(idle_s: float) -> AsyncIterator[tuple[Stack, Closing]]:
    """The gateway in front of such an engine."""
    engine = Closing(idle_s)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=2**22)
    fake = FakeEngine()  # stands for its address: nothing is served by it
    fake.port = server.sockets[0].getsockname()[1]
    fake._server = server
    try:
        async with running(Stack([fake])) as stack:
            yield stack, engine
    finally:
        server.close()


@pytest.mark.parametrize("body_bytes", [100, 2_000_000])
async def test_f045_a_connection_that_closes_while_it_is_used_again_is_replaced(body_bytes: int) -> None:
    """F045: idle connections end just when they are used again: no client sees it, and no body is read twice."""
    idle_s = 0.1
    body = json.dumps({**chat(), "padding": "x" * body_bytes}).encode()
    async with closing(idle_s) as (stack, engine):
        for number in range(60):
            reply = await stack.ask(post(body))
            assert reply.status == 200
            # Around the moment at which the engine closes: before, at, and after.
            await asyncio.sleep(idle_s + (number % 7 - 3) * 0.0004)
        assert engine.read == 60
        assert engine.closed_idle >= 5
        assert {Outcome.COMPLETED} == {settlement.outcome for settlement in await stack.settled(60)}
        await stack.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_engines_that_close_after_each_answer_cost_nobody_an_answer(stream: bool) -> None:
    """llama.cpp announces keep-alive and closes after a stream; other answers may keep their connection."""

    async def script(served: Served) -> None:
        if b'"stream": true' in served.request.body:
            await served.stream(event("a"), event("", finish="stop"), DONE)
        else:
            await served.send(plain(chat_answer()))
        served.close()

    info = EngineInfo(EngineKind.LLAMACPP, models=(MODEL,), closes_after_stream=True, linger_s=0.05)
    engine = FakeEngine(script)
    async with running(Stack([engine], info=info)) as stack:
        for _ in range(5):
            replies = await asyncio.gather(*(stack.ask(post(chat(stream=stream))) for _ in range(20)))
            assert {200} == {reply.status for reply in replies}
        assert len(engine.requests) == 100
        await stack.idle()


async def test_f080_as_many_connections_as_requests() -> None:
    """F080: with room for 400 requests 400 streams run at once on one engine; nothing waits where nobody sees it."""
    go_on = asyncio.Event()

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"))
        await go_on.wait()
        await served.send_events(event("", finish="stop"), DONE)
        await served.send(LAST_CHUNK)

    engine = FakeEngine(script)
    async with running(Stack([engine], pool=PoolSettings("default", max_inflight_requests=400))) as stack:
        asked = [asyncio.create_task(stack.ask(post(chat(stream=True)))) for _ in range(400)]
        await eventually(lambda: engine.peak == 400, 20.0)
        assert stack.waiting == 0
        go_on.set()
        assert {200} == {reply.status for reply in await asyncio.gather(*asked)}
        await stack.idle()


class BlackHole(FakeEngine):
    """An address that is thought to work, and on which no connection can be made any more."""

    listening = True


async def test_f067_a_dead_address_costs_a_request_the_connect_limit_and_no_more() -> None:
    """F067: a request to an address that swallows connections goes elsewhere after the limit, what follows at once."""
    good, hole = FakeEngine(), BlackHole()
    with socket.socket() as full, contextlib.ExitStack() as opened:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = opened.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        hole.port = full.getsockname()[1]
        async with running(Stack([hole, good])) as stack:
            target = stack.gateway.upstreams.get(hole.endpoint)
            assert target is not None
            target.upstream.connect_timeout_s = 0.5
            replies = await asyncio.gather(*(stack.ask(post(chat())) for _ in range(6)))
            assert {200} == {reply.status for reply in replies}
            assert len(good.requests) == 6
            assert 2 in {settlement.attempts for settlement in await stack.settled(6)}
            assert max(settlement.duration_s for settlement in stack.settlements) < 5.0
            assert (await stack.ask(post(chat()))).status == 200
            assert stack.settlements[-1].attempts == 1
            await stack.idle()


async def test_f043_retries_do_not_multiply() -> None:
    """F043: engines that always say 503 get two requests at most for each of the client's, who gets their word."""

    async def script(served: Served) -> None:
        await served.send(plain(b'{"error":{"message":"busy"}}', "503 Service Unavailable"))

    engines = [FakeEngine(script) for _ in range(4)]
    async with running(Stack(engines)) as stack:
        replies = await asyncio.gather(*(stack.ask(post(chat())) for _ in range(50)))
        assert {503} == {reply.status for reply in replies}
        assert sum(len(engine.requests) for engine in engines) <= 100
        assert {Outcome.UPSTREAM_FAILED, Outcome.NO_ENDPOINTS} >= {s.outcome for s in await stack.settled(50)}
        await stack.idle()
