"""Input that is wrong, hostile or merely unusual: the right code, a message that helps, and nothing sent on."""

from __future__ import annotations

import asyncio
import json

import pytest

from forebay.admission.settings import PoolSettings, Settings
from forebay.gateway.ports import GatewaySettings
from forebay.http.limits import ServerLimits
from tests.integration.fakes import (
    MODEL,
    FakeEngine,
    Served,
    Stack,
    chat,
    chat_answer,
    plain,
    post,
    running,
)

CANARY = "sk-canary-4711"


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"", 400, "invalid_request", None),
        (b"{", 400, "invalid_request", None),
        (b"[]", 400, "invalid_request", None),
        (b'{"model": tru}', 400, "invalid_request", None),
        (b'{"model": NaN}', 400, "invalid_request", None),
        (b"{}} trailing", 400, "invalid_request", None),
        (b"\xef\xbb\xbf{}", 400, "invalid_request", None),
        (b'{"model": "\xff"}', 400, "invalid_request", None),
        (b"\0" * 100, 400, "invalid_request", None),
        (b'{"model": "a\0b"}', 400, "invalid_request", None),
        (b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "invalid_request", None),
        (b'{"model": 7}', 400, "invalid_request", "model"),
        (b'{"messages": {"role": "user"}}', 400, "invalid_request", "messages"),
        (b'{"max_tokens": "many"}', 400, "invalid_request", "max_tokens"),
        (b'{"max_tokens": true}', 400, "invalid_request", "max_tokens"),
        (b'{"max_tokens": -1}', 400, "invalid_request", "max_tokens"),
        (b'{"max_tokens": 1.5}', 400, "invalid_request", "max_tokens"),
        (b'{"max_tokens": ' + b"9" * 5_000 + b"}", 400, "invalid_request", "max_tokens"),
        (b'{"stream": "true"}', 400, "invalid_request", "stream"),
        (b'{"model": "no-such-model"}', 404, "model_not_found", "model"),
        (b'{"model": ""}', 404, "model_not_found", "model"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
async def test_f084_bad_bodies_are_told_what_is_wrong(
    body: bytes, status: int, code: str, param: str | None
) -> None:
    """F084: a bad body gets its code in the API's error shape, is not repeated, and never reaches an engine."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:
        client = await stack.client()
        await client.send(post(body))
        reply = await client.reply()
        error = reply.error()
        assert (reply.status, error["code"], error["param"]) == (status, code, param)
        assert {"message", "type", "param", "code"} == set(error)
        assert len(error["message"]) > 15
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after" not in reply.headers
        # The connection is as good as before.
        await client.send(post(chat()))
        assert (await client.reply()).status == 200
        assert len(engine.requests) == 1
        client.close()
        await stack.idle()


async def test_unusual_but_legal_bodies_pass() -> None:
    """What only the engine can judge is passed on unchanged."""
    engine = FakeEngine()
    bodies = [
        b"{}",
        b'{"model": null}',
        b'{"model": "%b", "max_tokens": 16.0}' % MODEL.encode(),
        b'{"messages": [], "unknown": {"deep": [[[]]]}}',
        b'\r\n {"stream": null, "max_tokens": null}\n',
    ]
    async with running(Stack([engine])) as stack:
        for body in bodies:
            assert (await stack.ask(post(body))).status == 200
        assert bodies == [request.body for request in engine.requests]
        await stack.idle()


async def test_a_body_of_100_mb_is_refused_unread() -> None:
    """A body above the limit is refused by its declared length; one that only shows its size on the way, there."""
    limit = 1_000_000
    engine = FakeEngine()
    async with running(Stack([engine], gateway=GatewaySettings(max_body_bytes=limit))) as stack:
        client = await stack.client()
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 104857600\r\n\r\n"
        )
        reply = await client.reply()
        assert (reply.status, reply.error()["code"]) == (413, "request_too_large")
        assert str(limit) in reply.error()["message"]
        assert reply.headers["connection"] == "close"

        client = await stack.client()
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        piece = b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000)
        sending = asyncio.create_task(client.send(piece * 20))
        assert (await client.reply()).status == 413
        await asyncio.gather(sending, return_exceptions=True)
        await stack.idle()
        assert engine.requests == []


async def test_heads_that_never_end() -> None:
    """A head that comes too slowly is a 408, one that is too long a 431; both in the API's error shape."""
    async with running(Stack([FakeEngine()], limits=ServerLimits(head_timeout_s=0.3))) as stack:
        client = await stack.client()
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-a: ")
        reply = await client.reply()
        assert (reply.status, reply.error()["code"]) == (408, "request_timeout")
        client = await stack.client()
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * 70_000)
        reply = await client.reply()
        assert (reply.status, reply.error()["code"]) == (431, "head_too_large")
        await stack.idle()


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: +2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-a: b\0c\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=range(6),
)
async def test_broken_http_is_refused_in_the_apis_shape(head: bytes) -> None:
    """Ambiguous or broken framing is a 400 that closes, and nothing of it is sent on."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:
        reply = await stack.ask(head)
        assert (reply.status, reply.error()["code"]) == (400, "invalid_request")
        assert reply.headers["connection"] == "close"
        assert engine.requests == []
        await stack.idle()


async def test_slow_bodies_are_given_up() -> None:
    """A body that stops coming is a 408."""
    async with running(Stack([FakeEngine()], limits=ServerLimits(body_timeout_s=0.3))) as stack:
        client = await stack.client()
        await client.send(post(chat())[:-5])
        reply = await client.reply()
        assert (reply.status, reply.error()["code"]) == (408, "request_timeout")
        await stack.idle()


async def test_header_values_that_cannot_be_meant() -> None:
    """A class that does not exist, or a deadline that is no number, is refused by name before the body is read."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:
        reply = await stack.ask(post(chat(), headers="x-forebay-class: gold\r\n"))
        assert (reply.status, reply.error()["param"]) == (400, "x-forebay-class")
        assert "realtime, standard, batch" in reply.error()["message"]
        reply = await stack.ask(post(chat(), headers="x-slo-ttft-ms: soon\r\n"))
        assert (reply.status, reply.error()["param"]) == (400, "x-slo-ttft-ms")
        assert engine.requests == []
        await stack.idle()


