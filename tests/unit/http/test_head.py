"""Claims about which heads are taken, and which are refused because two readers could disagree about them."""

from __future__ import annotations

import pytest

from forebay.http.head import (
    HeadRefused,
    is_past_mending,
    may_begin_request,
    parse_request_head,
    parse_response_head,
)
from forebay.http.message import RequestHead, ResponseHead


def head(*lines: bytes, first: bytes = b"POST /v1/x HTTP/1.1", host: bytes | None = b"Host: h") -> bytes:
    """A request head."""
    return b"\r\n".join([first, *([host] if host is not None else []), *lines]) + b"\r\n\r\n"


def parse(
    *lines: bytes, first: bytes = b"POST /v1/x HTTP/1.1", host: bytes | None = b"Host: h"
) -> RequestHead:
    """A request head, read."""
    return parse_request_head(head(*lines, first=first, host=host), 100)


def answer(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> ResponseHead:
    """The head of an answer, read."""
    return parse_response_head(b"\r\n".join([first, *lines]) + b"\r\n\r\n", 100)


def test_request_head_keeps_what_was_sent() -> None:
    """Names become lower case, values lose their outer blanks, order and everything else stays."""
    got = parse(b"X-A:  1 ", b"x-a:2", b"Accept: */*", first=b"POST /v1/a%20b?c=%2F&d HTTP/1.1")
    assert got.method == b"POST"
    assert got.target == b"/v1/a%20b?c=%2F&d"
    assert got.path == "/v1/a%20b"
    assert got.query == b"c=%2F&d"
    assert got.headers == [(b"host", b"h"), (b"x-a", b"1"), (b"x-a", b"2"), (b"accept", b"*/*")]
    assert got.http_minor == 1
    assert got.keep_alive
    assert not got.has_body


@pytest.mark.parametrize(
    ("first", "path", "query"),
    [
        (b"GET http://h/v1/models?x HTTP/1.1", "/v1/models", b"x"),
        (b"GET HTTPS://h HTTP/1.1", "/", b""),
        (b"GET http://h?a/b HTTP/1.1", "/", b"a/b"),
        (b"OPTIONS * HTTP/1.1", "*", b""),
        (b"GET //v1//chat HTTP/1.1", "//v1//chat", b""),
        (b"GET /a?b?c HTTP/1.1", "/a", b"b?c"),
    ],
)
def test_forms_of_targets(first: bytes, path: str, query: bytes) -> None:
    """Absolute and asterisk targets give the path inside them; a path is not normalised."""
    got = parse(first=first)
    assert (got.path, got.query) == (path, query)


@pytest.mark.parametrize(
    ("minor", "connection", "keep_alive"),
    [
        (1, None, True),
        (1, b"close", False),
        (1, b"Keep-Alive, Close", False),
        (0, None, False),
        (0, b"keep-alive", True),
        (0, b"x, Keep-Alive", True),
    ],
)
def test_keep_alive_follows_version_and_connection(
    minor: int, connection: bytes | None, keep_alive: bool
) -> None:
    """HTTP/1.1 lives on unless it says close, 1.0 only if it says keep-alive."""
    lines = [] if connection is None else [b"Connection: " + connection]
    got = parse(*lines, first=b"GET / HTTP/1.%d" % minor)
    assert (got.http_minor, got.keep_alive) == (minor, keep_alive)


def test_body_framing_is_read() -> None:
    """A declared length, the chunked coding and neither are told apart."""
    assert parse(b"Content-Length: 12").content_length == 12
    assert parse(b"Content-Length: 007 ").content_length == 7
    assert parse(b"Content-Length: 0").has_body is False
    chunked = parse(b"Transfer-Encoding: Chunked")
    assert (chunked.chunked, chunked.content_length, chunked.has_body) == (True, None, True)


def test_expect_is_read() -> None:
    """100-continue counts only where there is a body to wait with; anything else is refused with 417."""
    assert parse(b"Expect: 100-Continue", b"Content-Length: 1").expects_continue
    assert not parse(b"Expect: 100-continue").expects_continue
    assert not parse(b"Expect: 100-continue", b"Content-Length: 1", first=b"POST / HTTP/1.0").expects_continue
    with pytest.raises(HeadRefused) as refused:
        parse(b"Expect: something")
    assert refused.value.status == 417


def test_upgrade_is_ignored() -> None:
    """An offer to speak another protocol is a plain request to us."""
    got = parse(b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 3")
    assert got.content_length == 3
    assert got.keep_alive


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 5", b"Content-Length: 6"],
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: 5, 5"],
        [b"Content-Length: +5"],
        [b"Content-Length: -5"],
        [b"Content-Length: 0x5"],
        [b"Content-Length: 5 5"],
        [b"Content-Length: 5_0"],
        [b"Content-Length:"],
        [b"Content-Length: 1" + b"0" * 18],
        [b"Content-Length: 99999999999999999999999"],
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
        [b"Transfer-Encoding: xchunked"],
        [b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: chunked, chunked"],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: \x0bchunked"],
        [b"Transfer-Encoding : chunked"],
        [b"X: a", b" folded"],
        [b"X: a", b"\tfolded"],
        [b" X: a"],
        [b"X: a\nY: b"],
        [b"X: a\rY: b"],
        [b"X: a\0b"],
        [b"X: a\x01b"],
        [b"X\0: a"],
        [b"X y: a"],
        [b": a"],
        [b"no colon"],
        [b"Host: h"],
    ],
    ids=repr,
)
def test_f075_ambiguous_heads_are_refused(lines: list[bytes]) -> None:
    """A head whose framing or fields two readers could take differently is a 400."""
    with pytest.raises(HeadRefused) as refused:
        parse(*lines)
    assert refused.value.status == 400
    assert str(refused.value)


