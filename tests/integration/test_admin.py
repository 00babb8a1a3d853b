"""The admin port of a running gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.fakes import chat
from tests.integration.processes import ServeProcess, client, engine, hang, until_up, until_waiting

FIVE = (
    "forebay_inflight_requests",
    "forebay_inflight_gpu_seconds",
    "forebay_queue_requests",
    "forebay_queue_gpu_seconds",
    "forebay_queue_wait_seconds_bucket",
    "forebay_refusals_total",
    "forebay_tenant_gpu_seconds_total",
)


async def test_metrics_show_what_passes(tmp_path: Path) -> None:
    """After some traffic the first metrics of an operator are there, with their values."""
    async with engine() as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        path.write_text(f"pools:\n- {{name: llama, endpoints: ['{fake.endpoint}']}}\n")
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            for _ in range(3):
                await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
            await http.post(f"{gateway.url}/v1/chat/completions", json={"model": 5})
            text = (await http.get(f"{gateway.admin_url}/metrics")).text
            assert 'forebay_requests_total{class="standard",outcome="completed",pool="llama"} 3.0' in text
            assert 'forebay_goodput_total{class="standard",pool="llama"} 3.0' in text
            assert f'forebay_inflight_requests{{endpoint="{fake.endpoint}",pool="llama"}} 0.0' in text
            assert f'forebay_endpoint_state{{endpoint="{fake.endpoint}",pool="llama",state="up"}} 1.0' in text
            assert "forebay_early_answers_total{" in text
            for name in FIVE:
                assert name in text


async def test_refusals_and_waits_show(tmp_path: Path) -> None:
    """While one request runs, one waits and one is refused, each is in its metric and in the snapshot."""
    async with engine(hang) as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        path.write_text(
            f"pools:\n- {{endpoints: ['{fake.endpoint}'], max_inflight_requests: 1, max_queue: 1}}\n"
        )
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            body = chat()
            running = asyncio.create_task(http.post(f"{gateway.url}/v1/chat/completions", json=body))
            await fake.until(lambda: any(request.method == "POST" for request in fake.requests))
            waiting = asyncio.create_task(
                http.post(
                    f"{gateway.url}/v1/chat/completions", json=body, headers={"x-forebay-class": "batch"}
                )
            )
            await until_waiting(http, gateway, 1)
            refused = await http.post(
                f"{gateway.url}/v1/chat/completions",
                json=body,
                headers={
                    "x-request-id": "my-call/1",
                    "x-forebay-class": "batch",
                },  # a better one would push it out
            )
            assert 429 == refused.status_code
            text = (await http.get(f"{gateway.admin_url}/metrics")).text
            assert 'forebay_queue_requests{class="batch",pool="default"} 1.0' in text
            assert f'forebay_inflight_requests{{endpoint="{fake.endpoint}",pool="default"}} 1.0' in text
            assert 'forebay_refusals_total{class="batch",pool="default",reason="queue_full"} 1.0' in text

            decisions = (await http.get(f"{gateway.admin_url}/api/decisions?limit=2")).json()["decisions"]
            assert [("refuse", "queue_full"), ("hold", None)] == [
                (d["action"], d["outcome"]) for d in decisions
            ]
            assert [refused.headers["x-forebay-id"], "my-call/1"] == [
                decisions[0]["id"], decisions[0]["request_id"],
            ]  # fmt: skip
            named = await http.get(f"{gateway.admin_url}/api/requests/my-call/1")
            assert ["refuse"] == [decision["action"] for decision in named.json()["decisions"]]
            found = await http.get(f"{gateway.admin_url}/api/requests/{refused.headers['x-forebay-id']}")
            assert ["refuse"] == [decision["action"] for decision in found.json()["decisions"]]
            other_process = "0" * 12 + "-1"
            assert 404 == (await http.get(f"{gateway.admin_url}/api/requests/{other_process}")).status_code
            assert found.json()["end"]["outcome"] == "queue_full"
            running.cancel()
            waiting.cancel()


async def test_api_is_closed_off_loopback() -> None:
    """Open to the network without a credential: health and metrics answer, without tenants; the API does not."""
    async with (
        engine() as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint, admin="0.0.0.0:0") as gateway,
    ):
        await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
        assert 403 == (await http.get(f"{gateway.admin_url}/api/snapshot")).status_code
        for path in ("/healthz", "/readyz"):
            assert 200 == (await http.get(gateway.admin_url + path)).status_code
        text = (await http.get(f"{gateway.admin_url}/metrics")).text
        assert 'tenant="all"' in text
        assert 'tenant="anonymous"' not in text
        gateway.signal()
        assert 0 == await gateway.exit_code()
        assert "/api/ is closed without admin_token" in await gateway.log()


async def test_credential_opens_the_api() -> None:
    """With FOREBAY_ADMIN_TOKEN the API takes exactly that credential, and the log does not repeat it."""
    credential = "correct-horse-battery"
    environ = {"FOREBAY_ADMIN_TOKEN": credential}
    async with (
        engine() as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint, admin="0.0.0.0:0", environ=environ) as gateway,
    ):
        url = f"{gateway.admin_url}/api/snapshot"
        assert 401 == (await http.get(url)).status_code
        answer = await http.get(url, headers={"authorization": f"Bearer {credential}"})
        assert 200 == answer.status_code
        gateway.signal()
        assert 0 == await gateway.exit_code()
        log = await gateway.log()
        assert credential not in log
        assert "/api/ is closed" not in log
