"""Modes and drains of a running gateway, switched live."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner

from forebay.cli.main import cli
from tests.integration.fakes import Served, answer_chat, chat
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    first_pool,
    hang,
    metrics,
    total,
    until_up,
    until_waiting,
)

CHAT = "/v1/chat/completions"


async def mode(gateway: ServeProcess, *arguments: str) -> dict[str, Any]:
    """`forebay mode`, as an operator runs it."""
    command = ["mode", *arguments, "--admin", gateway.admin_url, "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, cli, command)
    assert 0 == result.exit_code, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


async def running(http: httpx.AsyncClient, gateway: ServeProcess, count: int) -> None:
    """Wait until so many requests are at the engines."""

    async def at_engines() -> bool:
        pool = await first_pool(http, gateway)
        return bool(sum(e["running_requests"] for e in pool["endpoints"]) == count)

    await eventually(at_engines)


async def test_shadow_refuses_nobody_and_tells_whom_it_would_have(tmp_path: Path) -> None:
    """Requests that enforcing would refuse or hold are served at once, and counted and recorded as such."""
    async with engine() as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        path.write_text(f"pools:\n- {{endpoints: ['{fake.endpoint}'], max_gpu_seconds: 0.0001}}\n")
        async with ServeProcess("-c", str(path), "--shadow") as gateway:
            await until_up(http, gateway)
            answer = await http.post(f"{gateway.url}{CHAT}", json=chat(), headers={"x-forebay-explain": "1"})
            assert 200 == answer.status_code
            decision = json.loads(answer.headers["x-forebay-decision"])
            assert ("shadow", "refuse", "queue_full") == (
                decision["mode"], decision["action"], decision["outcome"],
            )  # fmt: skip
            series = await metrics(http, gateway)
            assert 1.0 == total(series, "forebay_shadow_decisions_total", 'reason="queue_full"')
            assert 0.0 == total(series, "forebay_refusals_total")
            assert 1.0 == total(series, "forebay_requests_total", 'outcome="completed"')
            assert {"default": dict.fromkeys(("realtime", "standard", "batch"), "shadow")} == (
                await mode(gateway)
            )["pools"]
            told = await mode(gateway, "enforce", "--class", "standard")
            assert "enforce" == told["pools"]["default"]["standard"]
            assert 429 == (await http.post(f"{gateway.url}{CHAT}", json=chat())).status_code
            batch = {"x-forebay-class": "batch"}
            assert 200 == (await http.post(f"{gateway.url}{CHAT}", json=chat(), headers=batch)).status_code
            assert [] == (await mode(gateway, "configured"))["live"]
            assert 200 == (await http.post(f"{gateway.url}{CHAT}", json=chat())).status_code
            gateway.signal()
            assert 0 == await gateway.exit_code()
            log = await gateway.log()
            assert "request would be refused (shadow)" in log
            assert "Traceback" not in log


async def test_bypass_lets_waiters_go_and_a_reload_takes_over(tmp_path: Path) -> None:
    """A live switch holds over a reload that does not speak of modes, and ends with one that does."""
    async with engine(hang) as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        pool = f"pools:\n- {{endpoints: ['{fake.endpoint}'], max_inflight_requests: 1}}\n"
        path.write_text(pool)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            calls = [asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=chat())) for _ in range(4)]
            await until_waiting(http, gateway, 3)
            await mode(gateway, "bypass")
            await running(http, gateway, 4)
            path.write_text(pool + "displace: off\n")
            assert 200 == (await http.post(f"{gateway.admin_url}/api/reload")).status_code
            assert "bypass" == (await mode(gateway))["mode"]
            calls.append(asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=chat())))
            await running(http, gateway, 5)
            path.write_text(pool + "mode: shadow\n")
            assert 200 == (await http.post(f"{gateway.admin_url}/api/reload")).status_code
            told = await mode(gateway)
            assert ("shadow", []) == (told["mode"], told["live"])
            series = await metrics(http, gateway)
            assert 3.0 == total(series, "forebay_mode", 'mode="shadow"')
            for call in calls:
                call.cancel()


async def test_an_endpoint_is_drained_and_put_back() -> None:
    """What runs there ends, new requests go elsewhere, and it takes part again once it is put back."""
    async with (
        engine(hang) as first,
        engine() as second,
        client() as http,
        ServeProcess("--upstream", first.endpoint, "--upstream", second.endpoint) as gateway,
    ):
        await until_up(http, gateway)
        call = asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=chat()))
        await first.until(lambda: any(request.method == "POST" for request in first.requests))
        url = f"{gateway.admin_url}/api/drain"
        told = (await http.post(url, json={"endpoint": first.endpoint})).json()
        assert {"endpoint": first.endpoint, "state": "drained", "running_requests": 1} == told
        for _ in range(5):
            assert 200 == (await http.post(f"{gateway.url}{CHAT}", json=chat())).status_code
        assert [1, 5] == [[r.method for r in fake.requests].count("POST") for fake in (first, second)]
        call.cancel()
        told = (await http.post(url, json={"endpoint": first.endpoint, "undo": True})).json()
        assert "starting" == told["state"]
        await until_up(http, gateway)
        call = asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=chat()))
        await first.until(lambda: [r.method for r in first.requests].count("POST") == 2)
        call.cancel()


async def test_the_process_is_drained_over_the_api() -> None:
    """As by SIGTERM: what runs ends, the process exits with 0, and a SIGTERM that comes meanwhile does not hurry it."""
    may_end = asyncio.Event()

    async def slowly(served: Served) -> None:
        await may_end.wait()
        await answer_chat(served)

    async with engine(slowly) as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        await until_up(http, gateway)
        call = asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=chat()))
        await fake.until(lambda: any(request.method == "POST" for request in fake.requests))
        answer = await http.post(f"{gateway.admin_url}/api/drain")
        assert (202, 30.0) == (answer.status_code, answer.json()["within_s"])

        async def draining() -> bool:
            return bool((await http.get(f"{gateway.admin_url}/api/snapshot")).json()["draining"])

        await eventually(draining)
        assert 503 == (await http.get(f"{gateway.admin_url}/readyz")).status_code
        assert 503 == (await http.post(f"{gateway.url}{CHAT}", json=chat())).status_code
        gateway.signal()
        await asyncio.sleep(0.2)
        assert not call.done()
        may_end.set()
        assert 200 == (await call).status_code
        assert 0 == await gateway.exit_code()
