"""Bytes of one complete head to a value, strictly.

llhttp (through httptools) reads the grammar; this module adds what llhttp lets pass and a gateway must not,
because two readers that disagree about where a message ends are how requests are smuggled: several blanks in
the request line, versions other than 1.0 and 1.1, codings other than `chunked`, Host missing or doubled.

The caller finds the end of the head (the first empty line) and passes exactly those bytes, so the same bytes
give the same result however they were split on the wire. A fresh parser is made per head: that costs 0.2 µs and
leaves no state of one message to the next. Owns nothing. Never sees a body byte.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from forebay.http.message import Headers, RequestHead, ResponseHead

__all__ = [
    "LENGTH_DIGITS",
    "METHOD_BYTES",
    "HeadRefused",
    "is_past_mending",
    "may_begin_request",
    "parse_request_head",
    "parse_response_head",
]

_CONTENT_LENGTH: Final = b"content-length"
_TRANSFER_ENCODING: Final = b"transfer-encoding"
METHOD_BYTES: Final = 25
"""No method, with the blank after it, is longer."""
_METHOD_START: Final = re.compile(rb"[A-Z]{1,24}(?: |\Z)")
LENGTH_DIGITS: Final = 18
"""Longest Content-Length that is taken at its word; more digits would be an exabyte."""


class HeadRefused(Exception):
    """The head is malformed, ambiguous or too large; `status` is what a server answers."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _Collector:
    """What httptools calls while it reads one head."""

    __slots__ = ("connection", "content_length", "encoding", "expect", "headers", "hosts", "status", "target")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.target = b""
        self.status = b""
        self.connection: bytes | None = None
        self.content_length: bytes | None = None
        self.encoding: bytes | None = None
        self.expect: bytes | None = None
        self.hosts = 0

    def on_url(self, target: bytes) -> None:
        self.target = target

    def on_status(self, reason: bytes) -> None:
        self.status = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        value = value.strip(b" \t")
        self.headers.append((name, value))
        if name in _SPECIAL:
            self._special(name, value)

    def _special(self, name: bytes, value: bytes) -> None:
        if name == b"connection":
            self.connection = value if self.connection is None else self.connection + b"," + value
        elif name == b"host":
            self.hosts += 1
        elif name == b"expect":
            self.expect = value
        elif name == _CONTENT_LENGTH:
            if self.content_length is not None:
                raise HeadRefused("Content-Length is given twice")
            self.content_length = value
        else:
            if self.encoding is not None:
                raise HeadRefused("Transfer-Encoding is given twice")
            self.encoding = value


_SPECIAL: Final = frozenset((b"connection", b"host", b"expect", _CONTENT_LENGTH, _TRANSFER_ENCODING))


def parse_request_head(data: bytes, fields_max: int) -> RequestHead:
    """Reads one request head. `data` ends with the empty line.

    Raises:
        HeadRefused: what is wrong, in words for the client.
    """
    if data.count(b"\n") > fields_max + 2:
        raise HeadRefused(f"more than {fields_max} header fields", 431)
    fields = _Collector()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        # CONNECT is refused below; an offered Upgrade is ignored, as RFC 9110 (7.8) allows.
        pass
    except httptools.HttpParserError as error:
        _refuse(error, fields)
    method: bytes = parser.get_method()
    target = fields.target
    line = b"%b %b HTTP/1." % (method, target)
    start = data[: len(line) + 3]
    if start == line + b"1\r\n":
        http_minor = 1
    elif start == line + b"0\r\n":
        http_minor = 0
    else:
        raise HeadRefused("the request line is not 'METHOD target HTTP/1.1'")
    if fields.hosts != 1 and (http_minor or fields.hosts):
        raise HeadRefused("exactly one Host header is needed")
    path, query = _split_target(method, target)
    chunked = fields.encoding is not None and _is_chunked(fields, http_minor)
    expect = fields.expect
    expects_continue = False
    if expect is not None and http_minor:
        if expect.lower() != b"100-continue":
            raise HeadRefused("Expect can only be 100-continue", 417)
        expects_continue = True
    content_length = _length(fields, chunked)
    return RequestHead(
        method,
        target,
        path,
        query,
        fields.headers,
        http_minor,
        _lives_on(fields.connection, http_minor),
        content_length,
        chunked,
        expects_continue and (chunked or bool(content_length)),
    )


