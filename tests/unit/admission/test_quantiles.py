from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from forebay.admission.quantiles import BINS, LARGEST, SMALLEST, RatioHistogram, finite

BIN = 2 ** (1 / 8)
"""A quantile is right to within one bin."""


def seen(*ratios: float, decay: float = 1.0) -> RatioHistogram:
    """Ratios that have been seen, in this order."""
    histogram = RatioHistogram(decay)
    for ratio in ratios:
        histogram.observe(ratio)
    return histogram


def test_an_empty_histogram_is_neutral() -> None:
    """With nothing seen every quantile is 1, and half lies on either side of anything."""
    empty = RatioHistogram()
    assert (1.0, 1.0, 0.5) == (empty.quantile(0.1), empty.quantile(0.9), empty.cdf(3.0))


def test_equal_ratios_of_one_have_quantiles_around_one() -> None:
    """One bin lies around 1.0: its median is exact and its ends are half a bin away."""
    histogram = seen(*[1.0] * 10)
    assert pytest.approx(1.0) == histogram.quantile(0.5)
    assert pytest.approx(BIN**-0.5) == histogram.quantile(0.0)
    assert pytest.approx(BIN**0.5) == histogram.quantile(1.0)


@pytest.mark.parametrize("q", [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])
def test_quantiles_of_evenly_spread_logarithms(q: float) -> None:
    """Of ratios spread evenly from 1/4 to 4 in octaves, the quantile q is 2 to the power 4·q − 2."""
    histogram = seen(*[2 ** (4 * n / 1000 - 2) for n in range(1001)])
    assert pytest.approx(2 ** (4 * q - 2), rel=BIN - 1) == histogram.quantile(q)


def test_cdf_is_the_inverse_of_the_quantile() -> None:
    """The share below the quantile q is q, also inside a bin."""
    histogram = seen(0.5, 1.0, 1.1, 1.3, 2.0, 9.0)
    for q in (0.05, 0.3, 0.5, 0.77, 0.99):
        assert pytest.approx(q) == histogram.cdf(histogram.quantile(q))


@pytest.mark.parametrize(
    ("ratio", "bound"), [(0.0, SMALLEST), (-1.0, SMALLEST), (1e-9, SMALLEST), (1e9, LARGEST)]
)
def test_what_lies_beyond_counts_as_the_outermost(ratio: float, bound: float) -> None:
    """Ratios beyond 64 times either way are taken for that."""
    assert pytest.approx(bound) == seen(ratio).quantile(0.5)


def test_infinity_counts_as_the_largest() -> None:
    """An infinite ratio is no error: it is the largest there is."""
    assert pytest.approx(LARGEST) == seen(math.inf).quantile(0.5)


@pytest.mark.parametrize(("ratio", "found"), [(SMALLEST / 2, 0.0), (LARGEST * 2, 1.0)])
def test_cdf_beyond_everything_is_none_or_all(ratio: float, found: float) -> None:
    """Below the smallest ratio seen lies nothing, above the largest everything."""
    assert pytest.approx(found) == seen(1.0, 2.0).cdf(ratio)


def test_old_ratios_are_forgotten() -> None:
    """With a memory of 200, two hundred new ratios outweigh any number of old ones, and a thousand drown them."""
    histogram = seen(*[4.0] * 5000, decay=0.995)
    for _ in range(200):
        histogram.observe(1.0)
    assert histogram.quantile(0.5) < 1.1
    assert histogram.quantile(0.9) > 3.5
    for _ in range(1000):
        histogram.observe(1.0)
    assert histogram.quantile(0.99) < 1.1


def test_a_long_life_does_not_overflow() -> None:
    """After so many observations that old weights were scaled down several times, quantiles are the same."""
    histogram = seen(*[0.5, 1.0, 2.0] * 10_000, decay=0.995)
    assert 30_000 == histogram.observations
    assert pytest.approx(1.0, rel=BIN - 1) == histogram.quantile(0.5)
    assert max(histogram._counts) < 1e15


def test_a_prior_fades() -> None:
    """What was seeded counts as much as so many observations, and is outweighed by more."""
    histogram = RatioHistogram(1.0)
    histogram.seed(4.0, 10.0)
    for _ in range(5):
        histogram.observe(1.0)
    assert histogram.quantile(0.5) > 3.5
    for _ in range(10):
        histogram.observe(1.0)
    assert histogram.quantile(0.5) < 1.1
    assert 15 == histogram.observations


# At least so much


def test_one_cut_off_ratio_is_spread_over_what_lies_beyond() -> None:
    """Cut off at 1.5 with 1, 2 and 4 seen, its weight goes half to 2 and half to 4."""
    histogram = seen(1.0, 2.0, 4.0)
    histogram.observe_at_least(1.5)
    assert pytest.approx(1 / 4) == histogram.cdf(1.5)
    assert pytest.approx(5 / 8) == histogram.cdf(3.0)


