"""What tenants may use, as a process holds it: refusals, headers, and what every kind of request costs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.gateway.routes import ADMITTED
from tests.integration.fakes import DONE, MODEL, Served, chat, chat_answer, event, plain, usage_event
from tests.integration.processes import ServeProcess, client, engine, metrics, until_up, until_waiting
from tests.integration.test_tenants import CHAT, KEY, OTHER, ask, hashed, write

COMPLETIONS = "/v1/completions"


def tenants(**plan: Any) -> dict[str, Any]:
    """One tenant on this plan, and one without any."""
    return {
        "plans": {"p": plan},
        "tenants": [
            {"name": "acme", "plan": "p", "keys": [hashed(KEY)]},
            {"name": "free", "keys": [hashed(OTHER)]},
        ],
    }


def answering(prompt_tokens: int, output_tokens: int) -> Any:
    """An engine whose every answer says that it took so many."""

    async def chat_script(served: Served) -> None:
        await served.send(plain(chat_answer("x", prompt_tokens, output_tokens)))

    return chat_script


async def post(
    http: httpx.AsyncClient, gateway: ServeProcess, path: str, body: dict[str, Any]
) -> httpx.Response:
    """One request of acme."""
    headers = {"authorization": f"Bearer {KEY}"}
    return await http.post(f"{gateway.url}{path}", json={"model": MODEL, **body}, headers=headers)


def limits(answer: httpx.Response, kind: str) -> tuple[int, int]:
    """What the headers say: limit and remaining."""
    return int(answer.headers[f"x-ratelimit-limit-{kind}"]), int(
        answer.headers[f"x-ratelimit-remaining-{kind}"]
    )


async def test_buckets_refuse_and_say_when_to_come_back(tmp_path: Path) -> None:
    """429 with the limit, what is left and when; other tenants are not concerned."""
    path = tmp_path / "forebay.yaml"
    async with engine(answering(100, 50)) as fake, client() as http:
        write(
            path, fake, **tenants(tokens_per_second=10, burst=200, requests_per_second=0.5, requests_burst=3)
        )
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            first = await post(http, gateway, CHAT, chat(max_tokens=50))
            assert 200 == first.status_code
            assert (200, 3, 2) == (limits(first, "tokens")[0], *limits(first, "requests"))
            # 150 of it are gone now, whatever was expected.
            refused = await post(
                http,
                gateway,
                CHAT,
                chat(messages=[{"role": "user", "content": "word " * 150}], max_tokens=50),
            )
            assert (429, "rate_limit_exceeded") == (refused.status_code, refused.json()["error"]["code"])
            assert "rate_limit_exceeded quota_tokens" == refused.headers["x-forebay-reason"]
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert 0 < limits(refused, "tokens")[1] <= 60
            assert refused.headers["x-ratelimit-reset-tokens"].endswith("s")
            assert (3, 2) == limits(refused, "requests")  # what one limit refuses costs no other
            other = await ask(http, gateway, OTHER)
            assert 200 == other.status_code
            assert not [name for name in other.headers if name.startswith("x-ratelimit")]
            decided = await http.get(f"{gateway.admin_url}/api/requests/{refused.headers['x-forebay-id']}")
            assert "quota_tokens" in decided.text


async def test_a_client_that_comes_when_told_has_its_whole_rate(tmp_path: Path) -> None:
    """Of four a second: the milliseconds are the honest figure, whole seconds are for clients that know no others."""
    path = tmp_path / "forebay.yaml"
    async with engine(answering(10, 5)) as fake, client() as http:
        write(path, fake, **tenants(requests_per_second=4, requests_burst=1))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            assert 200 == (await post(http, gateway, CHAT, chat())).status_code
            refused = await post(http, gateway, CHAT, chat())
            assert (429, "1") == (refused.status_code, refused.headers["retry-after"])
            told_ms = int(refused.headers["retry-after-ms"])
            assert float(refused.headers["x-queue-predict-wait"]) * 1000 <= told_ms <= 330
            await asyncio.sleep(told_ms / 1000)
            assert 200 == (await post(http, gateway, CHAT, chat())).status_code


async def test_cap_on_requests_in_flight(tmp_path: Path) -> None:
    """F040: A runs, B is refused, A ends, C is let in: B has cost nothing."""
    path = tmp_path / "forebay.yaml"
    release = asyncio.Event()

    async def held(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    async with engine(held) as fake, client() as http:
        write(path, fake, **tenants(max_inflight=1, requests_per_second=0.001, requests_burst=2))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            a = asyncio.ensure_future(ask(http, gateway, KEY))
            await fake.until(lambda: fake.running == 1)
            b = await ask(http, gateway, KEY)
            assert (429, "rate_limit_exceeded quota_inflight_requests") == (
                b.status_code, b.headers["x-forebay-reason"],
            )  # fmt: skip
            assert (2, 1) == limits(b, "requests")
            release.set()
            assert 200 == (await a).status_code
            assert 200 == (await ask(http, gateway, KEY)).status_code
            d = await ask(http, gateway, KEY)
            assert "rate_limit_exceeded quota_requests" == d.headers["x-forebay-reason"]
            # A reload does not fill the bucket.
            write(path, fake, **tenants(max_inflight=2, requests_per_second=0.001, requests_burst=2))
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert (
                "rate_limit_exceeded quota_requests"
                == (await ask(http, gateway, KEY)).headers["x-forebay-reason"]
            )
            write(path, fake, **tenants(max_inflight=2, requests_per_second=0.001, requests_burst=3))
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 200 == (await ask(http, gateway, KEY)).status_code


@pytest.mark.parametrize(
    "key", ["tokens_per_second", "requests_per_second", "max_inflight", "max_inflight_gpu_seconds"]
)
async def test_f041_zero_blocks_all(tmp_path: Path, key: str) -> None:
    """F041: with no hint to come back; absent, nothing is limited."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **tenants(**{key: 0}))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            refused = await ask(http, gateway, KEY)
            assert (429, "false") == (refused.status_code, refused.headers["x-should-retry"])
            assert "retry-after" not in refused.headers
            assert "It allows none." in refused.json()["error"]["message"]
            write(path, fake, **tenants())
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 200 == (await ask(http, gateway, KEY)).status_code


