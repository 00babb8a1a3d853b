"""R33: `forebay.client` in the SDKs, against a gateway and an engine in processes of their own, overloaded."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import yaml

from forebay.client import AsyncRetryTransport, RetryBudget, RetryPolicy, RetryTransport
from tests.integration.processes import ServeProcess, client, metrics, total, until_up

MODEL = "m"
KEY = "sk-client"


@dataclass(slots=True)
class Attempt:
    """One request as it was sent, and what came."""

    call: str
    sent_at: float
    retry: int
    deadline_ms: int
    status: int = 0
    told_s: float | None = None
    answered_at: float = 0.0


@dataclass(slots=True)
class Watched(httpx2.AsyncBaseTransport):
    """Sends, and keeps what went by."""

    attempts: list[Attempt] = field(default_factory=list)
    inner: httpx2.AsyncHTTPTransport = field(default_factory=httpx2.AsyncHTTPTransport)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        attempt = Attempt(
            request.headers["x-call"],
            time.monotonic(),
            int(request.headers.get("x-stainless-retry-count", "0")),
            int(request.headers["x-forebay-deadline-ms"]),
        )
        self.attempts.append(attempt)
        answer = await self.inner.handle_async_request(request)
        attempt.answered_at = time.monotonic()
        attempt.status = answer.status_code
        if "retry-after-ms" in answer.headers:
            attempt.told_s = int(answer.headers["retry-after-ms"]) / 1000
        return answer

    async def aclose(self) -> None:
        await self.inner.aclose()

    def by_call(self) -> dict[str, list[Attempt]]:
        """The attempts of each call, in order."""
        calls: dict[str, list[Attempt]] = {}
        for attempt in self.attempts:
            calls.setdefault(attempt.call, []).append(attempt)
        return calls


@asynccontextmanager
async def overloaded(folder: Path) -> AsyncIterator[ServeProcess]:
    """A gateway whose engine runs two at a time, and where two may wait."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay", "engine", "--port", "0", "--model", MODEL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            url = (await process.stdout.readline()).decode().split()[3]
        config = {
            "pools": [{"name": "p", "endpoints": [url], "max_inflight_requests": 2}],
            "classes": {"standard": {"ttft": "5s", "max_queue": 2}},
            "plans": {"all": {"classes": ["standard"]}},
            "tenants": [{"name": "t", "plan": "all", "keys": [f"sha256:{sha256(KEY.encode()).hexdigest()}"]}],
            "anonymous": "refuse",
            "limits": {"max_body": "64KiB"},
        }
        path = folder / "forebay.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        async with client() as http, ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            yield gateway
    finally:
        process.kill()
        await process.wait()


def sdk(
    gateway: ServeProcess, transport: AsyncRetryTransport, *, max_retries: int = 0, timeout_s: float = 30.0
) -> openai.AsyncOpenAI:
    """The SDK as the documentation shows it."""
    return openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1",
        api_key=KEY,
        timeout=timeout_s,
        max_retries=max_retries,
        http_client=openai.DefaultAsyncHttpxClient(transport=transport),
    )


async def ask(asker: openai.AsyncOpenAI, call: int, **options: Any) -> str:
    """One short answer; returns what became of it."""
    try:
        await asker.chat.completions.create(
            **{
                "model": MODEL,
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 20,
                "extra_body": {"ignore_eos": True},
                "extra_headers": {"x-call": str(call)},
                **options,
            }
        )
    except openai.APIStatusError as error:
        return str(error.code)
    except openai.APITimeoutError:
        return "timed out"
    return "answered"


def planned_returns(caplog: pytest.LogCaptureFixture) -> list[float]:
    """When calls meant to come back for the first time: a loaded machine may send them later, and together."""
    found = [
        (record.created, re.search(r"; retry 1 in ([\d.]+) s", record.message)) for record in caplog.records
    ]
    return [told_at + float(match.group(1)) for told_at, match in found if match]


@pytest.mark.slow
@pytest.mark.parametrize("max_retries", [0, 2])
async def test_refused_calls_come_back_one_by_one_within_their_budget(
    tmp_path: Path, max_retries: int, caplog: pytest.LogCaptureFixture
) -> None:
    """R12, R33, F043: each in its slot, none together, and no more than the budget, also with the SDK's retries on."""
    calls, reserve = 40, 24
    watched, budget = Watched(), RetryBudget(ratio=0.1, reserve=reserve)
    transport = AsyncRetryTransport(watched, budget=budget)
    caplog.set_level(logging.INFO, "forebay.client")
    async with overloaded(tmp_path) as gateway, sdk(gateway, transport, max_retries=max_retries) as asker:
        ends = Counter(await asyncio.gather(*(ask(asker, call) for call in range(calls))))
        async with client() as http:
            series = await metrics(http, gateway)
    assert set(ends) <= {"answered", "queue_full", "queue_timeout", "deadline_unreachable"}
    assert ends["answered"] >= 8
    assert len(watched.attempts) == total(series, "forebay_requests_total")
    assert reserve // 2 <= len(watched.attempts) - calls <= reserve + 0.1 * calls

    for attempts in watched.by_call().values():
        assert [attempt.retry for attempt in attempts] == list(range(len(attempts)))
        for before, after in pairwise(attempts):
            assert before.told_s is not None
            assert after.sent_at - before.answered_at >= before.told_s
    second = planned_returns(caplog)
    assert len(second) >= reserve // 2
    assert max(second) - min(second) >= 0.2
    assert max(sum(at <= other < at + 0.05 for other in second) for at in second) <= len(second) / 2


