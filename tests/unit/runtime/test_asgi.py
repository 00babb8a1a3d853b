"""Claims about an ASGI application behind our own HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from forebay.http.limits import ServerLimits
from forebay.http.server import HttpServer
from forebay.runtime.asgi import BODY_BYTES, Application, AsgiHandler, Message

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@asynccontextmanager
async def served(app: Application) -> AsyncIterator[tuple[HttpServer, httpx.AsyncClient]]:
    """The application on a free port, and a client of it."""
    server = HttpServer(AsgiHandler(app), ServerLimits())
    await server.start("127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=10) as client:
        yield server, client
    await server.close(1.0)


async def answer(send: Send, status: int, *pieces: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """An application's answer in pieces."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for number, piece in enumerate(pieces, 1):
        await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    """An application that tells what it was asked."""
    message = await receive()
    text = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode() + message["body"]
    await answer(send, 200, text, headers=[(b"X-Y", b"z"), (b"Content-Length", b"1"), (b"connection", b"x")])


async def test_request_and_answer_pass() -> None:
    """The application sees method, decoded path, query and body; its answer arrives, framed by the server."""
    async with served(echo) as (_, client):
        got = await client.post("/a%20b?c=d", content=b"body")
        assert (200, "POST /a b c=d body", "z") == (got.status_code, got.text, got.headers["x-y"])
        assert got.headers.get_list("content-length") == [str(len(got.content))]
        assert (await client.head("/")).content == b""


async def test_pieces_are_streamed() -> None:
    """An answer in several pieces goes out as a chunked one."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await answer(send, 201, b"one ", b"two ", b"three", headers=[(b"content-type", b"text/plain")])

    async with served(app) as (_, client):
        got = await client.get("/")
        assert (201, "one two three", "chunked") == (
            got.status_code,
            got.text,
            got.headers["transfer-encoding"],
        )


async def test_an_application_that_fails_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    """A failing application costs its own request and is logged; after the head was sent the answer is cut off."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("broken on purpose")

    async with served(app) as (_, client):
        assert (await client.get("/")).status_code == 500
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/late")
        assert (await client.get("/")).status_code == 500
    assert "broken on purpose" in caplog.text


async def test_large_bodies_are_refused() -> None:
    """A body larger than anything that is asked of the port never reaches the application."""
    async with served(echo) as (_, client):
        assert (await client.post("/", content=b"x" * (BODY_BYTES + 1))).status_code == 413


async def test_a_client_that_leaves_is_told_to_the_application() -> None:
    """An application that waits for its client to leave is told when it does."""
    waiting, left = asyncio.Event(), asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        waiting.set()
        if (await receive())["type"] == "http.disconnect":
            left.set()

    async with served(app) as (server, _):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(10):
            await waiting.wait()
            writer.close()
            await left.wait()


async def test_broken_heads_are_answered_in_plain_words() -> None:
    """What never becomes a request is told in words."""
    async with served(echo) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"nonsense\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
