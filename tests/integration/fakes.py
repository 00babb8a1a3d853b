"""Engines that do what a test tells them to, and the gateway in front of them, in one process on loopback.

`FakeEngine` speaks raw HTTP over asyncio streams and logs what a fault report needs: connections, requests with their
bodies, how many ran at once, and when a socket was closed by the other side. It shares no code with the product, so
that the two cannot agree on a mistake.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from forebay.admission.events import Described, EndpointsChanged, Sampled, SampleMissed
from forebay.admission.model import (
    EndpointId,
    EndpointState,
    EngineInfo,
    EngineKind,
    EngineSample,
    Settlement,
)
from forebay.admission.settings import PoolSettings, Settings
from forebay.gateway.gateway import Gateway
from forebay.gateway.identity import Access
from forebay.gateway.ports import EndpointView, GatewaySettings
from forebay.http.limits import ServerLimits
from forebay.http.server import HttpServer
from forebay.runtime.driver import Driver
from forebay.runtime.serving import ConfiguredPool, ServingDirectory

MODEL = "llama-test"
DONE = b"data: [DONE]\n\n"


def event(text: str = "x", *, finish: str | None = None) -> bytes:
    """One chat chunk as engines send it."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return (
        b"data: %b\n\n"
        % json.dumps({"id": "c1", "object": "chat.completion.chunk", "choices": [choice]}).encode()
    )


def usage_event(prompt_tokens: int, output_tokens: int) -> bytes:
    """The extra chunk of `include_usage`."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }
    return b"data: %b\n\n" % json.dumps({"id": "c1", "choices": [], "usage": usage}).encode()


def chat_answer(text: str = "hello", prompt_tokens: int = 7, output_tokens: int = 2) -> bytes:
    """A whole chat answer."""
    return json.dumps(
        {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": output_tokens,
                "total_tokens": prompt_tokens + output_tokens,
            },
        }
    ).encode()


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def plain(body: bytes, status: str = "200 OK", headers: bytes = b"") -> bytes:
    """A whole answer with a length."""
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status.encode(),
        headers,
        len(body),
        body,
    )


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with RST, unless it has ended."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass(slots=True)
class Request:
    """What the engine was sent."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    raw_head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        """First value of a header."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(eq=False)
class Served:
    """One request being answered by a script."""

    request: Request
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the other side closes its connection."""
    closed_at: float | None = None

    async def send(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def send_events(self, *events: bytes, gap_s: float = 0.0) -> None:
        """Sends events, each in a chunk of its own."""
        for data in events:
            await self.send(chunk(data))
            if gap_s:
                await asyncio.sleep(gap_s)

    async def stream(self, *events: bytes, gap_s: float = 0.0) -> None:
        """A whole stream."""
        await self.send(STREAM_HEAD)
        await self.send_events(*events, gap_s=gap_s)
        await self.send(LAST_CHUNK)

    def reset(self) -> None:
        """Ends the connection with RST."""
        _reset(self.writer)

    def close(self) -> None:
        """Ends the connection with FIN."""
        self.writer.close()


Script = Callable[[Served], Awaitable[None]]


async def answer_chat(served: Served) -> None:
    """A plain or streamed answer of a few tokens, as asked for."""
    if b'"stream": true' in served.request.body or b'"stream":true' in served.request.body:
        await served.stream(event("a"), event("b"), event("c", finish="stop"), usage_event(7, 3), DONE)
    else:
        await served.send(plain(chat_answer()))


class FakeEngine:
    """An engine on loopback whose answers are a script."""

    def __init__(self, script: Script = answer_chat) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.served: list[Served] = []
        self.connections = 0
        self.open_connections = 0
        self.running = 0
        self.peak = 0
        self.port = 0
        self._scheme = "http"
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """Listens on a free port, or on the one it had before."""
        self._scheme = "http" if tls is None else "https"
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, limit=2**20, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the listener and every connection, with RST."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def listening(self) -> bool:
        """True while it can be connected to."""
        return self._server is not None

    @property
    def endpoint(self) -> EndpointId:
        """Its id in the core."""
        return EndpointId(f"{self._scheme}://127.0.0.1:{self.port}")

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Waits until something is true of this engine; looked at whenever something happens to it."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # By `stop`; the stream protocol would log it as an error.
            pass
        finally:
            self._tasks.discard(task)
            self.open_connections -= 1
            writer.transport.abort()
            await self._notify()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        raw_head = await reader.readuntil(b"\r\n\r\n")
        lines = raw_head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in lines[1:] if line)]
        request = Request(method, target, headers, raw_head, b"")
        length = int(request.header("content-length") or 0)
        if length:
            request.body = await reader.readexactly(length)
        served = Served(request, reader, writer)
        self.requests.append(request)
        self.served.append(served)
        self.running += 1
        self.peak = max(self.peak, self.running)
        await self._notify()
        watch = asyncio.create_task(self._watch(served))
        try:
            await self.script(served)
        except (ConnectionError, asyncio.CancelledError):
            if self._server is None:
                raise
        finally:
            self.running -= 1
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            await self._notify()
        return not (served.closed.is_set() or writer.is_closing())

    async def _watch(self, served: Served) -> None:
        """Notices the other side's close while the script is busy. Nothing is ever pipelined by a gateway."""
        with contextlib.suppress(ConnectionError):
            unexpected = await served.reader.read(1)
            assert unexpected == b"", "the gateway sent more than one request at a time"
        served.closed_at = time.monotonic()
        served.closed.set()
        await self._notify()


