"""How busy a pool's GPUs are, where somebody reads that from them; believed for as long as a sample of an engine is."""

from __future__ import annotations

from math import inf


class GpuLoad:
    """The last reading."""

    __slots__ = ("_at_s", "_busy")

    def __init__(self) -> None:
        self._busy = 0.0
        self._at_s = -inf

    def read(self, busy: float, at_s: float) -> None:
        """So busy (0 to 1) the GPUs were at this moment."""
        self._busy, self._at_s = busy, at_s

    def value(self, now: float, stale_after_s: float) -> float | None:
        """The same; None if nobody has read it lately."""
        return self._busy if now - self._at_s <= stale_after_s else None
