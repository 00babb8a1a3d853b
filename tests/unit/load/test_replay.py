"""How a trace becomes requests, and what is found out before the first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES
from forebay.config import ConfigError
from forebay.load.felt import End
from forebay.load.generator import Target
from forebay.load.replay import Objectives, Plan, Replay, ReplayFailed, read_objectives, read_plan
from forebay.load.traces import TraceError

USUAL = Objectives(ZERO_CONFIGURATION_CLASSES, "standard")
HEADER = "arrival_s,prompt_tokens,output_tokens,tenant,session_id,reusable_prefix_tokens,class,limit_tokens,stream\n"


def plan_of(folder: Path, rows: str, **more: Any) -> Plan:
    """The plan for these rows."""
    file = folder / "t.csv"
    file.write_text(HEADER + rows)
    return read_plan(str(file), USUAL, **more)


def test_rows_become_requests(tmp_path: Path) -> None:
    """Sizes as they are, times by the speed; what is not said is filled in."""
    plan = plan_of(tmp_path, "10,100,300,,,,,,\n14,0,0,acme,s,5,batch,999,false\n", speed=2.0)
    assert [
        (0.0, "standard", 100, 300, 512, True),
        (2.0, "batch", 1, 1, 999, False),
    ] == [
        (one.at_s, one.class_name, one.prompt_tokens, one.output_tokens, one.limit_tokens, one.stream)
        for one in plan.arrivals
    ]
    assert [1] == list(plan.origins)
    assert 2.0 == plan.duration_s


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "there is not one request in it"),
        (
            "0,1,1,,,,gold,,\n",
            "request 1 is of class 'gold', which has no objectives; known are batch, realtime",
        ),
    ],
)
def test_traces_that_cannot_be_replayed(rows: str, said: str, tmp_path: Path) -> None:
    """Are told before anything is sent."""
    with pytest.raises(TraceError, match=said):
        plan_of(tmp_path, rows)


def test_objectives(tmp_path: Path) -> None:
    """From a file with classes only, from a whole configuration, or those of zero configuration."""
    assert USUAL == read_objectives(None)
    file = tmp_path / "slo.yaml"
    file.write_text("classes: {gold: {ttft: 2s, tpot: 50ms}}\n")
    own = read_objectives(file)
    assert ("gold", 2.0, 0.05, "gold") == (
        own.classes[0].name, own.classes[0].ttft_s, own.classes[0].tpot_s, own.default_class,
    )  # fmt: skip
    file.write_text("pools: [{endpoints: ['http://10.0.0.1:8000']}]\nclasses: {gold: {ttft: 3s}}\n")
    assert 3.0 == read_objectives(file).classes[0].ttft_s
    for wrong in ("classes: {gold: {ttft: 2}}\n", "clases: {}\n", "- x\n"):
        file.write_text(wrong)
        with pytest.raises(ConfigError):
            read_objectives(file)


def texts(plan: Plan) -> list[str]:
    """The prompts."""
    replay = Replay(plan, [Target("127.0.0.1", 1)], model="m")
    bodies = [json.loads(replay._compose(one)) for one in plan.arrivals]
    return [body["messages"][0]["content"] for body in bodies]


def common(one: str, other: str) -> int:
    """Characters that two begin with."""
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def test_prompts_share_what_they_should(tmp_path: Path) -> None:
    """Of a session the whole of the shorter one; a known prefix without a session; else nothing. Sizes are right."""
    rows = (
        "0,100,1,,s,0,,,\n1,200,1,,s,101,,,\n2,100,1,,other,0,,,\n"
        "3,100,1,,,,,,\n4,300,1,,,107,,,\n5,300,1,,,207,,,\n"
    )
    first, second, other, alone, short, long = texts(plan_of(tmp_path, rows))
    assert [372, 772, 372, 372, 1172, 1172] == [
        len(one) for one in (first, second, other, alone, short, long)
    ]
    assert len(first) == common(first, second)
    assert 400 == common(short, long)
    assert common(first, other) < 30
    assert common(alone, first) < 10
    assert common(alone, short) < 10


def test_what_is_asked_for(tmp_path: Path) -> None:
    """The limit of the client, or the exact length where the engine can be told."""
    plan = plan_of(tmp_path, "0,10,300,,,,,,\n")
    usual = json.loads(Replay(plan, [Target("h", 1)], model="m")._compose(plan.arrivals[0]))
    exact = json.loads(Replay(plan, [Target("h", 1)], model="m", exact=True)._compose(plan.arrivals[0]))
    assert (512, True, {"include_usage": True}) == (
        usual["max_tokens"],
        usual["stream"],
        usual["stream_options"],
    )
    assert "ignore_eos" not in usual
    assert (300, True) == (exact["max_tokens"], exact["ignore_eos"])


@pytest.mark.parametrize(
    ("name", "sent"), [("acme", True), ("a b", True), ("a\tb", False), ("x" * 200, False)]
)
def test_names_that_fit_a_header_are_sent(name: str, sent: bool, tmp_path: Path) -> None:
    """Whatever a trace calls its tenants, a request is never more than one."""
    plan = plan_of(tmp_path, f"0,10,3,{name},s1,,,,\n")
    lines = Replay(plan, [Target("h", 1)], model="m")._own_headers(plan.arrivals[0])
    assert sent is (f"x-forebay-tenant: {name}\r\n" in lines)
    assert "x-forebay-session: s1\r\n" in lines


class Server:
    """Answers by path; keeps what it was sent."""

    def __init__(self, chat: list[tuple[int, bytes]], models: bytes = b'{"data":[{"id":"only"}]}') -> None:
        self.chat = chat
        self.models = models
        self.bodies: list[dict[str, Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = 200, self.models
        if head.startswith(b"POST"):
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            self.bodies.append(json.loads(await reader.readexactly(length)))
            status, body = self.chat.pop(0) if len(self.chat) > 1 else self.chat[0]
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, len(body), body)
        )
        await writer.drain()
        writer.close()


@asynccontextmanager
async def target(server: Server) -> AsyncIterator[Target]:
    """Where it listens."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield Target("127.0.0.1", listening.sockets[0].getsockname()[1])
    finally:
        listening.close()


