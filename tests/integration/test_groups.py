"""Two models on the same GPUs, as users meet them: one that had more than its share waits for the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import yaml

from tests.integration.fakes import FakeEngine, Served, chat, chat_answer, plain
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    hang,
    metrics,
    until_at_rest,
)


def write(path: Path, small: FakeEngine, large: FakeEngine, **of_each: Any) -> None:
    """A file with a pool of each engine. A token is a tenth of a GPU-second."""
    pools = [
        {
            "name": name,
            "models": [name],
            "endpoints": [fake.endpoint],
            "profile": {"tokens_per_gpu_second": 10},
            "max_inflight_requests": places,
            **of_each,
        }
        for name, fake, places in (("small", small, 1), ("large", large, 2))
    ]
    if of_each:
        pools[0]["share"] = 0.2
    path.write_text(yaml.safe_dump({"pools": pools, "classes": {"chat": {"ttft": "60s"}}}))


async def test_a_pool_over_its_share_waits_for_another_of_its_group(tmp_path: Path) -> None:
    """Its record says so, the metric shows the share, and a reload that ends the group lets it start."""
    path = tmp_path / "forebay.yaml"
    hung = asyncio.Event()

    async def one_then_hang(served: Served) -> None:
        if not hung.is_set():
            hung.set()
            await served.send(plain(chat_answer(prompt_tokens=100, output_tokens=100)))
        else:
            await hang(served)

    async with engine(hang) as small, engine(one_then_hang) as large, client() as http:
        write(path, small, large, group="gpu-0")
        async with ServeProcess("-c", str(path)) as gateway:
            calls: list[asyncio.Future[Any]] = []

            async def pools() -> dict[str, Any]:
                snapshot = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()
                return {pool["name"]: pool for pool in snapshot["pools"]}

            async def ask(model: str, *, waiting: int, running: int) -> None:
                asked = http.post(f"{gateway.url}/v1/chat/completions", json=chat() | {"model": model})
                calls.append(asyncio.ensure_future(asked))

                async def so() -> bool:
                    pool = (await pools())[model]
                    return (waiting, running) == (pool["waiting_requests"], pool["in_flight_requests"])

                await eventually(so)

            async def up() -> bool:
                views = await pools()
                return all(end["state"] == "up" for pool in views.values() for end in pool["endpoints"])

            await eventually(up)
            await ask("small", waiting=0, running=1)
            await ask("small", waiting=1, running=1)
            await ask("large", waiting=0, running=0)  # answered: twenty GPU-seconds
            assert 200 == (await calls.pop()).status_code
            await ask("large", waiting=0, running=1)
            await ask("large", waiting=1, running=1)
            assert "group_share" in json.dumps((await http.get(f"{gateway.admin_url}/api/decisions")).json())
            shown = await metrics(http, gateway)
            assert shown['forebay_group_share{pool="large"}'] > 0.8

            write(path, small, large)
            assert 200 == (await http.post(f"{gateway.admin_url}/api/reload")).status_code
            large_pool = (await pools())["large"]
            assert (0, 2) == (large_pool["waiting_requests"], large_pool["in_flight_requests"])
            for call in calls:
                call.cancel()
            await until_at_rest(http, gateway)


async def test_engines_that_hang_do_not_slow_down_the_other_pool(tmp_path: Path) -> None:
    """Streams that never begin, and more that wait: the other pool goes on as before, long before these are stalled."""
    path = tmp_path / "forebay.yaml"

    async def answer(served: Served) -> None:
        await asyncio.sleep(0.2)
        await served.send(plain(chat_answer(prompt_tokens=100, output_tokens=10)))

    async with engine(hang) as small, engine(answer) as large, client() as http:
        pools = [
            {
                "name": name,
                "models": [name],
                "endpoints": [fake.endpoint],
                "group": "gpu-0",
                "max_inflight_requests": places,
                "profile": {"tokens_per_gpu_second": 10},  # far below what they do
            }
            for name, fake, places in (("small", small, 2), ("large", large, 8))
        ]
        path.write_text(yaml.safe_dump({"pools": pools, "classes": {"chat": {"ttft": "60s"}}}))
        async with ServeProcess("-c", str(path)) as gateway:
            url, served = f"{gateway.url}/v1/chat/completions", 0

            async def up() -> bool:
                views = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()["pools"]
                return all(end["state"] == "up" for pool in views for end in pool["endpoints"])

            async def again_and_again() -> None:
                nonlocal served
                while True:
                    answered = await http.post(url, json=chat() | {"model": "large"})
                    served += answered.status_code == 200

            async def served_in(seconds: float) -> int:
                before = served
                await asyncio.sleep(seconds)
                return served - before

            await eventually(up)
            tasks = [asyncio.create_task(again_and_again()) for _ in range(8)]
            await asyncio.sleep(1.0)
            alone = await served_in(1.5)
            for _ in range(6):
                body = chat(stream=True) | {"model": "small"}
                tasks.append(asyncio.create_task(_ignored(http.post(url, json=body))))
            await asyncio.sleep(5.0)
            beside = await served_in(1.5)
            shown = await metrics(http, gateway)
            assert 2.0 == shown[f'forebay_inflight_requests{{endpoint="{small.endpoint}",pool="small"}}']
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert beside >= alone / 3


async def _ignored(call: Awaitable[Any]) -> None:
    await call
