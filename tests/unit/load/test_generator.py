from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from forebay.load.felt import End, Felt
from forebay.load.generator import OpenLoop, Target, WrongTarget
from forebay.load.workload import Arrival

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""What a scripted server does with the head of a request."""

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7,"total_tokens":16}}\n\n'
DONE = b"data: [DONE]\n\n"


def planned(*at_s: float, stream: bool = True) -> list[Arrival]:
    """Requests at these times."""
    return [Arrival(index, at, "standard", 10, 7, 256, stream) for index, at in enumerate(at_s)]


def whole(status: str, body: bytes, *headers: str) -> bytes:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def offer(
    answer: Answer, requests: list[Arrival], *, tail_s: float = 20.0, servers: int = 1
) -> tuple[list[Felt], list[list[bytes]]]:
    """Run the requests against scripted servers; what was felt, and the heads that each server got."""
    heads: list[list[bytes]] = [[] for _ in range(servers)]
    connections: list[asyncio.StreamWriter] = []

    def connected(number: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            head = await reader.readuntil(b"\r\n\r\n")
            heads[number].append(head)
            await answer(head, writer)
            await writer.drain()
            writer.close()

        return serve

    started = [await asyncio.start_server(connected(number), "127.0.0.1", 0) for number in range(servers)]
    try:
        targets = [Target("127.0.0.1", server.sockets[0].getsockname()[1]) for server in started]
        client = OpenLoop(targets, lambda _arrival: b"{}", headers=[("x-extra", "1")])
        felt = await client.run(requests, tail_s=tail_s)
        assert client.counts.sent == len(requests)
        assert client.counts.open == 0
    finally:
        for server in started:
            server.close()
        for writer in connections:
            writer.close()
    return felt, heads


async def test_a_stream_is_timed_and_counted_by_its_usage() -> None:
    """A whole stream is completed, with the token count that the engine reported."""

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + TOKEN + TOKEN + USAGE + DONE)

    [felt], _ = await offer(answer, planned(0.0))

    assert felt.end is End.COMPLETED
    assert felt.output_tokens == 7
    assert felt.status == 200
    assert felt.first_token_s is not None
    assert felt.last_token_s is not None
    assert 0 <= felt.first_token_s <= felt.last_token_s <= felt.duration_s


async def test_an_unstreamed_answer_is_counted_by_its_usage() -> None:
    """An answer that is not a stream is completed with its own token count."""

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(whole("200 OK", b'{"usage":{"completion_tokens":5}}'))

    [felt], _ = await offer(answer, planned(0.0, stream=False))

    assert felt.end is End.COMPLETED
    assert felt.output_tokens == 5


async def test_requests_carry_class_and_extra_headers() -> None:
    """Every request says its class and what else it was told to say."""

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(whole("200 OK", b"{}"))

    _, [[head]] = await offer(answer, planned(0.0))

    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\nx-forebay-class: standard\r\n" in head
    assert b"\r\nx-extra: 1\r\n" in head
    assert b"\r\ncontent-length: 2\r\n" in head


async def test_several_targets_take_turns() -> None:
    """Requests go to the targets in turn, whatever becomes of them."""

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(whole("200 OK", b"{}"))

    _, heads = await offer(answer, planned(*[0.0] * 6), servers=2)

    assert [len(one) for one in heads] == [3, 3]


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable", "529 Overloaded"])
async def test_a_refusal_is_told_from_a_failure(status: str) -> None:
    """An overload status is a refusal, with its code and the time to come back."""

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(status, b'{"error":{"message":"full","code":"queue_full"}}', "retry-after: 3"))

    [felt], _ = await offer(answer, planned(0.0))

    assert felt.end is End.REFUSED
    assert felt.code == "queue_full"
    assert felt.retry_after_s == 3.0
    assert felt.first_token_s is None
    assert felt.ttft_s is None


async def test_a_refusal_may_lack_retry_after() -> None:
    """Without the header, or with a date in it, there is no time to come back."""
    for headers in ((), ("retry-after: Wed, 21 Oct 2026 07:28:00 GMT",)):

        async def answer(
            _head: bytes, writer: asyncio.StreamWriter, headers: tuple[str, ...] = headers
        ) -> None:
            writer.write(whole("429 Too Many Requests", b"not json", *headers))

        [felt], _ = await offer(answer, planned(0.0))

        assert felt.end is End.REFUSED
        assert felt.retry_after_s is None


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (STREAM + TOKEN + b'data: {"error":{"code":"upstream_interrupted"}}\n\n', "upstream_interrupted"),
        (STREAM + TOKEN, "stream_cut_short"),
        (whole("500 Internal Server Error", b'{"error":{"type":"server_error","code":null}}'), "server_error"),
        (whole("200 OK", b"<html>a login page</html>"), "not_json"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", "closed_in_body"),
        (b"", "closed_before_answer"),
    ],
)  # fmt: skip
async def test_what_is_neither_answer_nor_refusal_is_a_failure(sent: bytes, code: str) -> None:
    """An error event, a stream without its end, an error status and a broken connection are failures."""

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)

    [felt], _ = await offer(answer, planned(0.0))

    assert felt.end is End.FAILED
    assert felt.code == code


async def test_a_target_that_is_not_there_is_a_failure() -> None:
    """A refused connection ends the request as failed."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()

    [felt] = await OpenLoop([Target("127.0.0.1", port)], lambda _: b"{}").run(planned(0.0), tail_s=20)

    assert felt.end is End.FAILED
    assert felt.code == "connect"


