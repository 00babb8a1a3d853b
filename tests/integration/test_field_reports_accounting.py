"""Faults that others have reported of gateways like this one: what an answer is charged for, however it ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from forebay.admission.outcomes import Outcome
from tests.integration.fakes import (
    DONE,
    STREAM_HEAD,
    FakeEngine,
    Served,
    Stack,
    chat,
    event,
    post,
    running,
)
from tests.integration.processes import ServeProcess, client, engine, until_at_rest, until_up
from tests.integration.test_field_reports import capped
from tests.integration.test_quota import limits, tenants
from tests.integration.test_tenants import CHAT, KEY, ask, write


async def test_f011_who_leaves_before_the_usage_pays_for_what_came(tmp_path: Path) -> None:
    """F011: neither nothing nor all that was reserved: prompt and relayed tokens, and so the third is limited."""

    async def no_usage_yet(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(*[event(f"{number} ") for number in range(400)])
        await served.closed.wait()

    path = tmp_path / "forebay.yaml"
    async with engine(no_usage_yet) as fake, client() as http:
        write(path, fake, **tenants(tokens_per_second=0.001, burst=1000))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            for _ in range(2):
                async with http.stream(
                    "POST",
                    f"{gateway.url}{CHAT}",
                    json=chat(stream=True, max_tokens=500),
                    headers={"authorization": f"Bearer {KEY}"},
                ) as answer:
                    read = ""
                    async for piece in answer.aiter_text():
                        read += piece
                        if '"399 "' in read:
                            break
                await until_at_rest(http, gateway)
            # 2 x 400 and the two prompts, of some tokens each, are gone.
            for output_tokens, status in ((120, 200), (500, 429)):
                async with http.stream(
                    "POST",
                    f"{gateway.url}{CHAT}",
                    json=chat(stream=True, max_tokens=output_tokens),
                    headers={"authorization": f"Bearer {KEY}"},
                ) as answer:
                    assert status == answer.status_code
                    if status == 200:
                        assert 0 <= limits(answer, "tokens")[1] <= 1000 - 800 - 120


def total(prompt_tokens: int, output_tokens: int) -> bytes:
    """A chunk with text and a running total."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    choices = [{"index": 0, "delta": {"content": "x"}}]
    return b"data: %b\n\n" % json.dumps({"choices": choices, "usage": usage}).encode()


@pytest.mark.parametrize(
    ("totals", "charged"),
    [(range(1, 100, 2), 99), ((5, 9, 3, 7), 9), ((40, 0, 0), 40)],
    ids=["rising", "falling", "zero"],
)
async def test_f020_running_totals_are_not_added_up(totals: list[int], charged: int) -> None:
    """F020: of totals in every chunk the largest counts, also where the engine begins to count anew."""

    async def script(served: Served) -> None:
        await served.stream(*[total(7, count) for count in totals], event("", finish="stop"), DONE)

    async with running(Stack([FakeEngine(script)])) as stack:
        assert 200 == (await stack.ask(post(chat(stream=True, max_tokens=200)))).status
        (settlement,) = await stack.settled(1)
        assert (Outcome.COMPLETED, 7, charged) == (
            settlement.outcome,
            settlement.prompt_tokens,
            settlement.output_tokens,
        )


async def test_f020_totals_of_messages() -> None:
    """F020: what the first event says of an Anthropic message is a part of what the last one says."""

    async def script(served: Served) -> None:
        start: dict[str, Any] = {
            "type": "message_start",
            "message": {"usage": {"input_tokens": 7, "output_tokens": 1}},
        }
        text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 15},
        }
        stop = {"type": "message_stop"}
        await served.stream(
            *[
                f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode()
                for one in (start, *[text] * 15, delta, stop)
            ]
        )

    async with running(Stack([FakeEngine(script)])) as stack:
        body = {**chat(stream=True), "max_tokens": 100}
        assert 200 == (await stack.ask(post(body, "/v1/messages"))).status
        (settlement,) = await stack.settled(1)
        assert (7, 15) == (settlement.prompt_tokens, settlement.output_tokens)


@pytest.mark.parametrize("stream", [False, True])
async def test_f021_a_200_with_nothing_in_it_is_a_failure(*, stream: bool) -> None:
    """F021: what has no event, or no body, is asked for elsewhere; if that does not help either, nobody pays."""

    async def empty(served: Served) -> None:
        if stream:
            await served.stream()
        else:
            await served.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
            )
            served.close()

    engines = [FakeEngine(empty), FakeEngine(empty)]
    async with running(Stack(engines)) as stack:
        reply = await stack.ask(post(chat(stream=stream)))
        assert (502, "upstream_failed") == (reply.status, reply.error()["code"])
        assert 2 == sum(len(one.requests) for one in engines)
        (settlement,) = await stack.settled(1)
        assert (Outcome.UPSTREAM_FAILED, 0.0) == (settlement.outcome, settlement.charged_gpu_s)
        await stack.idle()


async def test_f021_an_error_and_then_silence_is_closed_in_time() -> None:
    """F021: the client has the error at once; the engine's connection and the place are free after the idle limit."""
    told = b'data: {"error": {"code": 500, "message": "out of memory"}}\n\n'

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(event("a"), told)
        await served.closed.wait()

    fake = FakeEngine(script)
    async with running(Stack([fake], settings=capped(1, give_up_s=0.5))) as stack:
        one = await stack.client()
        await one.send(post(chat(stream=True)))
        await one.head()
        async with asyncio.timeout(5.0):
            received, _ = await one.pieces()
        assert received.startswith(event("a") + told)
        assert DONE not in received
        (settlement,) = await stack.settled(1)
        assert settlement.outcome in (Outcome.UPSTREAM_INTERRUPTED, Outcome.NO_PROGRESS)
        await fake.until(lambda: fake.running == 0)
        await stack.idle()


async def test_f033_probes_tell_of_the_gateway_and_not_of_its_engines(tmp_path: Path) -> None:
    """F033: with a full line, used-up limits and then no engine, lists and probes answer and cost nothing."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **tenants(requests_per_second=0.001, requests_burst=2))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            assert 200 == (await ask(http, gateway, KEY)).status_code

            async def probe() -> None:
                for _ in range(25):
                    for url in ("/v1/models", "/healthz"):
                        answer = await http.get(
                            f"{gateway.url}{url}", headers={"authorization": f"Bearer {KEY}"}
                        )
                        assert 200 == answer.status_code
                    for url in ("/healthz", "/readyz"):
                        async with asyncio.timeout(1.0):
                            assert 200 == (await http.get(f"{gateway.admin_url}{url}")).status_code

            await probe()
            assert 200 == (await ask(http, gateway, KEY)).status_code  # the last of two, whatever was probed
            assert 429 == (await ask(http, gateway, KEY)).status_code
            await probe()
            await fake.stop()
            await probe()
