"""Statistics of streams of any length, in bounded memory.

Quantiles come from logarithmic buckets, each 2 % wide, so they are within 1 % of the true ones; counts, sums and
extremes are exact. Peaks come from windows of fixed length, laid end to end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

__all__ = ["Bursts", "Names", "Spread"]

_GROWTH: Final = math.log(1.02)
_LEAST: Final = 1e-6
"""All that is smaller counts as nothing."""


class Spread:
    """How values of one kind are spread. Negative ones count as nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.low = math.inf
        self.high = 0.0
        self._squares = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """One more value."""
        value = value if value > 0 else 0.0
        self.count += 1
        self.total += value
        self._squares += value * value
        self.low = min(self.low, value)
        self.high = max(self.high, value)
        bucket = _bucket(value)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float:
        """0 of nothing."""
        return self.total / self.count if self.count else 0.0

    @property
    def cv(self) -> float:
        """Standard deviation ÷ mean: 0 if all are the same, 1 for gaps of a Poisson process."""
        if not self.mean:
            return 0.0
        return math.sqrt(max(0.0, self._squares / self.count - self.mean**2)) / self.mean

    def quantile(self, part: float) -> float:
        """The value that this part of all does not exceed; 0 of nothing."""
        rank = max(1, math.ceil(part * self.count))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(self.high, max(self.low, _middle(bucket)))
        return 0.0

    def share_above(self, part: float) -> float:
        """Which part of the sum those above this quantile have: of the largest tenth, with 0.9."""
        left = self.count - math.ceil(part * self.count)
        above = 0.0
        for bucket in sorted(self._buckets, reverse=True):
            taken = min(left, self._buckets[bucket])
            above += taken * min(self.high, max(self.low, _middle(bucket)))
            left -= taken
        return min(1.0, above / self.total) if self.total else 0.0

    def part_below(self, value: float) -> float:
        """Which part of all is at most so much."""
        limit = _bucket(value)
        return (
            sum(n for bucket, n in self._buckets.items() if bucket <= limit) / self.count
            if self.count
            else 0.0
        )

    def histogram(self) -> list[tuple[float, int]]:
        """Middle and count of each bucket that has any, upwards."""
        return [(_middle(bucket), self._buckets[bucket]) for bucket in sorted(self._buckets)]


class Bursts:
    """Amounts by windows of time: their peak against their mean. Times must not go back by more than a window."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.total = 0.0
        self.peak = 0.0
        self._window = 0
        self._first: int | None = None
        self._in_window = 0.0

    def add(self, at_s: float, amount: float = 1.0) -> None:
        """So much at this time."""
        window = int(at_s // self.window_s)
        if self._first is None:
            self._first = self._window = window
        if window > self._window:
            self._window, self._in_window = window, 0.0
        self._in_window += amount
        self.total += amount
        self.peak = max(self.peak, self._in_window)

    @property
    def windows(self) -> int:
        """From the first to the last one with anything in it."""
        return 0 if self._first is None else self._window - self._first + 1

    @property
    def mean_per_s(self) -> float:
        """Amount per second over all windows."""
        return self.total / (self.windows * self.window_s) if self.windows else 0.0

    @property
    def peak_per_s(self) -> float:
        """Amount per second in the fullest window."""
        return self.peak / self.window_s

    @property
    def peak_over_mean(self) -> float:
        """1 if all windows are the same; 0 of nothing."""
        return self.peak_per_s / self.mean_per_s if self.total else 0.0


class Names:
    """Keeps the first so many distinct names apart; the others are one."""

    OTHER: Final = "(others)"

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """The name to count it under."""
        if name in self._known:
            return name
        if len(self._known) < self._most:
            self._known.add(name)
            return name
        return self.OTHER


def share(part: float, whole: float) -> float:
    """Part ÷ whole; 0 of nothing."""
    return part / whole if whole else 0.0


def nice_up(value: float, steps: Iterable[float] = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)) -> float:
    """The next round number that is not below."""
    if value <= 0:
        return 0.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next((step * scale for step in steps if step * scale >= value * (1 - 1e-9)), 10 * scale)


def _bucket(value: float) -> int:
    return -(1 << 31) if value < _LEAST else math.floor(math.log(value) / _GROWTH)


def _middle(bucket: int) -> float:
    return 0.0 if bucket == -(1 << 31) else math.exp((bucket + 0.5) * _GROWTH)
