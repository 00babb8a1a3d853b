"""Requests through the whole data plane: what is relayed, what is refused, and what the core is told."""

from __future__ import annotations

import asyncio
import json

import pytest

from forebay.admission.events import EndpointsChanged
from forebay.admission.model import EngineInfo, EngineKind
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from forebay.gateway.ports import GatewaySettings
from tests.integration.fakes import (
    DONE,
    MODEL,
    STREAM_HEAD,
    FakeEngine,
    Script,
    Served,
    Stack,
    answer_chat,
    chat,
    chat_answer,
    event,
    eventually,
    plain,
    post,
    running,
)


async def test_a_plain_answer_is_relayed_whole() -> None:
    """The body reaches the engine byte-identical, the answer the client, and the usage the books."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:
        body = (
            b'{ "model":"'
            + MODEL.encode()
            + b'" ,"messages":[{"role":"user","content":"h\\u00e9"}],"x":{"a":1}}\n'
        )
        reply = await stack.ask(post(body, headers="x-request-id: req-1\r\nx-forebay-class: batch\r\n"))
        assert reply.status == 200
        assert json.loads(reply.body)["choices"][0]["message"]["content"] == "hello"
        assert engine.requests[0].body == body
        assert engine.requests[0].header("host") == f"127.0.0.1:{engine.port}"
        assert engine.requests[0].header("x-forebay-class") is None
        assert engine.requests[0].header("x-request-id") == reply.headers["x-request-id"] == "req-1"
        assert reply.headers["x-queue-time"] == "0.000"
        assert "-" in reply.headers["x-forebay-id"]
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.COMPLETED
        assert (settlement.prompt_tokens, settlement.output_tokens) == (7, 2)
        assert settlement.class_name == "batch"
        await stack.idle()


async def test_a_stream_is_relayed_as_it_comes() -> None:
    """Events are passed on before the stream ends, unchanged, with the marks against buffering."""
    go_on = asyncio.Event()
    events = [event("a"), event("b"), event("c", finish="stop"), DONE]

    async def script(served: Served) -> None:
        await served.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await served.send_events(events[0])
        await go_on.wait()
        await served.send_events(*events[1:])
        await served.send(b"0\r\n\r\n")

    async with running(Stack([FakeEngine(script)])) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        status, headers, _ = await client.head()
        chunks = client.chunks()
        assert await anext(chunks) == events[0]
        go_on.set()
        assert b"".join([piece async for piece in chunks]) == b"".join(events[1:])
        assert (status, headers["cache-control"], headers["x-accel-buffering"]) == (
            200,
            "no-cache, no-transform",
            "no",
        )
        assert "content-length" not in headers
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.COMPLETED
        client.close()
        await stack.idle()


def failing(
    status: str, body: bytes = b'{"error":{"message":"no","code":500}}', headers: bytes = b""
) -> Script:
    """A script that answers with an error."""

    async def script(served: Served) -> None:
        await served.send(plain(body, status, headers))

    return script


def streaming(*pieces: bytes, ending: bytes = b"0\r\n\r\n", reset: bool = False) -> Script:
    """A script that sends a stream's head and these pieces, each in a chunk, and ends so."""

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(*pieces)
        if ending:
            await served.send(ending)
        elif reset:
            served.reset()
        else:
            served.close()

    return script


REFUSAL_EVENT = (
    b'data: {"error": {"message": "The engine is currently busy.", "type": "Service Unavailable", '
    b'"param": null, "code": 503}}\n\n'
)


async def test_f038_the_engines_own_error_is_the_answer() -> None:
    """F038: where no other endpoint helps, the engine's status, body and Retry-After reach the client as they are."""
    body = b'{"error":{"message":"busy","code":429}}'
    engine = FakeEngine(failing("429 Too Many Requests", body, b"retry-after: 30\r\n"))
    async with running(Stack([engine])) as stack:
        for stream in (False, True):
            reply = await stack.ask(post(chat(stream=stream)))
            assert (reply.status, reply.body, reply.headers["retry-after"]) == (429, body, "30")
            assert reply.headers["x-forebay-reason"] == "upstream_failed"
            stack.describe(engine.endpoint, stack.info)
        assert [Outcome.UPSTREAM_FAILED] * 2 == [s.outcome for s in await stack.settled(2)]
        await stack.idle()


