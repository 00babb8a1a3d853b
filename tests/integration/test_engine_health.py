"""Engines that hang, sleep, drain, restart or lose their metrics, in front of the real gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    FakeEngine,
    Script,
    Served,
    answer_chat,
    chat,
    event,
    plain,
)
from tests.integration.processes import (
    ServeProcess,
    client,
    eventually,
    hang,
    metrics,
    total,
    until_at_rest,
    until_up,
)
from tests.unit.engines.pages import vllm_models, vllm_page

ASLEEP = b'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\n'
AWAKE = ASLEEP.replace(b"0.0", b"1.0")


class Vllm:
    """A scripted engine with vLLM's pages."""

    def __init__(self, chat: Script = answer_chat) -> None:
        self.chat = chat
        self.health = plain(b"")
        self.health_takes_s = 0.0
        self.metrics: bytes | None = plain(vllm_page(running=(0.0,), waiting=(0.0,)) + AWAKE)
        """None: it takes the question and never answers."""
        self.fake = FakeEngine(self._serve)

    @property
    def chats(self) -> int:
        """Requests to generate that it was sent."""
        return sum(request.method == "POST" for request in self.fake.requests)

    async def _serve(self, served: Served) -> None:
        match served.request.target:
            case "/health":
                await asyncio.sleep(self.health_takes_s)
                await served.send(self.health)
            case "/metrics":
                if self.metrics is None:
                    await served.closed.wait()
                else:
                    await served.send(self.metrics)
            case "/v1/models":
                await served.send(plain(vllm_models(MODEL)))
            case _:
                await self.chat(served)


@asynccontextmanager
async def serving(
    tmp_path: Path, *engines: Vllm, **more: object
) -> AsyncIterator[tuple[httpx.AsyncClient, ServeProcess]]:
    """The gateway in front of these engines, once it knows them."""
    for one in engines:
        await one.fake.start()
    path = tmp_path / "forebay.yaml"
    path.write_text(json.dumps({"pools": [{"endpoints": [one.fake.endpoint for one in engines]}]} | more))
    try:
        async with client() as http, ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            yield http, gateway
    finally:
        for one in engines:
            await one.fake.stop()


async def ask(http: httpx.AsyncClient, gateway: ServeProcess, **more: Any) -> httpx.Response:
    """One chat."""
    return await http.post(f"{gateway.url}/v1/chat/completions", json=chat(**more))


async def until_state(http: httpx.AsyncClient, gateway: ServeProcess, engine: Vllm, state: str) -> None:
    """Wait until the gateway has this opinion of an engine."""

    async def seen() -> bool:
        series = await metrics(http, gateway)
        return bool(
            total(series, "forebay_endpoint_state", f'{engine.fake.endpoint}",pool="default",state="{state}"')
        )

    await eventually(seen)


async def faults(http: httpx.AsyncClient, gateway: ServeProcess, engine: Vllm) -> dict[str, float]:
    """What is held against an engine, by kind."""
    series = await metrics(http, gateway)
    kinds = ("connect", "closed", "refused", "timeout", "cut", "unready", "stalled", "ejected", "restarted")
    name = "forebay_engine_faults_total"
    found = {kind: total(series, name, f'{engine.fake.endpoint}",kind="{kind}"') for kind in kinds}
    return {kind: count for kind, count in found.items() if count}


async def test_f064_a_hung_engine_is_taken_out_and_probed_by_single_calls(tmp_path: Path) -> None:
    """F064: one answers /health and /metrics and no request: the other serves, and the hung one gets few more."""
    hung, good = Vllm(hang), Vllm()
    classes = {"standard": {"ttft": "30s", "idle_stream": "1s"}}
    async with serving(tmp_path, hung, good, classes=classes) as (http, gateway):
        ejected = 0.0
        for _ in range(5):  # how many of twelve come to the hung one is not always enough to take it out
            answers = await asyncio.gather(*(ask(http, gateway, stream=True) for _ in range(12)))
            assert {200} == {answer.status_code for answer in answers}
            assert all(answer.text.endswith(DONE.decode()) for answer in answers)
            ejected = (await faults(http, gateway, hung)).get("ejected", 0.0)
            if ejected:
                break
        assert ejected == 1
        sent_s, before = asyncio.get_running_loop().time(), hung.chats
        slow = 0
        for _ in range(60):
            began_s = asyncio.get_running_loop().time()
            assert (await ask(http, gateway, stream=True)).status_code == 200
            slow += asyncio.get_running_loop().time() - began_s > 0.9
            await asyncio.sleep(0.05)
        took_s = asyncio.get_running_loop().time() - sent_s
        assert hung.chats - before <= 1 + took_s  # one at a time, each for a second
        assert slow <= hung.chats - before
        await until_at_rest(http, gateway)


async def test_f064_a_slow_health_check_does_not_throw_a_good_engine_out(tmp_path: Path) -> None:
    """F064: /health takes longer than anybody waits for, and completions work: the engine stays, and gets its part."""
    slow, other = Vllm(), Vllm()
    slow.health_takes_s = 30.0
    async with serving(tmp_path, slow, other) as (http, gateway):
        for _ in range(10):
            answers = await asyncio.gather(*(ask(http, gateway) for _ in range(8)))
            assert {200} == {answer.status_code for answer in answers}
            await asyncio.sleep(0.3)
        assert slow.chats >= 20
        assert {} == await faults(http, gateway, slow)


