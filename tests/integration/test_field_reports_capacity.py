"""Field reports about room: KV caches, places, queues, and engines that come and go while requests run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from dataclasses import replace

import pytest

from forebay.admission.events import EndpointsChanged
from forebay.admission.model import EngineInfo, EngineKind
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.gateway.ports import EndpointView
from forebay.runtime.serving import ConfiguredPool
from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    FakeEngine,
    Reply,
    Served,
    Stack,
    answer_chat,
    chat,
    event,
    eventually,
    plain,
    post,
    running,
)


class Gate:
    """A script whose answers begin at once and end when a test lets one more end."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(0)

    async def __call__(self, served: Served) -> None:
        """A stream of one token, and the end when it may."""
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"))
        await self.places.acquire()
        await served.send_events(event("", finish="stop"), DONE)
        await served.send(LAST_CHUNK)


def completion(tokens: int, **more: object) -> bytes:
    """A streamed completion of a prompt of exactly so many tokens."""
    body = {"model": MODEL, "prompt": [1] * tokens, "max_tokens": 16, "stream": True, **more}
    return post(body, path="/v1/completions")


def told(reply: Reply) -> tuple[int, str]:
    """Status and code of a refusal."""
    return reply.status, reply.headers["x-forebay-reason"].split()[0]


# KV cache


async def test_f066_long_prompts_wait_until_they_fit_and_short_ones_pass() -> None:
    """F066: four prompts of 22k are what a cache of 108k takes: a fifth waits for one to end, a short one need not."""
    gate = Gate()
    engine = FakeEngine(gate)
    info = EngineInfo(
        EngineKind.VLLM,
        models=(MODEL,),
        checks_model_names=True,
        context_tokens=32_000,
        kv_tokens=108_000,
        linger_s=0.05,
    )
    classes = tuple(replace(c, wait_budget_s=60.0) for c in ZERO_CONFIGURATION_CLASSES)
    settings = Settings(pools=(PoolSettings("default"),), classes=classes)
    async with running(Stack([engine], info=info, settings=settings)) as stack:
        asked = []
        for number in range(1, 5):
            asked.append(asyncio.create_task(stack.ask(completion(22_000))))
            await eventually(lambda number=number: engine.running == number)  # type: ignore[misc]
        fifth = asyncio.create_task(stack.ask(completion(22_000)))
        await eventually(lambda: stack.waiting == 1)
        small = asyncio.create_task(stack.ask(completion(40)))
        await eventually(lambda: engine.running == 5)
        assert (stack.waiting, len(engine.requests)) == (1, 5)
        too_long = await stack.ask(completion(300_000))
        assert (too_long.status, too_long.headers["x-should-retry"]) == (413, "false")
        assert len(engine.requests) == 5
        gate.places.release()
        await eventually(lambda: len(engine.requests) == 6)
        for _ in range(6):
            gate.places.release()
        replies = await asyncio.gather(*asked, fifth, small)
        assert {200} == {reply.status for reply in replies}
        await stack.idle()


# Places and queues


@pytest.mark.parametrize("stream", [True, False])
async def test_f054_bounds_hold_for_every_request(stream: bool) -> None:
    """F054: one place and one in the queue: of six calls one runs, one waits, and four are told at once."""
    gate = asyncio.Event()

    async def script(served: Served) -> None:
        await gate.wait()
        await answer_chat(served)

    engine = FakeEngine(script)
    pool = PoolSettings("default", max_inflight_requests=1, max_queue=1)
    async with running(Stack([engine], pool=pool)) as stack:
        asked = [asyncio.create_task(stack.ask(post(chat(stream=stream)))) for _ in range(6)]
        await eventually(lambda: sum(task.done() for task in asked) == 4)
        refused = [task.result() for task in asked if task.done()]
        assert {(429, "queue_full")} == {told(reply) for reply in refused}
        assert (stack.in_flight, stack.waiting, len(engine.requests)) == (1, 1, 1)
        gate.set()
        replies = await asyncio.gather(*asked)
        assert [200, 200, 429, 429, 429, 429] == sorted(reply.status for reply in replies)
        await stack.idle()


async def test_f052_the_status_tells_the_reason() -> None:
    """F052: without any engine all are told 503, and with full ones 429; each with a reason and a time to come back."""
    engine = FakeEngine(Gate())
    pool = PoolSettings("default", max_inflight_requests=1, max_queue=0)
    async with running(Stack([engine], pool=pool)) as stack:
        holder = asyncio.create_task(stack.ask(post(chat(stream=True))))
        await eventually(lambda: engine.running == 1)
        full = await asyncio.gather(*(stack.ask(post(chat())) for _ in range(10)))
        await engine.stop()
        await eventually(lambda: stack.up == 0)
        absent = await asyncio.gather(*(stack.ask(post(chat())) for _ in range(10)))
        assert {(429, "queue_full")} == {told(reply) for reply in full}
        assert {(503, "no_endpoints")} == {told(reply) for reply in absent}
        assert all(1 <= int(reply.headers["retry-after"]) <= 60 for reply in (*full, *absent))
        with pytest.raises(asyncio.IncompleteReadError):
            await holder
        await stack.idle()


