"""Claims about how bytes of an engine become answers, without a socket."""

from __future__ import annotations

import pytest

from forebay.http.call import Call, CallFailure
from forebay.http.chunked import LAST_CHUNK, encode_chunk
from forebay.http.message import ResponseHead
from forebay.http.upstream_connection import HEAD_BYTES
from tests.unit.http.peers import Calling, Collected

HEAD = b"HTTP/1.1 200 OK\r\n"
DECLARED = HEAD + b"Content-Length: 5\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
OPEN_ENDED = HEAD + b"Content-Type: text/plain\r\n\r\n"


def test_request_is_one_write() -> None:
    """Head and body of a small request leave in one piece, and of a large one in one call."""
    small = Calling(b"POST / HTTP/1.1\r\n\r\n", b"body")
    assert (b"POST / HTTP/1.1\r\n\r\nbody", 1) == (small.transport.sent, small.transport.writes)
    large = Calling(b"POST / HTTP/1.1\r\n\r\n", b"x" * 100_000)
    assert (100_019, 1) == (len(large.transport.sent), large.transport.writes)


@pytest.mark.parametrize(
    "wire",
    [DECLARED + b"hello", CHUNKED + encode_chunk(b"he") + encode_chunk(b"llo") + LAST_CHUNK],
    ids=["declared", "chunked"],
)
def test_answer_in_any_cut_ends_cleanly_and_frees_the_connection(wire: bytes) -> None:
    """An answer in one read or in bytes gives one head, the body and one end; the connection is free after it."""
    for pieces in ([wire], [wire[at : at + 1] for at in range(len(wire))]):
        calling = Calling()
        calling.feed(*pieces)
        sink = calling.sink
        assert ([200], b"hello", 1, []) == (
            [head.status for head in sink.heads],
            sink.body,
            sink.ends,
            sink.failures,
        )
        assert [calling.connection] == calling.pool.free
        assert calling.call.over
        assert calling.pool.calls == 0


def test_one_read_is_one_piece() -> None:
    """What one read brings is given on as one piece, chunk framing removed."""
    calling = Calling()
    calling.feed(CHUNKED, encode_chunk(b"a") + encode_chunk(b"b") + encode_chunk(b"c"))
    assert calling.sink.pieces == [b"abc"]


def test_open_ended_answer_ends_with_the_connection() -> None:
    """A body without framing ends at the engine's FIN; a reset in it is a failure."""
    calling = Calling()
    calling.feed(OPEN_ENDED + b"hel", b"lo")
    assert calling.sink.ends == 0
    calling.end()
    assert (b"hello", 1, []) == (calling.sink.body, calling.sink.ends, calling.pool.free)
    reset = Calling()
    reset.feed(OPEN_ENDED + b"hel")
    reset.connection.connection_lost(ConnectionResetError("reset"))
    assert reset.sink.failure is CallFailure.CLOSED_IN_BODY