async def test_sending_does_not_wait_for_answers() -> None:
    """All requests are sent although no answer comes, and count as unanswered at their age."""
    hold = asyncio.Event()

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        del head, writer
        await hold.wait()

    felt, [heads] = await offer(answer, planned(0.0, 0.01, 0.02), tail_s=0.3)
    hold.set()

    assert len(heads) == 3
    assert [one.end for one in felt] == [End.UNANSWERED] * 3
    assert all(one.ttft_s is not None and one.ttft_s >= 0.25 for one in felt)


async def test_an_unanswered_stream_keeps_its_first_token() -> None:
    """A stream that had begun when the clients left has its real time to first token."""
    hold = asyncio.Event()

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + TOKEN)
        await hold.wait()

    [felt], _ = await offer(answer, planned(0.0), tail_s=1.0)
    hold.set()

    assert felt.end is End.UNANSWERED
    assert felt.first_token_s is not None
    assert felt.ttft_s == felt.first_token_s


async def test_cancelling_a_run_leaves_no_connection() -> None:
    """A cancelled run gives its requests up and closes its connections."""
    began, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        began.set()
        await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = OpenLoop([Target("127.0.0.1", server.sockets[0].getsockname()[1])], lambda _: b"")
    run = asyncio.create_task(client.run(planned(0.0, 60.0), tail_s=20))
    await asyncio.wait_for(began.wait(), 20)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.wait_for(gone.wait(), 20)
    server.close()

    assert [one.end for one in client.felt] == [End.UNANSWERED]


async def test_nothing_planned_is_nothing_felt() -> None:
    """An empty plan ends at once."""
    assert await OpenLoop([Target("127.0.0.1", 9)], lambda _: b"{}").run([], tail_s=20) == []


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000)),
        ("http://example.test/", Target("example.test", 80)),
        ("localhost:8080", Target("localhost", 8080)),
        ("https://example.test", Target("example.test", 443, tls=True)),
    ],
)
def test_targets_are_origins(url: str, target: Target) -> None:
    """A target is read from an address with or without the scheme."""
    assert Target.parse(url) == target


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://[", "http://", "http://127.0.0.1:8000/v1", ""])
def test_what_is_no_origin_is_refused(url: str) -> None:
    """Another scheme, no host, or a path is an error that shows what is meant."""
    with pytest.raises(WrongTarget, match=r"should look like http://127\.0\.0\.1:8000"):
        Target.parse(url)
