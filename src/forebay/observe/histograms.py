"""A histogram that costs a few comparisons per observation, turned into cumulative buckets only when it is read.

prometheus_client's own takes a lock and several calls per observation, which is more than the rest of the
bookkeeping for a request. Not thread-safe: everything that observes runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Histogram"]


class Histogram:
    """Counts per bucket; an observation equal to a bound belongs below it, as Prometheus has it."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        bucket = 0
        for bound in self.bounds:  # most values are small, and a bisection is a call with boxed numbers
            if value <= bound:
                break
            bucket += 1
        self._counts[bucket] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Values seen so far."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound as text, values at or below it), ending in `+Inf`."""
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            running += count
            buckets.append((bound, running))
        return buckets