async def test_f052_a_burst_with_leavers_gives_no_other_status() -> None:
    """F052: hundreds of calls at once, a third of which leave: each other one is served, or told 429 or 503."""
    dice = random.Random(3)

    async def script(served: Served) -> None:
        await asyncio.sleep(0.02)
        await answer_chat(served)

    classes = tuple(replace(c, wait_budget_s=0.1) for c in ZERO_CONFIGURATION_CLASSES)
    settings = Settings(pools=(PoolSettings("default", max_inflight_requests=4),), classes=classes)
    async with running(Stack([FakeEngine(script)], settings=settings)) as stack:

        async def call(number: int) -> int | None:
            client = await stack.client()
            await client.send(post(chat()))
            if number % 3 == 0:
                await asyncio.sleep(dice.random() * 0.1)
                client.reset()
                return None
            reply: Reply = await client.reply()
            client.close()
            return reply.status

        statuses = set(await asyncio.gather(*(call(number) for number in range(400))))
        assert {200, 429} <= statuses <= {None, 200, 429, 503}
        await stack.settled(400)
        await stack.idle()


# Engines that come and go


class Troubled:
    """Twenty engines of which one dies, freezes, thaws, leaves or joins all the time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.frozen: set[int] = set()
        self.over = asyncio.Event()
        self.engines = [FakeEngine(self._serve) for _ in range(20)]
        self.joined = list(self.engines)

    async def _serve(self, served: Served) -> None:
        port = served.writer.get_extra_info("sockname")[1]
        await asyncio.sleep(0.02 + self.random.random() * 0.1)
        while port in self.frozen:  # noqa: ASYNC110 - as long as the test says
            await asyncio.sleep(0.02)
        await answer_chat(served)

    async def run(self, stack: Stack) -> None:
        """Some seconds of it; when it is over all are well."""
        for _ in range(40):
            await asyncio.sleep(0.15)
            one = self.random.choice(self.joined)
            match self.random.choice(("die", "freeze", "thaw", "leave", "join")):
                case "die":
                    port = one.port
                    await one.stop()
                    await asyncio.sleep(0.1)
                    await one.start(port)
                case "freeze":
                    self.frozen.add(one.port)
                case "thaw":
                    self.frozen.clear()
                case "leave" if len(self.joined) > 10:
                    self.joined.remove(one)
                    self._tell(stack)
                case "join" if len(self.joined) < len(self.engines):
                    self.joined.append(next(engine for engine in self.engines if engine not in self.joined))
                    self._tell(stack)
        self.frozen.clear()
        self.over.set()

    def _tell(self, stack: Stack) -> None:
        """As a reload would."""
        views = tuple(EndpointView(engine.endpoint, "127.0.0.1", engine.port) for engine in self.joined)
        stack.directory.reconfigure([ConfiguredPool("default", views)], stack.directory.serving.access)
        stack.driver.feed(EndpointsChanged("default", tuple(view.id for view in views)))
        for view in views:
            stack.describe(view.id, stack.info)


async def test_f071_no_call_is_lost_while_engines_die_freeze_and_join() -> None:
    """F071: among twenty engines that come and go every call ends within its limits, and nothing stays in flight."""
    troubled = Troubled(7)
    classes = tuple(replace(c, idle_stream_s=1.0, wait_budget_s=20.0) for c in ZERO_CONFIGURATION_CLASSES)
    pool = PoolSettings("default", max_inflight_requests=8)
    settings = Settings(pools=(pool,), classes=classes, unstreamed_timeout_s=1.0)
    seen: list[int] = []

    async with running(Stack(troubled.engines, settings=settings)) as stack:

        async def caller() -> None:
            for number in itertools.count():
                if troubled.over.is_set():
                    return
                async with asyncio.timeout(20):
                    with contextlib.suppress(asyncio.IncompleteReadError):  # broken off, and seen to be
                        reply = await stack.ask(post(chat(stream=number % 2 == 0)))
                        seen.append(reply.status)

        await asyncio.gather(troubled.run(stack), *(caller() for _ in range(60)))
        assert len(seen) > 500
        assert set(seen) <= {200, 502, 503, 504}
        assert seen.count(200) > 0.8 * len(seen)
        await stack.idle()


# Streams


async def test_f023_nothing_is_held_back_of_a_stream() -> None:
    """F023: each event is there before the engine makes the next one; proxies in front are told not to collect."""
    received = asyncio.Semaphore(0)

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        for number in range(5):
            await served.send_events(event(str(number)))
            await received.acquire()
        await served.send_events(event("", finish="stop"), DONE)
        await served.send(LAST_CHUNK)

    async with running(Stack([FakeEngine(script)])) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True), headers="accept-encoding: gzip, br\r\n"))
        status, headers, _ = await client.head()
        assert (status, headers.get("content-length"), headers["x-accel-buffering"]) == (200, None, "no")
        assert "no-transform" in headers["cache-control"]
        chunks = client.chunks()
        for number in range(5):
            assert await anext(chunks) == event(str(number))
            received.release()
        await stack.idle()


async def test_f002_an_engine_whose_status_line_is_nonsense_costs_nothing() -> None:
    """A status line that is none, from one engine, is a failed attempt: the other answers."""

    async def script(served: Served) -> None:
        await served.send(plain(b"{}").replace(b"HTTP/1.1 200", b"HTTP/1.1 2oo"))

    engines = [FakeEngine(script), FakeEngine()]
    async with running(Stack(engines)) as stack:
        assert (await stack.ask(post(chat()))).status == 200
        await stack.idle()
