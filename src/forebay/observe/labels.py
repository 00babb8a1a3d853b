"""Label values that clients can choose are bounded: the first N get a series, the rest share `other`."""

from __future__ import annotations

__all__ = ["OTHER", "BoundedLabels"]

OTHER = "other"


class BoundedLabels:
    """Lets `limit` distinct values through and turns every later one into `other`."""

    __slots__ = ("_limit", "_seen")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: dict[str, str] = {}

    def label(self, value: str) -> str:
        """The value itself, or `other` once there are too many."""
        found = self._seen.get(value)
        if found is not None:
            return found
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen[value] = value
        return value
