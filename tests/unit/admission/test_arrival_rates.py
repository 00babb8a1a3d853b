from __future__ import annotations

import math

import pytest

from forebay.admission.arrival_rates import TIME_CONSTANT_S, ArrivalRate


def test_nothing_arrives_at_first() -> None:
    """Before any arrival the rate is zero."""
    assert 0.0 == ArrivalRate().per_s(100.0)


def test_one_arrival_is_spread_over_the_time_constant() -> None:
    """Ten seconds of work that arrive at once are one per second, and 1/e of it a time constant later."""
    rate = ArrivalRate()
    rate.add(50.0, 10e6)
    assert pytest.approx(1e6) == rate.per_s(50.0)
    assert pytest.approx(1e6 / math.e) == rate.per_s(50.0 + TIME_CONSTANT_S)


def test_steady_arrivals_are_found() -> None:
    """Four requests of 0.1 endpoint-seconds each second are 0.4 endpoint-seconds per second, within 2 %."""
    rate = ArrivalRate()
    for n in range(400):
        rate.add(n / 4, 100_000)
    # Between arrivals the sum fades by up to a fortieth; in the middle it is the mean.
    assert pytest.approx(400_000, rel=0.02) == rate.per_s(399 / 4 + 1 / 8)


def test_it_rises_as_the_time_constant_says() -> None:
    """After one time constant of steady arrivals the estimate is 1 − 1/e of the rate: too low, never too high."""
    rate = ArrivalRate()
    for n in range(1001):
        rate.add(n / 100, 10_000)
    assert pytest.approx((1 - 1 / math.e) * 1e6, rel=0.01) == rate.per_s(10.0)


def test_a_change_is_followed() -> None:
    """Three time constants after arrivals stop, a twentieth is left."""
    rate = ArrivalRate()
    for n in range(1000):
        rate.add(n / 10, 100_000)
    before = rate.per_s(99.9)
    assert pytest.approx(before * math.exp(-3)) == rate.per_s(99.9 + 3 * TIME_CONSTANT_S)


def test_asking_changes_nothing() -> None:
    """A rate that was asked for at odd times is the same as one that was not."""
    asked, unasked = ArrivalRate(), ArrivalRate()
    for n in range(100):
        for rate in (asked, unasked):
            rate.add(float(n), 1000.0 * n)
        asked.per_s(n + 0.3)
        asked.per_s(n + 0.9)
    assert unasked.per_s(200.0) == asked.per_s(200.0)


def test_arrivals_of_one_instant_add_up() -> None:
    """Two requests at the same time count both, at that time too."""
    rate = ArrivalRate(5.0)
    rate.add(3.0, 1e6)
    rate.add(3.0, 2e6)
    assert pytest.approx(0.6e6) == rate.per_s(3.0)


def test_a_very_long_pause_is_no_error() -> None:
    """After weeks nothing is left, and nothing underflows."""
    rate = ArrivalRate()
    rate.add(0.0, 1e6)
    assert 0.0 == rate.per_s(1e7)
    rate.add(1e7, 1e6)
    assert pytest.approx(1e5) == rate.per_s(1e7)
