"""Claims about a server on real sockets: what only the kernel and the event loop can show."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from forebay.http.exchange import Exchange
from forebay.http.limits import ServerLimits
from forebay.http.server import HttpServer
from tests.unit.http.peers import Client, Owner, answers, connected, echo, eventually, request, serving

FAST = ServerLimits(
    head_timeout_s=0.2, body_timeout_s=0.2, keep_alive_s=0.2, write_timeout_s=0.4, drain_s=0.2, linger_s=0.2
)
PATIENT = ServerLimits(linger_s=10.0)
"""Gives 50 MB the time that they take on a machine that has something else to do."""


def refuse(exchange: Exchange) -> None:
    """Answers without the body."""
    exchange.respond(429, [(b"retry-after", b"1")], b"too busy")


class Waiting(Owner):
    """Keeps requests waiting, and tells when one comes and when its client leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()
        self.left = asyncio.Event()
        self.left_count = 0
        self.answer = self.wait

    def wait(self, exchange: Exchange) -> None:
        def gone() -> None:
            self.left_count += 1
            self.left.set()

        exchange.on_disconnect = gone
        exchange.read_body(1 << 20, lambda body: None, lambda failure: None)
        self.came.set()


async def test_requests_on_one_connection() -> None:
    """Several requests, declared and chunked, are answered on one connection."""
    async with serving(Owner(echo)) as server, connected(server.port) as client:
        client.send(request(body=b"hello"))
        assert (await client.answer())[2] == b"POST /x hello"
        client.send(request(body=b"5\r\nworld\r\n0\r\n\r\n", chunked=True))
        assert (await client.answer())[2] == b"POST /x world"
        assert server.connections == 1


async def test_large_bodies_both_ways() -> None:
    """A megabyte goes in and comes back."""
    body = bytes(range(256)) * 4000
    async with serving(Owner(echo)) as server, connected(server.port) as client:
        client.send(request(body=body))
        assert (await client.answer())[2] == b"POST /x " + body


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_f008_client_that_leaves_while_it_waits_is_noticed(how: str) -> None:
    """A client that closes or resets its connection before the first byte is noticed at once."""
    owner = Waiting()
    async with serving(owner) as server, connected(server.port) as client:
        client.send(request(body=b"x"))
        await asyncio.wait_for(owner.came.wait(), 10)
        if how == "fin":
            await client.close()
        else:
            client.reset()
        await asyncio.wait_for(owner.left.wait(), 10)
        await eventually(lambda: server.connections == 0)
        assert owner.left_count == 1


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_f001_client_that_leaves_in_mid_stream_is_noticed(how: str) -> None:
    """A client that leaves in the middle of its stream is noticed without another write."""
    owner = Waiting()
    async with serving(owner) as server, connected(server.port) as client:
        client.send(request(body=b"x"))
        await asyncio.wait_for(owner.came.wait(), 10)
        exchange = owner.exchanges[0]
        exchange.start(200, [], content_length=None)
        exchange.write(b"data: 1\n\n")
        await client.read_until(b"data: 1\n\n")
        if how == "fin":
            await client.close()
        else:
            client.reset()
        await asyncio.wait_for(owner.left.wait(), 10)
        exchange.write(b"late")
        exchange.finish()
        assert owner.left_count == 1


async def read_fully(client: Client) -> tuple[int, dict[bytes, bytes], bytes]:
    """The answer of a server that then closes."""
    return answers(await client.read_all())[0]


@pytest.mark.parametrize("chunked", [False, True])
async def test_f073_client_that_sends_everything_first_sees_the_refusal(chunked: bool) -> None:
    """A client that pushes 50 MB before it reads gets the whole refusal, and no reset in its place."""
    size = 50_000_000
    async with serving(Owner(refuse), PATIENT) as server, connected(server.port) as client:
        if chunked:
            client.send(request(chunked=True), b"%x\r\n" % size, b"x" * size, b"\r\n0\r\n\r\n")
        else:
            client.send(request(b"POST", b"/", b"", b"Content-Length: %d" % size), b"x" * size)
        await asyncio.wait_for(client.writer.drain(), 10)
        status, headers, body = await read_fully(client)
        assert (429, b"too busy", b"close") == (status, body, headers[b"connection"])


async def test_f073_refused_client_that_never_stops_is_cut_in_the_end() -> None:
    """Dropping the bytes of a refused client is bounded in time."""
    async with serving(Owner(refuse), FAST) as server, connected(server.port) as client:
        client.send(request(b"POST", b"/", b"", b"Content-Length: 500000000"))
        await client.read_until(b"too busy")
        await eventually(lambda: server.connections == 0)


async def test_slow_heads_and_silent_connections_are_closed() -> None:
    """An unfinished head gets its 408, a silent connection nothing, both within their times."""
    async with serving(Owner(echo), FAST) as server:
        async with connected(server.port) as slow, connected(server.port) as silent:
            slow.send(b"GET / HT")
            assert answers(await slow.read_all())[0][0] == 408
            assert await silent.read_all() == b""
        await eventually(lambda: server.connections == 0)


async def test_silent_body_is_408() -> None:
    """A body that stops coming fails in its time, and its owner can say so."""
    async with serving(Owner(echo), FAST) as server, connected(server.port) as client:
        client.send(request(b"POST", b"/", b"", b"Content-Length: 10"), b"123")
        status, headers, body = await read_fully(client)
        assert (408, b"timeout", b"close") == (status, body, headers[b"connection"])


