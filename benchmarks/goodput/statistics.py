"""Means with confidence intervals, of few paired runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Final

_T: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t at 97.5 % for 1 to 10 degrees of freedom."""
_NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, and half of its 95 % confidence interval; None of a single run."""

    value: float
    half: float | None

    def words(self, digits: int = 2) -> str:
        if self.half is None:
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} ± {self.half:.{digits}f}"


def mean_of(values: Sequence[float]) -> Mean:
    """Of independent runs."""
    if len(values) < 2:
        return Mean(mean(values), None)
    t = _T[len(values) - 2] if len(values) - 2 < len(_T) else _NORMAL
    return Mean(mean(values), t * stdev(values) / sqrt(len(values)))


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Mean:
    """Of the differences of runs with the same seed: what all runs of a seed share falls out."""
    return mean_of([one - other for one, other in zip(ours, theirs, strict=True)])