@dataclass(frozen=True)
class Reply:
    """What a raw client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes

    def error(self) -> dict[str, str]:
        """The error object of the body."""
        found: dict[str, str] = json.loads(self.body)["error"]
        return found


class RawClient:
    """One connection to the gateway, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> RawClient:
        """Connects."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str], bytes]:
        """Reads a response head."""
        raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        return int(lines[0].split(" ")[1]), headers, raw

    async def reply(self) -> Reply:
        """Reads a whole answer, whatever its framing. A broken chunked body raises IncompleteReadError."""
        status, headers, raw = await self.head()
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join([piece async for piece in self.chunks()])
        else:
            body = await self.reader.read()
        return Reply(status, headers, body, raw)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks of a body, until the last one."""
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            data = await self.reader.readexactly(size + 2)
            if not size:
                return
            yield data[:-2]

    async def pieces(self) -> tuple[bytes, bool]:
        """All of a chunked body that comes, and whether it ended as a whole one does."""
        received = b""
        try:
            async for piece in self.chunks():
                received += piece
        except (asyncio.IncompleteReadError, ConnectionError):
            return received, False
        return received, True

    def close(self) -> None:
        """Ends with FIN."""
        self.writer.close()

    def reset(self) -> None:
        """Ends with RST."""
        _reset(self.writer)


