"""How a ratio is distributed: a decayed histogram in log-spaced bins, which also takes "at least this much".

`RatioHistogram` holds what was seen of one positive ratio, here mostly real wait ÷ predicted wait, and answers with
quantiles. Eight bins to the octave from 1/64 to 64, one of them around 1.0; between the borders of a bin the
logarithm is taken to be spread evenly. Its size is fixed; each observation makes all earlier ones count for less.

A waiter that was turned away says "at least this long". Its weight is spread over what lies above, in proportion to
what is there: redistribution to the right (Efron, "The two sample problem with censored data", 1967). Taken from the
largest cut to the smallest that is the estimate of Kaplan and Meier; in the order in which they come it is close to it,
since a later observation does not move what was spread before. It can only raise quantiles: with x beyond the
point of the cut, S the share of weight beyond that point and p the part of the new weight that lands below
x, F(x) = 1 − (1 − p)·S ≥ p, and the new F is a mean of the old one and p.

It learns nothing by itself and knows no time: `wait` says what to observe.
"""

from __future__ import annotations

import math
from typing import Final

PER_OCTAVE: Final = 8
"""A bin is 9 % wide."""
OCTAVES: Final = 6
"""To each side of 1.0; a ratio beyond counts as the outermost one."""
BINS: Final = 2 * OCTAVES * PER_OCTAVE + 1
DECAY: Final = 0.995
"""Per observation: the memory is about 200 of them."""
SMALLEST: Final = 2.0**-OCTAVES
LARGEST: Final = 2.0**OCTAVES
_LAST: Final = BINS - 1
_TOP: Final = BINS - 1e-9
_RESCALE_AT: Final = 1e12
_LEAST_KEPT: Final = 1e-6
"""A smaller weight is not saved."""
_NOTHING: Final = 1e-9
"""Part of the weight below which a tail counts as empty: dividing by less would only magnify rounding."""


class RatioHistogram:
    """Decayed weights of a positive ratio, by bin."""

    __slots__ = ("_counts", "_increment", "_total", "decay", "observations")

    def __init__(self, decay: float = DECAY) -> None:
        self.decay = decay
        self.observations = 0
        self._counts = [0.0] * BINS
        self._increment = 1.0
        """Weight of the next observation. Old ones shrink by making new ones larger."""
        self._total = 0.0
        """The sum of all weights."""

    # Learning

    def seed(self, ratio: float, weight: float) -> None:
        """Put in a prior: evidence worth `weight` observations, which fades as they do."""
        self._counts[int(_position(ratio))] += weight * self._increment
        self._total += weight * self._increment

    def observe(self, ratio: float) -> None:
        """One ratio was seen."""
        self._counts[int(_position(ratio))] += self._increment
        self._age()

    def observe_at_least(self, ratio: float) -> None:
        """A ratio was cut off at this value: it would have been this or more. Raises quantiles or leaves them."""
        position = _position(ratio)
        index = int(position)
        counts = self._counts
        own = counts[index] * (1.0 - (position - index))
        beyond = sum(counts[index + 1 :])
        above = own + beyond
        if above > _NOTHING * (sum(counts[: index + 1]) + beyond):
            growth = 1.0 + self._increment / above
            counts[index] += own * (growth - 1.0)
            counts[index + 1 :] = [count * growth for count in counts[index + 1 :]]
        else:
            # Nothing was ever seen beyond: it is the largest, and the bin above is the first that lies wholly beyond.
            counts[index + 1 if index < _LAST else _LAST] += self._increment
        self._age()

    def _age(self) -> None:
        """Each observation adds its weight, wherever it put it, and makes the next one heavier."""
        self.observations += 1
        self._total += self._increment
        self._increment /= self.decay
        if self._increment > _RESCALE_AT:
            self._counts = [count / self._increment for count in self._counts]
            self._total = sum(self._counts, 0.0)
            self._increment = 1.0

    # Answers

    def quantile(self, q: float) -> float:
        """The ratio that a share `q` (0 to 1) of the weight does not exceed; 1.0 while there is none."""
        total = self._total
        if total <= 0.0:
            return 1.0
        if q > 1.0:
            q = 1.0
        target = q * total
        least = _NOTHING * total
        if target < least:
            target = least  # so that the smallest quantile lies in the lowest bin that holds anything
        counts, below, last = self._counts, 0.0, 0
        for index in range(BINS):
            weight = counts[index]
            if weight > 0.0:
                if below + weight >= target:
                    return _value(index + (target - below) / weight)
                below += weight
                last = index
        return _value(last + 1.0)  # the parts may come to a little less than the sum that was kept

    def cdf(self, ratio: float) -> float:
        """Share of the weight at or below this ratio; 0.5 while there is none."""
        total = self._total
        if total <= 0.0:
            return 0.5
        position = _position(ratio)
        index = int(position)
        counts, below = self._counts, 0.0
        for before in range(index):
            below += counts[before]
        share = (below + counts[index] * (position - index)) / total
        return share if share < 1.0 else 1.0

    # Keeping

    def export(self) -> dict[str, object]:
        """The weights that matter, as plain data (JSON): for `restore`."""
        bins: list[object] = []
        for index, count in enumerate(self._counts):
            weight = count / self._increment
            if weight > _LEAST_KEPT:
                bins.append([index, weight])
        return {
            "octaves": OCTAVES,
            "per_octave": PER_OCTAVE,
            "observations": self.observations,
            "bins": bins,
        }

    def restore(self, data: object) -> bool:
        """Take up what `export` gave. False, and nothing changed, if it is not of that form or of other bins."""
        if not isinstance(data, dict):
            return False
        observations, bins = data.get("observations"), data.get("bins")
        if data.get("octaves") != OCTAVES or data.get("per_octave") != PER_OCTAVE:
            return False
        if type(observations) is not int or observations < 0 or not isinstance(bins, list):
            return False
        counts = [0.0] * BINS
        for entry in bins:
            if not isinstance(entry, list) or len(entry) != 2:
                return False
            index, weight = entry[0], finite(entry[1])
            if type(index) is not int or not 0 <= index < BINS:
                return False
            if weight is None or not 0.0 <= weight <= _RESCALE_AT:
                return False
            if weight > _LEAST_KEPT:
                counts[index] = weight
        self._counts = counts
        self._increment = 1.0
        self._total = sum(counts, 0.0)
        self.observations = observations
        return True


def finite(value: object) -> float | None:
    """The number that saved data holds here; None if it holds something else, or a number without end."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _position(ratio: float) -> float:
    """Bin and place within it, as index + part."""
    if ratio <= SMALLEST:
        return 0.5
    if ratio >= LARGEST:
        return _LAST + 0.5
    position = (math.log2(ratio) + OCTAVES) * PER_OCTAVE + 0.5
    return position if position < _TOP else _TOP


def _value(position: float) -> float:
    """The ratio at a place: the inverse of `_position`."""
    return math.exp2((position - 0.5) / PER_OCTAVE - OCTAVES)