def answer(prompt_tokens: int) -> bytes:
    """A whole chat answer."""
    return b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":1}}' % prompt_tokens


async def test_the_text_is_measured_and_the_model_found(tmp_path: Path) -> None:
    """A tokenizer that makes half as many tokens gets twice as much text."""
    plan = plan_of(tmp_path, "0,1007,1,,,,,,false\n")
    server = Server([(200, answer(7 + 393 // 2))])
    async with target(server) as where:
        replay = Replay(plan, [where])
        await replay.prepare()
        done = await replay.run(USUAL, tail_s=5)
    assert 1 == done.report.classes["standard"].completed
    probe, sent = server.bodies
    assert ("only", 1) == (probe["model"], probe["max_tokens"])
    assert 8000 == pytest.approx(len(sent["messages"][0]["content"]), rel=0.01)


async def test_a_server_that_refuses_unknown_fields(tmp_path: Path) -> None:
    """Is asked again without them."""
    server = Server([(400, b"{}"), (200, answer(400))])
    async with target(server) as where:
        replay = Replay(plan_of(tmp_path, "0,10,1,,,,,,false\n"), [where], model="m")
        await replay.prepare()
        await replay.run(USUAL, tail_s=5)
    assert [True, False, False] == ["emulator_output_tokens" in body for body in server.bodies]


async def test_a_server_that_is_busy_is_replayed_to_all_the_same(tmp_path: Path) -> None:
    """It cannot be measured; its refusals are what users felt."""
    server = Server([(429, b'{"error":{"code":"queue_full"}}')])
    async with target(server) as where:
        replay = Replay(plan_of(tmp_path, "0,10,1,,,,,,\n"), [where], model="m")
        await replay.prepare()
        done = await replay.run(USUAL, tail_s=5)
    assert 1 == done.report.refusals
    assert [End.REFUSED] == [one.end for one in (replay._client.felt if replay._client else [])]


@pytest.mark.parametrize(
    ("chat", "models", "said"),
    [
        ((404, b"no such model"), b'{"data":[{"id":"a"}]}', "answers 404: no such model"),
        ((200, b"<html>hello"), b'{"data":[{"id":"a"}]}', "answers a chat with no JSON: '<html>hello'"),
        ((200, answer(1)), b'{"data":[{"id":"a"},{"id":"b"}]}', "with --model: it serves a, b"),
        ((200, answer(1)), b"[1]", "with --model: it answers 200"),
    ],
)
async def test_targets_that_cannot_be_used(
    chat: tuple[int, bytes], models: bytes, said: str, tmp_path: Path
) -> None:
    """Are told of before anything is sent."""
    async with target(Server([chat], models)) as where:
        with pytest.raises(ReplayFailed, match=said):
            await Replay(plan_of(tmp_path, "0,10,1,,,,,,\n"), [where]).prepare()


async def test_nobody_there(tmp_path: Path) -> None:
    """A target that does not listen is named."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    with pytest.raises(ReplayFailed, match=rf"http://127\.0\.0\.1:{port} does not answer"):
        await Replay(plan_of(tmp_path, "0,10,1,,,,,,\n"), [Target("127.0.0.1", port)]).prepare()
