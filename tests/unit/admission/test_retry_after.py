from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from forebay.admission.retry_after import RetryAfter


def promises(base_s: float, count: int = 200) -> list[float]:
    """What so many clients are told that are refused in one instant."""
    retry = RetryAfter()
    return [retry.promise_s(base_s) for _ in range(count)]


@pytest.mark.parametrize("base_s", [1.0, 5.0, 20.0, 46.0])
def test_promises_are_spread_upwards_only(base_s: float) -> None:
    """Nobody is told to come back before the slot, and nobody later than 1.3 times its distance."""
    told = promises(base_s)
    assert min(told) >= base_s
    assert max(told) <= 1.3 * base_s
    assert max(told) - min(told) > 0.28 * base_s


@pytest.mark.parametrize("base_s", [-1.0, 0.0, 0.2, 1.0, 20.0, 59.0, 60.0, 300.0, 1e9, math.inf])
def test_promises_lie_between_a_second_and_a_minute(base_s: float) -> None:
    """SDKs ignore anything else and come back on their own short schedule."""
    told = promises(base_s)
    assert min(told) >= 1.0
    assert max(told) <= 60.0


@pytest.mark.parametrize("base_s", [20.0, 30.0, 45.0, 60.0, 300.0, math.inf])
def test_f037_no_second_holds_more_than_a_quarter_of_the_returns(base_s: float) -> None:
    """Of 200 clients refused in one instant, no one-second slot is told to more than 50, also beyond the cap."""
    slots = Counter(math.ceil(promise) for promise in promises(base_s))
    assert max(slots.values()) <= 50


def test_any_few_promises_in_a_row_are_apart() -> None:
    """Of any eight refusals in a row no two are told to return within a hundredth of the base of each other."""
    told = promises(10.0, 800)
    for start in range(0, 800, 8):
        run = sorted(told[start : start + 8])
        assert min(later - sooner for sooner, later in pairwise(run)) > 0.1


def test_promises_are_the_same_in_every_run() -> None:
    """There is no randomness: the same refusals get the same promises."""
    assert promises(7.0) == promises(7.0)
