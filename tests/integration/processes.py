"""`forebay serve` as a process of its own, as users run it, and engines that a script answers for."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from tests.integration.fakes import MODEL, FakeEngine, Script, Served, answer_chat, plain

BOUND_S = 20.0
"""For anything that a loaded machine does in a moment."""


class ServeProcess:
    """One gateway process; ended with the block that started it."""

    def __init__(
        self,
        *arguments: str,
        environ: dict[str, str] | None = None,
        admin: str = "127.0.0.1:0",
        files: int | None = None,
    ) -> None:
        """See the class. `files`: the most files that it may have open."""
        self._within = [] if files is None else ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"]
        self._arguments = ["--listen", "127.0.0.1:0", "--admin", admin, *arguments]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
        self._environ = {**kept, **(environ or {})}
        self.lines: list[str] = []
        self.url = ""
        self.admin_url = ""

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *self._within, sys.executable, "-m", "forebay", "serve", *self._arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=self._environ,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._log = asyncio.create_task(self.process.stderr.read())
        try:
            async with asyncio.timeout(BOUND_S):
                self.lines = [(await self.process.stdout.readline()).decode().strip() for _ in range(2)]
        except TimeoutError:
            await self._kill()
            raise
        self.url = self.lines[0].removeprefix("forebay listening on ")
        self.admin_url = self.lines[1].removeprefix("admin on ").replace("0.0.0.0", "127.0.0.1")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._kill()

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for the end."""
        async with asyncio.timeout(BOUND_S):
            return await self.process.wait()

    async def log(self) -> str:
        """All of stderr. For after the end."""
        async with asyncio.timeout(BOUND_S):
            return (await self._log).decode()

    async def _kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        await self._log


def engine_script(chat: Script = answer_chat) -> Script:
    """An engine that lists its model, has no metrics, and answers chats by another script."""

    async def script(served: Served) -> None:
        request = served.request
        if request.method == "POST":
            await chat(served)
        elif request.target == "/v1/models":
            await served.send(plain(json.dumps({"object": "list", "data": [{"id": MODEL}]}).encode()))
        else:
            await served.send(plain(b"{}", "404 Not Found"))

    return script


async def hang(served: Served) -> None:
    """An engine that takes a request and never answers."""
    await served.closed.wait()


@asynccontextmanager
async def engine(
    chat: Script = answer_chat, *, script: Script | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeEngine]:
    """A running engine; with `script`, one that treats even its GETs so."""
    fake = FakeEngine(script or engine_script(chat))
    await fake.start(tls=tls)
    try:
        yield fake
    finally:
        await fake.stop()


@asynccontextmanager
async def client(trusts: ssl.SSLContext | bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client for both ports."""
    async with httpx.AsyncClient(
        timeout=BOUND_S, trust_env=False, limits=httpx.Limits(max_connections=None), verify=trusts
    ) as http:
        yield http


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until it is true: for what another process does in its own time."""
    async with asyncio.timeout(BOUND_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def first_pool(http: httpx.AsyncClient, gateway: ServeProcess) -> dict[str, Any]:
    """The first pool of the gateway's snapshot."""
    snapshot: dict[str, Any] = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()
    pool: dict[str, Any] = snapshot["pools"][0]
    return pool


async def until_up(http: httpx.AsyncClient, gateway: ServeProcess) -> None:
    """Wait until the gateway has looked at its engines."""

    async def up() -> bool:
        endpoints = (await first_pool(http, gateway))["endpoints"]
        return all(endpoint["described"] and endpoint["state"] == "up" for endpoint in endpoints)

    await eventually(up)


async def until_waiting(http: httpx.AsyncClient, gateway: ServeProcess, count: int) -> None:
    """Wait until so many requests wait in the queue."""

    async def waiting() -> bool:
        return bool((await first_pool(http, gateway))["waiting_requests"] == count)

    await eventually(waiting)


async def metrics(http: httpx.AsyncClient, gateway: ServeProcess) -> dict[str, float]:
    """Every series that the gateway shows, by its name with labels."""
    text = (await http.get(f"{gateway.admin_url}/metrics")).text
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def total(series: dict[str, float], name: str, label: str = "") -> float:
    """The sum over all series of a name, or over those with this label."""
    return sum(
        value
        for key, value in series.items()
        if key.partition("{")[0] == name and (not label or label in key)
    )


GAUGES_AT_REST = (
    "forebay_inflight_requests",
    "forebay_inflight_gpu_seconds",
    "forebay_draining_requests",
    "forebay_queue_requests",
    "forebay_queue_gpu_seconds",
    "forebay_waiting_bytes",
    "forebay_kv_booked_tokens",
)
"""What is zero when nothing is going on."""


async def until_at_rest(http: httpx.AsyncClient, gateway: ServeProcess) -> dict[str, float]:
    """Wait until nothing is in flight, waiting or draining; returns all series as they are then."""
    series: dict[str, float] = {}

    async def at_rest() -> bool:
        nonlocal series
        series = await metrics(http, gateway)
        return not any(total(series, name) for name in GAUGES_AT_REST)

    await eventually(at_rest)
    assert total(series, "forebay_internal_errors_total") == 0
    return series
