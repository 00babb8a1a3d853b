"""The cheap histogram."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.observe.histograms import Histogram


def test_values_are_counted_at_or_below_their_bound() -> None:
    """A value equal to a bound is in that bound's bucket, larger ones are in `+Inf`."""
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.2, 1.0, 5.0):
        histogram.observe(value)
    assert [("0.1", 2), ("1.0", 4), ("+Inf", 5)] == histogram.cumulative()
    assert (5, 6.35) == (histogram.count, histogram.total)


@given(st.lists(st.floats(-100, 100)))
def test_buckets_agree_with_counting(values: list[float]) -> None:
    """Each bucket holds what a count over the values gives, also for negative ones."""
    bounds = (-10.0, -1.0, 0.0, 1.0, 10.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    counts = [sum(value <= bound for value in values) for bound in bounds]
    assert [*counts, len(values)] == [count for _, count in histogram.cumulative()]
