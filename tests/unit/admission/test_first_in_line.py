from __future__ import annotations

import pytest

from forebay.admission.first_in_line import LINE_ENOUGH, LINE_MOST_S, FirstInLine


def test_nothing_is_claimed_from_a_few_waits() -> None:
    """Before enough waits were seen the first in line is taken to start at once."""
    first = FirstInLine()
    for _ in range(LINE_ENOUGH - 1):
        first.observe(0.1, 0.9)
    assert 0.0 == first.seconds


def test_the_part_that_does_not_grow_is_found() -> None:
    """Waits of a fixed part and the work ahead teach the fixed part."""
    first = FirstInLine()
    for number in range(200):
        computed_s = 0.05 + 0.1 * (number % 20)
        first.observe(computed_s, 0.4 + computed_s)
    assert first.seconds == pytest.approx(0.4, abs=0.03)


def test_waits_in_proportion_leave_nothing_for_the_first() -> None:
    """Where every wait is twice what was computed, the factor is κ's business."""
    first = FirstInLine()
    for number in range(200):
        computed_s = 0.05 + 0.1 * (number % 20)
        first.observe(computed_s, 2.0 * computed_s)
    assert first.seconds == pytest.approx(0.0, abs=0.02)


def test_waits_all_alike_are_taken_by_their_difference() -> None:
    """With hardly any spread there is no slope to be seen: the difference stands for the fixed part."""
    first = FirstInLine()
    for _ in range(50):
        first.observe(0.2, 0.7)
    assert first.seconds == pytest.approx(0.5, abs=0.01)


def test_it_is_bounded_and_never_negative() -> None:
    """Waits shorter than computed claim nothing, and huge ones only so much."""
    short, huge = FirstInLine(), FirstInLine()
    for number in range(100):
        short.observe(1.0 + number % 3, 0.1)
        huge.observe(0.01, 1e6)
    assert 0.0 == short.seconds
    assert LINE_MOST_S == huge.seconds
