"""What the process takes is bounded by what it may have: a gateway in a small container lives on."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from benchmarks.scale.callers import Callers, open_files
from benchmarks.scale.memory import MemoryWatch
from tests.integration.fakes import chat, post
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    hang,
    metrics,
    until_at_rest,
    until_up,
)

MIB: Final = 1024 * 1024
POD: Final = {"FOREBAY_LIMITS__MEMORY": "512MiB"}
CLIENTS: Final = 5_000
BODY_BYTES: Final = 400_000
NO_ROOM: Final = (429, "queue_full waiting_bytes")

needs_files = pytest.mark.skipif(
    open_files(4 * CLIENTS) < CLIENTS + 500, reason="not enough files may be open here for so many clients"
)


def large_request() -> bytes:
    """For a class that may wait for a minute."""
    return post(chat(pad="x" * (BODY_BYTES - 200)), headers="x-forebay-class: batch\r\n")


async def everybody_is_in(callers: Callers) -> None:
    """Wait until the gateway has answered, or keeps, everybody."""
    before = -1
    while before != callers.gone:
        before = callers.gone
        await asyncio.sleep(1.0)


@needs_files
@pytest.mark.timeout(120)
async def test_large_waiting_bodies_take_a_pod_over_its_limit() -> None:
    """In a pod of 512 MiB 5,000 clients with 400 kB each are kept or told to come back, and 400 MiB are not reached."""
    async with (
        engine(hang) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint, environ=POD) as gateway,
    ):
        await until_up(http, gateway)
        callers = Callers(int(gateway.url.rpartition(":")[2]), large_request())
        with MemoryWatch(gateway.process.pid) as memory:
            await callers.call(CLIENTS)
            await everybody_is_in(callers)
            series = await metrics(http, gateway)
        kept = callers.unanswered
        assert {NO_ROOM: CLIENTS - kept} == callers.answers
        # A quarter of the memory, of which an eighth is for small bodies alone.
        assert 100 * MIB < series["forebay_waiting_bytes"] <= 112 * MIB
        assert kept > 100 * MIB // BODY_BYTES
        assert memory.peak_rss_bytes < 400 * MIB, f"{memory.peak_rss_bytes / MIB:.0f} MiB"
        assert 200 == (await http.get(f"{gateway.url}/healthz")).status_code
        callers.close()
        await until_at_rest(http, gateway)


@needs_files
@pytest.mark.timeout(120)
async def test_an_engine_that_takes_everything_and_answers_nothing_fills_the_memory() -> None:
    """Bodies are kept for another try while an engine is silent, and are bounded, whatever admission lets through."""
    environ = {**POD, "FOREBAY_MODE": "bypass"}
    async with (
        engine(hang) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint, environ=environ) as gateway,
    ):
        await until_up(http, gateway)
        callers = Callers(int(gateway.url.rpartition(":")[2]), large_request())
        with MemoryWatch(gateway.process.pid) as memory:
            await callers.call(1_000)
            await everybody_is_in(callers)
            sent = sum(request.method == "POST" for request in fake.requests)
        assert {NO_ROOM: 1_000 - sent} == callers.answers
        assert 200 * MIB // BODY_BYTES < sent <= 256 * MIB // BODY_BYTES
        assert memory.peak_rss_bytes < 400 * MIB, f"{memory.peak_rss_bytes / MIB:.0f} MiB"
        callers.close()
        await until_at_rest(http, gateway)
