from __future__ import annotations

import pytest

from forebay.engines.exposition import PageReader
from forebay.engines.plausible import Numbers


def numbers(text: str) -> Numbers:
    """The numbers of a page with the names `new`, `old` and `other`."""
    return Numbers(PageReader(("new", "old", "other")).read(text.encode()))


def test_counts_are_summed_over_ranks() -> None:
    """Requests and totals of several ranks add up, in whatever order they come."""
    assert numbers('new{r="1"} 5\nnew{r="0"} 7\n').gauge("new") == 12
    assert numbers('new{r="0"} 7\nnew{r="1"} 5\n').counter("new") == 12


def test_ratio_is_that_of_the_worst_rank() -> None:
    """A share is never summed: the fullest rank speaks for the engine."""
    assert numbers('new{r="0"} 0.95\nnew{r="1"} 0.1\n').ratio("new") == 0.95


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e300"])
def test_absurd_count_is_unknown_and_named(value: str) -> None:
    """A count that cannot be one is neither used nor taken for zero."""
    found = numbers(f"new {value}")
    assert (found.gauge("new"), found.counter("new"), found.doubtful) == (None, None, ("new",))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-0.5", "45", "1.5"])
def test_absurd_ratio_is_unknown_and_named(value: str) -> None:
    """A ratio that cannot be one is neither used nor taken for full."""
    found = numbers(f"new {value}")
    assert (found.ratio("new"), found.doubtful) == (None, ("new",))


def test_rounding_above_one_is_one() -> None:
    """A ratio a hair above 1 means 1 and is no reason for doubt."""
    found = numbers("new 1.0001")
    assert (found.ratio("new"), found.doubtful) == (1.0, ())


def test_sum_needs_every_rank() -> None:
    """One rank's nonsense makes a sum unknown: a part of it would read as a fall."""
    found = numbers('new{r="0"} 5\nnew{r="1"} NaN\n')
    assert (found.gauge("new"), found.doubtful) == (None, ("new",))


def test_sum_with_a_broken_rank_is_unknown() -> None:
    """A rank whose line cannot be read makes a sum unknown, like one with nonsense."""
    found = numbers('new{r="0"} 5\nnew{r="1"} x\n')
    assert (found.gauge("new"), found.doubtful) == (None, ("new",))


def test_worst_known_rank_counts() -> None:
    """The worst of the ranks that can be read counts; the others are named."""
    found = numbers('new{r="0"} 0.95\nnew{r="1"} NaN\n')
    assert (found.ratio("new"), found.doubtful) == (0.95, ("new",))


def test_new_name_wins() -> None:
    """Where a page has two generations of a name, the one named first is used."""
    assert numbers("old 0.9\nnew 0.3").ratio("new", "old") == 0.3
    assert numbers("old 9\nnew 3").gauge("new", "old") == 3


def test_older_name_is_used_where_the_new_one_is_absent_or_absurd() -> None:
    """An older generation of a name serves where the new one is not there or cannot be used."""
    assert numbers("old 0.9").ratio("new", "old") == 0.9
    assert numbers("old 9\nnew NaN").gauge("new", "old") == 9


def test_absent_is_unknown_without_doubt() -> None:
    """What a page does not have is unknown, and nothing to be doubtful about."""
    found = numbers("other 1")
    assert (
        found.gauge("new"),
        found.counter("new"),
        found.ratio("new"),
        found.doubtful,
    ) == (None, None, None, ())


def test_what_is_wrong_is_told_in_words() -> None:
    """The value, what is possible, and nothing that an engine could have written itself."""
    found = numbers("new nan\nother x\nold 1e300\n")
    assert (found.gauge("old"), found.ratio("new")) == (None, None)
    assert found.doubts == (
        "other has a line that cannot be read",
        "old is 1e+300, and 0 to 1e+06 is possible",
        "new is nan, and 0 to 1.01 is possible",
    )
