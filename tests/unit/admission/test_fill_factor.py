from __future__ import annotations

import pytest

from forebay.admission.fill_factor import FillFactor


def test_it_starts_at_what_is_safe() -> None:
    """Most classes may fill 95 % of the KV cache, the first one 99 %."""
    fill = FillFactor()
    assert pytest.approx((0.95, 0.99)) == (fill.limit_for(False), fill.limit_for(True))


def test_a_preemption_lowers_it_by_three_percent() -> None:
    """For the first class as for all others."""
    fill = FillFactor()
    fill.preempted(10.0)
    assert pytest.approx((0.95 * 0.97, 0.99 * 0.97)) == (fill.limit_for(False), fill.limit_for(True))


def test_it_rises_with_each_quiet_second() -> None:
    """A fifth of a percent for each whole second since the last event, in whatever portions it is looked at."""
    fill = FillFactor()
    fill.preempted(10.0)
    low = fill.factor
    fill.tick(10.9)
    assert low == fill.factor
    fill.tick(11.0)
    assert pytest.approx(low + 0.002) == fill.factor
    for tenths in range(111, 156):
        fill.tick(tenths / 10)
    assert pytest.approx(low + 0.010) == fill.factor
    fill.tick(17.7)
    assert pytest.approx(low + 0.014) == fill.factor
    fill.tick(18.0)
    assert pytest.approx(low + 0.016) == fill.factor


def test_it_rises_to_where_it_started() -> None:
    """The room above is not for trying."""
    fill = FillFactor()
    fill.tick(0.0)
    fill.tick(1e6)
    assert 0.95 == fill.factor
    fill.preempted(1e6)
    fill.tick(2e6)
    assert 0.95 == fill.factor


def test_events_of_one_second_are_one() -> None:
    """An engine that reports its preemptions five times a second lowers it once a second."""
    fill = FillFactor()
    for tenths in range(100, 110, 2):
        fill.preempted(tenths / 10)
    assert pytest.approx(0.95 * 0.97) == fill.factor
    fill.preempted(11.0)
    assert pytest.approx(0.95 * 0.97**2) == fill.factor


def test_no_second_with_an_event_is_quiet() -> None:
    """The quiet begins after the last event, also one that lowered nothing."""
    fill = FillFactor()
    fill.preempted(10.0)
    fill.preempted(10.9)
    fill.tick(11.8)
    assert pytest.approx(0.95 * 0.97) == fill.factor
    fill.tick(11.9)
    assert pytest.approx(0.95 * 0.97 + 0.002) == fill.factor


def test_quiet_seconds_before_an_event_count() -> None:
    """It rises first and is lowered then, even if nobody asked in between."""
    fill = FillFactor()
    fill.preempted(10.0)
    fill.preempted(20.0)
    assert pytest.approx((0.95 * 0.97 + 0.02) * 0.97) == fill.factor


def test_it_is_never_below_its_floor() -> None:
    """Whatever an engine does, seven tenths of its KV cache are used."""
    fill = FillFactor()
    for second in range(100):
        fill.preempted(float(second))
    assert pytest.approx((0.7, 0.7 * 0.99 / 0.95)) == (fill.limit_for(False), fill.limit_for(True))


def test_an_operator_may_leave_more_room() -> None:
    """The start is a setting; one below the floor is its own floor."""
    fill = FillFactor(0.9, 0.95)
    assert pytest.approx((0.9, 0.95)) == (fill.limit_for(False), fill.limit_for(True))
    low = FillFactor(0.5, 0.5)
    low.preempted(0.0)
    assert 0.5 == low.factor