def test_the_bin_of_the_cut_takes_part_with_what_lies_above_it() -> None:
    """Cut off in the middle of a bin that holds two, half of it is beyond: it takes one part, and two at 4 take two."""
    histogram = seen(1.0, 1.0, 4.0, 4.0)
    histogram.observe_at_least(1.0)
    assert pytest.approx((2 + 1 / 3) / 5) == histogram.cdf(2.0)


def test_cut_off_ratios_give_the_estimate_of_kaplan_and_meier() -> None:
    """Taken from the largest cut to the smallest, they give the product-limit formula; as they come, nearly that."""
    sample = [(0.3, True), (0.7, False), (1.0, True), (1.7, True), (2.2, False), (3.0, True), (5.0, True)]
    exact, close = RatioHistogram(1.0), RatioHistogram(1.0)
    for ratio, whole in sample:
        if whole:
            exact.observe(ratio)
            close.observe(ratio)
    cuts = [ratio for ratio, whole in sample if not whole]
    for largest_first, smallest_first in zip(reversed(cuts), cuts, strict=True):
        exact.observe_at_least(largest_first)
        close.observe_at_least(smallest_first)
    alive = 1.0
    for index, ((ratio, whole), (following, _)) in enumerate(pairwise(sample)):
        if whole:
            alive *= 1 - 1 / (len(sample) - index)
        between = math.sqrt(ratio * following)
        assert pytest.approx(1 - alive) == exact.cdf(between)
        assert pytest.approx(1 - alive, abs=0.03) == close.cdf(between)


def test_beyond_everything_seen_the_cut_off_ratio_is_the_largest() -> None:
    """Where nothing was seen beyond, the weight lies just above the point of the cut, wholly."""
    histogram = seen(1.0, 1.0)
    histogram.observe_at_least(8.0)
    assert pytest.approx(2 / 3) == histogram.cdf(8.0 * BIN**0.5)
    assert 8.0 <= histogram.quantile(0.7) <= 8.0 * BIN**2


@pytest.mark.parametrize("ratio", [LARGEST, LARGEST * 4, math.inf])
def test_a_cut_beyond_the_last_bin_stays_in_it(ratio: float) -> None:
    """The outermost bin takes what was cut off beyond it."""
    histogram = seen(1.0)
    histogram.observe_at_least(ratio)
    assert pytest.approx(0.5) == 1 - histogram.cdf(LARGEST / 2)
    histogram.observe_at_least(ratio)
    assert pytest.approx(1 / 3) == histogram.cdf(LARGEST / 2)


def test_a_cut_off_ratio_in_an_empty_histogram_is_evidence() -> None:
    """The first observation may be one that was cut off."""
    histogram = RatioHistogram()
    histogram.observe_at_least(2.0)
    assert 2.0 <= histogram.quantile(0.5) <= 2.0 * BIN**2


# Keeping


def test_what_was_exported_can_be_taken_up() -> None:
    """Through JSON and back, quantiles and their further course are the same."""
    first = seen(*[0.5, 1.0, 1.2, 3.0] * 50, decay=0.995)
    second = RatioHistogram()
    assert second.restore(json.loads(json.dumps(first.export())))
    assert second.observations == first.observations
    for histogram in (first, second):
        histogram.observe(2.0)
        histogram.observe_at_least(1.1)
    for q in (0.1, 0.5, 0.9):
        assert pytest.approx(first.quantile(q), rel=1e-4) == second.quantile(q)


@pytest.mark.parametrize(
    "change",
    [
        {"octaves": 5},
        {"per_octave": 4},
        {"observations": -1},
        {"observations": 1.5},
        {"observations": True},
        {"bins": None},
        {"bins": [[0]]},
        {"bins": [["0", 1.0]]},
        {"bins": [[BINS, 1.0]]},
        {"bins": [[-1, 1.0]]},
        {"bins": [[0, -1.0]]},
        {"bins": [[0, math.nan]]},
        {"bins": [[0, math.inf]]},
        {"bins": [[0, "1"]]},
        {"bins": [7]},
    ],
    ids=str,
)
def test_nonsense_is_not_taken_up(change: dict[str, object]) -> None:
    """Saved data of another form, or of other bins, changes nothing."""
    histogram = seen(1.0, 2.0)
    before = histogram.export()
    assert not histogram.restore({**before, **change})
    assert before == histogram.export()


def test_what_is_no_mapping_is_not_taken_up() -> None:
    """Nor does a list in its place."""
    assert not RatioHistogram().restore([1, 2])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, None),
        ("1", None),
        (None, None),
        (math.inf, None),
        (math.nan, None),
        (10**400, None),
    ],
)
def test_finite_takes_numbers_only(value: object, found: float | None) -> None:
    """Saved data holds a finite number, or nothing that is used as one."""
    assert found == finite(value)
