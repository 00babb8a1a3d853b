"""Clients and engines that mean harm, each test named after what they would do if nothing stopped them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from forebay.gateway.ports import GatewaySettings
from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    FakeEngine,
    RawClient,
    Served,
    Stack,
    chat,
    chunk,
    event,
    plain,
    post,
    running,
)
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    first_pool,
    hang,
    metrics,
    total,
    until_at_rest,
    until_up,
)

MIB = 1024 * 1024
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n"
DEAD = "http://127.0.0.1:1"


def port_of(url: str) -> int:
    """The port of a listener."""
    return int(url.rpartition(":")[2])


async def resident_bytes(http: httpx.AsyncClient, gateway: ServeProcess) -> float:
    """The memory that the gateway's process has."""
    return (await metrics(http, gateway))["process_resident_memory_bytes"]


async def flood(writer: asyncio.StreamWriter, data: bytes, most_bytes: int) -> int:
    """Sends the same again and again until the other side takes no more; returns how much was sent."""
    sent = 0
    while sent < most_bytes:
        writer.write(data)
        sent += len(data)
        try:
            async with asyncio.timeout(1.0):
                await writer.drain()
        except TimeoutError:
            return sent
    raise AssertionError("the other side reads without end")


# Clients that fill the memory


async def test_unread_answers_of_pipelined_requests_fill_the_memory() -> None:
    """A client that sends requests without end and reads no answer is not read any more; later it gets every answer."""
    async with client() as http, ServeProcess("--upstream", DEAD) as gateway:
        before = await resident_bytes(http, gateway)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway.url), limit=2 * MIB)
        sent = await flood(writer, HEALTH * 2000, 64 * MIB)
        assert await resident_bytes(http, gateway) - before < 32 * MIB
        answered = 0
        async with asyncio.timeout(30):
            while answered < sent // len(HEALTH):
                answered += (await reader.readuntil(b'{"status":"ok"}')).count(b"HTTP/1.1 200 OK")
        writer.close()


async def test_model_names_of_megabytes_are_kept_in_the_records() -> None:
    """A model name that is longer than any model's is refused, and nothing of it stays."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        await until_up(http, gateway)
        before = await resident_bytes(http, gateway)
        for number in range(12):
            body = chat() | {"model": f"{number}" + "m" * 8_000_000}
            answer = await http.post(f"{gateway.url}/v1/chat/completions", json=body)
            assert (400, "model") == (answer.status_code, answer.json()["error"]["param"])
        assert await resident_bytes(http, gateway) - before < 64 * MIB


async def test_a_body_of_millions_of_parts_stops_the_loop() -> None:
    """A large body of nothing but empty parts is passed on without an object for each of them."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        await until_up(http, gateway)
        before = await resident_bytes(http, gateway)
        body = b'{"model": "llama-test", "messages": [' + b"{}," * 6_000_000 + b"{}]}"
        # Counted as text it is too much for the engine's cache or not; the engine may judge it.
        answer = await http.post(f"{gateway.url}/v1/chat/completions", content=body)
        assert answer.status_code in (200, 413)
        peak = await resident_bytes(http, gateway) - before
        assert peak < 128 * MIB, f"{peak / MIB:.0f} MiB for a body of {len(body) / MIB:.0f} MiB"


async def test_announced_bodies_keep_everybody_out() -> None:
    """Clients that announce large bodies and send none of them take no room from others."""
    stack = Stack([FakeEngine()], gateway=GatewaySettings(max_waiting_bytes=MIB))
    async with running(stack):
        for framing in (f"content-length: {MIB}", "transfer-encoding: chunked"):
            slow = [await stack.client() for _ in range(10)]
            for one in slow:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n{framing}\r\n\r\n"
                await one.send(head.encode())
            assert 200 == (await stack.ask(post(chat()))).status
            for one in slow:
                one.close()
        await stack.idle()


