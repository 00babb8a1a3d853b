"""The body of one request: how much of it is left, and what was read of it.

For: `connection`, which makes one per request that has a body and feeds it what the socket gives. It owns the
bytes read so far (at most the owner's limit) until they are taken. Never touches the socket, never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, unique

from forebay.http.chunked import BadChunk, ChunkedDecoder
from forebay.http.message import RequestHead

__all__ = ["BodyFailure", "RequestBody"]


@unique
class BodyFailure(Enum):
    """Why a request body could not be had."""

    TOO_LARGE = "too_large"
    """Longer than the limit given to `read_body`: known from Content-Length at once, or found on the way."""
    TIMEOUT = "timeout"
    """No byte for `body_timeout_s`, or not complete in `body_total_s`."""
    MALFORMED = "malformed"
    """The chunked coding is broken."""
    NO_ROOM = "no_room"
    """The owner would not keep another piece."""


class RequestBody:
    """Reads, or drops, exactly one body out of a stream of pieces."""

    __slots__ = (
        "_bytes",
        "_decoder",
        "_keep",
        "_limit_bytes",
        "_on_body",
        "_on_failure",
        "done",
        "end_by",
        "expected",
        "failed",
        "left_bytes",
        "rest",
    )

    def __init__(self, head: RequestHead) -> None:
        self.left_bytes = head.content_length or 0
        """Bytes still to come. Of no meaning for a chunked body."""
        self._decoder = ChunkedDecoder() if head.chunked else None
        self._bytes = bytearray()
        self.done = False
        """True once the last byte was read or dropped."""
        self.failed = False
        """True once the end of the body can no longer be found, or it is not wanted."""
        self.rest = b""
        """When done: what followed the body in the same piece."""
        self.expected = head.expects_continue
        """True while the client waits for `100 Continue`."""
        self.end_by = 0.0
        """Loop time by which it must be complete."""
        self._limit_bytes = 0
        self._keep: Callable[[int], bool] | None = None
        self._on_body: Callable[[bytes], None] | None = None
        self._on_failure: Callable[[BodyFailure], None] | None = None

    @property
    def chunked(self) -> bool:
        """True if only the coding tells where it ends."""
        return self._decoder is not None

    def want(
        self,
        limit_bytes: int,
        on_body: Callable[[bytes], None],
        on_failure: Callable[[BodyFailure], None],
        keep: Callable[[int], bool] | None = None,
    ) -> None:
        """From here on bytes are kept for `on_body`, as long as `keep` agrees to each piece."""
        self._limit_bytes = limit_bytes
        self._keep = keep
        self._on_body = on_body
        self._on_failure = on_failure

    def feed(self, data: bytes) -> BodyFailure | None:
        """Keeps a piece. Returns what is wrong with the body, if anything; check `done` otherwise."""
        decoder = self._decoder
        if decoder is None:
            left = self.left_bytes
            if len(data) >= left:
                self.rest = data[left:]
                data = data[:left]
                self.done = True
            self.left_bytes = left - len(data)
        else:
            try:
                data = decoder.feed(data)
            except BadChunk:
                return BodyFailure.MALFORMED
            if len(self._bytes) + len(data) > self._limit_bytes:
                return BodyFailure.TOO_LARGE
            self.done = decoder.done
            self.rest = decoder.rest
        if self._keep is not None and not self._keep(len(data)):
            return BodyFailure.NO_ROOM
        # A bytearray, not a list of pieces: a piece of two bytes would cost twenty times its size.
        self._bytes += data
        return None

    def drop(self, data: bytes) -> None:
        """Passes over a piece. A broken coding makes the body `failed`."""
        decoder = self._decoder
        if decoder is None:
            left = self.left_bytes
            self.done = len(data) >= left
            self.rest = data[left:]
            self.left_bytes = max(0, left - len(data))
            return
        try:
            decoder.feed(data)
        except BadChunk:
            self.failed = True
            return
        self.done = decoder.done
        self.rest = decoder.rest

    def deliver(self) -> None:
        """The body is done: hands it over."""
        on_body = self._on_body
        body = bytes(self._bytes)
        self.forget()
        if on_body is not None:
            on_body(body)

    def fail(self, failure: BodyFailure) -> None:
        """The body cannot be had: says so, and never reads it again."""
        on_failure = self._on_failure
        self.forget()
        self.failed = True
        if on_failure is not None:
            on_failure(failure)

    def forget(self) -> None:
        """Nobody wants it any more: frees what was read, and calls nobody."""
        self._on_body = self._on_failure = self._keep = None
        self._bytes = bytearray()