async def test_an_engine_that_drains_gets_nothing_new_and_ends_in_peace(tmp_path: Path) -> None:
    """A 503 of its health check: streams there go on to their end, everything new goes to the other engine."""
    go_on = asyncio.Event()

    async def slow_stream(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"))
        await go_on.wait()
        await served.send_events(event("b", finish="stop"), DONE)
        await served.send(LAST_CHUNK)

    drains, other = Vllm(slow_stream), Vllm()
    async with serving(tmp_path, drains, other) as (http, gateway):
        running = asyncio.create_task(ask(http, gateway, stream=True))

        async def runs() -> bool:
            return drains.chats == 1

        await eventually(runs)
        drains.health = plain(b'{"status":"shutting down"}', "503 Service Unavailable")
        await until_state(http, gateway, drains, "unready")
        answers = await asyncio.gather(*(ask(http, gateway) for _ in range(10)))
        assert {200} == {answer.status_code for answer in answers}
        assert (drains.chats, other.chats) == (1, 10)
        go_on.set()
        assert (await running).text == (event("a") + event("b", finish="stop") + DONE).decode()
        drains.health, drains.chat = plain(b""), answer_chat
        await until_state(http, gateway, drains, "up")
        assert (await faults(http, gateway, drains)) == {"unready": 1}


async def test_an_engine_in_sleep_mode_gets_nothing_until_it_wakes(tmp_path: Path) -> None:
    """vLLM that sleeps goes on answering; its metrics say so, and requests for it are told 503 at once."""
    engine = Vllm()
    async with serving(tmp_path, engine) as (http, gateway):
        engine.metrics = plain(vllm_page(running=(0.0,), waiting=(0.0,)) + ASLEEP)
        await until_state(http, gateway, engine, "unready")
        answer = await ask(http, gateway)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_endpoints")
        assert int(answer.headers["retry-after"]) >= 1
        engine.metrics = plain(vllm_page(running=(0.0,), waiting=(0.0,)) + AWAKE)
        await until_state(http, gateway, engine, "up")
        assert (await ask(http, gateway)).status_code == 200
        gateway.signal()
        await gateway.exit_code()
        assert "it is asleep; it gets no requests until it says otherwise" in await gateway.log()


async def test_f062_an_engine_without_metrics_goes_on_under_our_own_count(tmp_path: Path) -> None:
    """F062: /metrics hangs and completions work: traffic goes on, the age of the sample shows, and it recovers."""
    engine = Vllm()
    async with serving(tmp_path, engine) as (http, gateway):
        engine.metrics = None

        async def is_stale() -> bool:
            return total(await metrics(http, gateway), "forebay_sample_age_seconds") > 6.0

        await eventually(is_stale)
        answers = await asyncio.gather(*(ask(http, gateway) for _ in range(20)))
        assert {200} == {answer.status_code for answer in answers}
        engine.metrics = plain(vllm_page(running=(0.0,), waiting=(0.0,)))

        async def is_fresh() -> bool:
            return total(await metrics(http, gateway), "forebay_sample_age_seconds") < 2.0

        await eventually(is_fresh)


async def test_f062_a_new_engine_without_metrics_gets_some_and_not_most(tmp_path: Path) -> None:
    """F062: one engine tells its load, the other cannot be asked: both get requests, that one no more than half."""

    async def takes_a_while(served: Served) -> None:
        await asyncio.sleep(0.2)
        await answer_chat(served)

    known, unknown = Vllm(takes_a_while), Vllm(takes_a_while)
    unknown.metrics = plain(b"", "500 Internal Server Error")
    await known.fake.start()
    await unknown.fake.start()
    upstreams = ("--upstream", known.fake.endpoint, "--upstream", unknown.fake.endpoint)
    try:
        async with client() as http, ServeProcess(*upstreams) as gateway:
            await until_state(http, gateway, known, "up")
            await until_state(http, gateway, unknown, "up")
            for _ in range(8):
                answers = await asyncio.gather(*(ask(http, gateway) for _ in range(8)))
                assert {200} == {answer.status_code for answer in answers}
            assert known.chats + unknown.chats == 64
            assert 8 <= unknown.chats <= 32
    finally:
        await known.fake.stop()
        await unknown.fake.stop()


async def test_a_restart_is_noticed_and_counted(tmp_path: Path) -> None:
    """Counters that fall are another process: it is looked at anew, and what ran there is nobody's load any more."""
    engine = Vllm()
    async with serving(tmp_path, engine) as (http, gateway):
        engine.metrics = plain(vllm_page(running=(0.0,), output_tokens=(1.0,), started="1.9e9"))

        async def counted() -> bool:
            return "restarted" in await faults(http, gateway, engine)

        await eventually(counted)
        assert (await ask(http, gateway)).status_code == 200
        await until_at_rest(http, gateway)


async def test_an_answer_that_does_not_begin_is_asked_for_elsewhere_and_the_time_can_be_changed(
    tmp_path: Path,
) -> None:
    """`answer_timeout`: another engine gives the answer; with none left it is a 504. A reload changes it."""
    hung, good = Vllm(hang), Vllm()
    async with serving(tmp_path, hung, good, limits={"answer_timeout": "1s"}) as (http, gateway):
        assert (await ask(http, gateway)).status_code == 200
        assert (hung.chats, good.chats) == (1, 1)
        assert (await faults(http, gateway, hung)) == {"timeout": 1}
        good.chat = hang
        assert (await ask(http, gateway)).status_code == 504
        path = tmp_path / "forebay.yaml"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"limits": {"answer_timeout": "1h"}}))
        assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
        waits = asyncio.create_task(ask(http, gateway))
        await asyncio.wait([waits], timeout=2.5)
        assert not waits.done()
        waits.cancel()
