"""One request and its answer on a connection from a client: what the layer above works with.

For: the owner of a request (the gateway, the emulator, the admin API). An exchange lives from `on_request` until
its answer is finished or the client has left; after that every call on it does nothing, so an owner that is late
by a callback needs no guard. It encodes the answer and writes it; it never reads from the socket (that is
`connection`), never decides what to answer.

After `on_request` the owner must, exactly once, either `respond`, or `start` then `finish`, or `abort`. Until
then the connection waits; further requests of the client wait behind this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from forebay.http.body import BodyFailure
from forebay.http.chunked import LAST_CHUNK
from forebay.http.message import STATUS_LINES, Headers, RequestHead, encode_headers, status_line

if TYPE_CHECKING:
    from forebay.http.connection import ServerConnection

__all__ = ["BodyFailure", "Exchange"]

_TELLS_WHO: Final = re.compile(rb"access-control-(?:allow-origin|expose-headers):", re.IGNORECASE)


class Exchange:
    """One request and its answer.

    Callbacks are set by the owner; all are optional, and none is repeated except `on_drain_change`.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_events_promised",
        "_held_head",
        "_keep",
        "_left_bytes",
        "_mute",
        "_started",
        "cors",
        "head",
        "on_disconnect",
        "on_drain_change",
        "on_slow_reader",
        "peer",
    )

    def __init__(self, connection: ServerConnection, head: RequestHead, peer: tuple[str, int] | None) -> None:
        self.head = head
        self.peer = peer
        """Address and port of the client; None if the socket has none."""
        self.cors = b""
        """Lines of the answer's head that tell a browser who may read it, in place of those that are in it; set before
        the answer."""
        self.on_disconnect: Callable[[], None] | None = None
        """The client went away (FIN or RST) before the answer was finished. The exchange is over by then.
        A client that half-closes its connection while it waits counts as gone."""
        self.on_drain_change: Callable[[bool], None] | None = None
        """True: more than `write_buffer_bytes` are unsent, stop writing. False: go on."""
        self.on_slow_reader: Callable[[], None] | None = None
        """Unsent bytes are waiting and the client took none for `write_timeout_s`. The owner is expected to
        `abort`. Without this callback, or if the owner lets another such time pass, the connection is cut
        and `on_disconnect` follows."""
        self._connection: ServerConnection | None = connection
        self._held_head = b""
        self._started = False
        self._events_promised = False
        self._chunked = False
        self._mute = False
        self._keep = False
        self._left_bytes: int | None = None

    @property
    def address(self) -> str | None:
        """The client's address, without the port."""
        return None if self.peer is None else self.peer[0]

    @property
    def started(self) -> bool:
        """True once a head was sent: the status can no longer be chosen."""
        return self._started

    @property
    def over(self) -> bool:
        """True once the answer is finished, the exchange aborted, or the client gone."""
        return self._connection is None

    @property
    def write_paused(self) -> bool:
        """True while the last `on_drain_change` said, or would have said, True."""
        connection = self._connection
        return connection is not None and connection.write_paused

    # --- The request ----------------------------------------------------------------------------------

    def read_body(
        self,
        limit_bytes: int,
        on_body: Callable[[bytes], None],
        on_failure: Callable[[BodyFailure], None],
        keep: Callable[[int], bool] | None = None,
    ) -> None:
        """Reads the whole body, decoded. May be called once.

        At most one of the callbacks is called, once, perhaps before this returns (always so if there is no body,
        if it has already arrived, or if it is declared longer than `limit_bytes`).

        `100 Continue` is sent first if the client waits for it and nothing of the body has come. Neither
        callback is called after the client has left (`on_disconnect` tells) or the exchange is over. After a
        failure the owner still has to answer; that answer closes the connection.

        Args:
            keep: Asked with the size of each piece that is to be kept while the rest is awaited; False ends the
                reading with NO_ROOM. Not asked about a body that has arrived whole.
        """
        if self._connection is not None:
            self._connection.read_body(limit_bytes, on_body, on_failure, keep)

    # --- The answer -----------------------------------------------------------------------------------

    def respond(self, status: int, headers: Headers | bytes, body: bytes, *, close: bool = False) -> None:
        """Sends the whole answer and ends the exchange.

        `content-length`, `connection` and `date` are added here and must not be in `headers`. If the request
        body was not read, the connection is closed after the answer, unless at most `drain_bytes` of it
        remain (read and dropped) or the client still waits for `100 Continue` (none is sent). An answer to
        HEAD declares the length of `body` and sends none of it.

        Args:
            headers: Fields, or the lines that `encode_headers` made of them.
            close: Close the connection afterwards in any case.

        Raises:
            ValueError: a header holds a line break or NUL; nothing was sent.
            RuntimeError: `start` was called before.
        """
        connection = self._connection
        if connection is None:
            return
        if self._started:
            if self._events_promised:
                self._respond_in_events(status, body)
                return
            raise RuntimeError("the answer has already been started; use write and finish")
        block = headers if isinstance(headers, bytes) else encode_headers(headers)
        if self.cors:
            block = _with_cors(block, self.cors)
        keep = connection.settle_body(close)
        line = STATUS_LINES.get(status) or status_line(status)
        tail = connection.head_tail(keep)
        if status in (204, 304):
            out = b"%b%b%b" % (line, block, tail)
        else:
            sent_body = body if self.head.method != b"HEAD" else b""
            out = b"%b%bcontent-length: %d\r\n%b%b" % (line, block, len(body), tail, sent_body)
        connection.write(out)
        self._over()
        connection.exchange_over(keep)

    def start(self, status: int, headers: Headers | bytes, *, content_length: int | None) -> None:
        """Sends the head of an answer whose body follows by `write`.

        It goes out together with what is written in the same round of the event loop, or else by itself.

        Args:
            headers: As for `respond`.
            content_length: None if it is not known: chunked to HTTP/1.1 clients, ended by closing to 1.0.

        Raises: as `respond`.
        """
        connection = self._connection
        if connection is None:
            return
        if self._started:
            if self._events_promised:
                return
            raise RuntimeError("the answer has already been started")
        block = headers if isinstance(headers, bytes) else encode_headers(headers)
        if self.cors:
            block = _with_cors(block, self.cors)
        head = self.head
        self._mute = head.method == b"HEAD" or status in (204, 304)
        framing = b""
        to_the_end = False
        if status in (204, 304):
            pass
        elif content_length is not None:
            framing = b"content-length: %d\r\n" % content_length
            self._left_bytes = content_length
        elif head.http_minor:
            framing = b"transfer-encoding: chunked\r\n"
            self._chunked = not self._mute
        else:
            to_the_end = not self._mute
        self._keep = connection.settle_body(to_the_end)
        self._started = True
        line = STATUS_LINES.get(status) or status_line(status)
        self._held_head = b"%b%b%b%b" % (line, block, framing, connection.head_tail(self._keep))
        connection.soon(self._send_head)

    def begin_events(self, headers: Headers) -> None:
        """Starts an answer of server-sent events (200) before it is known what it will be.

        A head that is started later is not sent. What is responded later becomes the last event, and if its status is
        an error the connection is closed behind it without ending the answer.
        """
        self.start(200, headers, content_length=None)
        self._events_promised = True

    def _respond_in_events(self, status: int, body: bytes) -> None:
        self.write(b"data: %b\n\n" % body.replace(b"\r", b"").strip().replace(b"\n", b"\ndata: "))
        if status < 400:
            self.finish()
        else:
            self.abort()

    def write(self, data: bytes, framed: bytes = b"") -> None:
        """Sends a piece of the body, as one chunk where the answer is chunked. Empty pieces are nothing.

        Args:
            framed: The same as one chunk, if there is such a thing already.

        Raises:
            RuntimeError: the answer was not started.
            ValueError: more bytes than `content_length` said.
        """
        connection = self._connection
        if not data or connection is None:
            return
        if self._chunked:
            chunk = framed or b"%x\r\n%b\r\n" % (len(data), data)
            if self._held_head:
                chunk = self._held_head + chunk
                self._held_head = b""
            connection.write(chunk)
        else:
            self._write_plain(connection, data)

    def _write_plain(self, connection: ServerConnection, data: bytes) -> None:
        if not self._started:
            raise RuntimeError("the answer has not been started")
        if self._mute:
            return
        if self._left_bytes is not None:
            if len(data) > self._left_bytes:
                raise ValueError("more body bytes than content-length said")
            self._left_bytes -= len(data)
        if self._held_head:
            data = self._held_head + data
            self._held_head = b""
        connection.write(data)

    def _send_head(self) -> None:
        connection = self._connection
        if self._held_head and connection is not None:
            connection.write(self._held_head)
            self._held_head = b""

    def write_many(self, pieces: Sequence[bytes]) -> None:
        """As `write` of the joined pieces: one chunk, one buffer."""
        self.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def finish(self) -> None:
        """Ends the answer cleanly.

        If fewer bytes than `content_length` were written it is cut as by `abort`: the client would wait for the
        rest.
        """
        connection = self._connection
        if connection is None:
            return
        if not self._started:
            raise RuntimeError("the answer has not been started")
        if self._left_bytes and not self._mute:
            self.abort()
            return
        if self._held_head or self._chunked:
            connection.write(self._held_head + LAST_CHUNK if self._chunked else self._held_head)
        self._over()
        connection.exchange_over(self._keep)

    def abort(self) -> None:
        """Closes the connection without ending the answer, so that the client can tell.

        What was written before still goes out, if the client takes it within `linger_s`. `on_disconnect` does
        not follow.
        """
        connection = self._connection
        if connection is not None:
            self._send_head()
            self._over()
            connection.cut()

    # --- From the connection --------------------------------------------------------------------------

    def client_left(self) -> None:
        """Called by the connection only: the client is gone."""
        callback = self.on_disconnect
        self._over()
        if callback is not None:
            callback()

    def _over(self) -> None:
        self._connection = None
        # The callbacks usually hold the owner, and the owner this exchange: no cycles for the collector.
        self.on_disconnect = self.on_drain_change = self.on_slow_reader = None


def _with_cors(block: bytes, lines: bytes) -> bytes:
    if block.lower().find(b"access-control-allow-origin:") >= 0:
        kept = [line for line in block.split(b"\r\n")[:-1] if not _TELLS_WHO.match(line)]
        block = b"".join([line + b"\r\n" for line in kept])
    return block + lines
