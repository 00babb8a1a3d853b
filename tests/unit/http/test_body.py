"""Claims about reading and dropping one request body."""

from __future__ import annotations

from forebay.http.body import BodyFailure, RequestBody
from forebay.http.head import parse_request_head
from tests.unit.http.peers import request


def body_of(wire: bytes) -> RequestBody:
    """The body state after a head."""
    return RequestBody(parse_request_head(wire, 100))


def test_declared_body_ends_exactly_where_it_says() -> None:
    """A declared body takes its length, keeps what follows apart and is handed over once."""
    body = body_of(request(b"POST", b"/", b"", b"Content-Length: 6"))
    got: list[bytes] = []
    body.want(100, got.append, lambda failure: None)
    assert body.feed(b"abc") is None
    assert (body.done, body.left_bytes) == (False, 3)
    assert body.feed(b"defGET /") is None
    assert (body.done, body.left_bytes, body.rest) == (True, 0, b"GET /")
    body.deliver()
    body.deliver()
    assert got[0] == b"abcdef"
    assert len(got) == 1


def test_f074_chunked_body_over_the_limit_fails_as_soon_as_it_is() -> None:
    """A chunked body fails when it has passed the limit, before its end."""
    body = body_of(request(chunked=True))
    body.want(10, lambda data: None, lambda failure: None)
    assert body.feed(b"a\r\n0123456789\r\n") is None
    assert body.feed(b"1\r\n!\r\n") is BodyFailure.TOO_LARGE


def test_broken_coding_fails() -> None:
    """A chunked body in a broken coding is malformed when read, and failed when dropped."""
    body = body_of(request(chunked=True))
    body.want(10, lambda data: None, lambda failure: None)
    assert body.feed(b"+1\r\n") is BodyFailure.MALFORMED
    dropped = body_of(request(chunked=True))
    dropped.drop(b"+1\r\n")
    assert dropped.failed


def test_dropping_finds_the_end_too() -> None:
    """A dropped body of either framing ends where a read one would."""
    declared = body_of(request(b"POST", b"/", b"", b"Content-Length: 6"))
    declared.drop(b"abc")
    assert not declared.done
    declared.drop(b"defX")
    assert (declared.done, declared.rest) == (True, b"X")
    chunked = body_of(request(chunked=True))
    chunked.drop(b"3\r\nabc\r\n0\r\n")
    assert not chunked.done
    chunked.drop(b"\r\nX")
    assert (chunked.done, chunked.rest) == (True, b"X")


def test_forgotten_body_calls_nobody() -> None:
    """After it is forgotten a body neither delivers nor fails to anybody."""
    body = body_of(request(chunked=True))
    calls: list[object] = []
    body.want(10, calls.append, calls.append)
    body.forget()
    body.deliver()
    body.fail(BodyFailure.TIMEOUT)
    assert calls == []


def test_a_body_is_kept_only_as_long_as_there_is_room() -> None:
    """Each piece is asked about before it is kept, with its size; the first refusal ends the reading."""
    for wire, pieces in (
        (request(b"POST", b"/", b"", b"Content-Length: 9"), (b"abc", b"def", b"ghi")),
        (request(chunked=True), (b"3\r\nabc\r\n", b"3\r\ndef\r\n", b"3\r\nghi\r\n")),
    ):
        asked: list[int] = []

        def keep(size: int, asked: list[int] = asked) -> bool:
            asked.append(size)
            return len(asked) < 3

        body = body_of(wire)
        body.want(100, lambda data: None, lambda failure: None, keep)
        assert [None, None, BodyFailure.NO_ROOM] == [body.feed(piece) for piece in pieces]
        assert asked == [3, 3, 3]
