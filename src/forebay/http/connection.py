"""One connection from a client: bytes to exchanges, in order, within bounds.

For: `server`, which makes one per accepted socket. It owns the socket until `connection_lost`, and the bytes read
and not yet used (at most one socket read beyond `read_ahead_bytes`). One exchange at a time; pipelined requests
wait as bytes, and wait longer while the client leaves answers unread: what it does not take must stay bounded.

Its states, and what a byte from the client means in each, are in `connection_state`.

Reading stays on in every state but CLOSING, so that a client that leaves is noticed while its request waits; it
pauses only while `read_ahead_bytes` are exceeded. Time is the server's sweep (`on_sweep`): no timer per connection.
Never interprets a request, never answers by itself except to broken or slow heads, whose body the handler shapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, cast

from forebay.http.body import BodyFailure, RequestBody
from forebay.http.connection_state import BODY, CLOSED, CLOSING, DRAIN, HEAD, HELD, LINGER
from forebay.http.exchange import Exchange
from forebay.http.head import METHOD_BYTES, HeadRefused, is_past_mending, may_begin_request
from forebay.http.repeated import request_heads
from forebay.http.serving import Serving
from forebay.http.slow_reader import SlowReaderWatch

__all__ = ["ServerConnection"]

_HEAD_END: Final = b"\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_NO_TRANSPORT: Final = asyncio.Transport()  # stands in before `connection_made`, so that no method has to ask


class ServerConnection(asyncio.Protocol):
    """The protocol of one accepted socket. Three parties call it: the event loop, the server, its exchange."""

    __slots__ = (
        "_advancing",
        "_body",
        "_deadline",
        "_dropped_bytes",
        "_exchange",
        "_head_begun",
        "_heads",
        "_input",
        "_peer",
        "_reader",
        "_reading_paused",
        "_ready_bytes",
        "_scanned",
        "_serving",
        "_slow_reported",
        "_state",
        "_transport",
        "_withheld",
        "write_paused",
    )

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._transport: asyncio.Transport = _NO_TRANSPORT
        self._peer: tuple[str, int] | None = None
        self._state = HEAD
        self._deadline = inf
        self._exchange: Exchange | None = None
        self._body: RequestBody | None = None
        """The body of the current request, until it is wholly read or dropped."""
        self._ready_bytes = 0
        """Length of a body that came whole with its head and lies at the front of the input; it needs no
        `RequestBody`. Such is the body of nearly every request."""
        self._withheld = False
        """An answered client waits for `100 Continue`: the body never comes, or comes where a head should."""
        self._input = b""
        self._scanned = 0
        self._head_begun = False
        self._heads = request_heads()
        self._advancing = False
        self._reading_paused = False
        self._dropped_bytes = 0
        self._reader = SlowReaderWatch()
        self._slow_reported = False
        self.write_paused = False

    # --- Called by the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        serving = self._serving
        self._transport = cast(asyncio.Transport, transport)
        if serving.closing or not serving.has_room():
            self._state = CLOSED
            self._transport.abort()
            return
        serving.connections.add(self)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._peer = (peer[0], peer[1])
        self._transport.set_write_buffer_limits(high=serving.limits.write_buffer_bytes)
        self._wait(serving.limits.keep_alive_s)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == HEAD:
            self._input = self._input + data if self._input else data
            self._advance()
        elif state == BODY:
            self._feed_body(data)
        elif state == HELD:
            self._input = self._input + data if self._input else data
            self._bound_read_ahead()
        elif state == DRAIN:
            self._drain(data)
            self._advance()
        elif state == LINGER:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > self._serving.limits.linger_bytes:
                self._close()

    def eof_received(self) -> None:
        # A half-close cannot be told from a close. Returning None closes our side too, after what is unsent.
        self._lose_client()
        self._state = CLOSING
        self._deadline = inf

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose_client()
        self._state = CLOSED
        self._deadline = inf
        self._input = b""
        self._serving.lost(self)

    def pause_writing(self) -> None:
        self._tell_drain_change(True)

    def resume_writing(self) -> None:
        self._tell_drain_change(False)
        self._advance()

    # --- Called by the server -------------------------------------------------------------------------

    def on_sweep(self, now: float) -> None:
        """Looks at two clocks: of what is awaited from the client, and of what it should be taking."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if self._reader.is_stuck(now, unsent_bytes, self._serving.limits.write_timeout_s):
            self._report_slow_reader()
        if self._deadline <= now:
            self._deadline = inf
            self._expire()

    def close_idle(self) -> bool:
        """Closes the connection if no request is with an owner and nothing of one has come; True if it did."""
        idle = self._state == HEAD and not self._input
        if idle:
            self._close()
        return idle

    @property
    def idle_until_s(self) -> float:
        """When it is closed if nothing comes; never while there is something of an answer that its client may take."""
        at_rest = self._state == HEAD and not self._transport.get_write_buffer_size()
        return self._deadline if at_rest else inf

    def may_give_way(self) -> bool:
        """True if it is of no use to a request: idle, or with one that its client keeps back by not reading."""
        state = self._state
        return (state == HEAD and not self._head_begun) or state == CLOSING

    def give_way(self) -> None:
        """Ends the connection: a request that is not complete is answered as if its time were over.

        An answer that is not taken by the next round is lost: who does not read must not hold on to its place.
        """
        self._expire()
        self.soon(self.drop)

    def drop(self) -> None:
        """Closes at once; what is unsent is lost."""
        self._transport.abort()

    # --- Called by the exchange -----------------------------------------------------------------------

    def read_body(
        self,
        limit_bytes: int,
        on_body: Callable[[bytes], None],
        on_failure: Callable[[BodyFailure], None],
        keep: Callable[[int], bool] | None = None,
    ) -> None:
        """See `Exchange.read_body`."""
        body, data = self._body, self._input
        if body is None:
            ready_bytes = self._ready_bytes
            if ready_bytes > limit_bytes:
                on_failure(BodyFailure.TOO_LARGE)
                return
            self._ready_bytes = 0
            self._input = data[ready_bytes:]
            on_body(data[:ready_bytes])
            return
        if body.left_bytes > limit_bytes:
            body.failed = True
            on_failure(BodyFailure.TOO_LARGE)
            return
        limits = self._serving.limits
        self._serving.unfinished[self] = None
        body.want(limit_bytes, on_body, on_failure, keep)
        body.end_by = self._serving.now + limits.body_total_s
        if body.expected and not data:
            self.write(_CONTINUE)
        body.expected = False
        self._state = BODY
        self._wait(limits.body_timeout_s)
        self._input = b""
        self._bound_read_ahead()
        if data:
            self._feed_body(data)

    def write(self, data: bytes) -> None:
        """Sends bytes of an answer, already framed."""
        self._reader.written_bytes += len(data)
        self._transport.write(data)

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls back in the next round of the event loop."""
        self._serving.call_soon(callback)

    def head_tail(self, keep: bool) -> bytes:
        """The last lines of an answer's head."""
        if not keep:
            return self._serving.close_tail
        exchange = self._exchange
        if exchange is None or exchange.head.http_minor:
            return self._serving.keep_tail
        return self._serving.keep_tail_old

    def settle_body(self, close: bool) -> bool:
        """Decides, before the head of an answer is sent, whether the connection lives on after it.

        An unread body decides: it must be short enough to be dropped, or known not to come (the client waits
        for `100 Continue`); otherwise its bytes would be taken for the next request.
        """
        exchange = self._exchange
        if close or self._serving.closing or exchange is None or not exchange.head.keep_alive:
            return False
        body = self._body
        if body is None:
            if self._ready_bytes:
                self._input = self._input[self._ready_bytes :]
                self._ready_bytes = 0
            return True
        if body.failed:
            return False
        if body.expected and not self._input:
            self._withheld = True
            return True
        if not body.chunked:
            return body.left_bytes - len(self._input) <= self._serving.limits.drain_bytes
        if self._state == HELD:
            self._drop_body(body, self._input)
        return body.done

    def exchange_over(self, keep: bool) -> None:
        """The answer is complete; `keep` is what `settle_body` said."""
        self._exchange = None
        self._slow_reported = False
        if not keep:
            self._hang_up()
            return
        limits = self._serving.limits
        if self._withheld:
            self._body = None
        if self._body is None:
            self._state = HEAD
            self._wait(limits.keep_alive_s)
        else:
            self._body.forget()
            self._serving.unfinished.pop(self, None)
            self._state = DRAIN
            self._wait(limits.drain_s)
            self._drain(self._input)
        if self._input:
            self._advance()
        elif self._reading_paused:
            self._bound_read_ahead()

    def cut(self) -> None:
        """Closes without ending an answer: what is unsent has `linger_s` to go out."""
        self._exchange = None
        self._close()
        self._wait(self._serving.limits.linger_s)

    # --- Heads ----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Takes requests from the input until one is with its owner.

        Owners may answer inside `on_request`: the loop goes on here instead of recursing through `exchange_over`.
        """
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._state == HEAD and self._input and not self.write_paused and self._next_request():
                pass
        finally:
            self._advancing = False
        self._bound_read_ahead()

    def _next_request(self) -> bool:
        """Hands one request to the handler. False if the head is not complete, or refused."""
        data = self._input
        if data[0] <= 32:
            # Empty lines before a request line are ignored (RFC 9112, 2.2).
            data = self._input = data.lstrip(b"\r\n")
            if not data:
                return False
        if self._withheld and not self._begins_head(data):
            return False
        limits = self._serving.limits
        end = data.find(_HEAD_END, self._scanned)
        size = end + 4
        if end < 0 or size > limits.head_bytes:
            self._await_head(data[: limits.head_bytes])
            return False
        try:
            head = self._heads.find(data) or self._heads.read(data[:size], limits.head_fields)
        except HeadRefused as error:
            self._refuse(error.status, str(error))
            return False
        self._input = data[size:]
        self._scanned = 0
        if self._head_begun:
            self._head_begun = False
            self._serving.unfinished.pop(self, None)
        self._deadline = inf
        self._state = HELD
        length = head.content_length
        if head.chunked or (length and length > len(self._input)):
            self._body = RequestBody(head)
        elif length:
            self._ready_bytes = length
        exchange = self._exchange = Exchange(self, head, self._peer)
        self._serving.handler.on_request(exchange)
        return True

    def _await_head(self, data: bytes) -> None:
        """Waits for the rest of a head, unless no further byte can mend it.

        Args:
            data: What there is of it, cut at the bound.
        """
        head_bytes = self._serving.limits.head_bytes
        if is_past_mending(data, self._scanned):
            self._refuse(400, "malformed HTTP: no method, a bare line feed or NUL in the request head")
            return
        if len(data) >= head_bytes:
            self._refuse(431, f"the request head is longer than {head_bytes} bytes")
            return
        if not self._head_begun:
            self._head_begun = True
            self._serving.unfinished[self] = None
            self._wait(self._serving.limits.head_timeout_s)
        self._scanned = max(0, len(data) - 3)

    def _begins_head(self, data: bytes) -> bool:
        """After a client waiting for `100 Continue` was answered: its next request, or the body after all?

        For a body there is no answer any more, so the connection ends.
        """
        if may_begin_request(data):
            self._withheld = b" " not in data[:METHOD_BYTES]
            return True
        self._withheld = False
        self._hang_up()
        return False

    def _refuse(self, status: int, message: str) -> None:
        """Answers a head that never became a request, and closes."""
        self.write(self._serving.early_answer(status, message))
        self._hang_up()

    def _bound_read_ahead(self) -> None:
        """Stops reading while more than the bound lies unused, and only then."""
        held = self._state == HELD or (self._state == HEAD and self.write_paused)
        if held and len(self._input) > self._serving.limits.read_ahead_bytes:
            if not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()
        elif self._reading_paused and self._state < CLOSING:
            self._reading_paused = False
            self._transport.resume_reading()

    # --- Bodies ---------------------------------------------------------------------------------------

    def _feed_body(self, data: bytes) -> None:
        body = self._body
        if body is None:
            return
        failure = body.feed(data)
        if failure is not None:
            self._hold()
            body.fail(failure)
        elif body.done:
            self._hold()
            self._body = None
            self._input = body.rest
            body.deliver()
            self._bound_read_ahead()
        else:
            self._wait(self._serving.limits.body_timeout_s)
            self._deadline = min(self._deadline, body.end_by)

    def _hold(self) -> None:
        """Nothing more of the body is awaited."""
        self._state = HELD
        self._deadline = inf
        self._serving.unfinished.pop(self, None)

    def _drain(self, data: bytes) -> None:
        """Drops the unread rest of a body that has been answered."""
        body = self._body
        if body is not None:
            self._drop_body(body, data)
        if self._body is None:
            self._state = HEAD
            self._wait(self._serving.limits.keep_alive_s)

    def _drop_body(self, body: RequestBody, data: bytes) -> None:
        body.drop(data)
        self._input = body.rest
        if body.done:
            self._body = None

    # --- Ends -----------------------------------------------------------------------------------------

    def _wait(self, timeout_s: float) -> None:
        # The shared clock is up to a sweep old: adding one lets nothing expire early.
        serving = self._serving
        self._deadline = serving.now + timeout_s + serving.sweep_s

    def _expire(self) -> None:
        state = self._state
        if state == HEAD and self._head_begun:
            self._refuse(408, "the request head was not complete in time")
        elif state == BODY and self._body is not None:
            self._hold()
            self._body.fail(BodyFailure.TIMEOUT)
        elif state == CLOSING:
            self._transport.abort()
        elif state == DRAIN:
            self._hang_up()
        else:
            self._close()

    def _report_slow_reader(self) -> None:
        exchange = self._exchange
        if exchange is None or exchange.on_slow_reader is None or self._slow_reported:
            self._transport.abort()
        else:
            self._slow_reported = True
            exchange.on_slow_reader()

    def _tell_drain_change(self, paused: bool) -> None:
        self.write_paused = paused
        exchange = self._exchange
        if exchange is not None and exchange.on_drain_change is not None:
            exchange.on_drain_change(paused)

    def _hang_up(self) -> None:
        # If the client may still be sending, our side is closed first and its bytes are dropped for a while: to close
        # with unread input makes the kernel send a reset, which can overtake the answer. TLS sees to that itself.
        at_rest = self._state == HELD and self._body is None and not self._input
        if at_rest or not self._transport.can_write_eof():
            self._close()
            return
        if self._body is not None:
            self._body.forget()
        self._state = LINGER
        self._dropped_bytes, self._input = len(self._input), b""
        self._wait(self._serving.limits.linger_s)
        self._bound_read_ahead()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def _close(self) -> None:
        self._state = CLOSING
        self._deadline = inf
        self._input = b""
        self._transport.close()

    def _lose_client(self) -> None:
        exchange, self._exchange = self._exchange, None
        if self._body is not None:
            self._body.forget()
        if exchange is not None:
            exchange.client_left()
