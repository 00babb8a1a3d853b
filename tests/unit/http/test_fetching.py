"""Claims about one bounded answer for a poller."""

from __future__ import annotations

import asyncio

import pytest

from forebay.http.call import CallFailure
from forebay.http.client import FetchFailed, Upstream, fetch
from tests.unit.http.peers import engine, eventually, read_request, upstream


async def test_fetch_gives_any_answer() -> None:
    """Head and body of an answer come back, whatever its status; the request names its host."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            heads.append(head)
            writer.write(
                b"HTTP/1.1 503 Busy\r\ncontent-length: %d\r\n\r\n%b" % (len(body) + 2, body + b"!\n")
            )

    async with engine(answer) as peer, upstream(peer.port) as pool:
        head, body = await fetch(pool, b"GET", b"/metrics", timeout_s=10, max_bytes=100)
        assert (503, b"!\n") == (head.status, body)
        assert heads[0] == b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % peer.port
        _, body = await fetch(
            pool, b"POST", b"/x", timeout_s=10, max_bytes=100, headers=[(b"a", b"b")], body=b"hello"
        )
        assert body == b"hello!\n"
        assert b"\r\na: b\r\ncontent-length: 5\r\n" in heads[1]
        assert peer.connects == 1


async def test_fetch_is_bounded_in_time_and_size() -> None:
    """An answer that does not end, or is too large, fails, and its connection is closed."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1000)
        await reader.read()

    async with engine(endless) as peer, upstream(peer.port) as pool:
        with pytest.raises(FetchFailed, match="within") as slow:
            await fetch(pool, b"GET", b"/", timeout_s=0.1, max_bytes=2000)
        with pytest.raises(FetchFailed, match="longer than 999") as large:
            await fetch(pool, b"GET", b"/", timeout_s=10, max_bytes=999)
        assert (None, None) == (slow.value.kind, large.value.kind)
        await eventually(lambda: peer.closes == 2)
        assert pool.connections == 0


async def test_fetch_says_what_failed() -> None:
    """A connection that fails is said with its kind."""
    pool = Upstream("127.0.0.1", 1)
    with pytest.raises(FetchFailed, match="connect") as failed:
        await fetch(pool, b"GET", b"/", timeout_s=10, max_bytes=10)
    assert failed.value.kind is CallFailure.CONNECT
    pool.close()


async def test_cancelled_fetch_closes_its_connection() -> None:
    """A poller that is stopped leaves no call behind."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with engine(silent) as peer, upstream(peer.port) as pool:
        task = asyncio.create_task(fetch(pool, b"GET", b"/", timeout_s=10, max_bytes=10))
        await eventually(lambda: peer.connects == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(peer.closed.wait(), 10)
        assert pool.calls == 0