@pytest.mark.parametrize(
    ("method", "status"), [(b"HEAD", b"200 OK"), (b"GET", b"204 No Content"), (b"GET", b"304 Not Modified")]
)
def test_answers_without_a_body_end_with_their_head(method: bytes, status: bytes) -> None:
    """HEAD, 204 and 304 have no body whatever the head declares."""
    calling = Calling(method + b" / HTTP/1.1\r\n\r\n")
    calling.feed(b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\n")
    assert (1, b"", [calling.connection]) == (calling.sink.ends, calling.sink.body, calling.pool.free)


def test_interim_answers_are_skipped() -> None:
    """1xx heads are not answers; without an end of them there is none."""
    calling = Calling()
    calling.feed(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + DECLARED + b"hello"
    )
    assert ([200], 1) == ([head.status for head in calling.sink.heads], calling.sink.ends)
    endless = Calling()
    endless.feed(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 100)
    assert endless.sink.failure is CallFailure.MALFORMED
    upgraded = Calling()
    upgraded.feed(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
    assert upgraded.sink.failure is CallFailure.MALFORMED


@pytest.mark.parametrize(
    "wire",
    [
        b"garbage that is no HTTP",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"X: " + b"x" * HEAD_BYTES,
        HEAD + b"X: " + b"x" * HEAD_BYTES + b"\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"5\r\nhello!\r\n",
    ],
    ids=lambda wire: repr(wire[:60]),
)
def test_f002_malformed_answers_fail_and_close(wire: bytes) -> None:
    """What is not HTTP, or not framed with certainty, fails once and closes the socket."""
    for pieces in ([wire], [wire[at : at + 1000] for at in range(0, len(wire), 1000)]):
        calling = Calling()
        calling.feed(*pieces)
        assert calling.sink.failure is CallFailure.MALFORMED
        assert calling.transport.aborted
        assert calling.pool.free == []
        calling.connection.connection_lost(None)
        assert (1, 0) == (len(calling.sink.failures), calling.pool.calls)


def test_close_before_the_answer() -> None:
    """A connection that ends before, or in, the head is a failure before the answer."""
    for sent in (b"", b"HTTP/1.1 200 OK\r\nConte"):
        calling = Calling()
        calling.feed(*[sent] if sent else [])
        calling.end()
        assert calling.sink.failure is CallFailure.CLOSED_BEFORE_ANSWER


def test_only_an_unanswered_request_is_offered_for_retry() -> None:
    """The pool is asked about a retry only if not one byte of an answer came."""
    silent = Calling()
    silent.pool.may_retry = True
    silent.end()
    assert silent.pool.retries == [silent.call]
    assert silent.sink.failures == []
    for sent in (b"H", b"HTTP/1.1 100 Continue\r\n\r\n"):
        begun = Calling()
        begun.pool.may_retry = True
        begun.feed(sent)
        begun.end()
        assert begun.pool.retries == []
        assert begun.sink.failure is CallFailure.CLOSED_BEFORE_ANSWER


@pytest.mark.parametrize("wire", [DECLARED + b"hell", CHUNKED + encode_chunk(b"hello"), CHUNKED + b"5\r\nhe"])
def test_f021_close_in_the_body_is_a_failure(wire: bytes) -> None:
    """A body that ends before its framing says so is a failure, never a clean end."""
    calling = Calling()
    calling.feed(wire)
    calling.end()
    assert (0, CallFailure.CLOSED_IN_BODY) == (calling.sink.ends, calling.sink.failure)


@pytest.mark.parametrize(
    "wire",
    [
        HEAD + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        DECLARED + b"hello and more",
        CHUNKED + encode_chunk(b"hello") + LAST_CHUNK + b"more",
    ],
)
def test_connections_that_cannot_be_trusted_are_not_reused(wire: bytes) -> None:
    """After an answer that announces its close, or with bytes after it, the connection is closed."""
    calling = Calling()
    calling.feed(wire)
    assert (b"hello", 1) == (calling.sink.body, calling.sink.ends)
    assert ([], True) == (calling.pool.free, calling.transport.closed)


def test_answer_before_the_request_was_sent_is_not_reused() -> None:
    """An engine that answers while our request is still leaving keeps its answer, not the connection."""
    calling = Calling()
    calling.transport.unsent_bytes = 10
    calling.feed(DECLARED + b"hello")
    assert (1, [], True) == (calling.sink.ends, calling.pool.free, calling.transport.closed)


def test_bytes_that_nobody_asked_for_close_an_idle_connection() -> None:
    """Bytes on an idle connection make it useless: they would be taken for the next answer."""
    calling = Calling()
    calling.feed(DECLARED + b"hello")
    assert calling.connection.usable
    calling.feed(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert [calling.connection] == calling.pool.useless
    assert not calling.connection.usable


def test_idle_connection_that_the_engine_closes_is_useless() -> None:
    """An idle connection that ends is taken out of the pool, and no call hears of it."""
    calling = Calling()
    calling.feed(DECLARED + b"hello")
    calling.end()
    assert [calling.connection] == calling.pool.useless
    assert calling.sink.failures == []


def test_second_call_on_a_connection() -> None:
    """A free connection carries the next call, which knows that it is not the first."""
    calling = Calling()
    assert not calling.call.reused
    calling.feed(DECLARED + b"hello")
    call, sink = calling.carry()
    assert call.reused
    calling.feed(CHUNKED + encode_chunk(b"x") + LAST_CHUNK)
    assert (b"x", 1) == (sink.body, sink.ends)
    assert calling.sink.body == b"hello"


def test_abort_closes_at_once_and_silences_the_sink() -> None:
    """An aborted call closes its socket, and its sink is not called again."""
    calling = Calling()
    calling.feed(CHUNKED + encode_chunk(b"x"))
    calling.call.abort()
    calling.call.abort()
    assert calling.transport.aborted
    calling.connection.data_received(encode_chunk(b"y"))
    calling.end()
    assert (b"x", 0, []) == (calling.sink.body, calling.sink.ends, calling.sink.failures)
    assert (0, []) == (calling.pool.calls, calling.pool.free)


class Quitter(Collected):
    """A sink that aborts its call at the first head or piece."""

    call: Call

    def __init__(self, at_head: bool) -> None:
        super().__init__()
        self.at_head = at_head

    def on_head(self, head: ResponseHead) -> None:
        super().on_head(head)
        if self.at_head:
            self.call.abort()

    def on_data(self, data: bytes) -> None:
        super().on_data(data)
        self.call.abort()


@pytest.mark.parametrize("at_head", [True, False])
@pytest.mark.parametrize("wire", [DECLARED + b"hello", CHUNKED + encode_chunk(b"hello") + LAST_CHUNK])
def test_abort_inside_a_callback(at_head: bool, wire: bytes) -> None:
    """A sink may abort its call while it is called: nothing more is delivered of the same read."""
    calling = Calling()
    calling.feed(DECLARED + b"hello")
    sink = Quitter(at_head)
    call, _ = calling.carry(sink=sink)
    sink.call = call
    calling.feed(wire)
    assert (1, [] if at_head else [b"hello"], 0) == (len(sink.heads), sink.pieces, sink.ends)
    assert calling.transport.aborted
    assert calling.pool.calls == 0


def test_pause_and_resume() -> None:
    """A paused call stops the reading from its engine; the end of an answer lifts the pause."""
    calling = Calling()
    reading = []
    calling.call.pause()
    calling.call.pause()
    reading.append(calling.transport.reading)
    calling.call.resume()
    calling.call.resume()
    reading.append(calling.transport.reading)
    calling.call.pause()
    calling.feed(DECLARED + b"hello")
    reading.append(calling.transport.reading)
    assert reading == [False, True, True]
    assert calling.connection.usable


def test_connection_made_after_the_call_was_given_up_is_closed() -> None:
    """A socket that connects for a call that is gone does not stay open."""
    calling = Calling()
    calling.connection.drop()
    calling.transport.aborted = False
    calling.connection.connection_made(calling.transport)
    assert calling.transport.aborted


def test_abandoned_connection_fails_its_call() -> None:
    """When the pool is closed its calls fail, by how far they came."""
    early, late = Calling(), Calling()
    late.feed(CHUNKED)
    early.connection.abandon()
    late.connection.abandon()
    assert early.sink.failure is CallFailure.CLOSED_BEFORE_ANSWER
    assert late.sink.failure is CallFailure.CLOSED_IN_BODY
