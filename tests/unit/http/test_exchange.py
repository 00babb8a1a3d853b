"""Claims about answers as they go on the wire."""

from __future__ import annotations

import pytest

from forebay.http.exchange import Exchange
from tests.unit.http.peers import DATE, Owner, Served, answers, request


def begin(method: bytes = b"GET", minor: int = 1, *fields: bytes) -> tuple[Served, Exchange]:
    """A connection with one request waiting for its answer."""
    served = Served(Owner())
    lines = [b"%b / HTTP/1.%d" % (method, minor), b"Host: h", *fields]
    served.feed(b"\r\n".join(lines) + b"\r\n\r\n")
    return served, served.owner.exchanges[0]


def test_respond_is_one_write() -> None:
    """A whole answer is one write, with length and date added."""
    served, exchange = begin()
    exchange.respond(429, [(b"retry-after", b"2")], b"busy")
    assert served.transport.sent == (
        b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\ncontent-length: 4\r\n" + DATE + b"\r\nbusy"
    )
    assert served.transport.writes == 1
    assert exchange.over


def test_respond_can_close() -> None:
    """An owner that wants the connection closed has it closed, and says so to the client."""
    served, exchange = begin()
    exchange.respond(503, [], b"", close=True)
    assert answers(served.transport.sent)[0][1][b"connection"] == b"close"
    assert served.transport.closed


def test_head_request_gets_the_length_and_no_body() -> None:
    """The answer to HEAD declares the body and leaves it out, whole or streamed."""
    served, exchange = begin(b"HEAD")
    exchange.respond(200, [], b"12345")
    ((status, headers, body),) = answers(served.transport.take(), heads_only=[0])
    assert (200, b"5", b"") == (status, headers[b"content-length"], body)
    served.feed(request(b"HEAD"))
    streamed = served.owner.exchanges[1]
    streamed.start(200, [], content_length=None)
    streamed.write(b"not sent")
    streamed.finish()
    ((_, headers, _),) = answers(served.transport.sent, heads_only=[0])
    assert headers[b"transfer-encoding"] == b"chunked"
    assert not served.transport.closed


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body_have_no_framing(status: int) -> None:
    """204 and 304 carry neither length nor coding nor body."""
    served, exchange = begin()
    exchange.respond(status, [], b"")
    served.feed(request(b"GET"))
    streamed = served.owner.exchanges[1]
    streamed.start(status, [], content_length=None)
    streamed.write(b"x")
    streamed.finish()
    for got, headers, body in answers(served.transport.sent):
        assert (got, body) == (status, b"")
        assert not {b"content-length", b"transfer-encoding"} & headers.keys()


def test_chunked_answer() -> None:
    """An answer of unknown length goes out in chunks, one per write, and ends with the last one."""
    served, exchange = begin()
    exchange.start(200, [(b"content-type", b"text/event-stream")], content_length=None)
    assert exchange.started
    exchange.write(b"data: 1\n\n")
    exchange.write(b"")
    exchange.write_many([b"data: ", b"2\n\n"])
    exchange.finish()
    assert served.transport.sent.endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n")
    assert answers(served.transport.sent)[0][2] == b"data: 1\n\ndata: 2\n\n"
    assert exchange.over
    assert not served.transport.closed


def test_head_goes_out_with_the_first_piece() -> None:
    """The head of a stream and its first piece are one write."""
    served, exchange = begin()
    exchange.start(200, [], content_length=None)
    assert served.transport.writes == 0
    exchange.write(b"x")
    assert served.transport.writes == 1
    served.round()
    assert served.transport.writes == 1


def test_a_piece_that_came_as_a_chunk_goes_on_as_it_is() -> None:
    """Behind the head and after it; where the answer is not chunked it is the piece that counts."""
    served, exchange = begin()
    exchange.start(200, [], content_length=None)
    for _ in range(2):
        exchange.write(b"0123456789", b"00A\r\n0123456789\r\n")
    assert served.transport.sent.endswith(b"\r\n\r\n" + b"00A\r\n0123456789\r\n" * 2)
    for minor, length in ((0, None), (1, 10)):
        served, exchange = begin(b"GET", minor)
        exchange.start(200, [], content_length=length)
        exchange.write(b"0123456789", b"00A\r\n0123456789\r\n")
        assert served.transport.sent.endswith(b"\r\n\r\n0123456789")


def test_head_goes_out_alone_in_the_next_round() -> None:
    """Without a first piece the head of a stream is sent in the next round of the loop."""
    served, exchange = begin()
    exchange.start(200, [], content_length=3)
    served.round()
    assert served.transport.take().endswith(b"content-length: 3\r\n" + DATE + b"\r\n")
    exchange.write(b"abc")
    exchange.finish()
    assert served.transport.sent == b"abc"


