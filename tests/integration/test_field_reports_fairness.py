"""Faults that others have reported of gateways like this one: when to come back, and whose turn it is.

As in `test_field_reports`: the loads are smaller and the times shorter, what must hold is the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from tests.integration.fakes import MODEL, FakeEngine, Served, answer_chat, chat, chat_answer, plain
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    metrics,
    total,
    until_at_rest,
    until_up,
    until_waiting,
)
from tests.integration.test_tenants import hashed

CHAT = "/v1/chat/completions"
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def write(path: Path, fake: FakeEngine, *, pool: dict[str, Any] | None = None, **keys: Any) -> None:
    """A file with one pool of this engine."""
    entry = {"name": "p", "endpoints": [fake.endpoint], **(pool or {})}
    path.write_text(yaml.safe_dump({"pools": [entry], **keys}, sort_keys=False))


def tenant(name: str, **more: Any) -> dict[str, Any]:
    """A tenant whose key is its name."""
    return {"name": name, "keys": [hashed(f"sk-{name}")], **more}


class Impatient(openai.AsyncOpenAI):
    """The SDK, except that it writes down how long it would wait before it comes back, and comes back at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.waits_s: list[float] = []
        self.told: list[tuple[int, int]] = []

    async def _sleep_for_retry(
        self, *, retries_taken: int, max_retries: int, options: Any, response: Any
    ) -> None:
        headers = response.headers
        self.waits_s.append(self._calculate_retry_timeout(max_retries - retries_taken, options, headers))
        self.told.append((int(headers["retry-after"]), int(headers["retry-after-ms"])))


@pytest.mark.parametrize("needs_s", [0.2, 5.0, 60.0, 119.0, 300.0])
async def test_f035_the_sdk_comes_back_when_it_was_told(tmp_path: Path, needs_s: float) -> None:
    """F035: Retry-After is in the range that SDKs obey, agrees with its finer form, and is never too early."""
    async with engine() as fake, client() as http:
        plan = {"requests_per_second": 1 / needs_s, "requests_burst": 1}
        path = tmp_path / "forebay.yaml"
        write(path, fake, plans={"p": plan}, tenants=[tenant("acme", plan="p")])
        async with (
            ServeProcess("-c", str(path)) as gateway,
            Impatient(base_url=f"{gateway.url}/v1", api_key="sk-acme", max_retries=2) as sdk,
        ):
            await until_up(http, gateway)
            loop = asyncio.get_running_loop()
            began_s = loop.time()  # before what it is let in with: from then on its plan makes up for that
            await sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
            refused_for_good = False
            while not refused_for_good:
                try:
                    await sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
                except openai.RateLimitError:
                    refused_for_good = True
            took_s = loop.time() - began_s
            assert sdk.waits_s
            for turn, (wait_s, (whole_s, told_ms)) in enumerate(
                zip(sdk.waits_s, sdk.told, strict=True), start=1
            ):
                assert 1 <= whole_s <= 60
                assert (whole_s - 1) * 1000 <= told_ms <= whole_s * 1000
                assert wait_s == told_ms / 1000
                # What is more than a minute away cannot be told to SDKs: they come in vain, as often as they do at all.
                assert (needs_s if needs_s <= 60 else 46.0) - took_s <= wait_s
                # It comes in vain at once, as another would: so each time it is told the turn after that.
                assert wait_s <= turn * max(needs_s, 1.0) * 1.3
            series = await metrics(http, gateway)
            refused = total(series, "forebay_refusals_total", 'reason="rate_limit_exceeded"')
            assert refused == len(sdk.waits_s) + 1


async def test_f035_a_call_comes_back_in_time_and_what_never_can_does_not(tmp_path: Path) -> None:
    """F035: what needs 0.2 s is served by its first retry; what asks for too much is no 429 and is not retried."""
    async with engine() as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        plan = {"requests_per_second": 5, "requests_burst": 1, "tokens_per_second": 1000, "burst": 1000}
        write(path, fake, plans={"p": plan}, tenants=[tenant("acme", plan="p")])
        async with (
            ServeProcess("-c", str(path)) as gateway,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-acme", max_retries=2) as sdk,
        ):
            await until_up(http, gateway)
            for _ in range(2):
                await sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
            sent = await metrics(http, gateway)
            assert 3 >= total(sent, "forebay_requests_total")
            await asyncio.sleep(0.3)
            with pytest.raises(openai.BadRequestError) as never:
                await sdk.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "word " * 5000}]
                )
            assert "request_exceeds_quota" == never.value.code
            assert "retry-after" not in never.value.response.headers
            assert "false" == never.value.response.headers["x-should-retry"]
            series = await metrics(http, gateway)
            assert 1 == total(series, "forebay_requests_total") - total(sent, "forebay_requests_total")


