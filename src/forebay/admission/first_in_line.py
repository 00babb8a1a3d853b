"""What the first in line waits for: the part of a wait that does not grow with the work ahead."""

from __future__ import annotations

from typing import Final

from forebay.admission.quantiles import finite

LINE_DECAY: Final = 0.99
LINE_ENOUGH: Final = 16
LINE_EASE_S: Final = 0.2
LINE_LEAST_SLOPE: Final = 0.5
LINE_MOST_SLOPE: Final = 2.0
LINE_SUM_MOST: Final = 1e12
"""No sum that is restored is larger."""
LINE_LEAST_WEIGHT: Final = 1e-12
LINE_FARTHEST_S: Final = 1e6
"""Longer waits count as this long."""
LINE_MOST_S: Final = 10.0
"""Longest time that the first in line may be taken to wait."""


class FirstInLine:
    """How long the first in line waits, with nothing before it: what no share of the work ahead explains.

    A prompt under way must be worked off, and something of the right size must end. A straight line through the
    waits, wait = α + β · computed, each weighted by 1 ÷ (computed + a little)² so that relative errors count, says it:
    α ÷ β is added to what is computed, and the rest is the business of κ.
    """

    __slots__ = ("_count", "_square", "_weight", "_x", "_xy", "_y", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = 0
        self._weight = self._x = self._y = self._square = self._xy = 0.0

    def export(self) -> list[float]:
        """What a next start may take up."""
        return [self.seconds, float(self._count), self._weight, self._x, self._y, self._square, self._xy]

    def restore(self, data: object) -> bool:
        """Take up what `export` gave. False, and nothing changed, if it makes no sense."""
        if not isinstance(data, list) or len(data) != 7:
            return False
        numbers = [n for n in map(finite, data) if n is not None and 0.0 <= n <= LINE_SUM_MOST]
        if (
            len(numbers) != len(data)
            or numbers[0] > LINE_MOST_S
            or (numbers[1] and numbers[2] < LINE_LEAST_WEIGHT)
        ):
            return False
        self.seconds, count, self._weight, self._x, self._y, self._square, self._xy = numbers
        self._count = int(count)
        return True

    def observe(self, computed_s: float, waited_s: float) -> None:
        """One wait that was to last for `computed_s` by the work ahead of it."""
        computed_s, waited_s = min(computed_s, LINE_FARTHEST_S), min(waited_s, LINE_FARTHEST_S)
        around = computed_s + LINE_EASE_S
        weight = 1.0 / (around * around)
        self._count += 1
        self._weight = self._weight * LINE_DECAY + weight
        self._x = self._x * LINE_DECAY + weight * computed_s
        self._y = self._y * LINE_DECAY + weight * waited_s
        self._square = self._square * LINE_DECAY + weight * computed_s * computed_s
        self._xy = self._xy * LINE_DECAY + weight * computed_s * waited_s
        if self._count < LINE_ENOUGH:
            return
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._square / self._weight - mean_x * mean_x
        # With hardly any spread the line is drawn through κ = 1.
        slope = 1.0
        if spread > 0.01 * mean_x * mean_x:
            slope = (self._xy / self._weight - mean_x * mean_y) / spread
        slope = min(max(slope, LINE_LEAST_SLOPE), LINE_MOST_SLOPE)
        self.seconds = min(max(mean_y / slope - mean_x, 0.0), LINE_MOST_S)