@pytest.mark.parametrize(
    "first",
    [
        b"GET  / HTTP/1.1",
        b"GET /  HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b" GET / HTTP/1.1",
        b"GET /",
        b"GET / HTTP/0.9",
        b"GET / HTTP/1.2",
        b"GET / HTTP/2.0",
        b"GET / ICE/1.0",
        b"PRI * HTTP/2.0",
        b"get / HTTP/1.1",
        b"FOO / HTTP/1.1",
        b"GET\t/ HTTP/1.1",
        b"GET x HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET ftp://h/ HTTP/1.1",
        b"GET /a#b HTTP/1.1",
        b"GET /\0 HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"GET /\x7f HTTP/1.1",
        b"CONNECT h:443 HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=repr,
)
def test_odd_request_lines_are_refused(first: bytes) -> None:
    """Only `METHOD target HTTP/1.0 or 1.1`, with single blanks and a target we could serve, is taken."""
    with pytest.raises(HeadRefused) as refused:
        parse(first=first)
    assert refused.value.status == 400


def test_host_is_needed_once() -> None:
    """HTTP/1.1 without Host is refused; HTTP/1.0 may do without."""
    with pytest.raises(HeadRefused):
        parse(host=None)
    assert parse(host=None, first=b"GET / HTTP/1.0").path == "/"


def test_coding_needs_http_1_1() -> None:
    """A chunked body in HTTP/1.0 is refused: such a client cannot mean it."""
    with pytest.raises(HeadRefused):
        parse(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0")


def test_too_many_fields_are_431() -> None:
    """The number of fields is bounded, exactly."""
    lines = [b"A: %d" % number for number in range(99)]
    assert len(parse(*lines).headers) == 100
    with pytest.raises(HeadRefused) as refused:
        parse(*lines, b"B: 1")
    assert refused.value.status == 431


def test_response_head_is_read() -> None:
    """Status, phrase, fields and framing of an answer are read."""
    got = answer(b"Content-Type: text/event-stream", b"Transfer-Encoding: chunked")
    assert (got.status, got.reason, got.chunked, got.keep_alive) == (200, b"OK", True, True)
    assert got.headers[0] == (b"content-type", b"text/event-stream")
    assert answer(b"Content-Length: 4", first=b"HTTP/1.0 404 Not Found").keep_alive is False
    assert answer(b"Content-Length: 4").content_length == 4
    assert answer(first=b"HTTP/1.1 200").reason == b""
    assert answer(b"Connection: close").keep_alive is False
    assert answer(first=b"HTTP/1.1 100 Continue").status == 100


@pytest.mark.parametrize(
    "lines",
    [
        [b"HTTP/1.1 20 OK"],
        [b"HTTP/1.1 101 Switching Protocols"],
        [b"HTTP/1.1 2000 OK"],
        [b"HTTP/1.1 099 OK"],
        [b"HTTP/1.1 600 OK"],
        [b"HTTP/2 200 OK"],
        [b"HTTP/2.0 200 OK"],
        [b"ICE/1.0 200 OK"],
        [b"garbage"],
        [b"HTTP/1.1 200 O\0K"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 5", b"Content-Length: 6"],
        [b"HTTP/1.1 200 OK", b"Content-Length: +5"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"HTTP/1.1 200 OK", b"Transfer-Encoding: xchunked"],
        [b"HTTP/1.1 200 OK", b"Transfer-Encoding: gzip, chunked"],
        [b"HTTP/1.0 200 OK", b"Transfer-Encoding: chunked"],
        [b"HTTP/1.1 200 OK", b"X: a", b" folded"],
        [b"HTTP/1.1 200 OK\nX: a"],
    ],
    ids=repr,
)
def test_odd_response_heads_are_refused(lines: list[bytes]) -> None:
    """An answer whose end would not be certain is refused, whoever sent it."""
    with pytest.raises(HeadRefused):
        answer(*lines[1:], first=lines[0])


def test_hopeless_heads_are_known_early() -> None:
    """An unfinished head that no further byte can mend is told from one that may still come good."""
    assert not is_past_mending(b"GET / HTTP/1.1\r\nHost: h\r", 0)
    assert not is_past_mending(b"G", 0)
    assert not is_past_mending(b"GET / HTTP/1.1\r\n", 15)
    assert is_past_mending(b"GET / HTTP/1.1\nHost: h\n\n", 0)
    assert is_past_mending(b"GET / HTTP/1.1\r\nHost: h\n", 20)
    assert is_past_mending(b"\x16\x03\x01", 0)
    assert is_past_mending(b"GET /\0", 0)


def test_request_starts_are_told_from_bodies() -> None:
    """A request line is told from JSON, a chunk size and a long run of capitals, as far as it has come."""
    for start in (b"P", b"POST", b"POST ", b"POST /x HTTP/1.1\r\n"):
        assert may_begin_request(start)
    for start in (b"{", b'{"a":1}', b"A\r\n", b"1f\r\n", b"A" * 30, b"AB{"):
        assert not may_begin_request(start)