def test_http_1_0_stream_ends_by_closing() -> None:
    """An HTTP/1.0 client gets a stream of unknown length unframed, and the close as its end."""
    served, exchange = begin(b"GET", 0, b"Connection: keep-alive")
    exchange.start(200, [], content_length=None)
    exchange.write(b"a")
    exchange.write(b"b")
    exchange.finish()
    ((_, headers, body),) = answers(served.transport.sent)
    assert (b"close", b"ab") == (headers[b"connection"], body)
    assert b"transfer-encoding" not in headers
    assert served.transport.closed


def test_declared_length_is_kept() -> None:
    """More bytes than declared are an error of the owner; fewer cut the connection, so that the client can tell."""
    served, exchange = begin()
    exchange.start(200, [], content_length=5)
    with pytest.raises(ValueError, match="content-length"):
        exchange.write(b"123456")
    exchange.write(b"1234")
    exchange.finish()
    assert served.transport.closed
    assert served.transport.sent.endswith(b"\r\n\r\n1234")


def test_abort_sends_what_was_written_and_no_last_chunk() -> None:
    """An aborted stream ends without its last chunk, after what was written; in the end it is cut."""
    served, exchange = begin()
    exchange.start(200, [], content_length=None)
    exchange.write(b"x")
    exchange.abort()
    exchange.abort()
    assert served.transport.sent.endswith(b"\r\n\r\n1\r\nx\r\n")
    assert served.transport.closed
    assert not served.transport.aborted
    served.sweep(2.0)
    assert served.transport.aborted


def test_abort_before_the_answer_sends_nothing() -> None:
    """An exchange aborted before its answer closes the connection without a byte."""
    served, exchange = begin()
    exchange.abort()
    assert (b"", True) == (served.transport.sent, served.transport.closed)


def test_misuse_is_said() -> None:
    """Writing before a start, or starting twice, is an error of the owner and says so."""
    served, exchange = begin()
    with pytest.raises(RuntimeError, match="not been started"):
        exchange.write(b"x")
    with pytest.raises(RuntimeError, match="not been started"):
        exchange.finish()
    exchange.start(200, [], content_length=0)
    with pytest.raises(RuntimeError, match="already been started"):
        exchange.respond(200, [], b"")
    with pytest.raises(RuntimeError, match="already been started"):
        exchange.start(200, [], content_length=0)
    exchange.finish()
    for call in (exchange.finish, exchange.abort, lambda: exchange.write(b"x")):
        call()
    assert [200] == [status for status, _, _ in answers(served.transport.sent)]


def test_bad_header_leaves_the_answer_open() -> None:
    """A header that would break the head is refused before a byte is sent, and another answer can be given."""
    served, exchange = begin()
    with pytest.raises(ValueError, match="line break"):
        exchange.respond(200, [(b"x", b"a\r\nb: c")], b"")
    with pytest.raises(ValueError, match="line break"):
        exchange.start(200, [(b"x", b"a\r\nb: c")], content_length=None)
    exchange.respond(500, [], b"")
    assert [500] == [status for status, _, _ in answers(served.transport.sent)]


def test_draining_server_closes_after_each_answer() -> None:
    """Once the server stops accepting, every answer closes its connection."""
    served, exchange = begin()
    served.serving.closing = True
    exchange.respond(200, [], b"")
    assert answers(served.transport.sent)[0][1][b"connection"] == b"close"
    assert served.transport.closed


def test_events_can_be_begun_before_it_is_known_what_follows() -> None:
    """A head that comes later is not sent; a stream goes on as events."""
    served, exchange = begin()
    exchange.begin_events([(b"content-type", b"text/event-stream")])
    exchange.write(b": waiting\n\n")
    exchange.start(201, [(b"x-other", b"1")], content_length=5)
    exchange.write(b"data: 1\n\n")
    exchange.finish()
    ((status, headers, body),) = answers(served.transport.sent)
    assert (200, b": waiting\n\ndata: 1\n\n") == (status, body)
    assert b"x-other" not in headers
    assert not served.transport.closed


@pytest.mark.parametrize(("status", "closed"), [(200, False), (429, True)])
def test_what_is_responded_to_begun_events_is_the_last_of_them(status: int, closed: bool) -> None:
    """With each of its lines in it; an error is not followed by the end of the answer."""
    served, exchange = begin()
    exchange.begin_events([])
    exchange.respond(status, [(b"retry-after", b"1")], b'{\r\n "error": 1\n}\n')
    assert b'data: {\ndata:  "error": 1\ndata: }\n\n' in served.transport.sent
    assert (closed, not closed) == (served.transport.closed, served.transport.sent.endswith(b"0\r\n\r\n"))
    assert exchange.over
