"""`forebay replay` against the emulator, straight and through the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from forebay.load.synthetic import read_source
from forebay.load.traces import read_records
from forebay.runtime.children import Children

SOURCE = "synthetic:mixed,seconds=8,rate=4"
KEYS = {
    "classes", "goodput_rps", "slo_attainment", "admitted_attainment", "preemptions",
    "refusals_with_retry_after", "errors",
}  # fmt: skip


@asynccontextmanager
async def engine(*options: str) -> AsyncIterator[tuple[Children, str]]:
    """An emulated engine of its own, and where more processes can be started."""
    async with Children() as children:
        child = await children.start("engine", ["engine", "--port", "0", *options])
        yield children, child.url


async def replay(*arguments: str, interrupted_after_s: float | None = None) -> tuple[int, Any, str]:
    """Exit code, JSON and stderr of the command, as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay", "replay", *arguments, "--json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")},
    )  # fmt: skip
    if interrupted_after_s is not None:
        await asyncio.sleep(interrupted_after_s)
        process.send_signal(signal.SIGINT)
    async with asyncio.timeout(50):
        output, errors = await process.communicate()
    return process.returncode or 0, json.loads(output) if output else None, errors.decode()


async def total(url: str, name: str) -> float:
    """A counter of the engine."""
    async with httpx.AsyncClient(trust_env=False) as http:
        page = (await http.get(f"{url}/metrics")).text
    return sum(float(value) for value in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)", page, re.MULTILINE))


async def test_straight_to_an_engine() -> None:
    """Every row is sent with its prompt tokens and answered with its length; the report has the promised form."""
    rows = list(read_source(SOURCE))
    async with engine() as (_, url):
        code, told, errors = await replay(SOURCE, "--target", url, "--speed", "2")
        assert (0, 0) == (code, told["errors"]), errors
        assert KEYS <= told.keys()
        assert len(rows) == sum(one["offered"] for one in told["classes"].values())
        assert len(rows) == sum(one["completed"] for one in told["classes"].values())
        # The first request measures, with 400 tokens and one of answer.
        assert sum(row.prompt_tokens for row in rows) + 400 == await total(url, "vllm:prompt_tokens_total")
        assert sum(row.output_tokens for row in rows) + 1 == await total(url, "vllm:generation_tokens_total")


async def test_through_the_gateway(tmp_path: Path) -> None:
    """Classes, tenants and sessions of the trace arrive there; what it refuses is told as refused."""
    config, record = tmp_path / "f.yaml", tmp_path / "r.jsonl"
    async with engine("--speed", "0.5") as (children, url):
        config.write_text(
            f"pools: [{{endpoints: ['{url}']}}]\nrecord: {{path: '{record}'}}\nstate_file: none\n"
            "trusted_proxies: [127.0.0.1/32]\nclasses: {realtime: {}, standard: {}, batch: {max_queue: 0}}\n"
        )
        listeners = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        gateway = await children.start("gateway", ["serve", *listeners, "-c", str(config)], addresses=2)
        code, told, errors = await replay(
            SOURCE, "--target", gateway.url, "--speed", "4", "--slo", str(config)
        )
        assert (0, 0) == (code, told["errors"]), errors
        assert {"realtime", "standard", "batch"} == told["classes"].keys()
        assert told["refusals"] == told["refusals_with_retry_after"]
        await asyncio.sleep(1)
    rows = list(read_source(SOURCE))
    lines = [line for _, line in read_records(record)][1:]
    assert len(rows) == len(lines)
    assert {row.class_name for row in rows} == {line.class_name for line in lines}
    assert {row.tenant for row in rows} == {line.tenant for line in lines}


async def test_ctrl_c_ends_it_with_a_report() -> None:
    """What was sent by then is in it."""
    async with engine() as (_, url):
        code, told, _ = await replay("synthetic:chat", "--target", url, interrupted_after_s=6.0)
    assert (130, True) == (code, told["stopped"])
    assert 0 < told["classes"]["standard"]["offered"] < 200


async def test_a_target_that_is_not_there() -> None:
    """Exit code 1 and a sentence."""
    code, told, errors = await replay("synthetic:chat", "--target", "http://127.0.0.1:9")
    assert (1, None) == (code, told)
    assert "http://127.0.0.1:9 does not answer" in errors
    assert "Traceback" not in errors


async def test_a_target_that_is_no_engine_is_named() -> None:
    """A login page that answers everything with 200 is no target with fast answers."""

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<html>\x1b[2Jlog in</html>"
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(page, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        code, _, errors = await replay(SOURCE, "--target", url, "--model", "m")
    assert 1 == code
    assert "the target answers a chat with no JSON" in errors
    assert "\x1b" not in errors
    assert "Traceback" not in errors
