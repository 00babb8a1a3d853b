"""One request to an engine and its answer: what the layer above works with.

For: the owner of an attempt (the gateway, a poller). A call lives from `Upstream.send` until exactly one of
`on_end` and `on_failure`, or until `abort`; after that every method does nothing. It never reads a socket (that is
`upstream_connection`), never decides where to send or whether to try again elsewhere.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Protocol

from forebay.http.message import ResponseHead

if TYPE_CHECKING:
    from forebay.http.client import Upstream
    from forebay.http.upstream_connection import UpstreamConnection

__all__ = ["Call", "CallFailure", "Sink"]


@unique
class CallFailure(Enum):
    """Why a call did not end with a whole answer."""

    CONNECT = "connect"
    """No connection could be made: nothing was sent."""
    CONNECT_TIMEOUT = "connect_timeout"
    """The same, for want of an answer in `connect_timeout_s`."""
    CLOSED_BEFORE_ANSWER = "closed_before_answer"
    """The connection ended after the request was sent, and before the head of an answer was complete."""
    CLOSED_IN_BODY = "closed_in_body"
    """The connection ended before the end of the body."""
    MALFORMED = "malformed"
    """What came is not HTTP/1.1, or not framed so that its end is certain."""


class Sink(Protocol):
    """Receives one answer. Called from the event loop, never from inside `Upstream.send`.

    Exactly one of `on_end` and `on_failure` is called, once, as the last call; none after `Call.abort`.
    """

    def on_head(self, head: ResponseHead) -> None:
        """The final head. Interim answers (1xx) are skipped."""

    def on_data(self, data: bytes) -> None:
        """A piece of the body, never empty: all that one socket read brought, without chunk framing."""

    def on_end(self) -> None:
        """The body is complete."""

    def on_failure(self, kind: CallFailure, detail: str) -> None:
        """There will be no (more of an) answer. `detail` is for the log."""


class Call:
    """One attempt. Made by `Upstream.send`."""

    __slots__ = (
        "_upstream",
        "answers_no_body",
        "body",
        "connection",
        "framed",
        "head",
        "paused",
        "retried",
        "reused",
        "sink",
    )

    def __init__(self, upstream: Upstream, head: bytes, body: bytes, sink: Sink) -> None:
        self._upstream: Upstream | None = upstream
        self.head = head
        """The request as sent, kept until the first byte of the answer, in case it must be sent again."""
        self.body = body
        self.sink = sink
        self.answers_no_body = head.startswith(b"HEAD ")
        self.connection: UpstreamConnection | None = None
        """The connection that carries the call; None while one is being made, and when the call is over."""
        self.reused = False
        """True if the connection had served another call before."""
        self.retried = False
        """True if a reused connection turned out to be closed and the request was sent again on a fresh one."""
        self.paused = False
        self.framed = b""
        """The chunk in which the data of `on_data` came, if it was one and nothing else: good to be sent on as it
        is."""

    @property
    def over(self) -> bool:
        """True after `on_end`, `on_failure` or `abort`."""
        return self._upstream is None

    def pause(self) -> None:
        """Stops reading from the engine. What one read has already brought may still be delivered."""
        if self._upstream is not None and not self.paused:
            self.paused = True
            if self.connection is not None:
                self.connection.pause_reading()

    def resume(self) -> None:
        """Reads on after `pause`."""
        if self._upstream is not None and self.paused:
            self.paused = False
            if self.connection is not None:
                self.connection.resume_reading()

    def abort(self) -> None:
        """Gives the call up: its socket is closed at once, which is how an engine learns to stop.

        The sink is not called again. May be called inside a sink's method.
        """
        upstream = self._upstream
        if upstream is not None:
            connection = self.connection
            self.close()
            upstream.call_aborted(self, connection)

    # --- Called by the upstream and its connections ---------------------------------------------------

    def close(self) -> None:
        """Marks the call as over and lets go of everything it holds."""
        self._upstream = None
        self.connection = None
        self.head = self.body = b""

    def finish(self) -> None:
        """The answer is complete."""
        upstream = self._upstream
        if upstream is not None:
            self.close()
            upstream.call_over()
            self.sink.on_end()

    def fail(self, kind: CallFailure, detail: str) -> None:
        """The answer will not be completed."""
        upstream = self._upstream
        if upstream is not None:
            self.close()
            upstream.call_over()
            self.sink.on_failure(kind, detail)