async def test_an_engines_overload_without_retry_after_gets_one() -> None:
    """A 503 that may pass later says when to come back, also when the engine did not."""
    async with running(Stack([FakeEngine(failing("503 Service Unavailable"))])) as stack:
        replies = [await stack.ask(post(chat())) for _ in range(3)]
        assert {503} == {reply.status for reply in replies}
        assert all(1 <= int(reply.headers["retry-after"]) <= 60 for reply in replies)
        # Spread, so that those who are told in one moment do not come back in one moment.
        assert len({reply.headers["retry-after-ms"] for reply in replies}) == 3


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "422 Unprocessable Content"])
async def test_an_engines_judgement_of_the_request_is_final(status: str) -> None:
    """A 4xx about the request itself is relayed once and is not tried elsewhere."""
    body = b'{"object":"error","message":"too long","code":400}'
    engines = [FakeEngine(failing(status, body)), FakeEngine(failing(status, body))]
    async with running(Stack(engines)) as stack:
        reply = await stack.ask(post(chat()))
        assert (int(status[:3]), body) == (reply.status, reply.body)
        assert sum(len(engine.requests) for engine in engines) == 1
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.charged_gpu_s) == (Outcome.ENGINE_REJECTED, 0.0)
        await stack.idle()


@pytest.mark.parametrize(
    "script",
    [
        failing("500 Internal Server Error"),
        failing("503 Service Unavailable"),
        failing("429 Too Many Requests"),
        streaming(REFUSAL_EVENT, DONE),
        streaming(b": comment\n\n" + REFUSAL_EVENT),
        streaming(b'data: {"object": "error", "message": "The request queue is full.", "code": 503}\n\n'),
        streaming(),
        streaming(b": only a comment\n\n"),
        streaming(ending=b"", reset=True),
        streaming(ending=b""),
        streaming(ending=b"not a chunk\r\n"),
    ],
    ids=range(11),
)
async def test_f042_before_the_first_byte_another_endpoint_is_tried(script: Script) -> None:
    """F042: a failure before anything was relayed is retried elsewhere without the client noticing, once."""
    scripts = [script, answer_chat]

    async def once(served: Served) -> None:
        await scripts.pop(0)(served)

    engines = [FakeEngine(once), FakeEngine(once)]
    async with running(Stack(engines)) as stack:
        reply = await stack.ask(post(chat(stream=True)))
        assert reply.status == 200
        assert reply.body.count(b'"a"') == 1
        assert b"error" not in reply.body
        assert reply.body.endswith(DONE)
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.attempts) == (Outcome.COMPLETED, 2)
        await stack.idle()


async def test_a_refusal_inside_a_200_gets_its_status_back() -> None:
    """A stream that begins with an error becomes an answer with the status that the error names."""
    async with running(Stack([FakeEngine(streaming(REFUSAL_EVENT, DONE))])) as stack:
        reply = await stack.ask(post(chat(stream=True)))
        assert reply.status == 503
        assert reply.headers["content-type"] == "application/json"
        assert reply.error()["message"] == "The engine is currently busy."
        assert "retry-after" in reply.headers
        await stack.idle()


async def test_a_bad_request_inside_a_200_is_told_once() -> None:
    """A stream that begins with an error about the request itself is answered with it and not tried elsewhere."""
    told = b'data: {"error": {"message": "too long", "code": 400}}\n\n'
    engines = [FakeEngine(streaming(told, DONE)), FakeEngine(streaming(told, DONE))]
    async with running(Stack(engines)) as stack:
        reply = await stack.ask(post(chat(stream=True)))
        assert (reply.status, reply.error()["message"]) == (400, "too long")
        assert sum(len(engine.requests) for engine in engines) == 1
        await stack.idle()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("tail", [b"", b'data: {"choices": [{"del'])
async def test_f042_after_the_first_byte_the_break_is_shown(reset: bool, tail: bytes) -> None:
    """F042, F021: an engine that dies in mid-stream gives an error event and an end that is no whole one."""
    pieces = [event("a"), event("b"), tail] if tail else [event("a"), event("b")]
    engines = [FakeEngine(streaming(*pieces, ending=b"", reset=reset)) for _ in range(2)]
    async with running(Stack(engines)) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        status, _, _ = await client.head()
        received, whole = await client.pieces()
        assert not whole
        assert status == 200
        assert received.startswith(event("a") + event("b") + tail)
        last = received.rstrip().rpartition(b"\n\n")[2]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_interrupted"
        assert DONE not in received
        assert sum(len(engine.requests) for engine in engines) == 1
        (settlement,) = await stack.settled(1)
        assert (settlement.outcome, settlement.output_tokens) == (Outcome.UPSTREAM_INTERRUPTED, 2)
        await stack.idle()


