"""Tenants as a process serves them: keys, proxies, plans, and what engines and logs see of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.integration.fakes import MODEL, FakeEngine, Served, chat, chat_answer, plain
from tests.integration.processes import ServeProcess, client, engine, metrics, until_up

CHAT = "/v1/chat/completions"
KEY, OTHER, ENGINES = "sk-acme-7f3a9", "sk-other-1b2c3", "engine-key-5d6e7"


def hashed(key: str) -> str:
    """A key as the file has it."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def write(path: Path, fake: FakeEngine, *, pool: dict[str, Any] | None = None, **keys: Any) -> None:
    """A file with one pool of this engine."""
    entry = {"name": "p", "endpoints": [fake.endpoint], **(pool or {})}
    path.write_text(yaml.safe_dump({"pools": [entry], **keys}))


async def ask(
    http: httpx.AsyncClient, gateway: ServeProcess, key: str | None = None, **headers: str
) -> httpx.Response:
    """One chat."""
    own = {} if key is None else {"authorization": f"Bearer {key}"}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.post(f"{gateway.url}{CHAT}", json=chat(), headers={**own, **names})


TENANTS: dict[str, Any] = {
    "plans": {"free": {"classes": ["batch"], "models": [MODEL]}, "other": {"models": ["nothing"]}},
    "tenants": [
        {"name": "acme", "plan": "free", "keys": [hashed(KEY)]},
        {"name": "elsewhere", "plan": "other", "keys": [hashed(OTHER)]},
    ],
}


async def test_keys_decide_who_comes_in_and_go_nowhere(tmp_path: Path) -> None:
    """A known key is its tenant's in metrics and decisions; engines, logs and the admin port never see it."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **TENANTS)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            assert 200 == (await ask(http, gateway, KEY, x_forebay_class="realtime")).status_code
            assert (
                200
                == (await ask(http, gateway, None, x_api_key=KEY, x_forebay_tenant="elsewhere")).status_code
            )
            for wrong in (None, "sk-acme-7f3a", OTHER + "x"):
                refused = await ask(http, gateway, wrong)
                assert (401, "invalid_api_key") == (refused.status_code, refused.json()["error"]["code"])
                assert "Bearer" == refused.headers["www-authenticate"]
                assert "sk-" not in refused.text
            refused = await ask(http, gateway, OTHER)
            assert (403, "model_not_allowed") == (refused.status_code, refused.json()["error"]["code"])
            assert 401 == (await http.get(f"{gateway.url}/v1/models")).status_code
            listed = await http.get(f"{gateway.url}/v1/models", headers={"authorization": f"Bearer {KEY}"})
            assert 200 == listed.status_code
            assert 200 == (await http.get(f"{gateway.url}/healthz")).status_code

            series = await metrics(http, gateway)
            assert 1 == len(
                [name for name in series if name.startswith("forebay_tenant_gpu") and 'tenant="acme"' in name]
            )
            decisions = (await http.get(f"{gateway.admin_url}/api/decisions")).text
            assert '"tenant":"acme"' in decisions.replace(" ", "")
            assert '"class":"batch"' in decisions.replace(" ", "").replace("class_name", "class")
            shown = decisions + (await http.get(f"{gateway.admin_url}/api/snapshot")).text
            for request in fake.requests:
                assert request.header("authorization") is None
                assert request.header("x-api-key") is None
            gateway.signal()
            await gateway.exit_code()
            shown += await gateway.log()
            for secret in (KEY, "sk-acme", hashed(KEY)[7:]):
                assert secret not in shown


async def test_the_refusal_comes_before_the_body(tmp_path: Path) -> None:
    """Nobody has to send 30 MB to learn that a key is wrong."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake:
        write(path, fake, **TENANTS)
        async with ServeProcess("-c", str(path)) as gateway:
            host, port = gateway.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer no\r\n"
                b"content-length: 30000000\r\n\r\n"
            )
            async with asyncio.timeout(5):
                assert b"401" in await reader.readline()
            writer.close()


