"""The record of a running gateway: its lines, what is never in them, reloads, and disks that fail."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from forebay.cli.main import cli
from forebay.load.traces import format_of, read_trace
from tests.integration.fakes import DONE, MODEL, FakeEngine, Served, chat, event, usage_event
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    metrics,
    total,
    until_up,
)

CHAT = "/v1/chat/completions"
SECRETS = ("the prompt itself", "the answer itself", "sk-not-for-the-record")
ASK = {"messages": [{"role": "user", "content": "the prompt itself"}]}


async def answer(served: Served) -> None:
    """A streamed answer with usage."""
    await served.stream(event("the answer itself"), event(" again"), usage_event(90, 7), DONE, gap_s=0.01)


def write(path: Path, fake: FakeEngine, record: object = None, **more: Any) -> None:
    """A configuration with one pool."""
    pools = [{"name": "p", "endpoints": [fake.endpoint], "max_gpu_seconds": more.pop("gpu_s", 1000)}]
    config = {"pools": pools, "state_file": "none", **more}
    path.write_text(yaml.safe_dump(config if record is None else {**config, "record": record}))


def lines(path: Path) -> list[dict[str, Any]]:
    """What is in the record so far."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


async def ask(http: Any, gateway: ServeProcess, **headers: str) -> int:
    """One streamed chat."""
    own = {"authorization": "Bearer sk-not-for-the-record", **headers}
    body = {**chat(stream=True), **ASK}
    return int((await http.post(f"{gateway.url}{CHAT}", json=body, headers=own)).status_code)


async def test_each_request_leaves_a_line_without_its_content(tmp_path: Path) -> None:
    """Served and refused ones, with sizes, decision and times; the file is a trace; a shutdown writes what is left."""
    config, record = tmp_path / "f.yaml", tmp_path / "log" / "r.jsonl"
    async with engine(answer) as fake, client() as http:
        write(config, fake, {"path": str(record)})
        async with ServeProcess("-c", str(config)) as gateway:
            await until_up(http, gateway)
            assert 200 == await ask(http, gateway, **{"x-request-id": "mine", "x-forebay-session": "s"})
            write(config, fake, {"path": str(record)}, gpu_s=1e-4)
            await http.post(f"{gateway.admin_url}/api/reload")
            assert 429 == await ask(http, gateway, **{"x-forebay-class": "batch"})
            gateway.signal()
            assert 0 == await gateway.exit_code()
            log = await gateway.log()
            assert all(secret not in log for secret in SECRETS)
    served, refused = lines(record)
    assert ("completed", "dispatch", "mine", "s", MODEL, "standard", "p") == tuple(
        served[key] for key in ("outcome", "decision", "request_id", "session", "model", "class", "pool")
    )
    assert (90, 7, 90, 7) == tuple(
        served[key] for key in ("input_length", "output_length", "prompt_tokens", "output_tokens")
    )
    assert 0 < served["ttft_s"] <= served["duration_s"]
    assert served["id"]
    assert ("queue_full", "refuse", "batch") == tuple(
        refused[key] for key in ("outcome", "decision", "class")
    )
    assert "output_tokens" not in refused
    assert all(secret not in record.read_text() for secret in SECRETS)
    report = await asyncio.to_thread(CliRunner().invoke, cli, ["report", str(record), "--json"])
    told = json.loads(report.stdout)
    assert {"standard", "batch"} == told["classes"].keys()
    assert (2, 1, 1) == (
        told["requests"],
        told["classes"]["standard"]["met_slo"],
        told["classes"]["batch"]["refused"],
    )
    assert [fake.endpoint] == told["suggestions"][1]["value"][0]["endpoints"]
    assert "forebay" == format_of(record)
    assert [90, refused["input_length"]] == [row.prompt_tokens for row in read_trace(record)]


async def test_shadow_records_what_it_would_have_done(tmp_path: Path) -> None:
    """The request is served, and the line says that it would have been refused."""
    config, record = tmp_path / "f.yaml", tmp_path / "r.jsonl"
    async with engine(answer) as fake, client() as http:
        write(config, fake, {"path": str(record)}, gpu_s=1e-4, mode="shadow")
        async with ServeProcess("-c", str(config)) as gateway:
            await until_up(http, gateway)
            assert 200 == await ask(http, gateway)
            await eventually(lambda: written(record, 1))
    (line,) = lines(record)
    assert ("shadow", "refuse", "queue_full", "completed", 7) == tuple(
        line[key] for key in ("mode", "decision", "would_be", "outcome", "output_tokens")
    )


async def written(path: Path, count: int) -> bool:
    """So many lines are there."""
    return len(lines(path)) >= count


async def test_a_reload_turns_it_on_and_off_and_elsewhere(tmp_path: Path) -> None:
    """Each request is in the file that was configured when it ended; without one nothing is written."""
    config, first, second = tmp_path / "f.yaml", tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    async with engine(answer) as fake, client() as http:
        write(config, fake)
        async with ServeProcess("-c", str(config)) as gateway:
            await until_up(http, gateway)
            for path in (None, first, None, second):
                write(config, fake, None if path is None else {"path": str(path), "files": 1})
                told = (await http.post(f"{gateway.admin_url}/api/reload")).json()
                assert told["applied"]
                assert 200 == await ask(http, gateway)
                if path is not None:
                    await eventually(lambda path=path: written(path, 1))  # type: ignore[misc]
    assert [1, 1] == [len(lines(path)) for path in (first, second)]


async def test_a_full_disk_delays_nobody(tmp_path: Path) -> None:
    """Requests are served; the lines that are lost are counted, and the log says why."""
    config = tmp_path / "f.yaml"
    async with engine(answer) as fake, client() as http:
        write(config, fake, {"path": "/dev/full"})
        async with ServeProcess("-c", str(config)) as gateway:
            await until_up(http, gateway)
            assert [200] * 3 == [await ask(http, gateway) for _ in range(3)]

            async def lost() -> bool:
                series = await metrics(http, gateway)
                return 3.0 == total(series, "forebay_record_lines_dropped_total", 'reason="disk"')

            await eventually(lost)
            series = await metrics(http, gateway)
            assert 0.0 == total(series, "forebay_record_lines_total")
            gateway.signal()
            assert 0 == await gateway.exit_code()
            log = await gateway.log()
            assert 1 == log.count("cannot be written")
