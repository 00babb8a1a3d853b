"""Field reports about who somebody is, and what is passed on of that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fakes import MODEL, chat
from tests.integration.processes import ServeProcess, client, engine, metrics, total, until_at_rest, until_up
from tests.integration.test_tenants import CHAT, ENGINES, KEY, OTHER, hashed, write

CANARIES = {
    "x-api-key": "canary-1",
    "api-key": "canary-2",
    "x-goog-api-key": "canary-3",
    "cookie": "session=canary-4",
    "proxy-authorization": "Basic canary-5",
}
TWO: dict[str, Any] = {
    "plans": {"plain": {"classes": ["standard"]}},
    "tenants": [
        {"name": "acme", "plan": "plain", "keys": [hashed(KEY)]},
        {"name": "other", "plan": "plain", "keys": [hashed(OTHER)]},
    ],
}


@pytest.mark.parametrize("own", [True, False], ids=["the engine has a key", "it has none"])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/v1/models", "/version"])
async def test_f083_no_credential_reaches_an_engine(tmp_path: Path, own: bool, route: str) -> None:
    """In whatever header or parameter a client sends one; nor is it in the log, in metrics or in an error."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, pool={"upstream_key": ENGINES} if own else {}, **TWO)
        async with ServeProcess("-c", str(path), "--log-level", "debug") as gateway:
            await until_up(http, gateway)
            fake.requests.clear()
            shown = ""
            for name, value in {**CANARIES, "authorization": f"Bearer {KEY}"}.items():
                # A second credential that is another one makes the request nobody's: each goes by itself as well.
                for headers in ({name: value}, {name: value, "authorization": f"Bearer {KEY}"}):
                    url = f"{gateway.url}{route}?key=canary-6&api_key=canary-7"
                    body = chat() if "chat" in route else {"model": MODEL, "prompt": "x"}
                    get = route in ("/v1/models", "/version")
                    answer = await (
                        http.get(url, headers=headers) if get else http.post(url, json=body, headers=headers)
                    )
                    shown += answer.text + str(answer.headers)
            shown += (await http.get(f"{gateway.admin_url}/metrics")).text
            shown += (await http.get(f"{gateway.admin_url}/api/decisions")).text
            gateway.signal()
            await gateway.exit_code()
            shown += await gateway.log()
            sent = b"".join(request.raw_head for request in fake.requests)
            for secret in ("canary", KEY):
                assert secret.encode() not in sent, sent
                assert secret not in shown
            keys = {request.header("authorization") for request in fake.requests if request.method == "POST"}
            assert keys <= {f"Bearer {ENGINES}" if own else None}


async def test_f081_nobody_is_who_the_headers_say(tmp_path: Path) -> None:
    """Doubled, in odd case, with underscores or in lists: tenant and class come from the key alone."""
    path = tmp_path / "forebay.yaml"
    claims = [
        [("x-forebay-tenant", "other")],
        [("X-Forebay-Tenant", "other"), ("x-forebay-tenant", "third")],
        [("x_forebay_tenant", "other")],
        [("x-forebay-tenant", "other, acme")],
        [("x-forebay-class", "realtime")],
        [("x-forebay-class", "realtime"), ("X-FOREBAY-CLASS", "realtime")],
        [("x-gateway-inference-objective", "realtime")],
        [("x-gateway-inference-fairness-id", "random-1")],
        [("x-forebay-priority", "0")],
    ]
    async with engine() as fake, client() as http:
        write(path, fake, **TWO)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            for headers in claims:
                answer = await http.post(
                    f"{gateway.url}{CHAT}",
                    json=chat(),
                    headers=[("authorization", f"Bearer {KEY}"), *headers],
                )
                assert answer.status_code in (200, 400)
            series = await until_at_rest(http, gateway)
            assert 0 == total(series, "forebay_requests_total", 'tenant="other"')
            assert 0 == total(series, "forebay_requests_total", 'class="realtime"')
            assert total(series, "forebay_requests_total", 'class="standard"') >= len(claims) - 2
            heads = b"".join(r.raw_head for r in fake.requests if r.method == "POST").lower()
            for name in (b"forebay", b"x-gateway-inference-objective"):
                assert name not in heads


async def test_f011_who_leaves_at_the_last_byte_is_settled_once(tmp_path: Path) -> None:
    """Two hundred short answers, each connection closed right after the last byte: two hundred settlements."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **TWO)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            host, port = gateway.url.removeprefix("http://").split(":")
            body = b'{"model": "%b", "messages": [{"role": "user", "content": "x"}]}' % MODEL.encode()

            async def once() -> None:
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(
                    b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
                    % (CHAT.encode(), KEY.encode(), len(body), body)
                )
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.transport.abort()

            for _ in range(10):
                await asyncio.gather(*(once() for _ in range(20)))
            series = await until_at_rest(http, gateway)
            assert 200 == total(await metrics(http, gateway), "forebay_requests_total", 'outcome="completed"')
            assert 200 == total(series, "forebay_requests_total")