@pytest.mark.parametrize("done", [b"", DONE])
async def test_f021_an_error_inside_a_stream_is_passed_on_and_counted(done: bytes) -> None:
    """F021: an error event after tokens reaches the client unchanged, and counts as a failure."""
    told = (
        b'data: {"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}\n\n'
    )
    pieces = [event("a"), told, done] if done else [event("a"), told]
    async with running(Stack([FakeEngine(streaming(*pieces))])) as stack:
        reply = await stack.ask(post(chat(stream=True)))
        assert reply.body == b"".join(pieces)
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.UPSTREAM_INTERRUPTED
        await stack.idle()


async def test_f021_a_stream_without_its_end_mark() -> None:
    """F021: EOF without [DONE] is whole if a finish_reason was seen, and broken if not."""
    scripts = [streaming(event("a"), event("b", finish="stop")), streaming(event("a"), event("b"))]

    async def once(served: Served) -> None:
        await scripts.pop(0)(served)

    async with running(Stack([FakeEngine(once)])) as stack:
        whole = await stack.ask(post(chat(stream=True)))
        assert whole.body == event("a") + event("b", finish="stop")
        with pytest.raises(asyncio.IncompleteReadError):
            await stack.ask(post(chat(stream=True)))
        assert [Outcome.COMPLETED, Outcome.UPSTREAM_INTERRUPTED] == [
            s.outcome for s in await stack.settled(2)
        ]
        await stack.idle()


async def test_a_broken_plain_answer_is_cut() -> None:
    """A non-streamed answer that breaks off is cut off for the client too, not padded or ended well."""

    async def script(served: Served) -> None:
        await served.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
        )
        await served.send(b'"a": 1')
        served.close()

    async with running(Stack([FakeEngine(script)])) as stack:
        client = await stack.client()
        await client.send(post(chat()))
        status, headers, _ = await client.head()
        assert (status, headers["content-length"]) == (200, "1000")
        assert len(await client.reader.read()) < 1000
        (settlement,) = await stack.settled(1)
        assert settlement.outcome is Outcome.UPSTREAM_INTERRUPTED
        await stack.idle()


async def test_a_head_is_held_with_its_comments() -> None:
    """Comments before the first event go out with it, and not before: until then the status is still open."""
    go_on = asyncio.Event()

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(b": keep-alive\n\n")
        await go_on.wait()
        await served.send_events(event("a", finish="stop"), DONE)
        await served.send(b"0\r\n\r\n")

    engine = FakeEngine(script)
    async with running(Stack([engine])) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        await engine.until(lambda: bool(engine.requests))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.head()
        go_on.set()
        reply = await client.reply()
        assert reply.body == b": keep-alive\n\n" + event("a", finish="stop") + DONE
        client.close()
        await stack.idle()


async def test_many_comments_are_not_held_for_ever() -> None:
    """More than 4 KiB of comments go out with the head; then the answer belongs to this attempt."""
    go_on = asyncio.Event()

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(*[b": " + b"x" * 1000 + b"\n\n"] * 5)
        await go_on.wait()
        await served.send_events(event("a", finish="stop"), DONE)
        await served.send(b"0\r\n\r\n")

    async with running(Stack([FakeEngine(script)])) as stack:
        client = await stack.client()
        await client.send(post(chat(stream=True)))
        status, _, _ = await client.head()
        assert status == 200
        go_on.set()
        assert b"".join([piece async for piece in client.chunks()]).endswith(DONE)
        client.close()
        await stack.idle()


async def test_waiting_requests_are_told_their_place() -> None:
    """A request that waited says how long, how long was predicted, and where it stood."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    engine = FakeEngine(script)
    async with running(Stack([engine], pool=PoolSettings("default", max_inflight_requests=1))) as stack:
        first, second = await stack.client(), await stack.client()
        await first.send(post(chat()))
        await engine.until(lambda: len(engine.requests) == 1)
        await second.send(post(chat(), headers="x-forebay-explain: 1\r\n"))
        await eventually(lambda: stack.waiting == 1)
        assert stack.gateway.bodies.taken_bytes > 0
        release.set()
        replies = [await first.reply(), await second.reply()]
        assert [200, 200] == [reply.status for reply in replies]
        assert "x-queue-position" not in replies[0].headers
        told = replies[1].headers
        assert float(told["x-queue-time"]) > 0
        assert told["x-queue-position"] == "0"
        assert float(told["x-queue-predict-wait"]) >= 0
        assert json.loads(told["x-forebay-decision"])["action"] == "dispatch"
        first.close()
        second.close()
        await stack.idle()


async def test_a_waiter_whose_time_is_over_is_told_its_place_too() -> None:
    """An evicted request is told the place it had, also the first one, how long it waited and when to come back."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    engine = FakeEngine(script)
    async with running(Stack([engine], pool=PoolSettings("default", max_inflight_requests=1))) as stack:
        first = await stack.client()
        await first.send(post(chat()))
        await engine.until(lambda: len(engine.requests) == 1)
        reply = await stack.ask(post(chat(), headers="x-stainless-timeout: 0.1\r\n"))
        assert (reply.status, reply.error()["code"]) == (429, "queue_timeout")
        assert reply.headers["x-forebay-reason"] == "queue_timeout waited"
        assert reply.headers["x-queue-position"] == "0"
        assert float(reply.headers["x-queue-time"]) >= 0.09
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        release.set()
        assert (await first.reply()).status == 200
        first.close()
        await stack.idle()