@pytest.mark.parametrize("of", ["pool", "class"])
async def test_f041_a_queue_of_zero_refuses_what_cannot_start(tmp_path: Path, of: str) -> None:
    """F041: at once; and null is no bound."""
    path = tmp_path / "forebay.yaml"
    release = asyncio.Event()

    async def held(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    async with engine(held) as fake, client() as http:

        def bounded(most: int | None) -> None:
            pool = {"max_inflight_requests": 1, **({"max_queue": most} if of == "pool" else {})}
            entry = {"ttft": "20s", **({"max_queue": most} if of == "class" else {})}
            write(path, fake, pool=pool, classes={"standard": entry})

        bounded(0)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            calls = [asyncio.ensure_future(ask(http, gateway))]
            await fake.until(lambda: fake.running == 1)
            refused = await ask(http, gateway)
            assert (429, "queue_full") == (refused.status_code, refused.json()["error"]["code"])
            assert "retry-after" in refused.headers
            bounded(None)
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            calls += [asyncio.ensure_future(ask(http, gateway)) for _ in range(8)]
            await until_waiting(http, gateway, 8)
            release.set()
            assert [200] * 9 == [(await call).status_code for call in calls]


async def test_f027_attachments_are_not_counted_as_text(tmp_path: Path) -> None:
    """F027: a picture of 600 KB is admitted at once; after the answer the bucket is down by what the engine counted."""
    path = tmp_path / "forebay.yaml"
    picture = "data:image/png;base64," + base64.b64encode(b"x" * 600_000).decode()
    content = [{"type": "text", "text": "word " * 20}, {"type": "image_url", "image_url": {"url": picture}}]
    async with engine(answering(1100, 8)) as fake, client() as http:
        write(path, fake, **tenants(tokens_per_second=0.001, burst=50_000))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            body = chat(messages=[{"role": "user", "content": content}], max_tokens=10)
            assert 200 == (await post(http, gateway, CHAT, body)).status_code
            after = await post(http, gateway, CHAT, chat(max_tokens=1))
            left = limits(after, "tokens")[1]
            assert 50_000 - 1108 - 100 <= left <= 50_000 - 1108


async def test_f028_what_costs_more_than_the_bucket(tmp_path: Path) -> None:
    """F028: on a full bucket it passes and leaves a debt; with more input than that it never can, and costs nothing."""
    path = tmp_path / "forebay.yaml"
    async with engine(answering(10, 5)) as fake, client() as http:
        write(path, fake, **tenants(tokens_per_second=1, burst=100))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            never = await post(http, gateway, COMPLETIONS, {"prompt": list(range(101)), "max_tokens": 1})
            assert (400, "request_exceeds_quota", "false") == (
                never.status_code, never.json()["error"]["code"], never.headers["x-should-retry"],
            )  # fmt: skip
            assert (100, 100) == limits(never, "tokens")
            assert (
                200 == (await post(http, gateway, CHAT, chat())).status_code
            )  # no limit stated: a long answer
            assert 0 < limits(await post(http, gateway, CHAT, chat(max_tokens=1)), "tokens")[1] <= 86


LONG: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"messages": [{"role": "user", "content": "word " * 400}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "word " * 400}]}]},
    ],
    COMPLETIONS: [
        {"prompt": "word " * 400},
        {"prompt": ["word " * 200, "word " * 200]},
        {"prompt": list(range(400))},
        {"prompt": [list(range(200)), list(range(200))]},
    ],
    "/v1/messages": [{"messages": [{"role": "user", "content": "word " * 400}]}],
    "/v1/responses": [
        {"input": "word " * 400},
        {"instructions": "word " * 200, "input": [{"role": "user", "content": "word " * 200}]},
    ],
    "/v1/embeddings": [
        {"input": "word " * 400},
        {"input": ["word " * 200, "word " * 200]},
        {"input": [list(range(200)), list(range(200))]},
    ],
    "/v1/rerank": [{"query": "word " * 200, "documents": ["word " * 200]}],
    "/inference/v1/generate": [{"token_ids": list(range(400))}],
    "/generate": [{"inputs": "word " * 400}, {"input_ids": list(range(400))}],
    "/generate_stream": [{"inputs": "word " * 400}],
    "/completion": [{"prompt": "word " * 400}],
}
"""By route, the same input in each form that it takes; of routes that are read alike, one."""
UNSTREAMED = ("/v1/embeddings", "/v1/rerank")