async def test_f055_batch_is_served_though_realtime_asks_for_more_than_there_is(tmp_path: Path) -> None:
    """F055: by rank, with its part of the weights as floor: batch gets that part, not more, and none of it is late."""

    async def tenth(served: Served) -> None:
        await asyncio.sleep(0.1)
        await served.send(plain(chat_answer()))

    async with engine(tenth) as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        write(
            path,
            fake,
            pool={"max_inflight_requests": 4},
            class_order="strict",
            displace="off",
            classes={
                "realtime": {"ttft": "10s", "weight": 4},
                "batch": {"ttft": "10s", "weight": 1},
            },
            default_class="realtime",
        )
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            stop = asyncio.Event()
            served = {"realtime": 0, "batch": 0}
            statuses: dict[str, list[int]] = {"realtime": [], "batch": []}

            async def ask(name: str) -> None:
                answer = await http.post(
                    f"{gateway.url}{CHAT}", json=chat(), headers={"x-forebay-class": name}
                )
                statuses[name].append(answer.status_code)
                if not stop.is_set():
                    served[name] += answer.status_code == 200

            async def keep_asking(name: str, at_once: int) -> None:
                async def one() -> None:
                    while not stop.is_set():
                        await ask(name)

                await asyncio.gather(*(one() for _ in range(at_once)))

            asking = [
                asyncio.create_task(keep_asking("realtime", 16)),
                asyncio.create_task(keep_asking("batch", 4)),
            ]
            await asyncio.sleep(6.0)
            stop.set()
            await asyncio.gather(*asking)
            assert {200} == set(statuses["batch"])
            share = served["batch"] / (served["batch"] + served["realtime"])
            assert 0.1 <= share <= 0.3
            await until_at_rest(http, gateway)


async def test_f056_a_backlog_of_one_tenant_stands_before_nobody(tmp_path: Path) -> None:
    """F056: who comes after a thousand calls of another enters the queue and is among the next three that start."""
    gate = asyncio.Semaphore(0)

    async def in_turn(served: Served) -> None:
        await gate.acquire()
        await answer_chat(served)

    def started(fake: FakeEngine) -> list[bytes]:
        return [request.body for request in fake.requests if request.method == "POST"]

    async with engine(in_turn) as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        write(
            path,
            fake,
            pool={"max_inflight_requests": 2, "max_queue": 100},
            displace="same",
            classes={"standard": {"ttft": "60s"}},
            default_class="standard",
            plans={"p": {}},
            tenants=[tenant("a", plan="p"), tenant("b", plan="p")],
        )
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)

            async def ask(name: str) -> httpx.Response:
                return await http.post(
                    f"{gateway.url}{CHAT}",
                    json=chat(user=f"call of {name}"),
                    headers={"authorization": f"Bearer sk-{name}"},
                )

            greedy = [asyncio.create_task(ask("a")) for _ in range(300)]
            await until_waiting(http, gateway, 100)
            modest = [asyncio.create_task(ask("b")) for _ in range(3)]
            series: dict[str, float] = {}
            while total(series, "forebay_refusals_total") < 198 + len(modest):
                series = await metrics(http, gateway)
            for turn in range(8):
                gate.release()
                await fake.until(lambda turn=turn: len(started(fake)) == 2 + turn + 1)  # type: ignore[misc]
            turns = [b"call of b" in body for body in started(fake)[2:]]
            assert any(turns[:3])
            assert 3 == sum(turns)
            for _ in range(400):
                gate.release()
            assert {200} == {(await task).status_code for task in modest}
            assert {200, 429} == {(await task).status_code for task in greedy}
            await until_at_rest(http, gateway)
