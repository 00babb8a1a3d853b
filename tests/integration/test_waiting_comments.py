"""SSE comments to clients whose requests wait, from a running gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    FakeEngine,
    Served,
    chat,
    chunk,
    event,
    plain,
)
from tests.integration.processes import (
    BOUND_S,
    ServeProcess,
    client,
    engine,
    total,
    until_at_rest,
    until_up,
    until_waiting,
)

CHAT = "/v1/chat/completions"


def configured(folder: Path, fake: FakeEngine, *, budget: str) -> str:
    """One request at a time, one may wait; waiting streams of class `standard` are told so every second."""
    path = folder / "forebay.yaml"
    path.write_text(
        f"pools:\n- {{endpoints: ['{fake.endpoint}'], max_inflight_requests: 1, max_queue: 1}}\n"
        "classes:\n  realtime: {ttft: 60s}\n"
        f"  standard: {{ttft: {budget}, waiting_comments: 1s}}\n"
    )
    return str(path)


class Engine:
    """Streams that go on until they are let end, and what one that says `bad` gets."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, served: Served) -> None:
        if b"bad" in served.request.body:
            await served.send(plain(b'{"error": {"message": "bad", "code": 400}}', "400 Bad Request"))
            return
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"))
        await self.may_end.wait()
        await served.send_events(event("b", finish="stop"), DONE)
        await served.send(LAST_CHUNK)


async def read(http: httpx.AsyncClient, gateway: ServeProcess, text: str = "hi") -> tuple[httpx.Headers, str]:
    """A whole stream, and how it began."""
    body = {**chat(stream=True), "messages": [{"role": "user", "content": text}]}
    said = ""
    async with http.stream("POST", f"{gateway.url}{CHAT}", json=body) as stream:
        assert 200 == stream.status_code
        try:
            async for piece in stream.aiter_text():
                said += piece
        except httpx.RemoteProtocolError:
            said += "(cut)"
        return stream.headers, said


async def test_a_waiting_stream_is_told_so_and_then_served(tmp_path: Path) -> None:
    """Comments first, then the engine's events; a more important request does not push it out meanwhile."""
    answering = Engine()
    async with engine(answering) as fake, client() as http:
        path = configured(tmp_path, fake, budget="60s")
        async with ServeProcess("-c", path) as gateway:
            await until_up(http, gateway)
            first = asyncio.ensure_future(read(http, gateway))
            await fake.until(lambda: any(request.method == "POST" for request in fake.requests))
            second = asyncio.ensure_future(read(http, gateway))
            await until_waiting(http, gateway, 1)
            await asyncio.sleep(1.5)
            newcomer = await http.post(
                f"{gateway.url}{CHAT}", json=chat(), headers={"x-forebay-class": "realtime"}
            )
            assert (429, "queue_full") == (newcomer.status_code, newcomer.json()["error"]["code"])
            answering.may_end.set()
            async with asyncio.timeout(BOUND_S):
                headers, said = await second
                await first
            assert said.startswith(": waiting\n\n")
            assert said.endswith("data: [DONE]\n\n")
            assert headers["content-type"].startswith("text/event-stream")
            assert {"x-forebay-id", "x-queue-position", "x-queue-predict-wait"} <= set(headers)
            await until_at_rest(http, gateway)


async def test_what_becomes_of_it_is_told_in_the_stream(tmp_path: Path) -> None:
    """A wait that runs out, and an error of the engine's own: as an event, and the connection is cut behind it."""
    answering = Engine()
    async with engine(answering) as fake, client() as http:
        path = configured(tmp_path, fake, budget="2500ms")
        async with ServeProcess("-c", path) as gateway:
            await until_up(http, gateway)
            first = asyncio.ensure_future(read(http, gateway))
            await fake.until(lambda: any(request.method == "POST" for request in fake.requests))
            async with asyncio.timeout(BOUND_S):
                _, said = await read(http, gateway)
            assert said.startswith(": waiting\n\n")
            refusal = json.loads(said.partition("data: ")[2].removesuffix("(cut)"))
            assert "queue_timeout" == refusal["error"]["code"]
            assert said.endswith("(cut)")
            rejected = asyncio.ensure_future(read(http, gateway, "bad"))
            await until_waiting(http, gateway, 1)
            await asyncio.sleep(1.3)
            answering.may_end.set()
            async with asyncio.timeout(BOUND_S):
                _, said = await rejected
                await first
            assert 'data: {"error": {"message": "bad", "code": 400}}\n\n(cut)' in said
            series = await until_at_rest(http, gateway)
            assert (
                1.0
                == series['forebay_requests_total{class="standard",outcome="engine_rejected",pool="default"}']
            )
            gateway.signal()
            assert 0 == await gateway.exit_code()
            assert "Traceback" not in await gateway.log()


async def slow_prefill(served: Served) -> None:
    """Takes three seconds to its first event, which then comes in two pieces, two seconds apart."""
    await served.send(STREAM_HEAD)
    await asyncio.sleep(3.0)
    first = event("a")
    await served.send(chunk(first[:20]))
    await asyncio.sleep(2.0)
    await served.send(chunk(first[20:]))
    await served.send_events(event("b", finish="stop"), DONE)
    await served.send(LAST_CHUNK)


@pytest.mark.parametrize("comments", [True, False])
async def test_f025_a_client_of_little_patience_survives_a_long_prefill(
    tmp_path: Path, *, comments: bool
) -> None:
    """F025: with comments it does, and they come between events only and are no first token; without, no byte comes."""
    async with engine(slow_prefill) as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        entry = "{ttft: 60s, waiting_comments: 1s}" if comments else "{ttft: 60s}"
        path.write_text(f"pools:\n- endpoints: ['{fake.endpoint}']\nclasses: {{standard: {entry}}}\n")
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            http.timeout = httpx.Timeout(BOUND_S, read=2.5)
            if comments:
                _, said = await read(http, gateway)
                answer = (event("a") + event("b", finish="stop") + DONE).decode()
                before, found, after = said.partition(answer)
                assert (answer, "") == (found, after)
                assert before == ": waiting\n\n" * before.count(":")
                assert before.count(":") >= 3
                series = await until_at_rest(http, gateway)
                assert total(series, "forebay_ttft_seconds_sum") >= 5.0
            else:
                with pytest.raises(httpx.ReadTimeout):
                    await read(http, gateway)
                await until_at_rest(http, gateway)
