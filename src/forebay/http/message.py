"""HTTP/1.1 heads as values, and the few operations on them that both sides need.

For: the server, the client, and whoever builds an answer or a request head for them. Owns nothing; all values
here are plain and belong to their reader. Never does I/O, never decides what a header means to the gateway.
Heads are made from bytes in `forebay.http.head`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

__all__ = [
    "HOP_BY_HOP",
    "STATUS_LINES",
    "Headers",
    "RequestHead",
    "ResponseHead",
    "connection_options",
    "encode_headers",
    "encode_request_head",
    "end_to_end_headers",
    "get_header",
    "status_line",
]

Headers = list[tuple[bytes, bytes]]
"""Field lines in the order received. Names are lower case; values carry no blank at either end."""

HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Fields that speak about one connection and must not be passed on (RFC 9110, 7.6.1)."""

_REASONS: Final = {
    100: "Continue",
    101: "Switching Protocols",
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    206: "Partial Content",
    301: "Moved Permanently",
    302: "Found",
    303: "See Other",
    304: "Not Modified",
    307: "Temporary Redirect",
    308: "Permanent Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    424: "Failed Dependency",
    425: "Too Early",
    426: "Upgrade Required",
    428: "Precondition Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    529: "Site Overloaded",
}

STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {reason}\r\n".encode("ascii") for status, reason in _REASONS.items()
}
"""Ready status lines of the statuses that have a well-known reason phrase."""


@dataclass(slots=True)
class RequestHead:
    """The head of one request, with its framing already judged sound."""

    method: bytes
    """Upper case, one of the methods llhttp knows."""
    target: bytes
    """The request target as received."""
    path: str
    """The path as sent, percent signs and all, without the query. `*` for `OPTIONS *`. For a target in
    absolute form the path inside it."""
    query: bytes
    """What follows the first `?`, without it. Empty if there is none."""
    headers: Headers
    http_minor: int
    """0 or 1."""
    keep_alive: bool
    """True if the client lets the connection live on after the answer."""
    content_length: int | None
    """As declared; None if nothing was declared (then the body is chunked, or there is none)."""
    chunked: bool
    expects_continue: bool
    """True if the client waits for `100 Continue` before it sends the body."""
    digest: object = None
    """What the owner made of the fields. The next request on the connection has it too if its head differs only
    in Content-Length, so nothing that depends on the length or on the time belongs here."""

    def with_length(self, headers: Headers, content_length: int | None) -> RequestHead:
        """The same head but for its fields, of which Content-Length is one."""
        return RequestHead(
            self.method,
            self.target,
            self.path,
            self.query,
            headers,
            self.http_minor,
            self.keep_alive,
            content_length,
            self.chunked,
            self.expects_continue,
            self.digest,
        )

    @property
    def has_body(self) -> bool:
        """True if at least one body byte, or a chunked body, was announced."""
        return self.chunked or bool(self.content_length)


@dataclass(slots=True)
class ResponseHead:
    """The head of one final answer (never a 1xx), with its framing already judged sound."""

    status: int
    reason: bytes
    headers: Headers
    keep_alive: bool
    """True if the other side lets the connection live on after the answer."""
    content_length: int | None
    chunked: bool
    digest: object = None
    """As in `RequestHead`, for the engine's next answer."""

    def with_length(self, headers: Headers, content_length: int | None) -> ResponseHead:
        """The same head but for its fields, of which Content-Length is one."""
        return ResponseHead(
            self.status, self.reason, headers, self.keep_alive, content_length, self.chunked, self.digest
        )


def get_header(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a field, or None. `name` must be lower case."""
    for key, value in headers:
        if key == name:
            return value
    return None


def connection_options(headers: Headers) -> list[bytes]:
    """The options of all Connection fields, lower case."""
    options: list[bytes] = []
    for key, value in headers:
        if key == b"connection":
            options.extend(option.strip(b" \t") for option in value.lower().split(b","))
    return options


def end_to_end_headers(headers: Headers, drop: Collection[bytes] = ()) -> Headers:
    """The fields that may be passed on: without hop-by-hop ones, those that Connection names, and `drop`."""
    kept = [field for field in headers if field[0] not in HOP_BY_HOP and field[0] not in drop]
    if len(kept) != len(headers):
        named = connection_options(headers)
        if named not in ([], [b"keep-alive"], [b"close"]):
            kept = [field for field in kept if field[0] not in named]
    return kept


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Field lines as they go on the wire, without the empty line at the end.

    Raises:
        ValueError: a name or value holds a line break or NUL. It would let a value end the head.
    """
    lines = [b"%b: %b\r\n" % field for field in headers]
    block = b"".join(lines)
    if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines) or block.find(b"\0") >= 0:
        raise ValueError("a header name or value holds a line break or NUL; remove it before sending")
    return block


def status_line(status: int) -> bytes:
    """The status line of an HTTP/1.1 answer. The reason phrase is empty where none is well known."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def encode_request_head(
    method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], *, content_length: int | None
) -> bytes:
    """A complete request head, empty line included.

    Args:
        headers: Must hold `host`, and neither `content-length` nor `transfer-encoding`.
        content_length: None to leave the field out (a request without a body).

    Raises:
        ValueError: the method, target or a field holds a byte that would break the head open.
    """
    line = b"%b %b HTTP/1.1\r\n" % (method, target)
    if line.count(b" ") != 2 or line.count(b"\n") != 1 or line.count(b"\r") != 1:
        raise ValueError("a request method or target holds a blank or a line break; encode it before sending")
    if content_length is None:
        return b"%b%b\r\n" % (line, encode_headers(headers))
    return b"%b%bcontent-length: %d\r\n\r\n" % (line, encode_headers(headers), content_length)