def test_f031_no_route_is_left_out() -> None:
    """F031: whoever adds a route says how its input may be given, and it is tested that all of that counts."""
    of_tokens = {
        route.read for route in ADMITTED.values() if not route.path.startswith(("/v1/audio", "/v1/images"))
    }
    assert of_tokens == {ADMITTED[path].read for path in LONG}


@pytest.mark.parametrize(
    ("path", "body", "stream"),
    [
        (path, body, stream)
        for path, bodies in LONG.items()
        for body in bodies
        for stream in (False, True)
        if not (stream and path in UNSTREAMED)
    ],
)
async def test_f031_every_kind_of_prompt_is_metered(
    tmp_path: Path, path: str, body: dict[str, Any], stream: bool
) -> None:
    """F031: input counts, however it is given: the second long prompt is refused."""
    file = tmp_path / "forebay.yaml"

    async def script(served: Served) -> None:
        if stream:
            await served.stream(event("x", finish="stop"), usage_event(400, 1), DONE)
        else:
            await served.send(plain(chat_answer("x", 400, 1)))

    body = {**body, "max_tokens": 1, "stream": stream}
    async with engine(script) as fake, client() as http:
        write(file, fake, **tenants(tokens_per_second=0.001, burst=600))
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            assert 200 == (await post(http, gateway, path, body)).status_code
            refused = await post(http, gateway, path, body)
            assert "rate_limit_exceeded quota_tokens" == refused.headers["x-forebay-reason"]
            assert (600, 199) == limits(refused, "tokens")