def post(body: bytes | dict[str, object], path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    """A request as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n{headers}"
    return b"%bcontent-length: %d\r\n\r\n%b" % (head.encode(), len(data), data)


def chat(*, stream: bool = False, **more: object) -> dict[str, object]:
    """A small chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": stream, **more}


class Stack:
    """Gateway, driver and core in front of engines."""

    def __init__(
        self,
        engines: Sequence[FakeEngine],
        *,
        pool: PoolSettings | None = None,
        info: EngineInfo | None = None,
        settings: Settings | None = None,
        gateway: GatewaySettings | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self.engines = list(engines)
        self.pool = pool or PoolSettings("default")
        self.info = info or EngineInfo(
            EngineKind.VLLM, models=(MODEL,), checks_model_names=True, linger_s=0.05
        )
        self.settings = settings or Settings(pools=(self.pool,))
        self.pool = self.settings.pools[0]
        # Generous: on a loaded machine a connection over loopback has been seen to take seconds.
        self.gateway_settings = replace(gateway or GatewaySettings(), connect_timeout_s=10.0)
        self.limits = limits or ServerLimits()
        self.settlements: list[Settlement] = []
        self.errors: list[str] = []
        self._clients: list[RawClient] = []

    async def start(self) -> None:
        """Everything up, engines described."""
        for engine in self.engines:
            if not engine.port:
                await engine.start()
        self.driver = Driver(self.settings, asyncio.get_running_loop(), on_error=self.errors.append)
        self.driver.delivery.observe([self.settlements.append], [])
        views = tuple(EndpointView(engine.endpoint, "127.0.0.1", engine.port) for engine in self.engines)
        self.directory = ServingDirectory(
            [ConfiguredPool(self.pool.name, views)],
            Access(tuple(c.name for c in self.settings.classes), self.settings.default_class),
        )
        self.gateway = Gateway(self.driver, self.directory, self.gateway_settings)
        self.server = HttpServer(self.gateway, self.limits)
        self.driver.feed(EndpointsChanged(self.pool.name, tuple(view.id for view in views)))
        for view in views:
            self.describe(view.id, self.info)
        await self.server.start("127.0.0.1", 0)
        self.port = self.server.port
        self._polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        """Stands in for the poller: tells which engines listen."""
        while True:
            await asyncio.sleep(0.05)
            for engine in self.engines:
                if engine.listening:
                    self.driver.feed(Sampled(engine.endpoint, EngineSample(at_s=self.driver.now())))
                else:
                    self.driver.feed(SampleMissed(engine.endpoint, unreachable=True))

    def describe(self, endpoint: EndpointId, info: EngineInfo) -> None:
        """As if the engine had been looked at."""
        self.directory.describe(endpoint, info)
        self.driver.feed(Described(endpoint, info))

    async def stop(self) -> None:
        """Everything down."""
        self._polling.cancel()
        for client in self._clients:
            client.close()
        await self.server.close(0.0)
        self.gateway.close()
        self.driver.stop()
        for engine in self.engines:
            await engine.stop()

    async def client(self) -> RawClient:
        """A new connection to the gateway, closed with the stack at the latest."""
        client = await RawClient.open(self.port)
        self._clients.append(client)
        return client

    async def ask(self, data: bytes) -> Reply:
        """One request on a connection of its own."""
        client = await self.client()
        try:
            await client.send(data)
            return await client.reply()
        finally:
            client.close()

    @property
    def in_flight(self) -> int:
        """Requests that hold a place at an engine, abandoned ones that the engine may still work on included."""
        snapshot = self.driver.snapshot()
        assert snapshot is not None
        return sum(pool.in_flight_requests for pool in snapshot.pools)

    @property
    def up(self) -> int:
        """Endpoints that may be given work."""
        snapshot = self.driver.snapshot()
        assert snapshot is not None
        return sum(e.state is EndpointState.UP for pool in snapshot.pools for e in pool.endpoints)

    @property
    def waiting(self) -> int:
        """Requests in our queues."""
        snapshot = self.driver.snapshot()
        assert snapshot is not None
        return sum(pool.waiting_requests for pool in snapshot.pools)

    async def settled(self, count: int, timeout_s: float = 10.0) -> list[Settlement]:
        """Waits until that many tickets are closed."""
        await eventually(lambda: len(self.settlements) >= count, timeout_s)
        return self.settlements

    async def idle(self, timeout_s: float = 10.0) -> None:
        """Waits until nothing is open: no ticket, no booking, no byte of a body; and nothing went wrong on the way."""
        await eventually(
            lambda: (
                not self.driver.delivery.open_tickets
                and not self.in_flight
                and not self.gateway.bodies.taken_bytes
                and not self.gateway.bodies.sent_bytes
            ),
            timeout_s,
        )
        assert self.errors == []


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Waits for something that has no event of its own to be true."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(stack: Stack) -> AsyncIterator[Stack]:
    """The stack, up for the time of a test."""
    await stack.start()
    try:
        yield stack
    finally:
        await stack.stop()
