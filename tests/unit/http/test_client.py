"""Claims about calls over a pool of real sockets."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from forebay.http.client import STALE_S, CallFailure, Upstream
from forebay.http.message import encode_request_head
from tests.unit.http.peers import Client, Collected, Engine, engine, eventually, read_request, upstream

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def get(pool: Upstream, sink: Collected, *, reuse: bool = True, body: bytes = b"") -> None:
    """Sends a small request."""
    head = encode_request_head(b"POST", b"/", [(b"host", pool.authority)], content_length=len(body))
    pool.send(head, body, sink, reuse=reuse)


async def ask(pool: Upstream, *, reuse: bool = True, body: bytes = b"") -> Collected:
    """One request and all of its answer."""
    sink = Collected()
    get(pool, sink, reuse=reuse, body=body)
    await sink.wait()
    return sink


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine that answers every request on its connection."""
    while True:
        await read_request(reader)
        writer.write(OK)


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine that reads and never answers."""
    await reader.read()


async def test_connections_are_reused_last_in_first_out() -> None:
    """Calls one after another use one connection; the one used last is used first."""
    async with engine(answer_all) as peer, upstream(peer.port) as pool:
        for _ in range(5):
            assert (await ask(pool)).body == b"ok"
        assert (1, 1, 1) == (peer.connects, pool.connections, pool.idle_connections)
        await asyncio.gather(ask(pool), ask(pool), ask(pool))
        assert (3, 3) == (peer.connects, pool.idle_connections)
        await ask(pool)
        assert peer.connects == 3


async def test_the_sink_is_not_called_inside_send() -> None:
    """Whatever happens, the sink hears of it after `send` has returned."""
    async with engine(answer_all) as peer, upstream(peer.port) as pool:
        await ask(pool)
        for port_pool in (Upstream("127.0.0.1", 1), pool):
            sink = Collected()
            get(port_pool, sink)
            assert not sink.over.is_set()
            await sink.wait()
            port_pool.close()


async def test_f002_refused_connection_is_a_connect_failure() -> None:
    """An engine that is not there is a connect failure, and leaves nothing behind."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with upstream(unused.getsockname()[1]) as pool:
            assert (await ask(pool)).failure is CallFailure.CONNECT
            assert (pool.calls, pool.connections) == (0, 0)


async def test_unknown_name_is_a_connect_failure() -> None:
    """A host name that does not resolve is a connect failure."""
    pool = Upstream("name.invalid", 80)
    assert (await ask(pool)).failure in (CallFailure.CONNECT, CallFailure.CONNECT_TIMEOUT)
    pool.close()


async def test_impossible_name_is_a_connect_failure() -> None:
    """A host that cannot be a name ends the call like one that nobody knows."""
    pool = Upstream("a" * 70 + ".invalid", 80)
    assert (await ask(pool)).failure is CallFailure.CONNECT
    assert pool.calls == 0
    pool.close()


async def test_connecting_is_bounded_in_time() -> None:
    """An address that swallows connections is a connect timeout."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            async with upstream(port, connect_timeout_s=0.1) as pool:
                assert (await ask(pool)).failure is CallFailure.CONNECT_TIMEOUT
        finally:
            for filler in fillers:
                filler.close()


async def test_stale_connection_is_replaced_once_without_the_caller_noticing() -> None:
    """A reused connection that ends before any answer is replaced by a fresh one; the answer comes from there."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await read_request(reader))[1] == b"body"
        writer.write(OK)
        await reader.read(1)  # The next request is cut off.
        writer.transport.abort()

    async with engine(answer_once) as peer, upstream(peer.port) as pool:
        for expected in (1, 2, 3):
            assert (await ask(pool, body=b"body")).body == b"ok"
            assert peer.connects == expected