async def test_f026_reader_that_takes_nothing_pauses_its_stream_and_is_reported() -> None:
    """Unsent bytes are bounded by the high-water mark and one piece; a reader that takes nothing is reported."""
    paused, slow = asyncio.Event(), asyncio.Event()
    owner = Waiting()
    async with serving(owner, FAST) as server, connected(server.port) as client:
        client.stop_reading()
        client.send(request(b"GET"))
        await asyncio.wait_for(owner.came.wait(), 10)
        exchange = owner.exchanges[0]
        exchange.on_drain_change = lambda pause: paused.set() if pause else None
        exchange.on_slow_reader = slow.set
        exchange.start(200, [], content_length=None)
        pieces = 0
        while not paused.is_set():
            exchange.write(b"x" * 65536)
            pieces += 1
            assert pieces < 1000
            await asyncio.sleep(0)
        assert exchange.write_paused
        await asyncio.wait_for(slow.wait(), 10)
        exchange.abort()
        await eventually(lambda: server.connections == 0)
        assert owner.left_count == 0


async def test_f026_stream_goes_on_when_the_reader_does() -> None:
    """A paused stream is resumed when the reader takes its bytes, and arrives whole."""
    changes: asyncio.Queue[bool] = asyncio.Queue()
    owner = Waiting()
    async with serving(owner) as server, connected(server.port) as client:
        client.stop_reading()
        client.send(request(b"GET"))
        await asyncio.wait_for(owner.came.wait(), 10)
        exchange = owner.exchanges[0]
        exchange.on_drain_change = changes.put_nowait
        exchange.start(200, [], content_length=None)
        size = 0
        while changes.empty():
            exchange.write(b"x" * 65536)
            size += 65536
            await asyncio.sleep(0)
        assert await changes.get() is True
        client.go_on_reading()
        received = 0
        while changes.empty():
            received += len(await asyncio.wait_for(client.reader.read(65536), 10))
        assert await changes.get() is False
        exchange.finish()
        while received < size:
            received += len(await asyncio.wait_for(client.reader.read(65536), 10))


async def test_abort_is_seen_as_an_unclean_end() -> None:
    """An aborted stream ends without its last chunk, after everything that was written."""
    owner = Waiting()
    async with serving(owner) as server, connected(server.port) as client:
        client.send(request(b"GET"))
        await asyncio.wait_for(owner.came.wait(), 10)
        exchange = owner.exchanges[0]
        exchange.start(200, [], content_length=None)
        exchange.write(b"data: error\n\n")
        exchange.abort()
        assert (await client.read_all()).endswith(b"\r\n\r\nd\r\ndata: error\n\n\r\n")
        assert owner.left_count == 0


async def test_close_lets_requests_finish() -> None:
    """Closing waits for requests in flight, closes idle connections at once and takes no new ones."""
    owner = Waiting()
    server = HttpServer(owner)
    await server.start("127.0.0.1", 0)
    async with connected(server.port) as busy, connected(server.port) as idle:
        busy.send(request(b"GET"))
        await asyncio.wait_for(owner.came.wait(), 10)
        await eventually(lambda: server.connections == 2)
        closing = asyncio.create_task(server.close(10))
        assert await idle.read_all() == b""
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset, by the moment
            await asyncio.open_connection("127.0.0.1", server.port)
        owner.exchanges[0].respond(200, [], b"done")
        status, headers, body = await read_fully(busy)
        assert (200, b"close", b"done") == (status, headers[b"connection"], body)
        await asyncio.wait_for(closing, 10)
        assert server.connections == 0


async def test_close_cuts_what_is_not_done_in_time() -> None:
    """What is not done after the grace is cut, and its owner told."""
    owner = Waiting()
    server = HttpServer(owner)
    await server.start("127.0.0.1", 0)
    async with connected(server.port) as client:
        client.send(request(b"GET"))
        await asyncio.wait_for(owner.came.wait(), 10)
        await server.close(0.05)
        assert (server.connections, owner.left_count) == (0, 1)
        assert await client.read_all() == b""


async def test_close_before_start_is_nothing() -> None:
    """A server that was never started can be closed."""
    server = HttpServer(Owner())
    await server.close(1.0)
    assert (server.port, server.connections) == (0, 0)


async def test_a_bound_socket_can_be_given() -> None:
    """A server takes over a socket that somebody else bound."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server = HttpServer(Owner(echo))
    await server.start("", 0, sock=sock)
    async with connected(port) as client:
        client.send(request(b"GET"))
        assert (await client.answer())[0] == 200
        assert server.port == port
    await server.close(1.0)


async def test_many_connections_come_and_go_without_a_trace() -> None:
    """After many clients that finish, leave or reset, no connection and no exchange is left."""
    owner = Owner(echo)
    async with serving(owner) as server:
        for number in range(60):
            client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
            client.send(request(body=b"x" * number))
            if number % 3 == 0:
                await client.answer()
            if number % 2:
                client.reset()
            await client.close()
        await eventually(lambda: server.connections == 0)
        owner.exchanges.clear()
        gc.collect()
        assert not [one for one in gc.get_objects() if type(one) is Exchange]
