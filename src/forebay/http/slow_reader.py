"""Whether a reader takes what is waiting for it.

For: `connection`, whose sweep asks once per round. What a reader has taken is what was written less what the
transport still holds; a growing or constant buffer alone proves nothing, since the owner goes on writing. The kernel
takes bytes on behalf of the reader until its own buffers are full, so the watch begins to bite only after that.
Owns three numbers. Never does anything about a slow reader.
"""

from __future__ import annotations

__all__ = ["SlowReaderWatch"]


class SlowReaderWatch:
    """The watch over one connection."""

    __slots__ = ("_since_s", "_taken_bytes", "written_bytes")

    def __init__(self) -> None:
        self.written_bytes = 0
        """All bytes handed to the transport so far; kept by the connection."""
        self._taken_bytes = 0
        self._since_s = 0.0

    def is_stuck(self, now: float, unsent_bytes: int, timeout_s: float) -> bool:
        """True if bytes are waiting and none was taken for `timeout_s`; then the time starts anew."""
        taken_bytes = self.written_bytes - unsent_bytes
        if not unsent_bytes or taken_bytes != self._taken_bytes:
            self._taken_bytes = taken_bytes
            self._since_s = now
        elif now - self._since_s >= timeout_s:
            self._since_s = now
            return True
        return False