async def test_a_body_that_finds_no_room_on_its_way_is_refused() -> None:
    """A chunked body that grows beyond what is left is refused with a time to come back; a small one finds room."""
    stack = Stack([FakeEngine()], gateway=GatewaySettings(max_waiting_bytes=MIB))
    async with running(stack):
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
        first, second = await stack.client(), await stack.client()
        taken = MIB - MIB // 8 - 1000  # an eighth is kept for small bodies
        await first.send(head + chunk(b" " * taken))
        await eventually_taken(stack, taken)
        assert 200 == (await stack.ask(post(chat()))).status
        await second.send(head + chunk(b" " * 70_000))
        refused = await second.reply()
        assert (429, "queue_full") == (refused.status, refused.error()["code"])
        assert "retry-after" in refused.headers
        first.close()
        await stack.idle()
        assert stack.gateway.early.counts["client_gone"] == 1
        assert stack.gateway.bodies.taken_bytes == 0


async def eventually_taken(stack: Stack, size_bytes: int) -> None:
    """Wait until so many bytes of bodies are held."""

    async def taken() -> bool:
        return stack.gateway.bodies.taken_bytes == size_bytes

    await eventually(taken)


# The admin port


async def test_idle_connections_close_the_admin_port() -> None:
    """Connections that say nothing do not keep probes and scrapes out."""
    async with client() as http, ServeProcess("--upstream", DEAD) as gateway:
        port = port_of(gateway.admin_url)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert 200 == (await http.get(gateway.admin_url + path)).status_code
        for _, writer in idle:
            writer.close()


async def test_an_endless_head_fills_the_memory_of_the_admin_port() -> None:
    """A head without an end is refused as on the main port."""
    async with client() as http, ServeProcess("--upstream", DEAD) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway.admin_url))
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: t\r\nx: " + b"a" * MIB)
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
        writer.close()
        assert 200 == (await http.get(f"{gateway.admin_url}/healthz")).status_code


async def test_unread_admin_answers_are_written_to_a_closed_connection() -> None:
    """A client that asks for many pages and leaves without reading them costs no trace in the log."""
    async with client() as http, ServeProcess("--upstream", DEAD) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway.admin_url))
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: t\r\n\r\n" * 500)
        await asyncio.sleep(0)
        writer.transport.abort()
        assert 200 == (await http.get(f"{gateway.admin_url}/healthz")).status_code
        gateway.signal()
        assert 0 == await gateway.exit_code()
        assert "Traceback" not in await gateway.log()


# Files


async def test_clients_that_take_all_files_make_engines_look_dead() -> None:
    """With few files, clients are turned away before the engine can no longer be connected to."""
    async with (
        engine() as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint, files=80) as gateway,
    ):
        await until_up(http, gateway)
        port = port_of(gateway.url)
        data = post(chat(), headers="connection: close\r\n")
        seen = await asyncio.gather(*(status_of(port, data) for _ in range(150)))
        assert {b"200", b""} >= set(seen)
        assert b"200" in seen
        assert "up" == (await first_pool(http, gateway))["endpoints"][0]["state"]
        assert 200 == (await http.post(f"{gateway.url}/v1/chat/completions", json=chat())).status_code
        series = await until_at_rest(http, gateway)
        assert seen.count(b"200") + 1 == total(series, "forebay_requests_total", 'outcome="completed"')