def parse_response_head(data: bytes, fields_max: int) -> ResponseHead:
    """Reads one response head, interim ones included. `data` ends with the empty line.

    Raises:
        HeadRefused: what is wrong, in words for the log.
    """
    if data.count(b"\n") > fields_max + 2:
        raise HeadRefused(f"more than {fields_max} header fields")
    fields = _Collector()
    parser = httptools.HttpResponseParser(fields)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        _refuse(error, fields)
    start = data[:9]
    if start == b"HTTP/1.1 ":
        http_minor = 1
    elif start == b"HTTP/1.0 ":
        http_minor = 0
    else:
        raise HeadRefused("the status line is not 'HTTP/1.1 status reason'")
    status: int = parser.get_status_code()
    if not 100 <= status <= 599:
        raise HeadRefused(f"status {status} is not between 100 and 599")
    if b"\0" in fields.status:
        raise HeadRefused("NUL in the reason phrase")
    chunked = fields.encoding is not None and _is_chunked(fields, http_minor)
    return ResponseHead(
        status,
        fields.status,
        fields.headers,
        _lives_on(fields.connection, http_minor),
        _length(fields, chunked),
        chunked,
    )


def is_past_mending(data: bytes, start: int) -> bool:
    """True if an unfinished request head can never become a good one.

    Saying so at once, instead of when it is complete, answers a client that sends bare line feeds (its head would
    never be complete) or something that is not HTTP.

    Args:
        start: What lies before was looked at already.
    """
    if not 65 <= data[0] <= 90 or data.find(b"\0", start) >= 0:
        return True
    return data.count(b"\n", start) != data.count(b"\r\n", max(0, start - 1))


def may_begin_request(data: bytes) -> bool:
    """True if these bytes look like the start of a request line, as far as they go."""
    return _METHOD_START.match(data) is not None


def _refuse(error: httptools.HttpParserError, fields: _Collector) -> None:
    """Turns the parser's complaint into ours. An exception of our own callbacks arrives wrapped."""
    cause = error.__context__
    if isinstance(cause, HeadRefused):
        raise cause from None
    text = str(error) or "malformed head"
    raise HeadRefused(f"malformed HTTP: {text}") from None


def _split_target(method: bytes, target: bytes) -> tuple[str, bytes]:
    """Path and query of a target in origin, absolute or asterisk form."""
    if (
        target.find(b"#") >= 0 or method == b"CONNECT"
    ):  # `in` first tries bytes as a number, ten times as dear
        raise HeadRefused("CONNECT and targets with a fragment are not served")
    if target.startswith(b"/"):
        rest = target
    elif target == b"*" and method == b"OPTIONS":
        return "*", b""
    else:
        scheme, mark, rest = target.partition(b"://")
        if not mark or scheme.lower() not in (b"http", b"https"):
            raise HeadRefused("the request target is neither a path nor an http URL")
        # The authority ends at the first slash or question mark; an empty path means "/".
        slash, question = rest.find(b"/"), rest.find(b"?")
        if slash < 0 or 0 <= question < slash:
            rest = b"/" + (rest[question:] if question >= 0 else b"")
        else:
            rest = rest[slash:]
    path, _, query = rest.partition(b"?")
    try:
        return path.decode("ascii"), query
    except UnicodeDecodeError:
        raise HeadRefused("the request target is not ASCII") from None


def _is_chunked(fields: _Collector, http_minor: int) -> bool:
    if fields.encoding is None or fields.encoding.lower() != b"chunked" or not http_minor:
        raise HeadRefused("the only Transfer-Encoding understood is 'chunked', in HTTP/1.1")
    if fields.content_length is not None:
        raise HeadRefused("Content-Length and Transfer-Encoding are both given")
    return True


def _length(fields: _Collector, chunked: bool) -> int | None:
    value = fields.content_length
    if value is None or chunked:
        return None
    # isdigit() on bytes is ASCII only: no sign, no blank, no underscore passes to int().
    if not value.isdigit() or len(value) > LENGTH_DIGITS:
        raise HeadRefused("Content-Length is not a plain decimal number")
    return int(value)


def _lives_on(connection: bytes | None, http_minor: int) -> bool:
    if connection is None:
        return http_minor == 1
    options = [option.strip(b" \t") for option in connection.lower().split(b",")]
    if b"close" in options:
        return False
    return http_minor == 1 or b"keep-alive" in options