async def test_nothing_of_a_refused_request_is_repeated() -> None:
    """Keys, ids and text of a request are not in the answers that refuse it."""
    pool = PoolSettings("default", max_inflight_requests=0, max_queue=0)
    async with running(Stack([FakeEngine()], settings=Settings(pools=(pool,)))) as stack:
        headers = f"authorization: Bearer {CANARY}\r\nx-api-key: {CANARY}\r\ncookie: {CANARY}\r\n"
        text: dict[str, object] = {"messages": [{"role": "user", "content": CANARY}]}
        for data in (
            post({"model": MODEL} | text, headers=headers),
            post({"model": CANARY} | text, headers=headers),
            post({"model": [CANARY]}, headers=headers),
            post(chat(), path=f"/v1/{CANARY}", headers=headers),
            f"GET /{CANARY}?key={CANARY} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode(),
        ):
            reply = await stack.ask(data)
            assert reply.status >= 400
            assert CANARY.encode() not in reply.raw + reply.body
        await stack.idle()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/./completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat%2e/completions",
        "/V1/CHAT/COMPLETIONS",
        "/v1/chat/completions;x=1",
    ],
)
async def test_f078_other_spellings_of_a_path_are_unknown_paths(path: str) -> None:
    """F078: another spelling of a path is a 404, never a redirect, and passes no limit."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:
        reply = await stack.ask(post(chat(), path=path))
        assert (reply.status, reply.error()["code"]) == (404, "not_found")
        assert "location" not in reply.headers
        assert engine.requests == []


async def test_paths_and_methods() -> None:
    """Known paths answer the methods they have; everything else says what is served."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:

        async def ask(line: str) -> tuple[int, dict[str, str], bytes]:
            client = await stack.client()
            await client.send(f"{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            status, headers, _ = await client.head()
            return status, headers, await client.reader.read()

        assert (await ask("GET /healthz"))[::2] == (200, b'{"status":"ok"}')
        assert (await ask("HEAD /healthz"))[::2] == (200, b"")
        assert json.loads((await ask("GET /v1/models"))[2])["data"][0]["id"] == MODEL
        assert (await ask(f"GET /v1/models/{MODEL}"))[0] == 200
        assert (await ask("GET /v1/models/none"))[0] == 404
        status, headers, body = await ask("GET /v1/chat/completions")
        assert (status, headers["allow"]) == (405, "POST, OPTIONS")
        assert headers["x-forebay-id"] == headers["x-request-id"]
        assert json.loads(body)["error"]["code"] == "method_not_allowed"
        assert (await ask("OPTIONS /v1/chat/completions"))[:1] == (204,)
        assert (await ask("OPTIONS *"))[0] == 204
        assert (await ask("DELETE /v1/models"))[0] == 405
        status, _, body = await ask("POST /v1/fine_tuning/jobs")
        assert status == 404
        assert "/v1/chat/completions" in json.loads(body)["error"]["message"]
        for path in (
            "/",
            "/metrics",
            "/sleep",
            "/v1/load_lora_adapter",
            "/reset_prefix_cache",
            "/abort_requests",
        ):
            assert (await ask(f"POST {path}"))[0] == 404
        assert engine.requests == []


async def test_a_few_gets_are_passed() -> None:
    """GET /version is passed to an engine that answers, outside admission."""

    async def script(served: Served) -> None:
        await served.send(plain(b'{"version":"0.32.0"}'))

    engines = [FakeEngine(script), FakeEngine(script)]
    async with running(Stack(engines)) as stack:
        get = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
        reply = await stack.ask(get)
        assert (reply.status, reply.body) == (200, b'{"version":"0.32.0"}')
        await engines[0].stop()
        assert (await stack.ask(get)).status == 200
        await engines[1].stop()
        reply = await stack.ask(get)
        assert (reply.status, reply.error()["code"]) == (502, "upstream_failed")
        assert reply.headers["x-forebay-id"] == reply.headers["x-request-id"]
        assert stack.settlements == []


async def test_old_clients_are_served() -> None:
    """An HTTP/1.0 client gets its answer, ended by closing where it is a stream."""
    async with running(Stack([FakeEngine()])) as stack:
        for stream in (False, True):
            client = await stack.client()
            await client.send(post(chat(stream=stream)).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            status, headers, _ = await client.head()
            body = await client.reader.read()
            assert status == 200
            assert "transfer-encoding" not in headers
            assert body.endswith(b"[DONE]\n\n") if stream else json.loads(body)["object"] == "chat.completion"
        await stack.idle()


async def test_answers_are_relayed_with_their_own_framing() -> None:
    """A chunked plain answer stays chunked, an empty one stays empty, and close-delimited ones end."""
    answers = [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + chat_answer(),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ]
    expected = [b"{}", b"", chat_answer(), b"{}"]

    async def script(served: Served) -> None:
        data = answers.pop(0)
        await served.send(data)
        if b"connection: close" in data:
            served.close()

    async with running(Stack([FakeEngine(script)])) as stack:
        client = await stack.client()
        for body in expected:
            await client.send(post(chat()))
            reply = await client.reply()
            assert (reply.status, reply.body) == (200, body)
        client.close()
        await stack.idle()
