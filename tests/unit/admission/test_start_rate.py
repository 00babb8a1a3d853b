"""What is told of a wait before an engine's speed is known."""

from __future__ import annotations

import pytest

from forebay.admission.effects import Hold
from forebay.admission.start_rate import StartRate
from tests.unit.admission.build import Scenario, held, pool_settings, settings_for, with_class


def rate(starts: int, every_s: float, from_s: float = 0.0) -> StartRate:
    """So many starts, one after another, with others waiting behind each."""
    seen = StartRate()
    for number in range(starts):
        seen.started(from_s + number * every_s, others_wait=True)
    return seen


def test_the_wait_is_the_place_times_the_time_between_starts() -> None:
    """Half a second each: who has nine before it starts in five seconds."""
    assert 5.0 == rate(5, 0.5).wait_s(9, 2.0)
    assert 0.5 == rate(5, 0.5).wait_s(0, 2.0)


@pytest.mark.parametrize(("starts", "every_s"), [(0, 1.0), (4, 1.0), (50, 0.0)])
def test_of_too_little_nothing_is_said(starts: int, every_s: float) -> None:
    """Fewer than five starts, or all in one moment."""
    assert rate(starts, every_s).wait_s(3, starts * every_s) is None


def test_when_nobody_waits_counting_begins_anew() -> None:
    """The time in which nobody waited says nothing of starts."""
    seen = rate(9, 0.5)
    seen.started(4.5, others_wait=False)
    assert seen.wait_s(3, 5.0) is None
    for number in range(5):
        seen.started(100.0 + number, others_wait=True)
    assert 4.0 == seen.wait_s(3, 104.0)


def test_a_pause_makes_the_wait_longer() -> None:
    """Time in which nothing started while some waited counts."""
    assert 3.0 == rate(5, 0.5).wait_s(0, 12.0)


def test_what_is_long_ago_counts_less() -> None:
    """An engine that has become ten times as fast is known for it soon."""
    seen = rate(20, 1.0)
    for number in range(200):
        seen.started(20.0 + number / 10, others_wait=True)
    assert seen.wait_s(0, 40.0) == pytest.approx(0.1, rel=0.5)


def test_a_client_is_told_by_what_is_seen_while_the_pool_learns() -> None:
    """An engine ten times as fast as its profile says: after a few starts the wait told is a tenth of the guess."""
    settings = with_class("standard", settings_for(pool_settings(max_inflight_requests=1)), wait_budget_s=1e4)
    one = Scenario(settings=settings)
    one.arrive_many(range(30), 0.0)
    before = one.arrive(30, 0.0)
    for number in range(10):
        one.end(number, 0.1 * (number + 1))
    said = one.arrive(31, 1.0)
    assert [31] == held(said)
    told_s = [effect.record.predicted_wait_s for effect in (*before, *said) if isinstance(effect, Hold)]
    assert told_s[0] > 20.0
    assert told_s[1] == pytest.approx(2.1, rel=0.15)
    one.close()
