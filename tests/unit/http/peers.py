"""The other sides of the HTTP layer: a transport without a socket, owners that record, peers on loopback."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

from forebay.http.body import BodyFailure
from forebay.http.call import Call, CallFailure
from forebay.http.chunked import ChunkedDecoder
from forebay.http.client import Upstream
from forebay.http.connection import ServerConnection
from forebay.http.exchange import Exchange
from forebay.http.limits import ServerLimits
from forebay.http.message import Headers, ResponseHead
from forebay.http.repeated import response_heads
from forebay.http.server import HttpServer
from forebay.http.serving import Serving
from forebay.http.upstream_connection import UpstreamConnection

DATE = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
"""What a server says whose clock was last refreshed at zero."""


class FakeTransport(asyncio.Transport):
    """A transport that keeps what is written. `unsent_bytes` is what its peer has not taken."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 4711)})
        self.sent = b""
        self.writes = 0
        self.unsent_bytes = 0
        self.high_water_bytes: int | None = None
        self.reading = True
        self.closed = False
        self.aborted = False
        self.half_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.half_closed, "written after write_eof"
        self.writes += 1
        self.sent += bytes(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_water_bytes = high

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def pause_reading(self) -> None:
        assert self.reading, "paused twice"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading, "resumed without a pause"
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def take(self) -> bytes:
        """What was written since the last look."""
        sent, self.sent = self.sent, b""
        return sent


@dataclass
class Owner:
    """A handler that records. `answer` is called with each exchange; without it they are just kept."""

    answer: Callable[[Exchange], None] | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)

    def on_request(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if self.answer is not None:
            self.answer(exchange)

    def protocol_error(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        assert message
        self.errors.append((status, code))
        return [(b"content-type", b"text/plain")], code.encode()


class Served:
    """A server connection on a fake transport, with a clock that the test moves."""

    def __init__(self, owner: Owner, limits: ServerLimits | None = None) -> None:
        self.owner = owner
        self.serving = Serving(owner, limits or ServerLimits())
        self.later: list[Callable[[], None]] = []
        self.serving.call_soon = self.later.append
        self.serving.refresh(0.0, 0.0)
        self.transport = FakeTransport()
        self.connection = ServerConnection(self.serving)
        self.connection.connection_made(self.transport)

    def feed(self, *pieces: bytes) -> None:
        """Bytes from the client, as long as the connection reads."""
        for piece in pieces:
            if self.transport.closed or self.transport.aborted:
                return
            self.connection.data_received(piece)

    def round(self) -> None:
        """One round of the event loop: what was put off is done."""
        later, self.later[:] = list(self.later), []
        for callback in later:
            callback()

    def sweep(self, now: float) -> None:
        """The server's sweep at a given time."""
        self.serving.refresh(now, 0.0)
        self.connection.on_sweep(now)


class Bodies:
    """Callbacks for `read_body` that record."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.failed: list[BodyFailure] = []

    def read(self, exchange: Exchange, limit_bytes: int = 1 << 20) -> None:
        exchange.read_body(limit_bytes, self.got.append, self.failed.append)


def echo(exchange: Exchange) -> None:
    """Answers with method, path and body of the request; 413, 408 or 400 if the body cannot be had."""

    def on_body(body: bytes) -> None:
        head = exchange.head
        exchange.respond(200, [], head.method + b" " + head.path.encode() + b" " + body)

    def on_failure(failure: BodyFailure) -> None:
        status = {BodyFailure.TOO_LARGE: 413, BodyFailure.TIMEOUT: 408, BodyFailure.MALFORMED: 400}[failure]
        exchange.respond(status, [], failure.value.encode())

    exchange.read_body(1 << 20, on_body, on_failure)


class Collected:
    """A sink that records, and can be awaited."""

    def __init__(self) -> None:
        self.heads: list[ResponseHead] = []
        self.pieces: list[bytes] = []
        self.ends = 0
        self.failures: list[tuple[CallFailure, str]] = []
        self.over = asyncio.Event()
        self.some = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def on_head(self, head: ResponseHead) -> None:
        assert not self.over.is_set()
        self.heads.append(head)

    def on_data(self, data: bytes) -> None:
        assert data
        assert not self.over.is_set()
        self.pieces.append(data)
        self.some.set()

    def on_end(self) -> None:
        assert not self.over.is_set()
        self.ends += 1
        self.over.set()

    def on_failure(self, kind: CallFailure, detail: str) -> None:
        assert not self.over.is_set()
        assert detail
        self.failures.append((kind, detail))
        self.over.set()

    @property
    def failure(self) -> CallFailure | None:
        return self.failures[0][0] if self.failures else None

    async def wait(self) -> None:
        await asyncio.wait_for(self.over.wait(), 10)


class FakePool:
    """The part of an `Upstream` that its connections call, without sockets or a loop."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.free: list[UpstreamConnection] = []
        self.useless: list[UpstreamConnection] = []
        self.retries: list[Call] = []
        self.may_retry = False
        self.calls = 0
        self.heads = response_heads()

    def connection_opened(self, connection: UpstreamConnection) -> None:
        self.opened += 1

    def connection_closed(self, connection: UpstreamConnection) -> None:
        self.closed += 1

    def connection_free(self, connection: UpstreamConnection) -> None:
        self.free.append(connection)

    def connection_useless(self, connection: UpstreamConnection) -> None:
        self.useless.append(connection)

    def retry(self, call: Call, connection: UpstreamConnection) -> bool:
        self.retries.append(call)
        return self.may_retry

    def call_over(self) -> None:
        self.calls -= 1

    def call_aborted(self, call: Call, connection: UpstreamConnection | None) -> None:
        self.calls -= 1
        if connection is not None:
            connection.drop()


class Calling:
    """An upstream connection on a fake transport, with one call on it."""

    def __init__(self, head: bytes = b"GET / HTTP/1.1\r\n\r\n", body: bytes = b"") -> None:
        self.pool = FakePool()
        self.transport = FakeTransport()
        self.connection = UpstreamConnection(cast(Upstream, self.pool))
        self.connection.connection_made(self.transport)
        self.call, self.sink = self.carry(head, body)

    def carry(
        self, head: bytes = b"GET / HTTP/1.1\r\n\r\n", body: bytes = b"", sink: Collected | None = None
    ) -> tuple[Call, Collected]:
        """Another call on the same connection."""
        sink = sink or Collected()
        call = Call(cast(Upstream, self.pool), head, body, sink)
        self.pool.calls += 1
        self.connection.carry(call)
        return call, sink

    def feed(self, *pieces: bytes) -> None:
        """Bytes from the engine, as long as the connection is open."""
        for piece in pieces:
            if not self.transport.is_closing():
                self.connection.data_received(piece)

    def end(self) -> None:
        """The engine closes."""
        self.connection.eof_received()
        self.connection.connection_lost(None)


def request(
    method: bytes = b"POST", target: bytes = b"/x", body: bytes = b"", *fields: bytes, chunked: bool = False
) -> bytes:
    """One request as bytes."""
    lines = [b"%b %b HTTP/1.1" % (method, target), b"Host: h", *fields]
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    elif body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def answers(data: bytes, *, heads_only: Sequence[int] = ()) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """Splits what a server sent into status, headers and decoded body: a reader of its own, for the tests.

    Args:
        heads_only: Indices of answers that have no body whatever their head says.
    """
    found: list[tuple[int, dict[bytes, bytes], bytes]] = []
    while data:
        head, mark, rest = data.partition(b"\r\n\r\n")
        assert mark, data
        line, *lines = head.split(b"\r\n")
        match = re.fullmatch(rb"HTTP/1\.1 (\d{3}) [ -~]*", line)
        assert match, line
        status = int(match[1])
        headers = {name.lower(): value for name, value in (one.split(b": ", 1) for one in lines)}
        assert len(headers) == len(lines), lines
        body = b""
        if len(found) in heads_only or status in (100, 204, 304):
            pass
        elif headers.get(b"transfer-encoding") == b"chunked":
            decoder = ChunkedDecoder()
            body = decoder.feed(rest)
            assert decoder.done, rest
            rest = decoder.rest
        elif b"content-length" in headers:
            size = int(headers[b"content-length"])
            assert len(rest) >= size
            body, rest = rest[:size], rest[size:]
        else:
            body, rest = rest, b""
        found.append((status, headers, body))
        data = rest
    return found


# --- Loopback ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(owner: Owner, limits: ServerLimits | None = None) -> AsyncGenerator[HttpServer]:
    """A server on a free port. At the end no connection may be left."""
    server = HttpServer(owner, limits)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close(2.0)
        assert server.connections == 0


class Client:
    """A raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._transport = cast(asyncio.Transport, writer.transport)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)

    async def read_until(self, mark: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(mark), 10)

    async def read_all(self) -> bytes:
        """Everything up to the server's close."""
        return await asyncio.wait_for(self.reader.read(), 10)

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """One answer with a declared length."""
        head = await self.read_until(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", head)
        body = await asyncio.wait_for(self.reader.readexactly(int(size[1]) if size else 0), 10)
        return answers(head + body)[0]

    def stop_reading(self) -> None:
        """Takes nothing more from the kernel."""
        self._transport.pause_reading()

    def go_on_reading(self) -> None:
        """Reads again."""
        self._transport.resume_reading()

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def connected(port: int) -> AsyncGenerator[Client]:
    """A raw client connection to a port on loopback."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield client
    finally:
        await client.close()


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Engine:
    """A scripted peer for the client: each connection runs the script; it counts what it sees."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connects = 0
        self.closes = 0
        self.closed = asyncio.Event()
        self.port = 0
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects += 1
        self.writers.add(writer)
        try:
            await self.script(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.closes += 1
            self.closed.set()
            self.writers.discard(writer)
            writer.close()


@asynccontextmanager
async def engine(script: Script) -> AsyncGenerator[Engine]:
    """A scripted engine on a free port."""
    peer = Engine(script)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for writer in tuple(peer.writers):
            writer.transport.abort()
        await eventually(lambda: not peer.writers)


@asynccontextmanager
async def upstream(
    port: int, *, connect_timeout_s: float = 2.0, idle_s: float = 4.0
) -> AsyncGenerator[Upstream]:
    """A pool that must have neither calls nor connections left after it is closed."""
    pool = Upstream("127.0.0.1", port, connect_timeout_s=connect_timeout_s, idle_s=idle_s)
    try:
        yield pool
    finally:
        pool.close()
        await eventually(lambda: pool.connections == 0)
        assert pool.calls == 0
        assert pool.idle_connections == 0


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request with a declared length."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"content-length: (\d+)", head)
    return head, await reader.readexactly(int(size[1]) if size else 0)


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(timeout_s):
        # What is awaited here happens in the kernel and the loop: there is no event to wait for.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
