"""One connection to an engine: bytes to answers, one call after another.

For: `client`, whose pool makes it and takes it back when an answer ends cleanly. It owns the socket, and the bytes
of a head not yet complete (at most `HEAD_BYTES`). Never opens a connection, never keeps a body: what a read
brings is given to the call's sink before the next read. Never decides about a retry: it tells the pool what it
lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from forebay.http.call import Call, CallFailure
from forebay.http.chunked import BadChunk, ChunkedDecoder
from forebay.http.head import HeadRefused
from forebay.http.message import ResponseHead

if TYPE_CHECKING:
    from forebay.http.client import Upstream

__all__ = ["HEAD_BYTES", "UpstreamConnection"]

HEAD_BYTES: Final = 65536
"""Longest head of an answer."""
HEAD_FIELDS: Final = 256
"""Most field lines in it: engines are trusted a little further than clients."""
_JOINED_BYTES: Final = 16384
_INTERIM_MAX: Final = 16
"""Most 1xx answers before a final one: an engine that sends them for ever is not answering."""

_IDLE: Final = 0
_HEAD: Final = 1
_LENGTH: Final = 2
_CHUNKED: Final = 3
_TO_END: Final = 4
_DEAD: Final = 5
"""What the next byte is: unasked for, part of a head, part of a body framed in one of three ways, or nothing."""


class UpstreamConnection(asyncio.Protocol):
    """The protocol of one socket to an engine."""

    __slots__ = (
        "_call",
        "_decoder",
        "_input",
        "_interim_count",
        "_keep_alive",
        "_left_bytes",
        "_state",
        "_transport",
        "_upstream",
        "idle_since_s",
        "reading_paused",
        "served",
        "taken_s",
    )

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._state = _IDLE
        self._input = b""
        self._decoder: ChunkedDecoder | None = None
        self._left_bytes = 0
        self._keep_alive = False
        self._interim_count = 0
        self.reading_paused = False
        self.idle_since_s = 0.0
        """Loop time at which its last answer ended."""
        self.taken_s = 0.0
        """Loop time at which it was last used again."""
        self.served = 0
        """Answers that ended on it."""

    # --- Called by the pool and by its call -----------------------------------------------------------

    @property
    def usable(self) -> bool:
        """True if a call may be sent on it."""
        transport = self._transport
        return self._state == _IDLE and transport is not None and not transport.is_closing()

    @property
    def has_unsent(self) -> bool:
        """True if some of the request has not left this process: the engine cannot have read all of it."""
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() > 0

    def carry(self, call: Call) -> None:
        """Sends a call's request and reads its answer. Only on a usable connection."""
        transport = self._transport
        if transport is None:
            return
        self._call = call
        call.connection = self
        call.reused = self.served > 0
        self._state = _HEAD
        self._interim_count = 0
        head, body = call.head, call.body
        if not body:
            transport.write(head)
        elif len(body) <= _JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        if call.paused:
            self.pause_reading()

    def pause_reading(self) -> None:
        """Lets the kernel's buffer fill, which slows the engine down."""
        if self._transport is not None and not self.reading_paused and self._state != _DEAD:
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads on."""
        if self._transport is not None and self.reading_paused and self._state != _DEAD:
            self.reading_paused = False
            self._transport.resume_reading()

    def drop(self) -> None:
        """Closes the socket at once, whatever is unsent or unread. Tells nobody."""
        self._call = None
        self._state = _DEAD
        self._input = b""
        self._decoder = None
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """As `drop`, and the call on it fails."""
        call = self._call
        in_head = self._state == _HEAD
        self.drop()
        if call is not None:
            kind = CallFailure.CLOSED_BEFORE_ANSWER if in_head else CallFailure.CLOSED_IN_BODY
            call.fail(kind, "the pool was closed")

    # --- Called by the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._upstream.connection_opened(self)
        if self._state == _DEAD:
            # The call was given up in the moment in which the connection came to be.
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        state = self._state
        call = self._call
        if call is None:
            # Bytes that nobody asked for: a server that times out says 408 into an idle connection.
            if state == _IDLE:
                self._upstream.connection_useless(self)
                self._end()
        elif state == _CHUNKED:
            self._chunked_data(call, data)
        elif state == _HEAD:
            self._head_data(call, data)
        elif state == _LENGTH:
            self._length_data(call, data)
        elif state == _TO_END:
            call.sink.on_data(data)

    def eof_received(self) -> None:
        # Returning None closes our side as well.
        self._lose("closed by the engine", clean=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc is not None else "closed", clean=exc is None)
        self._transport = None
        self._upstream.connection_closed(self)

    # --- The answer -----------------------------------------------------------------------------------

    def _head_data(self, call: Call, data: bytes) -> None:
        if self._input:
            data = self._input + data
        else:
            # An answer has begun: from here on the request is not sent again.
            call.head = call.body = b""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._input = data
            if len(data) > HEAD_BYTES:
                self._fail(call, CallFailure.MALFORMED, f"the head is longer than {HEAD_BYTES} bytes")
            elif not data.startswith(b"HTTP/1."[: len(data)]):
                self._fail(call, CallFailure.MALFORMED, "what came back is not HTTP/1.1")
            elif data.find(b"\n\n") >= 0:
                self._fail(call, CallFailure.MALFORMED, "the head has bare line feeds")
            return
        size = end + 4
        if size > HEAD_BYTES:
            self._fail(call, CallFailure.MALFORMED, f"the head is longer than {HEAD_BYTES} bytes")
            return
        try:
            head = self._upstream.heads.find(data) or self._upstream.heads.read(data[:size], HEAD_FIELDS)
        except HeadRefused as error:
            self._fail(call, CallFailure.MALFORMED, str(error))
            return
        rest = data[size:]
        self._input = b""
        if head.status < 200:
            self._skip_interim(call, head, rest)
            return
        self._begin_body(call, head)
        call.sink.on_head(head)
        # The sink may have aborted the call.
        if self._call is not call:
            return
        if rest:
            self.data_received(rest)
        elif self._state == _LENGTH and not self._left_bytes:
            self._complete(call)

    def _skip_interim(self, call: Call, head: ResponseHead, rest: bytes) -> None:
        self._interim_count += 1
        if head.status == 101 or self._interim_count > _INTERIM_MAX:
            self._fail(call, CallFailure.MALFORMED, f"unasked-for or endless {head.status} answers")
        elif rest:
            self._head_data(call, rest)

    def _begin_body(self, call: Call, head: ResponseHead) -> None:
        self._keep_alive = head.keep_alive
        if call.answers_no_body or head.status in (204, 304):
            self._state = _LENGTH
            self._left_bytes = 0
        elif head.chunked:
            self._state = _CHUNKED
            self._decoder = ChunkedDecoder()
        elif head.content_length is not None:
            self._state = _LENGTH
            self._left_bytes = head.content_length
        else:
            self._state = _TO_END
            self._keep_alive = False

    def _chunked_data(self, call: Call, data: bytes) -> None:
        decoder = self._decoder
        if decoder is None:
            return
        try:
            payload = decoder.feed(data)
        except BadChunk as error:
            self._fail(call, CallFailure.MALFORMED, str(error))
            return
        if payload:
            call.framed = data if decoder.one_chunk else b""
            call.sink.on_data(payload)
        if decoder.done and self._call is call:
            if decoder.rest:
                self._keep_alive = False
            self._complete(call)

    def _length_data(self, call: Call, data: bytes) -> None:
        left = self._left_bytes
        if len(data) > left:
            # More than was announced: what follows cannot belong to anybody.
            self._keep_alive = False
            data = data[:left]
        self._left_bytes = left - len(data)
        if data:
            call.sink.on_data(data)
        if not self._left_bytes and self._call is call:
            self._complete(call)

    # --- Ends -----------------------------------------------------------------------------------------

    def _complete(self, call: Call) -> None:
        """The answer is whole: the connection goes back to the pool, or is closed."""
        self._call = None
        self._decoder = None
        self.served += 1
        self.resume_reading()
        transport = self._transport
        # An answer that came before the request was wholly sent leaves a connection in mid-request.
        if self._keep_alive and transport is not None and not transport.get_write_buffer_size():
            self._state = _IDLE
            self._upstream.connection_free(self)
        else:
            self._end()
        call.finish()

    def _fail(self, call: Call, kind: CallFailure, detail: str) -> None:
        self.drop()
        call.fail(kind, detail)

    def _end(self) -> None:
        """Closes the connection; no call is on it."""
        self._state = _DEAD
        self._input = b""
        if self._transport is not None:
            self._transport.close()

    def _lose(self, detail: str, *, clean: bool) -> None:
        """The engine closed the connection."""
        call, state = self._call, self._state
        self._call = None
        self._state = _DEAD
        self._decoder = None
        if call is None:
            if state == _IDLE:
                self._upstream.connection_useless(self)
        elif state == _TO_END and clean:
            self.served += 1
            call.finish()
        elif state == _HEAD:
            if not call.head or not self._upstream.retry(call, self):
                call.fail(CallFailure.CLOSED_BEFORE_ANSWER, detail)
        else:
            call.fail(CallFailure.CLOSED_IN_BODY, detail)
