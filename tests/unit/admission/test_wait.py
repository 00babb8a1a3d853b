from __future__ import annotations

import math

import pytest

from forebay.admission.ledger import Booking, PoolBooks
from forebay.admission.wait import REMEMBERED, WaitErrors, predict_wait_s

SECOND_US = 1_000_000


def books(*running_s: float) -> PoolBooks:
    """A pool in which requests of so much work run."""
    found = PoolBooks(("standard",))
    for work_s in running_s:
        found.in_flight.add(Booking("llama", "standard", round(work_s * SECOND_US), 100, 0))
    return found


def test_backlog_waits_for_what_is_ahead_and_one_release() -> None:
    """Three endpoint-seconds ahead and running requests of two on average, drained at 2.5 a second, take 2 s."""
    assert 2.0 == predict_wait_s("backlog", books(1.0, 3.0), 3 * SECOND_US, 2.5 * SECOND_US)


def test_plain_waits_for_everything() -> None:
    """Three endpoint-seconds ahead and four in flight, drained at two a second, take 3.5 s."""
    assert 3.5 == predict_wait_s("plain", books(1.0, 3.0), 3 * SECOND_US, 2 * SECOND_US)


@pytest.mark.parametrize("predictor", ["backlog", "plain"])
def test_an_idle_pool_has_no_wait(predictor: str) -> None:
    """With nothing running and nothing ahead the prediction is zero."""
    assert 0.0 == predict_wait_s(predictor, books(), 0, SECOND_US)


@pytest.mark.parametrize("predictor", ["backlog", "plain"])
def test_where_nothing_drains_the_wait_is_endless(predictor: str) -> None:
    """No endpoint that is up means an infinite wait and not a division by zero."""
    assert math.inf == predict_wait_s(predictor, books(1.0), SECOND_US, 0.0)


def test_the_median_needs_sixteen_waits() -> None:
    """A few waits are no evidence about predictions."""
    errors = WaitErrors()
    for _ in range(15):
        errors.observe(1.0, 2.0)
    assert errors.median is None
    errors.observe(1.0, 2.0)
    assert 0.5 == errors.median


def test_errors_are_relative_and_have_no_sign() -> None:
    """Predicting twice the wait is an error of 100 %, half of it one of 50 %."""
    errors = WaitErrors()
    for predicted in [4.0] * 9 + [1.0] * 8:
        errors.observe(predicted, 2.0)
    assert 1.0 == errors.median


def test_short_waits_are_not_judged() -> None:
    """A wait of under a tenth of a second counts neither for nor against."""
    errors = WaitErrors()
    for _ in range(40):
        errors.observe(5.0, 0.099)
    assert (0, None) == (errors.count, errors.median)
    errors.observe(5.0, 0.1)
    assert 1 == errors.count


def test_only_the_last_waits_count() -> None:
    """Old errors are forgotten after as many new ones as are remembered."""
    errors = WaitErrors()
    for _ in range(1000):
        errors.observe(10.0, 1.0)
    for _ in range(REMEMBERED):
        errors.observe(1.0, 1.0)
    assert 0.0 == errors.median
    assert 1064 == errors.count
