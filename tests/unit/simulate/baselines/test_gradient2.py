from __future__ import annotations

import pytest

from forebay.simulate.baselines.gradient2 import Gradient2, Gradient2Limit, WindowedLimit
from tests.unit.simulate.baselines.bench import Bench


def test_the_limit_follows_its_formula() -> None:
    """Steady latency adds 0.8 a window; twice the average shrinks it by the gradient; never below 20."""
    law = Gradient2Limit()
    law.update(1.0, 20)
    assert 20 * 0.8 + 0.2 * (20 + 4) == pytest.approx(law.estimate)
    for _ in range(49):
        law.update(1.0, 60)
    assert 60.0 == pytest.approx(law.estimate)
    law.update(2.0, 60)
    long_s = 1.0 + (2.0 - 1.0) * 2 / 601
    gradient = 1.5 * long_s / 2.0
    assert 60 * 0.8 + 0.2 * (60 * gradient + 4) == pytest.approx(law.estimate)
    for _ in range(40):
        law.update(1_000.0, 60)
    assert 20.0 == law.estimate


def test_the_average_is_plain_for_ten_windows_and_then_exponential() -> None:
    """Its factor is 2/601."""
    law = Gradient2Limit()
    for n in range(1, 11):
        law.update(float(n), 0)
    assert 5.5 == pytest.approx(law.long_s)
    law.update(11.0, 0)
    assert 5.5 + (11.0 - 5.5) * 2 / 601 == pytest.approx(law.long_s)


def test_an_average_that_is_far_too_high_shrinks_faster() -> None:
    """More than twice the window's: by a twentieth."""
    law = Gradient2Limit()
    for _ in range(10):
        law.update(10.0, 0)
    law.update(1.0, 0)
    assert (10.0 + (1.0 - 10.0) * 2 / 601) * 0.95 == pytest.approx(law.long_s)


def test_nothing_changes_while_little_is_going_on() -> None:
    """Fewer than half of the limit in flight says nothing about it."""
    law = Gradient2Limit()
    law.update(1.0, 9)
    assert 20.0 == law.estimate


def test_a_window_is_a_second_and_ten_ends() -> None:
    """One with fewer is thrown away; the mean of the rest is what counts."""
    limit = WindowedLimit()
    for n in range(9):
        limit.sample(1.0, 20, 1.0 + n / 10)
    assert 20.0 == limit.law.estimate
    for n in range(9):
        limit.sample(2.0, 20, 2.1 + n / 100)
    assert 20.0 == limit.law.estimate
    for n in range(12):
        limit.sample(2.0, 20, 3.5 + n / 100)
    limit.sample(2.0, 20, 4.6)
    assert 20.8 == pytest.approx(limit.law.estimate)
    assert 2.0 == pytest.approx(limit.law.long_s)


def test_at_the_limit_a_class_below_its_part_still_gets_in() -> None:
    """Weights 3, 5, 2 of a limit of 20: six realtime requests are let in beside twenty others."""
    bench = Bench("gradient2")
    for ticket in range(1, 21):
        bench.arrive(ticket, "batch")
    bench.arrive(21, "batch")
    assert {21: "queue_full"} == bench.over
    for ticket in range(22, 29):
        bench.arrive(ticket, "realtime")
    assert {21, 28} == set(bench.over)


def test_each_engine_has_its_own_limit_and_keeps_it() -> None:
    """An engine that is added starts anew, the others go on."""
    bench = Bench("gradient2", engines=2)
    law = bench.law
    assert isinstance(law, Gradient2)
    before = dict(law.limits)
    bench.now = 5.0
    for ticket in range(1, 41):
        bench.arrive(ticket)
    bench.arrive(41)
    assert {41} == set(bench.over)
    bench.now = 7.0
    for ticket in range(1, 41):
        bench.end(ticket)
    assert before == law.limits