async def test_a_request_that_was_worked_on_is_not_sent_again() -> None:
    """An engine that ends a reused connection a while after it was sent the request has read it: that is a failure."""
    requests = 0

    async def think_and_quit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.write(OK)
        await read_request(reader)
        requests += 1
        await asyncio.sleep(STALE_S + 0.2)
        writer.transport.abort()

    async with engine(think_and_quit) as peer, upstream(peer.port) as pool:
        await ask(pool)
        assert (await ask(pool)).failure is CallFailure.CLOSED_BEFORE_ANSWER
        assert (2, 1) == (requests, peer.connects)


async def test_a_fresh_connection_is_not_retried() -> None:
    """A request is sent at most twice: a fresh connection that ends is a failure."""
    requests = 0

    async def quit_on_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        if requests == 1:
            writer.write(OK)
            await read_request(reader)
            requests += 1
        writer.transport.abort()

    async with engine(quit_on_second) as peer, upstream(peer.port) as pool:
        await ask(pool)
        assert (await ask(pool)).failure is CallFailure.CLOSED_BEFORE_ANSWER
        assert (3, 2) == (requests, peer.connects)


async def test_no_reuse_means_one_try() -> None:
    """A caller that wants no reuse gets a fresh connection, and nothing is sent twice."""
    async with engine(answer_all) as peer, upstream(peer.port) as pool:
        await ask(pool)
        await ask(pool, reuse=False)
        assert peer.connects == 2


async def test_idle_connections_are_closed_in_time() -> None:
    """Connections idle for longer than `idle_s` are closed by us, before the engine does."""
    async with engine(answer_all) as peer, upstream(peer.port, idle_s=0.2) as pool:
        await asyncio.gather(*[ask(pool) for _ in range(5)])
        assert pool.idle_connections == 5
        await eventually(lambda: pool.connections == 0 and peer.closes == 5)


async def test_idle_connection_closed_by_the_engine_is_forgotten() -> None:
    """A connection that the engine closes while it is idle is noticed then, not at the next call."""
    release = asyncio.Event()

    async def answer_then_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await release.wait()

    async with engine(answer_then_close) as peer, upstream(peer.port) as pool:
        await ask(pool)
        assert pool.idle_connections == 1
        release.set()
        await eventually(lambda: pool.connections == 0)
        assert pool.idle_connections == 0


async def test_f008_abort_closes_the_engine_s_socket_at_once() -> None:
    """An engine sees the close of an aborted call, before and after its answer has begun."""

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await reader.read()

    for script in (stay_silent, begin):
        async with engine(script) as peer, upstream(peer.port) as pool:
            sink = Collected()
            call = pool.send(b"GET / HTTP/1.1\r\n\r\n", b"", sink)
            if script is begin:
                await asyncio.wait_for(sink.some.wait(), 10)
            else:
                await eventually(lambda peer=peer: peer.connects == 1)  # type: ignore[misc]
            call.abort()
            await asyncio.wait_for(peer.closed.wait(), 10)
            assert not sink.over.is_set()
            assert pool.calls == 0
            await eventually(lambda pool=pool: pool.connections == 0)  # type: ignore[misc]


async def test_abort_while_connecting_leaves_nothing() -> None:
    """A call aborted at any moment of its connecting leaves no socket and no task."""
    async with engine(stay_silent) as peer, upstream(peer.port) as pool:
        for rounds in range(30):
            sink = Collected()
            call = pool.send(b"GET / HTTP/1.1\r\n\r\n", b"", sink)
            for _ in range(rounds % 6):
                await asyncio.sleep(0)
            call.abort()
            assert not sink.over.is_set()
        await eventually(lambda: pool.connections == 0)
        await eventually(lambda: peer.closes == peer.connects)


