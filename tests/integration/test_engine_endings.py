"""Answers that engines do not finish: recognised, counted, and given by another engine if nothing was relayed yet."""

from __future__ import annotations

import asyncio
import json

import pytest

from forebay.admission.outcomes import Outcome
from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    FakeEngine,
    Served,
    Stack,
    answer_chat,
    chat,
    chat_answer,
    event,
    plain,
    post,
    running,
)

CUT_SHORT = json.loads(chat_answer("half an ans"))
CUT_SHORT["choices"][0]["finish_reason"] = "abort"


def faults(stack: Stack, engine: FakeEngine) -> dict[str, int]:
    """What is held against an engine."""
    snapshot = stack.driver.snapshot()
    assert snapshot is not None
    return dict(next(e.faults for pool in snapshot.pools for e in pool.endpoints if e.id == engine.endpoint))


async def whole_but_aborted(served: Served) -> None:
    """vLLM at SIGTERM: `200`, a part of the text, and the finish reason `abort`."""
    await served.send(plain(json.dumps(CUT_SHORT).encode()))


async def test_a_stream_that_its_engine_gives_up_is_passed_on_and_counted_as_broken() -> None:
    """A stream that ends with `abort` reaches the client as it is, and counts as interrupted, not as served."""
    pieces = [event("a"), event("b"), event("", finish="abort"), DONE]

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(*pieces, gap_s=0.02)
        await served.send(LAST_CHUNK)

    engine = FakeEngine(script)
    async with running(Stack([engine])) as stack:
        reply = await stack.ask(post(chat(stream=True)))
        assert (reply.status, reply.body) == (200, b"".join(pieces))
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.UPSTREAM_INTERRUPTED
        assert faults(stack, engine) == {"interrupted": 1}
        await stack.idle()


async def test_a_whole_answer_that_its_engine_gave_up_is_asked_for_elsewhere() -> None:
    """Nothing was relayed yet: another engine gives the whole of it, and the client sees only that."""
    engines = [FakeEngine(whole_but_aborted), FakeEngine()]
    async with running(Stack(engines)) as stack:
        reply = await stack.ask(post(chat()))
        assert (reply.status, reply.body) == (200, chat_answer())
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.attempts) == (Outcome.COMPLETED, 2)
        assert faults(stack, engines[0]) == {"cut": 1}
        await stack.idle()


async def test_without_another_engine_a_part_of_an_answer_is_passed_on() -> None:
    """A part is better than nothing, and says itself that it is one; it counts as failed."""
    engine = FakeEngine(whole_but_aborted)
    async with running(Stack([engine])) as stack:
        reply = await stack.ask(post(chat()))
        assert (reply.status, json.loads(reply.body)) == (200, CUT_SHORT)
        assert reply.headers["x-forebay-reason"] == "upstream_failed"
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.UPSTREAM_FAILED
        await stack.idle()


async def test_a_stream_that_is_given_up_before_its_first_token_is_asked_for_elsewhere() -> None:
    """An engine that shuts down ends what waits inside it with `abort` and no token: another one answers."""

    async def script(served: Served) -> None:
        await served.stream(event("", finish="abort"), DONE)

    engines = [FakeEngine(script), FakeEngine()]
    async with running(Stack(engines)) as stack:
        reply = await stack.ask(post(chat(stream=True)))
        assert reply.status == 200
        assert reply.body.startswith(event("a"))
        assert b"abort" not in reply.body
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.attempts) == (Outcome.COMPLETED, 2)
        await stack.idle()


@pytest.mark.parametrize("padding", [0, 2000])
async def test_a_large_answer_that_is_given_up_is_counted_as_broken(padding: int) -> None:
    """One that is relayed as it comes cannot be taken back: it counts as interrupted."""
    body = json.dumps({"padding": "x" * padding} | CUT_SHORT).encode()

    async def script(served: Served) -> None:
        head, answer = plain(body).split(b"\r\n\r\n")
        await served.send(head + b"\r\n\r\n" + answer[:20])
        await asyncio.sleep(0.1)
        await served.send(answer[20:])

    engine = FakeEngine(script)
    async with running(Stack([engine])) as stack:
        reply = await stack.ask(post(chat()))
        assert reply.body == body
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.UPSTREAM_INTERRUPTED
        await stack.idle()


async def test_an_engine_that_answers_errors_only_is_taken_out_and_back_slowly() -> None:
    """Errors come sooner than answers and would draw everything: the engine gets a handful, until it works again."""
    broken = True

    async def script(served: Served) -> None:
        if broken:
            await served.send(plain(b'{"error":{"message":"CUDA error"}}', "500 Internal Server Error"))
        else:
            await answer_chat(served)

    engines = [FakeEngine(script), FakeEngine()]
    async with running(Stack(engines)) as stack:
        for _ in range(40):
            assert (await stack.ask(post(chat()))).status == 200
        assert len(engines[0].requests) < 25
        assert faults(stack, engines[0])["ejected"] >= 1
        before = len(engines[0].requests)
        broken = False
        async with asyncio.timeout(15):
            while len(engines[0].requests) <= before + 20:
                assert (await stack.ask(post(chat()))).status == 200
        await stack.idle()
