"""Statistics in bounded memory agree with the exact ones."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.report.tally import Bursts, Names, Spread, nice_up, share

values = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=200)


def spread_of(numbers: list[float]) -> Spread:
    """These numbers, added."""
    spread = Spread()
    for number in numbers:
        spread.add(number)
    return spread


@given(values, st.floats(0.01, 1.0))
def test_quantiles_are_within_a_percent(numbers: list[float], part: float) -> None:
    """Of the nearest rank; extremes, count, sum and mean are exact."""
    spread = spread_of(numbers)
    exact = sorted(numbers)[max(1, math.ceil(part * len(numbers))) - 1]
    assert exact == pytest.approx(spread.quantile(part), rel=0.011)
    assert (min(numbers), max(numbers), len(numbers)) == (spread.low, spread.high, spread.count)
    assert statistics.fmean(numbers) == pytest.approx(spread.mean)
    assert statistics.pstdev(numbers) / spread.mean == pytest.approx(spread.cv, abs=1e-4)


@given(values, st.sampled_from([0.5, 0.9]))
def test_share_of_the_largest(numbers: list[float], part: float) -> None:
    """The part of the sum that the largest have."""
    kept = len(numbers) - math.ceil(part * len(numbers))
    exact = sum(sorted(numbers, reverse=True)[:kept]) / sum(numbers)
    assert exact == pytest.approx(spread_of(numbers).share_above(part), rel=0.025, abs=1e-6)


def test_of_nothing_everything_is_nothing() -> None:
    """No division fails on an empty one, nor on zeros."""
    for spread in (Spread(), spread_of([0.0, -1.0])):
        assert (0.0, 0.0, 0.0, 0.0) == (
            spread.mean, spread.cv, spread.quantile(0.9), spread.share_above(0.9),
        )  # fmt: skip
    assert 0.0 == Bursts(1).peak_over_mean == share(1, 0) == nice_up(0)


def test_memory_is_bounded() -> None:
    """However many values, there are no more buckets than sizes that are 2 % apart."""
    spread = spread_of([1.001**number for number in range(20_000)])
    assert len(spread.histogram()) < 1100


def test_bursts() -> None:
    """Windows without anything count in the mean; the fullest one is the peak."""
    bursts = Bursts(10)
    for at_s in (0, 1, 2, 35, 36, 37, 38, 39, 39.9):
        bursts.add(at_s)
    assert (4, 0.6, 9 / 40) == (bursts.windows, bursts.peak_per_s, bursts.mean_per_s)
    assert pytest.approx(0.6 / (9 / 40)) == bursts.peak_over_mean


def test_names_beyond_the_bound_are_one() -> None:
    """Clients choose names, so there may be any number of them."""
    names = Names(2)
    assert ["a", "b", "(others)", "a", "(others)"] == [names.of(name) for name in "abcad"]


@given(st.floats(1e-6, 1e9))
def test_round_numbers_are_not_below(value: float) -> None:
    """The next round number is at most two thirds more."""
    assert value * (1 - 1e-6) <= nice_up(value) <= value * 1.7