async def test_refusals_say_why_and_when() -> None:
    """A full line is a 429 with a reason, a time to come back and the API's error shape."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    engine = FakeEngine(script)
    pool = PoolSettings("default", max_inflight_requests=1, max_queue=0)
    async with running(Stack([engine], pool=pool)) as stack:
        first = await stack.client()
        await first.send(post(chat()))
        await engine.until(lambda: len(engine.requests) == 1)
        reply = await stack.ask(post(chat(stream=True), headers="x-forebay-explain: 1\r\n"))
        assert reply.status == 429
        assert reply.error()["code"] == "queue_full"
        assert reply.headers["x-forebay-reason"] == "queue_full pool_queue_requests"
        assert float(reply.headers["x-queue-predict-wait"]) >= 0
        assert reply.headers["x-forebay-id"] == reply.headers["x-request-id"]
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert json.loads(reply.headers["x-forebay-decision"])["decided_by"] == "pool_queue_requests"
        release.set()
        assert (await first.reply()).status == 200
        first.close()
        await stack.idle()


@pytest.mark.parametrize("overload_status", [503, 529])
async def test_one_setting_changes_the_overload_status(overload_status: int) -> None:
    """Contended refusals take the status that the operator chose."""
    stack = Stack(
        [FakeEngine()],
        pool=PoolSettings("default", max_inflight_requests=0, max_queue=0),
        gateway=GatewaySettings(overload_status=overload_status),
    )
    async with running(stack):
        assert (await stack.ask(post(chat()))).status == overload_status


async def test_draining_refuses_unread() -> None:
    """While draining, a new request is refused with 503 and a time, before its body is read; what runs goes on."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    engine = FakeEngine(script)
    async with running(Stack([engine])) as stack:
        first, late = await stack.client(), await stack.client()
        await first.send(post(chat()))
        await engine.until(lambda: len(engine.requests) == 1)
        stack.directory.start_draining()
        await late.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        reply = await late.reply()
        assert (reply.status, reply.error()["code"]) == (503, "draining")
        assert reply.headers["x-forebay-reason"] == "draining"
        assert {"retry-after", "retry-after-ms", "x-forebay-id"} <= set(reply.headers)
        assert "x-queue-predict-wait" not in reply.headers
        assert reply.headers["connection"] == "close"
        release.set()
        assert (await first.reply()).status == 200
        first.close()
        await stack.idle()


