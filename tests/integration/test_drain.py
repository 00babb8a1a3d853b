"""Shutting down: who runs ends, who waits starts or is told, who comes is sent elsewhere."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import httpx

from tests.integration.fakes import DONE, LAST_CHUNK, STREAM_HEAD, Served, chat, event
from tests.integration.processes import (
    BOUND_S,
    ServeProcess,
    client,
    engine,
    eventually,
    until_up,
    until_waiting,
)


class Streams:
    """An engine whose streams go on until they are let end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, served: Served) -> None:
        await served.send(STREAM_HEAD)
        while not self.may_end.is_set() and not served.closed.is_set():
            await served.send_events(event())
            await asyncio.sleep(0.02)
        await served.send_events(DONE)
        await served.send(LAST_CHUNK)


def configured(folder: Path, endpoint: str, more: str = "", *, in_flight: int = 5) -> str:
    """A file with one endpoint that runs so many requests."""
    path = folder / "forebay.yaml"
    path.write_text(f"pools:\n- {{endpoints: ['{endpoint}'], max_inflight_requests: {in_flight}}}\n{more}")
    return str(path)


class Stream:
    """A client of one streamed chat."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.began = asyncio.Event()
        self.text = ""
        self.status = 0
        self.headers = httpx.Headers()
        self.task = asyncio.create_task(self._run(http, url))

    async def _run(self, http: httpx.AsyncClient, url: str) -> None:
        body = chat(stream=True)
        async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            self.status, self.headers = answer.status_code, answer.headers
            async for piece in answer.aiter_text():
                self.text += piece
                self.began.set()


async def running_streams(http: httpx.AsyncClient, gateway: ServeProcess, count: int) -> list[Stream]:
    """Streams that have begun."""
    streams = [Stream(http, gateway.url) for _ in range(count)]
    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*(stream.began.wait() for stream in streams))
    return streams


async def waiting(http: httpx.AsyncClient, gateway: ServeProcess, count: int) -> list[Stream]:
    """Streams that wait in the queue."""
    streams = [Stream(http, gateway.url) for _ in range(count)]
    await until_waiting(http, gateway, count)
    return streams


async def until_unready(http: httpx.AsyncClient, gateway: ServeProcess) -> None:
    """Wait for readiness to fall."""

    async def unready() -> bool:
        return (await http.get(f"{gateway.admin_url}/readyz")).status_code == 503

    await eventually(unready)


async def test_f070_termination_cuts_nothing(tmp_path: Path) -> None:
    """After SIGTERM readiness fails at once, running streams end whole, waiting ones start and end whole or get 503
    with Retry-After, new calls get 503 with Retry-After on an open listener, and the exit code is 0.
    """
    script = Streams()
    async with (
        engine(script) as fake,
        client() as http,
        ServeProcess("-c", configured(tmp_path, fake.endpoint), "--grace", "15s") as gateway,
    ):
        await until_up(http, gateway)
        running = await running_streams(http, gateway, 5)
        queued = await waiting(http, gateway, 5)
        gateway.signal(signal.SIGTERM)
        await until_unready(http, gateway)
        assert 200 == (await http.get(f"{gateway.admin_url}/healthz")).status_code
        for _ in range(5):
            refused = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
            assert (503, "draining") == (refused.status_code, refused.json()["error"]["code"])
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        script.may_end.set()
        async with asyncio.timeout(BOUND_S):
            await asyncio.gather(*(stream.task for stream in running + queued))
        assert all(stream.status == 200 and stream.text.endswith("data: [DONE]\n\n") for stream in running)
        for stream in queued:
            if stream.status == 200:
                assert stream.text.endswith("data: [DONE]\n\n")
            else:
                assert (503, "draining") == (stream.status, json.loads(stream.text)["error"]["code"])
                assert stream.headers["retry-after"]
        assert 0 == await gateway.exit_code()


async def test_waiters_are_told_before_the_grace_time_is_over(tmp_path: Path) -> None:
    """Who waits gets 503 with Retry-After at half the grace time; what still runs at its end is cut; exit code 0."""
    async with engine(Streams()) as fake, client() as http:
        path = configured(tmp_path, fake.endpoint, "grace: 2s\n", in_flight=1)
        async with ServeProcess("-c", path) as gateway:
            await until_up(http, gateway)
            (running,) = await running_streams(http, gateway, 1)
            (queued,) = await waiting(http, gateway, 1)
            gateway.signal()
            async with asyncio.timeout(BOUND_S):
                await queued.task
            assert (503, "draining") == (queued.status, json.loads(queued.text)["error"]["code"])
            assert 1 <= int(queued.headers["retry-after"]) <= 60
            assert not running.task.done()
            (cut,) = await asyncio.gather(running.task, return_exceptions=True)
            assert isinstance(cut, httpx.HTTPError)
            assert "[DONE]" not in running.text
            assert "draining" == json.loads(running.text.split("data: ")[-1])["error"]["code"]
            assert 0 == await gateway.exit_code()
            lines = [json.loads(line) for line in (await gateway.log()).splitlines()]
            (told,) = [line for line in lines if line["event"] == "request cut at shutdown"]
            assert ("draining", running.headers["x-forebay-id"]) == (told["code"], told["id"])
            assert "client left" not in [line["event"] for line in lines]


async def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    """A second SIGTERM does not wait: who runs and who waits is told, and the exit code tells."""
    async with (
        engine(Streams()) as fake,
        client() as http,
        ServeProcess("-c", configured(tmp_path, fake.endpoint, in_flight=1), "--grace", "10m") as gateway,
    ):
        await until_up(http, gateway)
        (running,) = await running_streams(http, gateway, 1)
        queued = await waiting(http, gateway, 1)
        gateway.signal()
        await until_unready(http, gateway)
        began_s = time.monotonic()
        gateway.signal()
        assert 1 == await gateway.exit_code()
        assert time.monotonic() - began_s < 10.0
        await asyncio.gather(running.task, *(stream.task for stream in queued), return_exceptions=True)
        assert "[DONE]" not in running.text
        assert "draining" == json.loads(running.text.split("data: ")[-1])["error"]["code"]
        assert [(503, "draining")] == [
            (stream.status, json.loads(stream.text)["error"]["code"]) for stream in queued
        ]


async def test_requests_are_served_during_the_notice(tmp_path: Path) -> None:
    """With a notice, readiness falls first while requests still pass, so that load balancers can look away."""
    async with engine() as fake, client() as http:
        path = configured(tmp_path, fake.endpoint, "notice: 2s\ngrace: 15s\n")
        async with ServeProcess("-c", path) as gateway:
            await until_up(http, gateway)
            gateway.signal()
            await until_unready(http, gateway)
            answer = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
            assert 200 == answer.status_code
            assert 0 == await gateway.exit_code()


async def test_idle_gateway_ends_promptly() -> None:
    """With nothing to wait for, the grace time is not used up."""
    async with engine() as fake, ServeProcess("--upstream", fake.endpoint, "--grace", "10m") as gateway:
        gateway.signal()
        assert 0 == await gateway.exit_code()
