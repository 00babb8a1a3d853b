"""Engines that die in the midst of a stream, at every byte of it: whoever reads can tell a whole answer from a part."""

from __future__ import annotations

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
    chat,
    chunk,
    event,
    eventually,
    post,
    running,
    usage_event,
)
from tests.integration.test_field_reports import capped

EVENTS = (b": hello\n\n", event("a"), event("é"), event("c", finish="stop"), usage_event(7, 3), DONE)
ANSWER = STREAM_HEAD + b"".join(chunk(one) for one in EVENTS[:2]) + chunk(b"".join(EVENTS[2:])) + LAST_CHUNK
TEXT = b"".join(EVENTS)
FIRST_AT = len(STREAM_HEAD + chunk(EVENTS[0]) + chunk(EVENTS[1])) - 2
"""Before so many bytes there is no event: another engine may be asked."""


async def outcome_of(stack: Stack, before: int) -> Outcome:
    """How the request ended that is settled next."""
    await stack.settled(before + 1)
    return stack.settlements[before].outcome


def judge(received: bytes, *, whole: bool, outcome: Outcome, cut: int) -> None:
    """What must hold of an answer whose engine has died after so many bytes."""
    if outcome is Outcome.COMPLETED:
        assert whole
        assert TEXT.startswith(received)
        assert received.rstrip().endswith(b"[DONE]")
        return
    assert outcome is Outcome.UPSTREAM_INTERRUPTED
    assert not whole, "a part of an answer ends as a whole one does"
    body, _, last = received.rstrip().rpartition(b"data: ")
    assert "upstream_interrupted" == json.loads(last)["error"]["code"]
    assert TEXT.startswith((body, body.removesuffix(b"\n\n")))
    assert DONE not in received
    assert cut < len(ANSWER)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("another", [False, True])
async def test_a_stream_cut_at_any_byte(*, reset: bool, another: bool) -> None:
    """A clean end is that of a whole answer, an error is told in its place, and no place or connection is left over."""
    cut = 0
    fresh = True

    async def script(served: Served) -> None:
        nonlocal fresh
        dies, fresh = fresh or not another, False
        await served.send(ANSWER[:cut] if dies else ANSWER)
        if dies:
            served.reset() if reset else served.close()

    cuts = range(0, len(ANSWER) + 1, 3 if reset else 1)
    # An engine that fails five times in a row is taken for broken, and then nothing would be cut.
    for few in (cuts[at : at + 4] for at in range(0, len(cuts), 4)):
        engines = [FakeEngine(script) for _ in range(2 if another else 1)]
        async with running(Stack(engines, settings=capped(4))) as stack:
            for cut in few:
                await eventually(lambda: stack.up == len(engines))  # noqa: B023 - called here and now
                fresh = True
                await ask(stack, cut, another=another, reset=reset)
            await stack.idle()
            for one in engines:
                target = stack.gateway.upstreams.get(one.endpoint)
                assert target is not None
                assert target.upstream.calls == 0


async def ask(stack: Stack, cut: int, *, another: bool, reset: bool) -> None:
    """One stream whose engine dies after so many bytes."""
    before = len(stack.settlements)
    asked = await stack.client()
    await asked.send(post(chat(stream=True)))
    status, _, _ = await asked.head()
    if status == 200:
        received, whole = await asked.pieces()
        judge(received, whole=whole, outcome=await outcome_of(stack, before), cut=cut)
    else:
        assert not another
        assert cut < FIRST_AT or reset
        assert status in (502, 503)
        await stack.settled(before + 1)
    asked.close()