async def test_f013_cancelled_calls_strand_nothing() -> None:
    """After a storm of aborted calls the pool serves as before, and no socket is left over."""

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await asyncio.sleep(0.01)
            writer.write(OK)

    dice = random.Random(1)

    async def give_up(pool: Upstream) -> None:
        sink = Collected()
        call = pool.send(b"GET / HTTP/1.1\r\n\r\n", b"", sink)
        await asyncio.sleep(dice.random() * 0.02)
        call.abort()

    async with engine(slowly) as peer, upstream(peer.port) as pool:
        for _ in range(8):
            await asyncio.gather(*[give_up(pool) for _ in range(50)])
        sinks = await asyncio.gather(*[ask(pool) for _ in range(50)])
        assert [b"ok"] * 50 == [sink.body for sink in sinks]
        assert pool.calls == 0
        assert pool.connections == pool.idle_connections
        await eventually(lambda: peer.connects - peer.closes == pool.connections)


async def test_f080_there_is_no_cap() -> None:
    """Four hundred calls run at once over one upstream."""
    everybody = asyncio.Event()
    running = 0

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal running
        await read_request(reader)
        running += 1
        if running == 400:
            everybody.set()
        await everybody.wait()
        writer.write(OK)
        await reader.read()

    async with engine(hold) as peer, upstream(peer.port, connect_timeout_s=20) as pool:
        sinks = await asyncio.gather(*[ask(pool) for _ in range(400)])
        assert {b"ok"} == {sink.body for sink in sinks}
        assert peer.connects == 400


async def test_f026_paused_call_slows_the_engine_down() -> None:
    """While a call is paused its engine can send no more than the buffers of the kernel hold."""
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    total = 400

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(total):
            writer.write(piece)
            await writer.drain()
        flooded.set()
        writer.write(b"0\r\n\r\n")
        await reader.read()

    flooded = asyncio.Event()
    async with engine(flood) as peer, upstream(peer.port) as pool:
        sink = Collected()
        call = pool.send(b"GET / HTTP/1.1\r\n\r\n", b"", sink)
        await asyncio.wait_for(sink.some.wait(), 10)
        call.pause()
        size = len(sink.body)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not flooded.is_set()
        assert len(sink.body) <= size + 1_000_000
        call.resume()
        await sink.wait()
        assert len(sink.body) == total * 65536


async def test_closing_the_pool_ends_its_calls() -> None:
    """Calls that run, wait or connect when the pool is closed fail; later ones are refused."""
    async with engine(stay_silent) as peer:
        pool = Upstream("localhost", peer.port)
        first, second = Collected(), Collected()
        get(pool, first)
        await eventually(lambda: peer.connects == 1)
        get(pool, second)
        pool.close()
        await first.wait()
        await second.wait()
        assert (CallFailure.CLOSED_BEFORE_ANSWER, CallFailure.CONNECT) == (first.failure, second.failure)
        with pytest.raises(RuntimeError, match="closed"):
            get(pool, Collected())
        await eventually(lambda: pool.connections == 0)
        assert pool.calls == 0


async def test_engine_that_dies_in_the_answer_is_a_failure() -> None:
    """An engine reset in its head or body is told apart, and never ends cleanly."""

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        Client(reader, writer).reset()

    async with engine(die) as peer, upstream(peer.port) as pool:
        sink = await ask(pool)
        assert sink.failure is CallFailure.CLOSED_IN_BODY
        assert sink.ends == 0


@pytest.mark.parametrize(
    ("host", "authority"),
    [
        ("127.0.0.1", b"127.0.0.1:8000"),
        ("::1", b"[::1]:8000"),
        ("[::1]", b"[::1]:8000"),
        ("gpu-1", b"gpu-1:8000"),
    ],
)
def test_authority(host: str, authority: bytes) -> None:
    """Addresses and names are written as a Host field needs them."""
    assert Upstream(host, 8000).authority == authority


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 in this Python")
async def test_ipv6_is_called_with_brackets_or_without() -> None:
    """An IPv6 address of an engine works in both spellings."""
    peer = Engine(answer_all)
    try:
        server = await asyncio.start_server(peer.serve, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 on loopback here")
    for host in ("::1", "[::1]"):
        pool = Upstream(host, server.sockets[0].getsockname()[1])
        assert (await ask(pool)).body == b"ok"
        pool.close()
    server.close()
    await eventually(lambda: not peer.writers)
