"""A gateway whose decision core fails: it fails closed, says so, and ends with 1."""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.config import load
from forebay.runtime.app import App
from forebay.runtime.prepared import prepare
from tests.integration.fakes import DONE, LAST_CHUNK, STREAM_HEAD, Served, chat, event
from tests.integration.processes import BOUND_S, client, engine


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    """Starting an app tunes the garbage collector of the whole process."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def dumped(folder: Path) -> list[dict[str, Any]]:
    """The lines of the only dump in a folder."""
    (path,) = folder.glob("forebay-dump-*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


class HeldStream:
    """An engine whose stream ends when told."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(event())
        await self.may_end.wait()
        await served.send_events(DONE)
        await served.send(LAST_CHUNK)


async def test_failed_core_lets_running_answers_end_and_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure of the core readiness falls, newcomers get 503 with Retry-After, the running stream ends whole,
    the last events are in a file, and the exit code is 1.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = HeldStream()
    async with engine(script) as fake, client() as http:
        pools = [{"endpoints": [fake.endpoint]}]
        options = {
            "pools": ("--upstream", pools),
            "listen": ("--listen", "127.0.0.1:0"),
            "admin": ("--admin", "127.0.0.1:0"),
            "grace": ("--grace", "20s"),
        }
        app = App(prepare(load(None, environ={}, options=options)))
        lines = await app.start()
        url, admin_url = (line.rpartition(" ")[2] for line in lines)
        async with http.stream("POST", f"{url}/v1/chat/completions", json=chat(stream=True)) as answer:
            pieces = answer.aiter_text()
            received = await anext(pieces)
            # The next booking fails. Not by replacing a method: a compiled core lets nobody do that.
            app.driver._controller._life.ledger.pools.clear()
            refused = await http.post(f"{url}/v1/chat/completions", json=chat())
            assert (503, "draining") == (refused.status_code, refused.json()["error"]["code"])
            assert refused.headers["retry-after"]
            ready = await http.get(f"{admin_url}/readyz")
            assert (503, "the decision core has failed\n") == (ready.status_code, ready.text)
            assert 200 == (await http.get(f"{admin_url}/healthz")).status_code
            metrics = (await http.get(f"{admin_url}/metrics")).text
            assert 'forebay_internal_errors_total{where="core"} 1.0' in metrics
            async with asyncio.timeout(BOUND_S):
                await app.wait()
                stopping = asyncio.create_task(app.stop())
                script.may_end.set()
                async for piece in pieces:
                    received += piece
                assert received.endswith("data: [DONE]\n\n")
                assert 1 == await stopping
    head, *events = dumped(tmp_path)
    assert "KeyError" in head["error"]
    assert "Arrived" in {line["type"] for line in events}
