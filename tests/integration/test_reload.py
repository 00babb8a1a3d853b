"""A configuration that changes under a running gateway: what is in force, what lives on, what is left as it was."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    FakeEngine,
    Served,
    answer_chat,
    chat,
    chunk,
    event,
)
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    first_pool,
    hang,
    until_up,
)

CHAT = "/v1/chat/completions"


def write(path: Path, *engines: FakeEngine, **pool: Any) -> None:
    """A file with one pool of these engines."""
    config = {"pools": [{"name": "p", "endpoints": [e.endpoint for e in engines], **pool}]}
    path.write_text(yaml.safe_dump(config))


async def reload(http: httpx.AsyncClient, gateway: ServeProcess) -> tuple[int, dict[str, Any]]:
    """Ask for it over the admin API."""
    answer = await http.post(f"{gateway.admin_url}/api/reload")
    told: dict[str, Any] = answer.json()
    return answer.status_code, told


async def metric(http: httpx.AsyncClient, gateway: ServeProcess, name: str) -> float:
    """The value of a metric without labels."""
    text = (await http.get(f"{gateway.admin_url}/metrics")).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


async def test_new_bounds_are_in_force_at_once(tmp_path: Path) -> None:
    """Asked for over the admin API; the answer says which keys have changed."""
    path = tmp_path / "forebay.yaml"
    async with engine(hang) as fake, client() as http:
        write(path, fake, max_inflight_requests=1)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            calls = [asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=chat())) for _ in range(3)]

            async def waiting(count: int) -> bool:
                return bool((await first_pool(http, gateway))["waiting_requests"] == count)

            await eventually(lambda: waiting(2))
            write(path, fake, max_inflight_requests=2, max_queue=1)
            status, told = await reload(http, gateway)
            assert (200, True) == (status, told["applied"])
            assert {"pools[0].max_inflight_requests", "pools[0].max_queue"} == set(told["changed"])
            assert await waiting(1)
            refused = await http.post(
                f"{gateway.url}{CHAT}", json=chat(), headers={"x-forebay-class": "batch"}
            )
            assert (429, "queue_full") == (refused.status_code, refused.json()["error"]["code"])
            assert 1.0 == await metric(http, gateway, "forebay_config_reloads_total")
            for call in calls:
                call.cancel()


@pytest.mark.parametrize("way", ["signal", "file"])
async def test_a_changed_file_is_taken_over(tmp_path: Path, way: str) -> None:
    """By SIGHUP, and by itself within seconds, also when another file is put in its place."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            write(tmp_path / "new.yaml", fake, max_queue=0)
            (tmp_path / "new.yaml").replace(path)
            if way == "signal":
                gateway.signal(signal.SIGHUP)

            async def reloaded() -> bool:
                return await metric(http, gateway, "forebay_config_reloads_total") >= 1.0

            await eventually(reloaded)
            assert 200 == (await http.post(f"{gateway.url}{CHAT}", json=chat())).status_code


async def test_what_was_asked_for_is_not_read_once_more(tmp_path: Path) -> None:
    """A file that has changed and was taken over on demand is no news to who looks at it."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            write(path, fake, max_queue=0)
            assert 200 == (await http.post(f"{gateway.admin_url}/api/reload")).status_code
            await asyncio.sleep(3.5)  # it is looked at every second
            assert 1.0 == await metric(http, gateway, "forebay_config_reloads_total")


async def test_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    """Every problem is told with its place, a metric raised, and requests go on as before; then a good one is taken."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            for text in (
                "pools: [",
                "pools:\n- {name: p, endpoints: ['http://127.0.0.1:9'], gpus: 0}\ndefault_class: none\n",
                "",
                f"pools:\n- {{name: p, endpoints: ['{fake.endpoint}'], profile: no-such-file.json}}\n",
            ):
                path.write_text(text)
                status, told = await reload(http, gateway)
                assert (400, False) == (status, told["applied"])
                assert told["problems"]
                assert 1.0 == await metric(http, gateway, "forebay_config_reload_failed")
                assert 200 == (await http.post(f"{gateway.url}{CHAT}", json=chat())).status_code
            write(path, fake, max_queue=3)
            assert 200 == (await reload(http, gateway))[0]
            assert 0.0 == await metric(http, gateway, "forebay_config_reload_failed")
            path.unlink()
            assert 400 == (await reload(http, gateway))[0]


