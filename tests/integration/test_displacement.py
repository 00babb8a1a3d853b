"""Waiters that make room for more important ones, as users meet it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import yaml

from tests.integration.fakes import FakeEngine, chat
from tests.integration.processes import (
    BOUND_S,
    ServeProcess,
    client,
    engine,
    eventually,
    hang,
    until_at_rest,
    until_up,
    until_waiting,
)

CHAT = "/v1/chat/completions"
BATCH = {"x-forebay-class": "batch"}
REALTIME = {"x-forebay-class": "realtime"}


def configured(folder: Path, fake: FakeEngine, *, may_wait: int, **batch: str) -> str:
    """One request at a time, and so many may wait, whatever their class."""
    path = folder / "forebay.yaml"
    pool = {"endpoints": [fake.endpoint], "max_inflight_requests": 1, "max_queue": may_wait}
    classes = {"realtime": {"ttft": "60s"}, "batch": {"ttft": "60s", **batch}}
    config = {"pools": [pool], "classes": classes, "default_class": "batch"}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return str(path)


async def test_a_full_queue_gives_the_place_of_the_less_important(tmp_path: Path) -> None:
    """It is told so, with a time to come back; and when it has come back it is not pushed out once more."""
    async with engine(hang) as fake, client() as http:
        path = configured(tmp_path, fake, may_wait=1)
        async with ServeProcess("-c", path) as gateway:
            await until_up(http, gateway)
            calls: list[asyncio.Task[httpx.Response]] = []

            async def ask(waiting: int, headers: dict[str, str]) -> None:
                call = asyncio.create_task(http.post(f"{gateway.url}{CHAT}", json=chat(), headers=headers))
                calls.append(call)

                async def runs() -> bool:
                    return any(request.method == "POST" for request in fake.requests)

                await eventually(runs)
                await until_waiting(http, gateway, waiting)

            await ask(0, BATCH)
            await ask(1, BATCH)
            await ask(1, REALTIME)
            async with asyncio.timeout(BOUND_S):
                answer = await calls[1]
            assert (429, "displaced") == (answer.status_code, answer.json()["error"]["code"])
            assert "displaced" in answer.headers["x-forebay-reason"]
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            calls[2].cancel()
            await until_waiting(http, gateway, 0)
            await ask(1, BATCH | {"x-stainless-retry-count": "1"})
            refused = await http.post(f"{gateway.url}{CHAT}", json=chat(), headers=REALTIME)
            assert (429, "queue_full") == (refused.status_code, refused.json()["error"]["code"])
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            series = await until_at_rest(http, gateway)
            assert 1.0 == series['forebay_requests_total{class="batch",outcome="displaced",pool="default"}']


async def test_streams_that_were_told_that_they_wait_are_left_alone(tmp_path: Path) -> None:
    """Their head is out, so they could be refused only within it: one that was not told makes room, then nobody."""
    async with engine(hang) as fake, client() as http:
        path = configured(tmp_path, fake, may_wait=4, waiting_comments="1s")
        async with ServeProcess("-c", path) as gateway:
            await until_up(http, gateway)
            said: list[str] = []

            async def stream() -> None:
                number = len(said)
                said.append("")
                call = http.stream("POST", f"{gateway.url}{CHAT}", json=chat(stream=True), headers=BATCH)
                async with call as answer:
                    assert 200 == answer.status_code
                    async for piece in answer.aiter_text():
                        said[number] += piece

            streams = [asyncio.create_task(stream()) for _ in range(4)]
            await until_waiting(http, gateway, 3)

            async def told() -> bool:
                # That whose prompt is with the engine too.
                return sum(": waiting" in text for text in said) == 4

            await eventually(told)
            untold = asyncio.create_task(http.post(f"{gateway.url}{CHAT}", json=chat(), headers=BATCH))
            await until_waiting(http, gateway, 4)
            first = asyncio.create_task(http.post(f"{gateway.url}{CHAT}", json=chat(), headers=REALTIME))
            async with asyncio.timeout(BOUND_S):
                assert "displaced" == (await untold).json()["error"]["code"]
            second = await http.post(f"{gateway.url}{CHAT}", json=chat(), headers=REALTIME)
            assert (429, "queue_full") == (second.status_code, second.json()["error"]["code"])
            assert not any(task.done() for task in (*streams, first))
            assert all("error" not in text for text in said)
            for task in (*streams, first):
                task.cancel()
            await asyncio.gather(*streams, first, return_exceptions=True)
            await until_at_rest(http, gateway)
