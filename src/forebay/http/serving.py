"""What all connections of one server share, and what the layer above implements to be served.

Owns the set of open connections and the coarse clock that they read. Starts nothing, and closes nothing but a
connection that has to give way: an idle one, else the one that has been longest about its request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, Protocol

from forebay.http.limits import ServerLimits
from forebay.http.message import Headers, encode_headers, status_line

if TYPE_CHECKING:
    from forebay.http.connection import ServerConnection
    from forebay.http.exchange import Exchange
    from forebay.http.tls_listener import Handshake

__all__ = ["Handler", "Serving"]

_log = logging.getLogger(__name__)

_CODES: Final = {408: "request_timeout", 431: "head_too_large"}
_TELL_AGAIN_S: Final = 60.0


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


def _idle_until_s(connection: ServerConnection | Handshake) -> float:
    return connection.idle_until_s


def _not_started(_callback: Callable[[], None]) -> None:
    raise RuntimeError("the server has not been started")


class Serving:
    """The shared part of a server's connections. `refresh` is called by the server's sweep."""

    __slots__ = (
        "call_soon",
        "close_tail",
        "closing",
        "connections",
        "handler",
        "keep_tail",
        "keep_tail_old",
        "limits",
        "now",
        "on_empty",
        "spare",
        "sweep_s",
        "tell_again_s",
        "unfinished",
    )

    def __init__(self, handler: Handler, limits: ServerLimits) -> None:
        self.call_soon: Callable[[Callable[[], None]], object] = _not_started
        self.handler = handler
        self.limits = limits
        self.sweep_s = limits.sweep_s
        self.connections: set[ServerConnection | Handshake] = set()
        self.unfinished: dict[ServerConnection | Handshake, None] = {}
        """Those in their TLS handshake, with a part of a head, or of a body that was asked for; the longest first."""
        self.spare: list[ServerConnection | Handshake] | None = None
        """Those that had no request when one was last needed in this sweep, the longest last."""
        self.tell_again_s = 0.0
        self.closing = False
        """True: every answer closes its connection, and no new connections are kept."""
        self.on_empty: Callable[[], None] | None = None
        """Called when the last connection is gone."""
        self.now = 0.0
        """Loop time of the last sweep: old by `sweep_s` at most, and free to read."""
        self.close_tail = self.keep_tail = self.keep_tail_old = b""
        """Last lines of an answer's head, after which its connection closes, lives on, lives on with an
        HTTP/1.0 client."""

    def has_room(self) -> bool:
        """True if one more connection may be kept. Where there are too many, one gives way.

        One without a request, else the oldest that has not come to one: handshakes, heads and bodies that never end
        would keep everybody out, and honest ones are complete long before they are the oldest of so many.
        """
        if len(self.connections) < self.limits.connections:
            return True
        if self.now >= self.tell_again_s:
            self.tell_again_s = self.now + _TELL_AGAIN_S
            _log.warning(
                "all %d connections are taken (%d with half a handshake or request): for a new one an idle one is "
                "closed, or the one that has been longest about its request",
                len(self.connections),
                len(self.unfinished),
            )
        spare = self.spare
        if spare is None:
            # Once a sweep: in a flood, each new connection must not cost a look at all the others.
            spare = self.spare = self._spare()
        while spare:
            connection = spare.pop()
            if connection.may_give_way():
                connection.give_way()
                return True
        for oldest in self.unfinished:
            del self.unfinished[oldest]
            oldest.give_way()
            return True
        return False

    def _spare(self) -> list[ServerConnection | Handshake]:
        spare = [connection for connection in self.connections if connection.may_give_way()]
        spare.sort(key=_idle_until_s, reverse=True)
        return spare

    def lost(self, connection: ServerConnection | Handshake) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self.unfinished.pop(connection, None)
        if not self.connections and self.on_empty is not None:
            self.on_empty()

    def early_answer(self, status: int, message: str) -> bytes:
        """A whole answer to what never became a request; the connection closes after it."""
        headers, body = self.handler.protocol_error(status, _CODES.get(status, "invalid_request"), message)
        length = b"content-length: %d\r\n" % len(body)
        return status_line(status) + encode_headers(headers) + length + self.close_tail + body

    def refresh(self, now: float, unix_time_s: float) -> None:
        """Sets the clock and the Date field. HTTP dates have whole seconds, so a sweep is exact enough."""
        self.now = now
        self.spare = None
        date = b"date: %b\r\n" % formatdate(unix_time_s, usegmt=True).encode("ascii")
        self.close_tail = date + b"connection: close\r\n\r\n"
        self.keep_tail = date + b"\r\n"
        self.keep_tail_old = date + b"connection: keep-alive\r\n\r\n"