async def test_what_needs_a_restart_is_told(tmp_path: Path) -> None:
    """Addresses stay; everything else in the file is in force."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            path.write_text(
                f"pools:\n- {{name: p, endpoints: ['{fake.endpoint}']}}\n"
                "state_file: none\nlimits: {head_timeout: 3s, max_body: 2KiB}\n"
            )
            status, told = await reload(http, gateway)
            assert (200, ["state_file", "limits.head_timeout"]) == (status, told["needs_restart"])
            assert ["limits.max_body"] == told["changed"]
            large = {"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]}
            assert 413 == (await http.post(f"{gateway.url}{CHAT}", json=large)).status_code


async def test_streams_and_waiters_live_through_a_change_of_endpoints(tmp_path: Path) -> None:
    """An engine is taken out in the middle of its stream, another comes in and serves who waited."""
    path = tmp_path / "forebay.yaml"
    go_on = asyncio.Event()

    async def slowly(served: Served) -> None:
        await served.send(STREAM_HEAD + chunk(event("a")))
        await go_on.wait()
        await served.send(chunk(event("b")) + chunk(DONE) + LAST_CHUNK)

    async with engine(slowly) as old, engine() as new, client() as http:
        write(path, old, max_inflight_requests=1)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            async with http.stream("POST", f"{gateway.url}{CHAT}", json=chat(stream=True)) as stream:
                pieces = stream.aiter_text()
                first = await anext(pieces)
                waiter = asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=chat()))

                async def one_waits() -> bool:
                    return bool((await first_pool(http, gateway))["waiting_requests"] == 1)

                await eventually(one_waits)
                write(path, new, max_inflight_requests=1)
                assert 200 == (await reload(http, gateway))[0]
                assert 200 == (await waiter).status_code
                go_on.set()
                rest = "".join([piece async for piece in pieces])
            assert "a" in first
            assert "b" in rest

            async def forgotten() -> bool:
                pool = await first_pool(http, gateway)
                return [entry["id"] for entry in pool["endpoints"]] == [new.endpoint]

            await eventually(forgotten)
            assert [request.method for request in old.requests].count("POST") == 1


async def test_a_pool_goes_and_its_endpoint_joins_another(tmp_path: Path) -> None:
    """What runs in a pool that is gone ends as it would; then the endpoint serves in its new place."""
    path = tmp_path / "forebay.yaml"
    go_on = asyncio.Event()

    async def slowly(served: Served) -> None:
        await served.send(STREAM_HEAD + chunk(event("a")))
        await go_on.wait()
        await served.send(chunk(DONE) + LAST_CHUNK)

    async with engine() as first, engine(slowly) as second, client() as http:

        def pools(*pools: tuple[str, list[FakeEngine]]) -> str:
            entries = [
                {"name": name, "endpoints": [e.endpoint for e in engines], "models": [name]}
                for name, engines in pools
            ]
            return yaml.safe_dump({"pools": entries})

        path.write_text(pools(("one", [first]), ("two", [second])))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            body = {**chat(stream=True), "model": "two"}
            async with http.stream("POST", f"{gateway.url}{CHAT}", json=body) as stream:
                pieces = stream.aiter_text()
                await anext(pieces)
                path.write_text(pools(("one", [first, second])))
                assert 200 == (await reload(http, gateway))[0]
                gone = await http.post(f"{gateway.url}{CHAT}", json={**chat(), "model": "two"})
                snapshot = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()
                assert ["one", "two"] == [pool["name"] for pool in snapshot["pools"]]
                assert [first.endpoint] == [entry["id"] for entry in snapshot["pools"][0]["endpoints"]]
                go_on.set()
                assert "[DONE]" in "".join([piece async for piece in pieces])
            assert gone.status_code in (200, 404)  # a single pool whose engines do not check names takes any

            async def moved() -> bool:
                snapshot = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()
                return [
                    (pool["name"], [(entry["id"], entry["state"]) for entry in pool["endpoints"]])
                    for pool in snapshot["pools"]
                ] == [("one", [(first.endpoint, "up"), (second.endpoint, "up")])]

            await eventually(moved)


async def test_who_waits_in_a_pool_that_goes_is_served_there(tmp_path: Path) -> None:
    """As long as no other pool has its engine; then the pool is gone."""
    path = tmp_path / "forebay.yaml"
    go_on = asyncio.Event()

    async def when_let(served: Served) -> None:
        await go_on.wait()
        await answer_chat(served)

    async with engine() as first, engine(when_let) as second, client() as http:

        def pools(*pools: tuple[str, FakeEngine]) -> str:
            entries = [
                {"name": name, "endpoints": [fake.endpoint], "models": [name], "max_inflight_requests": 1}
                for name, fake in pools
            ]
            return yaml.safe_dump({"pools": entries})

        path.write_text(pools(("one", first), ("two", second)))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            body = {**chat(), "model": "two"}
            calls = [asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=body)) for _ in range(3)]

            async def names(*wanted: str) -> bool:
                snapshot = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()
                waiting = sum(pool["waiting_requests"] for pool in snapshot["pools"])
                return [pool["name"] for pool in snapshot["pools"]] == [*wanted] and waiting == 2 * len(
                    wanted
                ) - 2

            await eventually(lambda: names("one", "two"))
            path.write_text(pools(("one", first)))
            assert 200 == (await reload(http, gateway))[0]
            assert await names("one", "two")
            go_on.set()
            assert [200] * 3 == [(await call).status_code for call in calls]
            assert 3 == [request.method for request in second.requests].count("POST")
            await eventually(lambda: names("one"))


async def test_without_a_file_there_is_nothing_new() -> None:
    """Options alone are what they were."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        await until_up(http, gateway)
        status, told = await reload(http, gateway)
        assert (200, []) == (status, told["changed"])


async def test_a_broken_file_shows_no_secret(tmp_path: Path) -> None:
    """Neither who asked for the reload, nor the log, nor the admin port, sees what stands under a secret key."""
    path, secret = tmp_path / "forebay.yaml", "x7Qz-9fK2mPw"
    async with engine() as fake, client() as http:
        write(path, fake, upstream_key=secret)
        whole = path.read_text()
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            shown = ""
            for line in (
                f"admin_token: *{secret}",
                f"admin_token: !x {secret}",
                f"admin_token: &t {secret}\nlisten: *t",
                f"tenants: [{{name: a, keys: [{{{secret}: 1}}]}}]",
                f"limits: {{max_body: {{upstream_key: {secret}}}}}",
            ):
                path.write_text(f"{whole}{line}\n")
                status, told = await reload(http, gateway)
                assert (400, False) == (status, told["applied"])
                shown += str(told)
            shown += (await http.get(f"{gateway.admin_url}/api/snapshot")).text
            shown += (await http.get(f"{gateway.admin_url}/metrics")).text
            gateway.signal()
            await gateway.exit_code()
            shown += await gateway.log()
            assert "admin_token" in shown
            assert secret not in shown