async def status_of(port: int, data: bytes) -> bytes:
    """The status of an answer; empty if the connection ended without one."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
    except ConnectionError:
        return b""
    return answer[9:12]


# Engines


@pytest.mark.parametrize("stream", [False, True])
async def test_an_absurd_usage_ends_the_gateway(*, stream: bool) -> None:
    """Token counts that no number of ours can hold are no usage; what follows is decided as ever."""
    counts = b'{"prompt_tokens": 1%b, "completion_tokens": 1%b}' % (b"0" * 400, b"0" * 400)

    async def script(served: Served) -> None:
        if stream:
            usage = b'data: {"choices": [], "usage": ' + counts + b"}\n\n"
            await served.stream(event("a", finish="stop"), usage, DONE)
        else:
            await served.send(plain(b'{"choices": [], "usage": ' + counts + b"}"))

    stack = Stack([FakeEngine(script)])
    async with running(stack):
        for _ in range(3):
            assert 200 == (await stack.ask(post(chat(stream=stream)))).status
        await stack.settled(3)
        assert stack.driver.broken is None
        assert ["completed"] * 3 == [settlement.outcome.value for settlement in stack.settlements]
        await stack.idle()


async def test_an_error_without_an_end_holds_its_client_for_ever() -> None:
    """An engine that says 500 and then sends without end has failed, and its connection is cut."""

    async def script(served: Served) -> None:
        await served.send(b"HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n")
        while not served.closed.is_set():
            await served.send(chunk(b"x" * 10_000))
            await asyncio.sleep(0)

    fake = FakeEngine(script)
    stack = Stack([fake])
    async with running(stack):
        answer = await stack.ask(post(chat()))
        assert (502, "upstream_failed") == (answer.status, answer.error()["code"])
        await fake.until(lambda: fake.open_connections == 0)
        await stack.idle()


async def test_events_of_rubbish_break_the_scanner() -> None:
    """Whatever stands in a stream's events is passed on as it came."""
    events = (
        b'data: {"usage":{"completion_tokens":' + b"9" * 400 + b"}}\n\n",
        b'data: "usage" "error" _reason" {{{\n\n',
        b"data: " + b"[" * 50_000 + b'"error"\n\n',
        b"data: \xff\xfe\x00\n\n",
    )

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD + chunk(b"".join(events)) + chunk(DONE) + LAST_CHUNK)

    stack = Stack([FakeEngine(script)])
    async with running(stack):
        answer = await stack.ask(post(chat(stream=True)))
        assert b"".join(events) + DONE == answer.body
        await stack.idle()


async def test_a_host_that_is_no_name_leaves_requests_without_an_answer() -> None:
    """An engine's address that cannot be resolved is an engine that cannot be reached."""
    async with client() as http, ServeProcess("--upstream", f"http://{'a' * 70}.invalid:80") as gateway:
        answer = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
        assert (503, "no_endpoints") == (answer.status_code, answer.json()["error"]["code"])
        assert " inf " not in answer.json()["error"]["message"]
        await until_at_rest(http, gateway)
        gateway.signal()
        assert 0 == await gateway.exit_code()
        assert "Traceback" not in await gateway.log()


# Who leaves while it waits


async def test_clients_that_leave_the_queue_leave_something_behind(tmp_path: Path) -> None:
    """Waiters that leave by the thousand are counted, and the memory does not grow with them."""
    async with engine(hang) as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        path.write_text(f"pools:\n- {{endpoints: ['{fake.endpoint}'], max_inflight_requests: 1}}\n")
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            port = port_of(gateway.url)
            running_one = await RawClient.open(port)
            await running_one.send(post(chat()))
            await fake.until(lambda: any(request.method == "POST" for request in fake.requests))
            left = 0
            before = 0.0
            # The rings of recent records and events fill up first.
            for round_number in range(60):
                waiters = await asyncio.gather(*(RawClient.open(port) for _ in range(100)))
                for waiter in waiters:
                    await waiter.send(post(chat()))
                left += len(waiters)
                for number, waiter in enumerate(waiters):
                    waiter.close() if number % 2 else waiter.reset()
                if round_number == 45:
                    before = await resident_bytes(http, gateway)
            running_one.close()
            series = await until_at_rest(http, gateway)
            assert total(series, "forebay_requests_total") <= left + 1
            assert total(series, "forebay_requests_total", 'outcome="client_gone"') == total(
                series, "forebay_requests_total"
            )
            assert series["process_resident_memory_bytes"] - before < 3 * MIB
            decisions = (await http.get(f"{gateway.admin_url}/api/decisions?limit=1000")).json()
            assert len(json.dumps(decisions)) > 1000
