"""Claims about sockets on their way to TLS: each is counted, none outstays its time, and who waits may be served."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trustme

from forebay.http.limits import ServerLimits
from forebay.http.server import HttpServer
from forebay.http.serving import Serving
from forebay.http.tls_listener import TlsListener
from tests.unit.http.peers import Client, Owner, echo, eventually, request

AUTHORITY = trustme.CA()


def offered() -> ssl.SSLContext:
    """What the server shows."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    return context


def trusting() -> ssl.SSLContext:
    """What a client has that knows the authority."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@asynccontextmanager
async def serving(most: int = 100, handshakes: int = 100) -> AsyncIterator[HttpServer]:
    """An encrypted server that echoes, with so many connections and handshakes at most."""
    server = HttpServer(Owner(echo), ServerLimits(connections=most, handshakes=handshakes))
    await server.start("127.0.0.1", 0, tls=offered())
    try:
        yield server
    finally:
        await server.close(1.0)
        assert server.connections == 0


async def silent(server: HttpServer) -> Client:
    """A client that connects and says nothing; the server has noticed it."""
    before = server.connections
    client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
    await eventually(lambda: server.connections == before + 1)
    return client


async def encrypted(server: HttpServer) -> Client:
    """A client that has made its handshake."""
    return Client(*await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting()))


async def test_requests_are_served_and_the_socket_counts_once() -> None:
    """From handshake to request it is one connection, also if the request comes with the end of the handshake."""
    async with serving() as server:
        for _ in range(20):
            client = await encrypted(server)
            client.send(request(body=b"x" * 100_000))
            assert (await client.answer())[0] == 200
            assert server.connections == 1
            await client.close()
            await eventually(lambda: server.connections == 0)


async def test_a_handshake_counts_and_the_oldest_gives_way() -> None:
    """Clients that say nothing are within the bound, and hold no place against one that does."""
    async with serving(most=3) as server:
        idle = [await silent(server) for _ in range(3)]
        client = await encrypted(server)
        client.send(request())
        assert (await client.answer())[0] == 200
        assert await idle[0].read_all() == b""
        assert server.connections == 3
        for one in [*idle, client]:
            await one.close()


async def test_handshakes_have_a_bound_of_their_own() -> None:
    """Beside room for connections the oldest of too many handshakes is ended; open connections are not concerned."""
    async with serving(handshakes=2) as server:
        client = await encrypted(server)
        client.send(request())
        assert (await client.answer())[0] == 200
        first, second = await silent(server), await silent(server)
        third = Client(*await asyncio.open_connection("127.0.0.1", server.port))
        assert await first.read_all() == b""
        await eventually(lambda: server.connections == 3)
        client.send(request())
        assert (await client.answer())[0] == 200
        other = await encrypted(server)
        other.send(request())
        assert (await other.answer())[0] == 200
        for one in (client, first, second, third, other):
            await one.close()


async def test_an_idle_encrypted_connection_leaves_its_place_at_once() -> None:
    """It is not waited for until its client confirms the end, which one that means harm would not."""
    async with serving(most=1) as server:
        first = await encrypted(server)
        first.send(request())
        assert (await first.answer())[0] == 200
        first.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(3):
            other = await encrypted(server)
            other.send(request())
            assert (await other.answer())[0] == 200
            assert server.connections == 1
            await other.close()
        first.writer.transport.abort()


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\nhost: t\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\xff" * 512, b""]
)
async def test_what_is_no_handshake_leaves_nothing(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Plain HTTP, rubbish and an early end: the socket is closed, its place is free, and the log stays empty."""
    async with serving() as server:
        for ending in ("fin", "reset"):
            client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
            client.send(said)
            if not said and ending == "fin":
                client.writer.write_eof()
            if ending == "reset":
                client.reset()
            else:
                assert b"HTTP" not in await client.read_all()
            await eventually(lambda: server.connections == 0)
            await client.close()
    assert not caplog.messages


async def test_closing_ends_handshakes() -> None:
    """A server that closes waits for none."""
    async with serving() as server:
        client = await silent(server)
        async with asyncio.timeout(1.0):
            await server.close(30.0)
        assert await client.read_all() == b""
        await client.close()


async def test_a_silent_client_is_hung_up_on() -> None:
    """After the time for a handshake."""
    async with serving() as server, asyncio.timeout(8.0):
        client = await silent(server)
        assert await client.read_all() == b""
        await eventually(lambda: server.connections == 0)
        await client.close()


class Resolving:
    """An event loop that resolves every name to these addresses, and is not asked for more."""

    def __init__(self, *found: tuple[int, tuple[str, int]]) -> None:
        self.found = found
        self.listening: list[socket.socket] = []

    async def getaddrinfo(self, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in self.found]

    def add_reader(self, sock: socket.socket, *_: object) -> None:
        self.listening.append(sock)

    def remove_reader(self, sock: socket.socket) -> None:
        self.listening = [one for one in self.listening if one is not sock]


async def test_a_name_may_have_addresses_that_the_machine_does_not_speak() -> None:
    """It listens on the others; without any it says so, and leaves none of several behind when one is taken."""
    unspoken, here = (9999, ("::1", 0)), (socket.AF_INET, ("127.0.0.1", 0))

    async def start(*found: Any) -> Resolving:
        loop = Resolving(*found)
        listener = TlsListener(Serving(Owner(), ServerLimits()), offered(), cast(Any, loop))
        assert await listener.start("name", 0, None, 10)
        listener.close()
        assert not loop.listening
        return loop

    await start(unspoken, here)
    with pytest.raises(OSError, match="not supported"):
        await start(unspoken)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        await start(here, (socket.AF_INET, taken.getsockname()))
