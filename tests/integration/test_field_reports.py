"""Faults that others have reported of gateways like this one, each as a test under its number.

The loads are smaller than the reports' own and the times shorter; what must hold is the same. Where a report speaks
of a tenant's cap, the cap here is that of an endpoint.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import time
from dataclasses import replace

import pytest

from forebay.admission.events import EndpointsChanged
from forebay.admission.model import EndpointId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.http.limits import ServerLimits
from tests.integration.fakes import (
    DONE,
    STREAM_HEAD,
    FakeEngine,
    Reply,
    Script,
    Served,
    Stack,
    answer_chat,
    chat,
    chat_answer,
    chunk,
    event,
    eventually,
    plain,
    post,
    running,
    usage_event,
)


def capped(requests: int, *, waiting: int | None = None, give_up_s: float = 60.0) -> Settings:
    """Settings with a cap per endpoint, and engines given up after some silence."""
    classes = tuple(
        replace(c, idle_stream_s=give_up_s, wait_budget_s=60.0) for c in ZERO_CONFIGURATION_CLASSES
    )
    pool = PoolSettings("default", max_inflight_requests=requests, max_queue=waiting)
    return Settings(pools=(pool,), classes=classes, unstreamed_timeout_s=give_up_s)


async def statuses(stack: Stack, count: int, data: bytes) -> list[int]:
    """Statuses of that many requests at once."""
    return [reply.status for reply in await asyncio.gather(*(stack.ask(data) for _ in range(count)))]


async def test_f001_an_abandoned_stream_gives_its_slot_back() -> None:
    """F001: with a cap of 1, each client that drops a stream by FIN or RST makes room for the next within a second."""

    async def script(served: Served) -> None:
        if b'"stream": true' in served.request.body:
            await served.send(STREAM_HEAD)
            while not served.closed.is_set():
                await served.send(chunk(event("x")))
                await asyncio.sleep(0.01)
        else:
            await answer_chat(served)

    engine = FakeEngine(script)
    async with running(Stack([engine], settings=capped(1))) as stack:
        for turn in range(20):
            client = await stack.client()
            await client.send(post(chat(stream=True)))
            await client.head()
            chunks = client.chunks()
            for _ in range(3):
                await anext(chunks)
            if turn % 2:
                client.close()
            else:
                client.reset()
            async with asyncio.timeout(2.0):
                assert (await stack.ask(post(chat()))).status == 200
        await stack.idle()
        assert engine.peak <= 2
        assert engine.running == 0


async def _hang(served: Served) -> None:
    await served.closed.wait()


async def _reset_after_head(served: Served) -> None:
    await served.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
    served.reset()


async def _reset_in_body(served: Served) -> None:
    if b'"stream": true' in served.request.body:
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"))
    else:
        await served.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
    await asyncio.sleep(0.02)
    served.reset()


async def _no_http(served: Served) -> None:
    await served.send(b"HTP/9 what\r\n\r\n")


async def _bad_gateway(served: Served) -> None:
    await served.send(plain(b"<html>", "502 Bad Gateway"))


async def _gateway_timeout(served: Served) -> None:
    await served.send(plain(b"<html>", "504 Gateway Timeout"))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (None, {503}),
        (_bad_gateway, {502}),
        (_gateway_timeout, {504}),
        (_hang, {504}),
        (_reset_after_head, {502}),
        (_reset_in_body, {200}),
        (_no_http, {502}),
    ],
    ids=["refused", "502", "504", "silent", "reset-after-head", "reset-in-body", "no-http"],
)
async def test_f002_no_failure_of_an_engine_keeps_a_slot(
    script: Script | None, expected: set[int], stream: bool
) -> None:
    """F002: after a spell of any failure nothing is booked, and as many requests as the cap run together at once."""
    engine = FakeEngine(script or answer_chat)
    stack = Stack([engine], settings=capped(10, give_up_s=0.3 if script is _hang else 30.0))
    async with running(stack):
        if script is None:
            await engine.stop()

        async def one() -> int:
            client = await stack.client()
            await client.send(post(chat(stream=stream)))
            return (await client.head())[0]

        seen = set(await asyncio.gather(*(one() for _ in range(12))))
        # Those that find the engine out of rotation already are told so.
        assert seen <= expected | {503}
        await stack.settled(12)
        await stack.idle()
        release = asyncio.Event()

        async def healthy(served: Served) -> None:
            if engine.running == 10:
                release.set()
            await release.wait()
            await answer_chat(served)

        engine.script = healthy
        if script is None:
            await engine.start(engine.port)
        await eventually(lambda: stack.up == 1)
        assert [200] * 10 == await statuses(stack, 10, post(chat(stream=stream)))
        assert engine.peak == (12 if engine.peak > 10 else 10)
        await stack.idle()


async def test_f007_phantom_load_does_not_draw_or_push_traffic() -> None:
    """F007: aborted requests leave no load behind, so traffic is spread evenly, also after one engine was restarted."""

    async def slow(served: Served) -> None:
        await asyncio.wait([asyncio.create_task(served.closed.wait())], timeout=2.0)
        if not served.closed.is_set():
            await answer_chat(served)

    engines = [FakeEngine(slow) for _ in range(3)]
    async with running(Stack(engines, settings=capped(100))) as stack:
        clients = [await stack.client() for _ in range(60)]
        for client in clients:
            await client.send(post(chat()))
        await eventually(lambda: sum(len(engine.requests) for engine in engines) == 60)
        for client in clients:
            client.reset()
        await stack.idle()
        await engines[2].stop()
        await eventually(lambda: stack.up == 2)
        await engines[2].start(engines[2].port)
        await eventually(lambda: stack.up == 3)
        before = [len(engine.requests) for engine in engines]
        release = asyncio.Event()

        async def held(served: Served) -> None:
            await release.wait()
            await answer_chat(served)

        for engine in engines:
            engine.script = held
        asking = asyncio.gather(*(stack.ask(post(chat())) for _ in range(30)))
        await eventually(lambda: sum(engine.running for engine in engines) == 30)
        assert [10, 10, 10] == [
            len(engine.requests) - known for engine, known in zip(engines, before, strict=True)
        ]
        release.set()
        assert {200} == {reply.status for reply in await asking}
        await stack.idle()


async def test_f007_running_streams_count_through_health_cycles() -> None:
    """F007: load is not forgotten while samples come and go: new work goes to the engines without it."""
    release = asyncio.Event()

    async def held(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"))
        await release.wait()
        await served.send_events(event("b", finish="stop"), DONE)
        await served.send(b"0\r\n\r\n")

    engines = [FakeEngine(held) for _ in range(3)]
    async with running(Stack(engines, settings=capped(100))) as stack:
        only_first = EndpointsChanged("default", (engines[0].endpoint,))
        every: tuple[EndpointId, ...] = tuple(engine.endpoint for engine in engines)
        stack.driver.feed(only_first)
        asking = [asyncio.create_task(stack.ask(post(chat(stream=True)))) for _ in range(8)]
        await eventually(lambda: engines[0].running == 8)
        stack.driver.feed(EndpointsChanged("default", every))
        for engine in engines:
            stack.describe(engine.endpoint, stack.info)
        await asyncio.sleep(0.3)  # Several polling rounds.
        asking += [asyncio.create_task(stack.ask(post(chat(stream=True)))) for _ in range(12)]
        await eventually(lambda: sum(engine.running for engine in engines) == 20)
        assert (8, 6, 6) == tuple(engine.running for engine in engines)
        release.set()
        assert {200} == {(await task).status for task in asking}
        await stack.idle()


async def test_f009_abandoned_waiters_are_not_dispatched() -> None:
    """F009: of a line in which four of five have left, the engine gets the live one; the places come back each time."""
    gate = asyncio.Event()

    async def script(served: Served) -> None:
        await gate.wait()
        await answer_chat(served)

    engine = FakeEngine(script)
    async with running(Stack([engine], settings=capped(1, waiting=5))) as stack:
        for turn in range(8):
            gate.clear()
            seen = len(engine.requests)
            holder = asyncio.create_task(stack.ask(post(chat())))
            await engine.until(lambda seen=seen: len(engine.requests) == seen + 1)  # type: ignore[misc]
            clients = [await stack.client() for _ in range(5)]
            for client in clients:
                await client.send(post(chat()))
            await eventually(lambda: stack.waiting == 5)
            assert (await stack.ask(post(chat()))).status == 429
            gone = clients if turn % 2 else clients[:2] + clients[3:]
            live = [] if turn % 2 else [clients[2]]
            for client in gone:
                client.reset()
            await eventually(lambda live=live: stack.waiting == len(live))  # type: ignore[misc]
            gate.set()
            assert (await holder).status == 200
            for client in live:
                assert (await client.reply()).status == 200
                client.close()
            assert len(engine.requests) == seen + 1 + len(live)
            await stack.idle()
        gate.clear()
        holder = asyncio.create_task(stack.ask(post(chat())))
        await eventually(lambda: engine.running == 1)
        last = [asyncio.create_task(stack.ask(post(chat()))) for _ in range(5)]
        await eventually(lambda: stack.waiting == 5)
        gate.set()
        assert {200} == {(await task).status for task in [holder, *last]}
        await stack.idle()


async def test_f013_a_storm_of_aborts_strands_no_connection() -> None:
    """F013: after hundreds of requests aborted at any moment, requests run as before and no socket is left over."""

    async def script(served: Served) -> None:
        await asyncio.wait([asyncio.create_task(served.closed.wait())], timeout=0.05)
        if not served.closed.is_set():
            await answer_chat(served)

    engine = FakeEngine(script)
    chance = random.Random(13)
    async with running(Stack([engine], settings=capped(50))) as stack:

        async def aborted() -> None:
            client = await stack.client()
            await client.send(post(chat(stream=chance.random() < 0.5)))
            await asyncio.sleep(chance.uniform(0, 0.1))
            client.reset()

        for _ in range(10):
            await asyncio.gather(*(aborted() for _ in range(50)))
        await stack.idle()
        began = time.monotonic()
        assert [200] * 50 == await statuses(stack, 50, post(chat()))
        assert time.monotonic() - began < 5.0
        await stack.idle()
        target = stack.gateway.upstreams.get(engine.endpoint)
        assert target is not None
        assert target.upstream.calls == 0
        assert target.upstream.connections == target.upstream.idle_connections <= 50
        await eventually(lambda: stack.server.connections == 0)


RAW_CJK = 'data: {"choices":[{"index":0,"delta":{"content":"漢🎉"},"finish_reason":null}]}\n\n'.encode()
RAW_USAGE = (
    'data: {"choices":[],"note":"漢🎉","usage":{"prompt_tokens":5,"completion_tokens":9}}\n\n'.encode()
)


@pytest.mark.parametrize("cut_event", [RAW_CJK, RAW_USAGE], ids=["text", "usage"])
async def test_f014_characters_cut_by_a_read_survive(cut_event: bytes) -> None:
    """F014: an event cut at any byte arrives byte for byte, and its usage counts."""
    cuts = iter(range(1, len(cut_event)))

    async def script(served: Served) -> None:
        cut = next(cuts)
        await served.send(STREAM_HEAD)
        for data in (event("a"), RAW_USAGE, cut_event):
            if data is cut_event:
                await served.send(chunk(data[:cut]))
                await asyncio.sleep(0.001)
                await served.send(chunk(data[cut:]))
            else:
                await served.send(chunk(data))
        await served.send(chunk(DONE) + b"0\r\n\r\n")

    async with running(Stack([FakeEngine(script)])) as stack:
        client = await stack.client()
        expected = event("a") + RAW_USAGE + cut_event + DONE
        for _ in range(1, len(cut_event)):
            await client.send(post(chat(stream=True)))
            assert (await client.reply()).body == expected
        client.close()
        settled = await stack.settled(len(cut_event) - 1)
        assert {(Outcome.COMPLETED, 5, 9)} == {(s.outcome, s.prompt_tokens, s.output_tokens) for s in settled}
        await stack.idle()


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("field", [b"data: ", b"data:"], ids=["blank", "no-blank"])
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
async def test_f015_every_grammar_of_events_is_understood(line_end: bytes, field: bytes, ended: bool) -> None:
    """F015: events pass at once and unchanged in every legal spelling; usage and end are found in all."""
    go_on = asyncio.Event()
    usage = usage_event(11, 3).removeprefix(b"data: ").rstrip()
    brace = usage.index(b"{", 1)
    split = field + usage[:brace] + line_end + field + usage[brace:]
    lines = [event("a").rstrip().replace(b"data: ", field), split, field + b"[DONE]"]
    parts = [line + line_end * 2 for line in lines]
    if not ended:
        parts[2] = lines[2] + line_end

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send(chunk(parts[0]))
        await go_on.wait()
        # The last byte of a line end comes in a packet of its own.
        await served.send(chunk(parts[1][:-1]))
        await asyncio.sleep(0.002)
        await served.send(chunk(parts[1][-1:]) + chunk(parts[2]) + b"0\r\n\r\n")

    async with running(Stack([FakeEngine(script)])) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        await client.head()
        chunks = client.chunks()
        assert await anext(chunks) == parts[0]
        go_on.set()
        assert b"".join([piece async for piece in chunks]) == parts[1] + parts[2]
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.prompt_tokens, settlement.output_tokens) == (
            Outcome.COMPLETED,
            11,
            3,
        )
        client.close()
        await stack.idle()


def resident_bytes() -> int:
    """Highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_f017_a_long_line_passes_whole() -> None:
    """F017: one data line of 5 MB is relayed whole, and the small events after it too."""
    long_event = b'data: {"choices":[{"delta":{"content":"' + b"x" * 5_000_000 + b'"}}]}\n\n'
    tail = [event("b"), usage_event(3, 4), DONE]

    async def script(served: Served) -> None:
        await served.stream(long_event, *tail)

    async with running(Stack([FakeEngine(script)])) as stack:
        reply = await stack.ask(post(chat(stream=True)))
        assert reply.body == long_event + b"".join(tail)
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.output_tokens) == (Outcome.COMPLETED, 4)
        await stack.idle()


