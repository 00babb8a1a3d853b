"""How many bytes of request bodies are in memory: being read, waiting, or with an engine that has not answered.

The core bounds what waits; this bounds it together with what is being read, so that a burst of large uploads cannot
take the process's memory. The body of a request that an engine has is kept until the answer begins, in case that
another must be asked: those may have as much room again, since an engine that takes hundreds and stays silent would
else hold them without bound. Room is taken for bytes that are here: a length that was only announced takes none, or a
handful of slow uploads would keep everybody out. And an eighth of the room is for small bodies alone, so that large
ones which come slowly do not keep out those that nearly everybody sends. Whoever reserves or adds gives back the same
number.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.retry_after import RetryAfter

__all__ = ["GUESSED_WAIT_S", "BodyRoom"]

SMALL_BYTES: Final = 64 * 1024
"""Longer than nearly every chat."""
KEPT_PART: Final = 8
"""One in so many bytes of the room is kept for bodies up to that size."""
GUESSED_WAIT_S: Final = 1.0
"""Until room for bodies comes free: of a request that was not read nothing is known that a prediction could rest on."""


class BodyRoom:
    """The account of one gateway."""

    __slots__ = ("_retry_after", "limit_bytes", "sent_bytes", "taken_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        """Being read, or waiting."""
        self.sent_bytes = 0
        """Sent to an engine, and kept until its answer begins."""
        self._retry_after = RetryAfter(1)

    def left_bytes(self, body_bytes: int) -> int:
        """Room for a further body of this size."""
        limit_bytes = self.limit_bytes
        if body_bytes > SMALL_BYTES:
            limit_bytes -= limit_bytes // KEPT_PART
        left_bytes = limit_bytes - self.taken_bytes
        if self.sent_bytes > self.limit_bytes:
            left_bytes -= self.sent_bytes - self.limit_bytes
        return max(left_bytes, 0)

    def reserve(self, size_bytes: int, body_bytes: int) -> bool:
        """Takes room for a piece of a body, of which so many bytes have come with it; False if there is not enough."""
        if size_bytes > self.left_bytes(body_bytes):
            return False
        self.taken_bytes += size_bytes
        return True

    def add(self, size_bytes: int) -> None:
        """A body that has been read must wait: the core has agreed, so it is counted without asking."""
        self.taken_bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        """Gives room back."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0

    def send(self, size_bytes: int) -> None:
        """A body goes to an engine."""
        self.sent_bytes += size_bytes

    def forget(self, size_bytes: int) -> None:
        """Its answer has begun, or will not come."""
        self.sent_bytes -= size_bytes
        assert self.sent_bytes >= 0

    def promise_s(self) -> float:
        """When somebody who found no room may come back: soon, but not all at once."""
        return self._retry_after.absent(GUESSED_WAIT_S)
