"""One connection from a client: bytes to exchanges, in order, within bounds.

For: `server`, which makes one per accepted socket. It owns the socket until `connection_lost`, the bytes read and
not yet used (at most one socket read beyond `read_ahead_bytes`), and the body being read (at most the limit
the exchange's owner gave). One exchange at a time; pipelined requests wait as bytes.

States, and what a byte from the client means in each:

    HEAD     part of a request head, or the first byte of the next
    HELD     read ahead: the request is with its owner (its body is complete, or not asked for)
    BODY     part of the body that the owner asked for
    DRAIN    left-over body of an answered request; dropped, then the connection lives on
    LINGER   we have answered and closed our side; dropped, so that the answer is not lost to a reset
    CLOSING  nothing more is read; what is unsent goes out
    CLOSED   gone

Reading stays on in every state but CLOSING, so that a client that leaves is noticed while its request waits;
it pauses only when `read_ahead_bytes` are exceeded. Time is the server's sweep (`on_sweep`): no timer per
connection. Never interprets a request, never makes an answer of its own except to broken or slow heads,
whose body the handler shapes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from enum import IntEnum, unique
from math import inf
from typing import Final, Protocol, cast

from forebay.http.chunked import BadChunk, ChunkedDecoder
from forebay.http.exchange import BodyFailure, Exchange
from forebay.http.head import HeadRefused, parse_request_head
from forebay.http.limits import ServerLimits
from forebay.http.message import Headers, encode_headers, status_line

__all__ = ["Handler", "ServerConnection", "ServerState"]

_HEAD_END: Final = b"\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_METHOD_START: Final = re.compile(rb"[A-Z]{1,24}(?: |\Z)")
_CODES: Final = {408: "request_timeout", 431: "head_too_large"}


class Handler(Protocol):
    """The owner of all requests of a server."""

    def on_request(self, exchange: Exchange) -> None:
        """A head is complete; its body has not been read. See `Exchange` for the duties that follow."""

    def protocol_error(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        """Headers and body for an answer that the server gives itself, before there is an exchange.

        Args:
            status: 400, 408, 417 or 431.
            code: `invalid_request`, `request_timeout` or `head_too_large`.
        """


class ServerState:
    """What all connections of one server share. Refreshed by the server's sweep."""

    __slots__ = ("closing", "connections", "handler", "limits", "now", "on_empty", "tails")

    def __init__(self, handler: Handler, limits: ServerLimits) -> None:
        self.handler = handler
        self.limits = limits
        self.connections: set[ServerConnection] = set()
        self.now = 0.0
        """Loop time of the last sweep: good to `sweep_s`, and free to read."""
        self.closing = False
        """True: no new connections come, and every answer closes its connection."""
        self.tails = (b"", b"", b"")
        """Last lines of a head (date, connection, empty line): to close, to keep, to keep with HTTP/1.0."""
        self.on_empty: Callable[[], None] | None = None


@unique
class _State(IntEnum):
    HEAD = 0
    HELD = 1
    BODY = 2
    DRAIN = 3
    LINGER = 4
    CLOSING = 5
    CLOSED = 6


# Plain integers: reading a member through its enum class costs more than the comparison.
_HEAD, _HELD, _BODY, _DRAIN, _LINGER, _CLOSING, _CLOSED = (int(state) for state in _State)