async def test_nothing_to_send_to() -> None:
    """With an engine that cannot be reached the answer is a 503, soon."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:
        await engine.stop()
        reply = await stack.ask(post(chat()))
        assert (reply.status, reply.error()["code"]) == (503, "no_endpoints")
        assert reply.headers["x-forebay-reason"].split()[0] == "no_endpoints"
        assert {"retry-after", "retry-after-ms", "x-forebay-id"} <= set(reply.headers)
        assert "x-queue-predict-wait" not in reply.headers
        await stack.idle()


async def test_a_request_before_the_first_sample_waits() -> None:
    """A request may come before anything is known of the engine: it waits for it, and is then served."""
    engine = FakeEngine()
    await engine.start()
    stack = Stack([engine])
    async with running(stack):
        other = FakeEngine()
        await other.start()
        stack.driver.feed(EndpointsChanged("default", (other.endpoint,)))
        client = await stack.client()
        await client.send(post(chat()))
        await eventually(lambda: stack.waiting == 1)
        stack.driver.feed(EndpointsChanged("default", (other.endpoint, engine.endpoint)))
        stack.describe(engine.endpoint, stack.info)
        assert (await client.reply()).status == 200
        client.close()
        await other.stop()
        await stack.idle()


async def test_chunked_requests_get_one_length() -> None:
    """F074: a chunked body arrives whole at the engine, with one framing header."""
    engine = FakeEngine()
    body = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions?a=b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    async with running(Stack([engine])) as stack:
        client = await stack.client()
        await client.send(
            head + b"".join(b"1;ext=1\r\n%c\r\n" % byte for byte in body) + b"0\r\ntrailer: x\r\n\r\n"
        )
        assert (await client.reply()).status == 200
        request = engine.requests[0]
        assert request.body == body
        assert request.header("content-length") == str(len(body))
        assert request.header("transfer-encoding") is None
        assert request.target == "/v1/chat/completions?a=b"
        client.close()
        await stack.idle()


async def test_expectations_are_met_where_the_body_is_wanted() -> None:
    """F073: `100 Continue` is sent promptly for a request that is read, and never for one that is refused."""
    async with running(Stack([FakeEngine()], gateway=GatewaySettings(max_body_bytes=1000))) as stack:
        body = json.dumps(chat()).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n"
        client = await stack.client()
        await client.send(head.format(len(body)).encode())
        assert (await client.head())[0] == 100
        await client.send(body)
        assert (await client.reply()).status == 200
        await client.send(head.format(50_000_000).encode())
        reply = await client.reply()
        assert (reply.status, reply.error()["code"]) == (413, "request_too_large")
        await client.send(post(chat()))
        assert (await client.reply()).status == 200
        client.close()
        await stack.idle()


async def test_every_split_of_a_request_is_the_same_request() -> None:
    """A request cut into two packets at any byte is read as the whole one is."""
    engine = FakeEngine()
    data = post(chat(), headers="x-request-id: r\r\n")
    async with running(Stack([engine])) as stack:
        client = await stack.client()
        for cut in range(1, len(data)):
            client.writer.write(data[:cut])
            await asyncio.sleep(0)
            await client.send(data[cut:])
            assert (await client.reply()).status == 200
        assert len({(r.raw_head, r.body) for r in engine.requests}) == 1
        client.close()
        await stack.idle()


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Requests sent in one packet are answered one after the other, each admitted by itself."""
    engine = FakeEngine()
    async with running(Stack([engine])) as stack:
        client = await stack.client()
        await client.send(b"".join(post(chat(), headers=f"x-request-id: r{n}\r\n") for n in range(5)))
        assert [f"r{n}" for n in range(5)] == [
            (await client.reply()).headers["x-request-id"] for _ in range(5)
        ]
        client.close()
        await stack.settled(5)
        await stack.idle()


async def test_waiting_bodies_are_bounded_before_they_are_read() -> None:
    """A body that would take waiting bodies over their bound is refused unread; the others are kept."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(chat_answer()))

    engine = FakeEngine(script)
    most = 100_000
    pool = PoolSettings("default", max_inflight_requests=1)
    stack = Stack(
        [engine],
        settings=Settings(pools=(pool,), max_waiting_bytes=most),
        gateway=GatewaySettings(max_waiting_bytes=most),
    )
    big = chat(pad="x" * 60_000)
    async with running(stack):
        clients = [await stack.client() for _ in range(3)]
        await clients[0].send(post(big))
        await engine.until(lambda: len(engine.requests) == 1)
        await clients[1].send(post(big))
        await eventually(lambda: stack.waiting == 1)
        await clients[2].send(post(big)[:5_000])
        reply = await clients[2].reply()
        assert (reply.status, reply.error()["code"]) == (429, "queue_full")
        assert "bytes" in reply.error()["message"]
        assert reply.headers["x-forebay-reason"] == "queue_full waiting_bytes"
        assert {"retry-after", "retry-after-ms", "x-queue-predict-wait", "x-forebay-id"} <= set(reply.headers)
        too_large = await stack.ask(post(chat(pad="x" * 150_000))[:5_000])
        assert too_large.status == 413
        release.set()
        assert [200, 200] == [(await client.reply()).status for client in clients[:2]]
        for client in clients:
            client.close()
        await stack.idle()


async def test_llamacpp_connections_are_not_trusted_after_a_stream() -> None:
    """Where an engine closes after a stream whatever it announces, no request is lost to a connection used before."""

    async def script(served: Served) -> None:
        await answer_chat(served)
        served.reset()

    engine = FakeEngine(script)
    info = EngineInfo(EngineKind.LLAMACPP, models=(MODEL,), closes_after_stream=True)
    async with running(Stack([engine], info=info)) as stack:
        for stream in (True, False) * 5:
            assert (await stack.ask(post(chat(stream=stream)))).status == 200
        assert len(engine.requests) == 10
        await stack.idle()
