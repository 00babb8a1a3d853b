"""Engines that die, hang and come back under load, each process a real one: the emulator and `forebay serve`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import pytest

from tests.integration.processes import BOUND_S, ServeProcess, client, eventually, first_pool, until_up

STALL_S = 10.0
"""Silence after which an engine counts as hung."""
SLACK_S = 8.0
"""What a loaded machine may add."""


class Engine:
    """An emulated engine in a process of its own, on a port that stays its own."""

    def __init__(self) -> None:
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Begin, or begin again."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forebay", "engine", "--port", str(self.port), "--speed", "2",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            line = (await self.process.stdout.readline()).decode()
        self.port = int(line.split("http://127.0.0.1:")[1].split()[0])

    async def kill(self) -> None:
        """End it without a word."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def requests(self, http: httpx.AsyncClient) -> int:
        """Requests that it has finished."""
        page = (await http.get(f"{self.url}/metrics")).text
        lines = [line for line in page.splitlines() if line.startswith("vllm:request_success_total")]
        return int(sum(float(line.split()[-1]) for line in lines))


@dataclass
class Felt:
    """What a client saw of one request."""

    sent_s: float
    took_s: float
    status: int
    whole: bool
    code: str = ""


class Load:
    """A request every 50 ms, a third of them not streamed, whatever becomes of the others."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = f"{url}/v1/chat/completions"
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.felt: list[Felt] = []

    async def run(self) -> None:
        """Until `end`."""
        for number in count():
            if self._stopping:
                break
            self._tasks.append(asyncio.create_task(self._one(stream=number % 3 > 0)))
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        """Send no more, and wait for what is open."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def between(self, start_s: float, end_s: float) -> list[Felt]:
        """What was sent in this time."""
        return [one for one in self.felt if start_s <= one.sent_s < end_s]

    async def _one(self, *, stream: bool) -> None:
        body = {
            "model": "llama3-8b", "stream": stream, "max_tokens": 40, "ignore_eos": True,
            "messages": [{"role": "user", "content": "hello " * 50}],
        }  # fmt: skip
        sent_s = time.monotonic()
        text, status = "", 0
        with suppress(httpx.TransportError):
            async with self._http.stream("POST", self._url, json=body, timeout=60) as answer:
                status = answer.status_code
                async for piece in answer.aiter_text():
                    text += piece
        whole = text.endswith("data: [DONE]\n\n") if stream else text.endswith("}")
        self.felt.append(Felt(sent_s, time.monotonic() - sent_s, status, whole, _code(text)))


def _code(text: str) -> str:
    """The code of the error that an answer is, or that a stream ends with."""
    said: Any = {}
    with suppress(ValueError, IndexError):
        said = json.loads(text.strip().splitlines()[-1].removeprefix("data: "))
    return str((said.get("error") or {}).get("code", "")) if isinstance(said, dict) else ""


@asynccontextmanager
async def engines(number: int) -> AsyncIterator[list[Engine]]:
    """Running engines; none outlives the block, not even a stopped one."""
    started = [Engine() for _ in range(number)]
    try:
        for engine in started:
            await engine.start()
        yield started
    finally:
        for engine in started:
            await engine.kill()


@asynccontextmanager
async def loaded(http: httpx.AsyncClient, gateway: ServeProcess) -> AsyncIterator[Load]:
    """Load for the length of the block, and then until the last answer."""
    load = Load(http, gateway.url)
    running = asyncio.create_task(load.run())
    try:
        yield load
    finally:
        await load.end()
        await running


async def until_state(http: httpx.AsyncClient, gateway: ServeProcess, engine: Engine, *states: str) -> None:
    """Wait until the gateway has this opinion of an engine."""

    async def seen() -> bool:
        pool = await first_pool(http, gateway)
        return any(view["id"] == engine.url and view["state"] in states for view in pool["endpoints"])

    await eventually(seen)


async def until_idle(http: httpx.AsyncClient, gateway: ServeProcess) -> None:
    """Wait until nothing is booked anywhere: no slot was leaked."""

    async def idle() -> bool:
        pool = await first_pool(http, gateway)
        held = sum(view["draining_requests"] + view["kv_tokens"] for view in pool["endpoints"])
        return not (pool["waiting_requests"] or pool["in_flight_requests"] or held)

    await eventually(idle)


async def until_more(load: Load, wanted: Callable[[Felt], bool], more: int) -> None:
    """Wait until so many more requests like this have ended."""
    before = sum(map(wanted, load.felt))

    async def enough() -> bool:
        return sum(map(wanted, load.felt)) >= before + more

    await eventually(enough)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_an_engine_is_killed_under_load_and_comes_back() -> None:
    """What ran there is broken off, the rest is served by the other, and the restarted one gets its part again."""
    async with (
        engines(2) as (first, second),
        client() as http,
        ServeProcess("--upstream", first.url, "--upstream", second.url) as gateway,
    ):
        await until_up(http, gateway)
        async with loaded(http, gateway) as load:
            await until_more(load, lambda one: one.status == 200, 20)
            killed_s = time.monotonic()
            await first.kill()
            await until_state(http, gateway, first, "down")
            gone_s = time.monotonic()
            await until_more(load, lambda one: one.sent_s > gone_s, 30)
            without_s = time.monotonic()
            await first.start()
            await until_state(http, gateway, first, "up")
            before = await first.requests(http)

            async def returned() -> bool:
                return await first.requests(http) > before

            await eventually(returned)
        assert all(one.status == 200 and one.whole for one in load.between(gone_s, without_s))
        broken = [one for one in load.felt if not one.whole]
        assert all(killed_s - SLACK_S < one.sent_s < gone_s for one in broken)
        assert {one.code for one in broken} <= {"upstream_interrupted", ""}
        assert max(one.took_s for one in load.felt) < SLACK_S
        await until_idle(http, gateway)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_an_engine_hangs_under_load_and_goes_on() -> None:
    """A stopped engine counts as hung after ten seconds: what had not begun goes elsewhere, until it moves again."""
    async with (
        engines(2) as (first, second),
        client() as http,
        ServeProcess("--upstream", first.url, "--upstream", second.url) as gateway,
    ):
        await until_up(http, gateway)
        async with loaded(http, gateway) as load:
            await until_more(load, lambda one: one.status == 200, 20)
            second.process.send_signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            await until_state(http, gateway, second, "stalled")
            stalled_s = time.monotonic()
            assert stalled_s - stopped_s < STALL_S + SLACK_S
            await until_more(load, lambda one: one.sent_s > stalled_s, 30)
            without_s = time.monotonic()
            second.process.send_signal(signal.SIGCONT)
            await until_state(http, gateway, second, "up")
            before = await second.requests(http)

            async def returned() -> bool:
                return await second.requests(http) > before + 10

            await eventually(returned)
        assert {(200, True)} == {(one.status, one.whole) for one in load.felt}
        assert all(one.took_s < SLACK_S for one in load.between(stalled_s, without_s))
        # Nobody waited for longer than it took to notice, and then to go on.
        assert max(one.took_s for one in load.felt) < STALL_S + 2 * SLACK_S
        await until_idle(http, gateway)