@pytest.mark.slow
async def test_a_deadline_is_kept_over_all_attempts(tmp_path: Path) -> None:
    """R33: who can wait for two seconds is told so by then, and is not sent again into the line behind it."""
    watched, timeout_s = Watched(), 2.0
    transport = AsyncRetryTransport(watched, budget=RetryBudget(reserve=100))
    async with overloaded(tmp_path) as gateway, sdk(gateway, transport, timeout_s=timeout_s) as asker:
        began = time.monotonic()
        ends = Counter(await asyncio.gather(*(ask(asker, call, max_tokens=60) for call in range(30))))
        took_s = time.monotonic() - began
    assert ends["answered"] >= 2
    assert ends.total() - ends["answered"] >= 5
    assert took_s <= timeout_s + 1.0
    for attempts in watched.by_call().values():
        for attempt in attempts:
            gone_s = attempt.sent_at - attempts[0].sent_at
            assert gone_s < timeout_s
            assert attempt.deadline_ms <= 950 * (timeout_s - gone_s) + 50


async def test_nobody_retries_what_never_can_pass(tmp_path: Path) -> None:
    """R33: bad input, what is too large and unknown keys are sent once, by the SDK's own retries as well."""
    watched = Watched()
    transport = AsyncRetryTransport(watched)
    async with overloaded(tmp_path) as gateway, sdk(gateway, transport, max_retries=2) as asker:
        assert "invalid_request" == await ask(asker, 0, max_tokens=-1)
        assert "request_too_large" == await ask(
            asker, 1, messages=[{"role": "user", "content": "x" * 100_000}]
        )
        stranger = asker.with_options(api_key="sk-stranger")
        assert "invalid_api_key" == await ask(stranger, 2)
    assert [400, 413, 401] == [attempt.status for attempt in watched.attempts]
    assert 10.0 == transport.budget.retries_left


async def test_streams_pass_as_they_come_and_threads_share_a_client(tmp_path: Path) -> None:
    """The synchronous transport serves threads, and the first piece of a stream is there before its last is made."""

    def stream(asker: openai.OpenAI) -> tuple[float, float]:
        began = time.monotonic()
        with asker.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=100,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as pieces:
            times = [time.monotonic() - began for _ in pieces]
        assert len(times) >= 100
        return times[0], times[-1]

    policy = RetryPolicy(max_retries=10)
    transport = RetryTransport(policy=policy, budget=RetryBudget(reserve=100))
    async with overloaded(tmp_path) as gateway:
        with openai.OpenAI(
            base_url=f"{gateway.url}/v1",
            api_key=KEY,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(transport=transport),
        ) as asker:
            times = await asyncio.gather(*(asyncio.to_thread(stream, asker) for _ in range(6)))
    assert all(last - first >= 0.1 for first, last in times)


@pytest.mark.slow
@pytest.mark.parametrize("max_retries", [0, 2])
async def test_the_anthropic_sdk_keeps_slots_and_budget_too(tmp_path: Path, max_retries: int) -> None:
    """R33: its calls come back when told, no more often than the budget allows, also with its own retries on."""
    calls, reserve = 24, 10
    watched = Watched()
    transport = AsyncRetryTransport(watched, budget=RetryBudget(ratio=0.1, reserve=reserve))

    async def ask_claude(asker: anthropic.AsyncAnthropic, call: int) -> str:
        try:
            await asker.messages.create(
                model=MODEL,
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=20,
                extra_body={"ignore_eos": True},
                extra_headers={"x-call": str(call)},
            )
        except anthropic.RateLimitError:
            return "refused"
        return "answered"

    async with (
        overloaded(tmp_path) as gateway,
        anthropic.AsyncAnthropic(
            base_url=gateway.url,
            api_key=KEY,
            timeout=30.0,
            max_retries=max_retries,
            http_client=anthropic.DefaultAsyncHttpxClient(transport=transport),
        ) as asker,
    ):
        ends = Counter(await asyncio.gather(*(ask_claude(asker, call) for call in range(calls))))
    assert ends["answered"] >= 6
    assert ends["refused"] >= 1
    assert reserve <= len(watched.attempts) - calls <= reserve + 0.1 * calls
    for attempts in watched.by_call().values():
        assert [attempt.retry for attempt in attempts] == list(range(len(attempts)))
        for before, after in pairwise(attempts):
            assert before.told_s is not None
            assert after.sent_at - before.answered_at >= before.told_s