async def test_who_has_no_key_may_have_a_plan(tmp_path: Path) -> None:
    """Also its models and classes hold, and a key that is wrong is still wrong."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **TENANTS, anonymous={"plan": "free"})
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            answer = await ask(http, gateway, None, x_forebay_class="realtime", x_forebay_explain="1")
            assert 200 == answer.status_code
            assert '"class":"batch"' in answer.headers["x-forebay-decision"]
            assert 401 == (await ask(http, gateway, "EMPTY")).status_code


async def test_engines_see_the_key_that_is_theirs(tmp_path: Path) -> None:
    """The pool's own in place of the client's, with its readings too; or the client's, where the pool says so."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, pool={"upstream_key": ENGINES}, **TENANTS)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            assert 200 == (await ask(http, gateway, KEY)).status_code
            assert {f"Bearer {ENGINES}"} == {request.header("authorization") for request in fake.requests}

            fake.requests.clear()
            write(path, fake, pool={"forward_authorization": True}, **TENANTS)
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 200 == (await ask(http, gateway, KEY)).status_code
            sent = [request for request in fake.requests if request.method == "POST"]
            assert [f"Bearer {KEY}"] == [request.header("authorization") for request in sent]

            # A kept connection asks with the same head after a reload that takes its key away.
            write(path, fake, plans=TENANTS["plans"], tenants=TENANTS["tenants"][1:])
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 401 == (await ask(http, gateway, KEY)).status_code
            shown = (await http.get(f"{gateway.admin_url}/api/snapshot")).text
            gateway.signal()
            await gateway.exit_code()
            assert ENGINES not in shown + await gateway.log()


async def test_a_proxy_names_tenants_if_it_is_trusted(tmp_path: Path) -> None:
    """From a trusted address the header counts; without trust it is ignored and never forwarded."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **TENANTS, trusted_proxies=["127.0.0.0/8"])
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            assert 200 == (await ask(http, gateway, x_forebay_tenant="acme")).status_code
            assert 401 == (await ask(http, gateway, x_forebay_tenant="unlisted")).status_code
            write(path, fake, **TENANTS, trusted_proxies=["10.0.0.0/8"])
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 401 == (await ask(http, gateway, x_forebay_tenant="acme")).status_code
            assert all(request.header("x-forebay-tenant") is None for request in fake.requests)


async def test_a_plan_has_its_models_and_no_others(tmp_path: Path) -> None:
    """Whoever names none gets one that it has, said to the engine; a fallback gives it none that it has not."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, engine() as other, client() as http:
        config = {
            "pools": [
                {"name": "p", "endpoints": [fake.endpoint], "models": ["large", MODEL], "fallback": "q"},
                {"name": "q", "endpoints": [other.endpoint], "models": ["other"]},
            ],
            **TENANTS,
        }
        path.write_text(yaml.safe_dump({**config, "pools": [{**config["pools"][0], "fallback": None}]}))
        headers = {"authorization": f"Bearer {KEY}"}
        unnamed = {name: value for name, value in chat().items() if name != "model"}
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            answer = await http.post(f"{gateway.url}{CHAT}", json=unnamed, headers=headers)
            assert (200, MODEL) == (answer.status_code, answer.headers["x-forebay-model"])
            assert MODEL == json.loads(fake.requests[-1].body)["model"]
            assert unnamed["messages"] == json.loads(fake.requests[-1].body)["messages"]

            path.write_text(yaml.safe_dump(config))
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            await until_up(http, gateway)
            drained = {"endpoint": fake.endpoint}
            assert 200 == (await http.post(f"{gateway.admin_url}/api/drain", json=drained)).status_code
            refused = await http.post(f"{gateway.url}{CHAT}", json=chat(), headers=headers)
            assert (503, "no_endpoints") == (refused.status_code, refused.json()["error"]["code"])
            own_id = refused.headers["x-forebay-id"]
            assert "plan_models" in (await http.get(f"{gateway.admin_url}/api/requests/{own_id}")).text
            assert [] == [request for request in other.requests if request.method == "POST"]


async def test_what_is_left_of_the_operators_account_is_not_told(tmp_path: Path) -> None:
    """Asked with our key an engine tells of our account, in answers and in errors; else of the client's own."""
    told = b"x-ratelimit-remaining-tokens: 9999\r\nx-ratelimit-limit-tokens: 10000\r\nx-other: 1\r\n"

    async def chat_script(served: Served) -> None:
        wants_error = served.request.header("x-try") == "error"
        body = b'{"error": {"message": "no"}}' if wants_error else chat_answer()
        await served.send(plain(body, "429 Too Many Requests" if wants_error else "200 OK", told))

    path = tmp_path / "forebay.yaml"
    async with engine(chat_script) as fake, client() as http:
        cases: list[tuple[dict[str, Any], str | None]] = [({"upstream_key": ENGINES}, None), ({}, "9999")]
        for pool, expected in cases:
            write(path, fake, pool=pool, state_file="none")
            async with ServeProcess("-c", str(path)) as gateway:
                await until_up(http, gateway)
                for wanted, status in (("answer", 200), ("error", 429)):
                    answer = await ask(http, gateway, x_try=wanted)
                    assert status == answer.status_code
                    found = answer.headers.get("x-ratelimit-remaining-tokens")
                    assert (expected, "1") == (found, answer.headers["x-other"])