async def test_f017_a_line_without_end_fills_no_memory() -> None:
    """F017: a line that never ends is relayed as it comes and is not kept."""
    total = 200_000_000
    piece = chunk(b"x" * 1_000_000)

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD + chunk(b"data: "))
        for _ in range(total // 1_000_000):
            await served.send(piece)
        await served.send(b"0\r\n\r\n")

    async with running(Stack([FakeEngine(script)])) as stack:
        gc.collect()
        before = resident_bytes()
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        await client.head()
        received = 0
        size = int((await client.reader.readuntil(b"\r\n")).strip(), 16)
        while size and received < total:
            received += len(await client.reader.readexactly(size + 2)) - 2
            size = int((await client.reader.readuntil(b"\r\n")).strip(), 16)
        assert received >= total
        assert resident_bytes() - before < 64_000_000
        client.close()
        await stack.settled(1)
        await stack.idle()


async def test_f018_odd_events_pass_and_break_nothing() -> None:
    """F018: comments, unknown fields, empty and missing choices pass as they are; usage is taken as reported."""
    odd = [
        b": ping 2\n\n",
        b"event: ping\n\n",
        b"retry: 100\n\n",
        b"id:\nnonsense: 1\nfoo\n\n",
        b'data: {"choices": [], "usage": null}\n\n',
        b'data: {"choices": null}\n\n',
        b'data: {"id": ""}\n\n',
        b"data: not json\n\n",
    ]
    endings = [
        [usage_event(0, 0), DONE],
        [b'data: {"choices": [], "usage": null}\n\n', DONE],
        [usage_event(9, 5), DONE],
    ]

    async def script(served: Served) -> None:
        await served.stream(
            *odd, event("a"), *odd, event("b", finish="stop"), *endings[len(engine.requests) - 1]
        )

    engine = FakeEngine(script)
    async with running(Stack([engine])) as stack:
        for number, ending in enumerate(endings, 1):
            options = {"stream_options": {"include_usage": True}} if number > 1 else {}
            reply = await stack.ask(post(chat(stream=True, **options)))
            assert reply.body == b"".join([*odd, event("a"), *odd, event("b", finish="stop"), *ending])
        settled = await stack.settled(3)
        assert {Outcome.COMPLETED} == {s.outcome for s in settled}
        assert (0, 0) == (settled[0].prompt_tokens, settled[0].output_tokens)
        assert settled[1].output_tokens >= 2
        assert (9, 5) == (settled[2].prompt_tokens, settled[2].output_tokens)
        await stack.idle()


async def test_f026_readers_that_do_not_read_cost_little_memory() -> None:
    """F026: slow readers hold the engine up instead of filling memory, dead ones are dropped, others go on."""
    piece = chunk(event("x" * 100_000))

    async def script(served: Served) -> None:
        if b"big" in served.request.body:
            await served.send(STREAM_HEAD)
            for _ in range(1_000):
                if served.closed.is_set():
                    return
                await served.send(piece)
        else:
            await answer_chat(served)

    stack = Stack([FakeEngine(script)], settings=capped(100), limits=ServerLimits(write_timeout_s=1.0))
    async with running(stack):
        gc.collect()
        before = resident_bytes()
        readers = [await stack.client() for _ in range(15)]
        for client in readers:
            await client.send(post(chat(stream=True, user="big")))
            await client.head()
        for client in readers[:5]:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]

        async def sip(client_number: int) -> None:
            for _ in range(40):
                await readers[client_number].reader.read(1_000)
                await asyncio.sleep(0.02)

        sipping = [asyncio.create_task(sip(number)) for number in range(5, 15)]
        assert [200] * 20 == await statuses(stack, 20, post(chat(stream=True)))
        await asyncio.gather(*sipping)
        await eventually(lambda: sum(s.outcome is Outcome.SLOW_READER for s in stack.settlements) >= 5)
        # Kernel and stream buffers of the test's own ends are in this number too: 30 of them.
        assert resident_bytes() - before < 64_000_000
        for client in readers:
            client.reset()
        await stack.idle()


async def test_f033_lists_and_probes_need_no_engine_and_no_place() -> None:
    """F033: the model list and the health check answer at once with a full line, and with every engine gone."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    engine = FakeEngine(script)
    async with running(Stack([engine], settings=capped(1, waiting=1))) as stack:

        async def probes() -> list[Reply]:
            paths = ("/v1/models", "/healthz", "/v1/models")
            return [
                await stack.ask(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()) for path in paths * 10
            ]

        asking = [asyncio.create_task(stack.ask(post(chat()))) for _ in range(2)]
        await eventually(lambda: stack.waiting == 1)
        async with asyncio.timeout(3.0):
            full = await probes()
        release.set()
        assert {200} == {(await task).status for task in asking}
        await engine.stop()
        await eventually(lambda: stack.up == 0)
        async with asyncio.timeout(3.0):
            absent = await probes()
        assert {200} == {reply.status for reply in full + absent}
        assert {"llama-test"} == {
            json.loads(r.body)["data"][0]["id"] for r in full + absent if b"data" in r.body
        }
        assert len(stack.settlements) == 2
        assert len(engine.requests) == 2
        await stack.idle()
