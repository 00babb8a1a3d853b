"""What the process takes is bounded by what it may have: a gateway in a small container lives on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import httpx
import pytest

from benchmarks.scale.callers import Callers, open_files
from benchmarks.scale.memory import MemoryWatch
from tests.integration.fakes import STREAM_HEAD, FakeEngine, Served, chat, chunk, event, post
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    first_pool,
    metrics,
    until_at_rest,
    until_up,
)

MIB: Final = 1024 * 1024
DEAD: Final = "http://127.0.0.1:1"
POD: Final = {"FOREBAY_LIMITS__MEMORY": "512MiB"}
CLIENTS: Final = 5_000
BODY_BYTES: Final = 400_000
NO_ROOM: Final = (429, "queue_full waiting_bytes")

needs_files = pytest.mark.skipif(
    open_files(4 * CLIENTS) < CLIENTS + 500, reason="not enough files may be open here for so many clients"
)


def port_of(gateway: ServeProcess) -> int:
    """Where clients connect."""
    return int(gateway.url.rpartition(":")[2])


def large_request() -> bytes:
    """For a class that may wait for a minute."""
    return post(chat(pad="x" * (BODY_BYTES - 200)), headers="x-forebay-class: batch\r\n")


def posts(fake: FakeEngine) -> int:
    """Requests that the engine has."""
    return sum(request.method == "POST" for request in fake.requests)


async def busy(served: Served) -> None:
    """An engine that streams without end to whoever wants a stream, and so is seen to live, and answers nobody else."""
    if b'"stream":true' in served.request.body:
        await served.send(STREAM_HEAD)
        while not served.closed.is_set():
            await served.send(chunk(event()))
            await asyncio.sleep(0.2)
    await served.closed.wait()


@asynccontextmanager
async def a_stream_runs(http: httpx.AsyncClient, gateway: ServeProcess) -> AsyncIterator[None]:
    """As long as bytes come from the engine it is not taken for hung, however slow this machine is."""
    async with http.stream("POST", f"{gateway.url}/v1/chat/completions", json=chat(stream=True)) as answer:
        await anext(answer.aiter_bytes())
        yield


async def until_in(look: Callable[[], Awaitable[int]], everybody: int) -> None:
    """Wait until so many are accounted for."""
    async with asyncio.timeout(150):
        while await look() < everybody:  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.2)


@needs_files
@pytest.mark.timeout(240)
async def test_large_waiting_bodies_take_a_pod_over_its_limit() -> None:
    """In a pod of 512 MiB 5,000 clients with 400 kB each are kept or told to come back, and 400 MiB are not reached."""
    async with (
        engine(busy) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint, environ=POD) as gateway,
    ):
        await until_up(http, gateway)
        callers = Callers(port_of(gateway), large_request())

        async def known() -> int:
            pool = await first_pool(http, gateway)
            return int(pool["waiting_requests"]) + posts(fake) - 1 + callers.gone

        async with a_stream_runs(http, gateway):
            with MemoryWatch(gateway.process.pid) as memory:
                await callers.call(CLIENTS)
                await until_in(known, CLIENTS)
                series = await metrics(http, gateway)
            kept = callers.unanswered
            assert {NO_ROOM} == set(callers.answers)
            # A client that does not get to read for a second, on a machine that does much else, may miss its answer.
            assert callers.answers.total() > (CLIENTS - kept) / 2
            # A quarter of the memory, of which an eighth is for small bodies alone.
            assert 100 * MIB < series["forebay_waiting_bytes"] <= 112 * MIB
            assert kept > 100 * MIB // BODY_BYTES
            assert memory.peak_rss_bytes < 400 * MIB, f"{memory.peak_rss_bytes / MIB:.0f} MiB"
            assert 200 == (await http.get(f"{gateway.url}/healthz")).status_code
            callers.close()
        await until_at_rest(http, gateway)


@needs_files
@pytest.mark.timeout(240)
async def test_an_engine_that_takes_everything_and_answers_nothing_fills_the_memory() -> None:
    """Bodies are kept for another try while an engine is silent, and are bounded, whatever admission lets through."""
    environ = {**POD, "FOREBAY_MODE": "bypass"}
    async with (
        engine(busy) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint, environ=environ) as gateway,
    ):
        await until_up(http, gateway)
        callers = Callers(port_of(gateway), large_request())

        async def known() -> int:
            return posts(fake) - 1 + callers.gone

        async with a_stream_runs(http, gateway):
            with MemoryWatch(gateway.process.pid) as memory:
                await callers.call(1_000)
                await until_in(known, 1_000)
            assert callers.answers[NO_ROOM] > 0
            assert 100 * MIB // BODY_BYTES < posts(fake) - 1 <= 256 * MIB // BODY_BYTES
            assert memory.peak_rss_bytes < 400 * MIB, f"{memory.peak_rss_bytes / MIB:.0f} MiB"
            callers.close()
        await until_at_rest(http, gateway)


async def test_more_connections_are_asked_for_than_files_can_be_open() -> None:
    """The bound on connections is the configured one, but never more than half of the files; the log says so."""
    environ = {"FOREBAY_LIMITS__MAX_CONNECTIONS": "1000"}
    async with ServeProcess("--upstream", DEAD, environ=environ, files=80) as gateway:
        gateway.signal()
        assert 0 == await gateway.exit_code()
        assert "only 80 files may be open, so it is 8 connections" in await gateway.log()


async def test_connections_beyond_the_configured_bound() -> None:
    """Where all connections are taken by requests that wait, one more is closed, and those that wait are not."""
    environ = {"FOREBAY_LIMITS__MAX_CONNECTIONS": "3"}
    async with (
        engine(busy) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint, environ=environ) as gateway,
    ):
        await until_up(http, gateway)
        callers = Callers(port_of(gateway), post(chat(), headers="x-forebay-class: batch\r\n"))
        await callers.call(3)

        async def running() -> int:
            return posts(fake)

        async def turned_away() -> int:
            return callers.gone

        await until_in(running, 3)
        await callers.call(2)
        await until_in(turned_away, 2)
        assert (3, 0) == (callers.unanswered, callers.answers.total())
        callers.close()
