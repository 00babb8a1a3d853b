"""Metrics of engines, by whatever names, in the running gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.fakes import FakeEngine, Served, chat, plain
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    engine_script,
    eventually,
    first_pool,
    until_up,
)
from tests.unit.engines.pages import (
    models_of,
    sglang_models,
    sglang_page,
    tgi_info,
    tgi_page,
    triton_page,
    vllm_models,
    vllm_page,
)


class Pages:
    """What an engine answers to GETs; anything else is its chat."""

    def __init__(self, **pages: bytes) -> None:
        self.pages = {f"/{path.replace('__', '/')}": page for path, page in pages.items()}

    async def __call__(self, served: Served) -> None:
        """The script of a fake engine."""
        if served.request.method == "GET":
            page = self.pages.get(served.request.target)
            await served.send(plain(b"{}", "404 Not Found") if page is None else plain(page))
        else:
            await engine_script()(served)


async def view_of(http: httpx.AsyncClient, gateway: ServeProcess) -> dict[str, Any]:
    """The only endpoint of the gateway's only pool."""
    endpoints = (await first_pool(http, gateway))["endpoints"]
    view: dict[str, Any] = endpoints[0]
    return view


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        (Pages(metrics=sglang_page(), v1__models=sglang_models()), ("sglang", 31, 1, 7372)),
        (Pages(metrics=tgi_page(), info=tgi_info(max_batch_total_tokens=5000)), ("tgi", 5, 3, 4500)),
        (
            Pages(metrics=triton_page(), v1__models=models_of("Triton Inference Server")),
            ("trtllm", 6, 2, 5760),
        ),
        (Pages(metrics=vllm_page(), v1__models=vllm_models("tiny")), ("vllm", 6, 1, 1814)),
    ],
    ids=["sglang", "tgi", "triton", "vllm"],
)
async def test_engines_are_recognised_and_their_load_is_seen(
    pages: Pages, expected: tuple[str, int, int, int]
) -> None:
    """With nothing but a URL the gateway finds out what an engine is, how loaded it is, and what its KV cache holds."""
    async with (
        engine(script=pages) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint) as gateway,
    ):
        await until_up(http, gateway)
        view = await view_of(http, gateway)
        seen = (view["kind"], view["engine_running"], view["engine_waiting"], view["kv_limit"])
        assert expected == seen


def configuration(fake: FakeEngine, engine_entry: object) -> str:
    """A configuration of one pool."""
    return json.dumps({"pools": [{"endpoints": [fake.endpoint], "engine": engine_entry}]})


async def test_mapped_metrics_are_read_and_can_be_changed_while_running(tmp_path: Path) -> None:
    """Series of any name are the engine's load; a reload that names others is followed, and the request goes on."""
    page = b'reqs{state="active"} 3\nreqs{state="queued"} 2\nother 9\nkv 0.25\n'
    pages = Pages(stats=page, v1__models=models_of("somebody", "llama-test"))
    path = tmp_path / "forebay.yaml"
    async with engine(script=pages) as fake, client() as http:
        names = {"running": 'reqs{state="active"}', "waiting": 'reqs{state="queued"}', "kv": "kv"}
        path.write_text(configuration(fake, {"metrics": names, "metrics_path": "/stats"}))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            view = await view_of(http, gateway)
            assert (3, 2, 0.25) == (view["engine_running"], view["engine_waiting"], view["kv_usage"])
            changed = {"metrics": {"running": "other"}, "metrics_path": "/stats"}
            path.write_text(configuration(fake, changed))
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]

            async def followed() -> bool:
                view = await view_of(http, gateway)
                return bool(view["engine_running"] == 9 and view["kv_usage"] is None)

            await eventually(followed)
            answer = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
            assert answer.status_code == 200


async def test_a_wrong_name_is_refused_with_how_it_is_written(tmp_path: Path) -> None:
    """`forebay check` says what is wrong with the name of a series, and where."""
    path = tmp_path / "forebay.yaml"
    path.write_text("pools:\n- endpoints: [http://127.0.0.1:1]\n  engine: {metrics: {running: sum(a)}}\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "forebay",
        "check",
        str(path),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert ":3:22: pools[0].engine.metrics.running: found 'sum(a)'; a series is written as" in said.decode()