async def test_streams_have_the_headers_and_pay_for_what_came(tmp_path: Path) -> None:
    """Also one whose client leaves in the middle."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **tenants(tokens_per_second=0.001, burst=100_000))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            streamed = await post(http, gateway, CHAT, chat(stream=True, max_tokens=1000))
            assert 100_000 == limits(streamed, "tokens")[0]
            after = limits(await post(http, gateway, CHAT, chat(max_tokens=1)), "tokens")[1]
            assert 100_000 - 10 - 30 <= after <= 100_000 - 10


async def test_plan_may_require_a_limit(tmp_path: Path) -> None:
    """400 that names the field, on both routes; stated, it passes."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **tenants(require_max_tokens=True))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            for route, body in ((CHAT, chat()), (COMPLETIONS, {"prompt": "x"})):
                refused = await post(http, gateway, route, body)
                assert (400, "max_tokens") == (refused.status_code, refused.json()["error"]["param"])
            for body in (chat(max_tokens=5), chat(max_completion_tokens=5)):
                assert 200 == (await post(http, gateway, CHAT, body)).status_code


async def test_f087_names_and_keys_without_end_leave_no_trace(tmp_path: Path) -> None:
    """F087: unknown keys are refused before there is any state, and named tenants have few series of their own."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        keys = tenants(tokens_per_second=1000)
        write(path, fake, **keys, trusted_proxies=["127.0.0.0/8"], anonymous={"plan": "p"})
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            for number in range(300):
                assert 401 == (await ask(http, gateway, f"sk-{number}")).status_code
                assert 200 == (await ask(http, gateway, None, x_forebay_tenant=f"t{number}")).status_code
            text = (await http.get(f"{gateway.admin_url}/metrics")).text
            lines = [line for line in text.splitlines() if "tenant=" in line]
            assert any('tenant="other"' in line for line in lines)
            assert len({line.split('tenant="')[1].split('"')[0] for line in lines}) <= 101
            assert json.dumps("sk-") not in text


def memory_kb(gateway: ServeProcess) -> int:
    """What the process holds of it."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells memory where there is /proc")
