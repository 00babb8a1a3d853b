from __future__ import annotations

import pytest

from forebay.admission.speed import DrainMeter


def saturated_window(meter: DrainMeter, start: float, work_s: float, took_s: float = 1.0) -> None:
    """Work done in a window with four endings, waiters present all the time."""
    meter.observe(start, saturated=True)
    meter.credit(round(work_s * 1e6) - 4)
    for _ in range(4):
        meter.credit(1, ended=True)
    meter.observe(start + took_s, saturated=True)


def test_an_endpoint_is_taken_for_the_reference_at_first() -> None:
    """The prior is the speed of the reference endpoint, and it is not trusted."""
    meter = DrainMeter()
    assert (1.0, 0, False) == (meter.speed, meter.windows, meter.is_trusted)


def test_the_first_window_replaces_the_prior() -> None:
    """Half an endpoint-second of work in a second of saturation is a speed of 0.5."""
    meter = DrainMeter()
    saturated_window(meter, 10.0, 0.5)
    assert pytest.approx(0.5) == meter.speed
    assert 1 == meter.windows


def test_speed_is_work_over_time() -> None:
    """A window of four seconds with two endpoint-seconds of work is a speed of 0.5 too."""
    meter = DrainMeter()
    saturated_window(meter, 0.0, 2.0, took_s=4.0)
    assert pytest.approx(0.5) == meter.speed


def test_later_windows_weigh_less() -> None:
    """Windows count as a mean at first (1, 1/2, 1/3) and with a weight of 0.3 from then on."""
    meter = DrainMeter()
    speeds = []
    for start, work_s in enumerate([0.4, 0.8, 0.6, 2.6]):
        saturated_window(meter, float(start), work_s)
        speeds.append(meter.speed)
    assert pytest.approx([0.4, 0.6, 0.6, 1.2]) == speeds


def test_three_windows_are_trusted() -> None:
    """Two windows are not enough evidence, three are."""
    meter = DrainMeter()
    saturated_window(meter, 0.0, 0.5)
    saturated_window(meter, 1.0, 0.5)
    assert not meter.is_trusted
    saturated_window(meter, 2.0, 0.5)
    assert meter.is_trusted


def test_an_endpoint_with_room_to_spare_is_not_measured() -> None:
    """Without waiters an endpoint does less than it could, and that is no speed."""
    meter = DrainMeter()
    meter.observe(0.0, saturated=False)
    for _ in range(9):
        meter.credit(10, ended=True)
    meter.observe(100.0, saturated=False)
    assert (1.0, 0) == (meter.speed, meter.windows)


def test_a_pause_begins_a_new_window() -> None:
    """Work credited before a moment without waiters does not count for the window after it."""
    meter = DrainMeter()
    meter.observe(0.0, saturated=True)
    meter.credit(9_000_000)
    meter.observe(0.5, saturated=False)
    saturated_window(meter, 1.0, 0.5)
    assert pytest.approx(0.5) == meter.speed


@pytest.mark.parametrize(("elapsed", "endings"), [(0.999, 4), (60.0, 3)])
def test_a_window_needs_time_and_endings(elapsed: float, endings: int) -> None:
    """Less than a second, or fewer than four endings, measures chance."""
    meter = DrainMeter()
    meter.observe(0.0, saturated=True)
    for _ in range(endings):
        meter.credit(100_000, ended=True)
    meter.observe(elapsed, saturated=True)
    assert (1.0, 0) == (meter.speed, meter.windows)


def test_a_closed_window_is_not_counted_twice() -> None:
    """The next window starts empty where the last one ended."""
    meter = DrainMeter()
    saturated_window(meter, 0.0, 0.5)
    for _ in range(4):
        meter.credit(25_000, ended=True)
    meter.observe(2.0, saturated=True)
    assert pytest.approx((0.5 + 0.1) / 2) == meter.speed


@pytest.mark.parametrize(("work_s", "speed"), [(-5.0, 1e-4), (5e6, 1e3)])
def test_one_window_cannot_claim_the_absurd(work_s: float, speed: float) -> None:
    """Settled estimates that make a window negative or enormous are bounded: a drain rate stays positive."""
    meter = DrainMeter()
    saturated_window(meter, 0.0, work_s)
    assert pytest.approx(speed) == meter.speed


# Another unit


def test_a_speed_is_kept_when_work_is_counted_otherwise() -> None:
    """What was one unit of work counts as four from now on: as many more of them are drained in a second."""
    meter = DrainMeter()
    for start in range(3):
        saturated_window(meter, float(start), 0.5)
    meter.rescale(4.0)
    assert pytest.approx(2.0) == meter.speed
    assert (3, True) == (meter.windows, meter.is_trusted)
    meter.rescale(0.25)
    assert pytest.approx(0.5) == meter.speed


def test_work_of_another_unit_is_in_no_window() -> None:
    """The window that was open is given up: its work was counted in the old unit, in part."""
    meter = DrainMeter()
    saturated_window(meter, 0.0, 0.25)
    for _ in range(8):
        meter.credit(10_000_000, ended=True)
    meter.rescale(2.0)
    meter.observe(5.0, saturated=True)
    assert pytest.approx((0.5, 1)) == (meter.speed, meter.windows)
    for _ in range(4):
        meter.credit(250_000, ended=True)
    meter.observe(6.0, saturated=True)
    assert pytest.approx((0.75, 2)) == (meter.speed, meter.windows)


def test_a_speed_that_was_never_measured_is_guessed_anew() -> None:
    """By the new unit an endpoint is again taken for the reference, which the law is of."""
    meter = DrainMeter()
    meter.rescale(4.0)
    assert (1.0, 0) == (meter.speed, meter.windows)


@pytest.mark.parametrize(("factor", "speed"), [(1e-9, 1e-4), (1e9, 1e3)])
def test_no_unit_makes_a_speed_absurd(factor: float, speed: float) -> None:
    """A drain rate stays positive and finite, whatever a law claims."""
    meter = DrainMeter()
    saturated_window(meter, 0.0, 0.5)
    meter.rescale(factor)
    assert speed == meter.speed