@pytest.mark.timeout(120)
async def test_f087_whatever_clients_make_up_takes_no_memory(tmp_path: Path) -> None:
    """F087: keys, tenants, models, paths, users, sessions and ids that are never seen twice, 20,000 of each: 50 MB."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        keys = tenants(tokens_per_second=1000, max_inflight=100)
        write(path, fake, **keys, trusted_proxies=["127.0.0.0/8"], anonymous={"plan": "p"})
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            host, port = gateway.url.removeprefix("http://").split(":")

            def made_up(number: int) -> bytes:
                body = json.dumps({**chat(model=f"m{number}", user=f"u{number}"), "max_tokens": 1}).encode()
                who = (
                    f"authorization: Bearer sk-{number}"
                    if number % 4 == 0
                    else f"x-forebay-tenant: t{number}"
                )
                where = f"/v1/{number}" if number % 4 == 1 else CHAT
                head = f"POST {where} HTTP/1.1\r\nhost: x\r\n{who}\r\nx-forebay-session: s{number}\r\n"
                made_up_class = f"x-forebay-class: c{number}\r\n" if number % 8 == 6 else ""
                head += f"x-request-id: r{number}\r\n{made_up_class}content-length: {len(body)}\r\n\r\n"
                return head.encode() + body

            statuses: Counter[bytes] = Counter()

            async def send(first: int, last: int) -> None:
                """All on one connection, twenty at a time."""
                reader, writer = await asyncio.open_connection(host, int(port))
                for start in range(first, last, 20):
                    writer.write(b"".join(made_up(number) for number in range(start, start + 20)))
                    for _ in range(20):
                        answer = await reader.readuntil(b"\r\n\r\n")
                        statuses[answer[9:12]] += 1
                        length = answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                        await reader.readexactly(int(length))
                writer.close()

            async def wave(begin: int) -> None:
                await asyncio.gather(
                    *(send(begin + 1250 * part, begin + 1250 * (part + 1)) for part in range(4))
                )

            await wave(0)
            before = memory_kb(gateway)
            for begin in (5_000, 10_000, 15_000):
                await wave(begin)
            assert memory_kb(gateway) - before < 25_000
            assert {b"200", b"400", b"401", b"404"} == set(statuses)
            assert statuses[b"200"] > 5_000
            series = await metrics(http, gateway)
            assert len(series) < 3_000
            assert (await post(http, gateway, CHAT, chat(max_tokens=1))).status_code == 200


async def test_never_refused_requests_wait(tmp_path: Path) -> None:
    """Beyond the class's bounds and its budget, where those of others are refused; and are answered in the end."""
    path = tmp_path / "forebay.yaml"
    release = asyncio.Event()

    async def held(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    async with engine(held) as fake, client() as http:
        write(
            path,
            fake,
            pool={"max_inflight_requests": 1, "max_queue": 1},
            classes={"standard": {"ttft": "5s", "wait_budget": "300ms", "max_queue": 1}},
            **tenants(never_refuse=True),
        )
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            first = asyncio.ensure_future(ask(http, gateway, OTHER))
            await fake.until(lambda: fake.running == 1)
            waiters = [asyncio.ensure_future(ask(http, gateway, KEY)) for _ in range(5)]
            await until_waiting(http, gateway, 5)
            assert "queue_full" == (await ask(http, gateway, OTHER)).json()["error"]["code"]
            await asyncio.sleep(0.5)
            await until_waiting(http, gateway, 5)
            release.set()
            assert {200} == {(await call).status_code for call in [first, *waiters]}


async def test_who_leaves_keeps_its_place_while_the_engine_may_be_at_its_request(tmp_path: Path) -> None:
    """R23: asking and leaving gives no more at the engines than the cap; a moment later the place is free."""
    path = tmp_path / "forebay.yaml"
    next_is_held = asyncio.Event()

    async def held(served: Served) -> None:
        if next_is_held.is_set():
            next_is_held.clear()
            await asyncio.sleep(60.0)
        await served.send(plain(chat_answer()))

    async with engine(held) as fake, client() as http:
        write(path, fake, **tenants(max_inflight=1))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            next_is_held.set()
            left = asyncio.ensure_future(ask(http, gateway, KEY))
            await fake.until(lambda: fake.running == 1)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            began_s = asyncio.get_running_loop().time()
            while (answer := await ask(http, gateway, KEY)).status_code != 200:
                assert "rate_limit_exceeded quota_inflight_requests" == answer.headers["x-forebay-reason"]
                await asyncio.sleep(0.02)
            assert 0.02 <= asyncio.get_running_loop().time() - began_s < 10.0


async def test_a_large_body_is_not_read_where_nothing_is_left(tmp_path: Path) -> None:
    """Told at once; of a small body the whole decision is made, and in shadow all bodies are read."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, **tenants(requests_per_second=0.001, requests_burst=1))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            assert b"200" in await begin_to_send(gateway, 0)
            assert b"429" in await begin_to_send(gateway, 30_000_000)
            series = await metrics(http, gateway)
            assert 1.0 == series['forebay_early_answers_total{reason="rate_limit_exceeded"}']
            refused = 'class="standard",outcome="rate_limit_exceeded",pool="p"'
            assert 1.0 == series["forebay_requests_total{" + refused + "}"]
            assert 2.0 == series['forebay_tenant_requests_total{class="standard",pool="p",tenant="acme"}']
            small = await ask(http, gateway, KEY)
            assert (429, (1, 0)) == (small.status_code, limits(small, "requests"))
            assert (
                await http.post(f"{gateway.admin_url}/api/mode", json={"mode": "shadow"})
            ).status_code == 200
            with pytest.raises(TimeoutError):
                await begin_to_send(gateway, 30_000_000)


async def begin_to_send(gateway: ServeProcess, more_bytes: int) -> bytes:
    """A chat of acme, all of it sent but so many bytes that are announced; the first line of the answer."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(chat(max_tokens=1)).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
        % (KEY.encode(), len(body) + more_bytes, body)
    )
    try:
        async with asyncio.timeout(2):
            return await reader.readline()
    finally:
        writer.close()
