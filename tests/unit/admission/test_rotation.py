from __future__ import annotations

import pytest

from forebay.admission.model import EndpointState
from forebay.admission.rotation import (
    BACK_OFF_FIRST_S,
    BACK_OFF_LONGEST_S,
    DOUBTS,
    EJECT_FIRST_S,
    ENTERED,
    OUTLIER,
    Rotation,
)


def up() -> Rotation:
    """One that is in rotation."""
    rotation = Rotation()
    assert rotation.come_up(1.0)
    return rotation


def test_one_that_starts_comes_up_at_the_first_evidence() -> None:
    """And only once."""
    rotation = Rotation()
    assert (False, True) == (rotation.is_up, rotation.may_come_soon)
    assert (True, False) == (rotation.come_up(1.0), rotation.come_up(2.0))
    assert rotation.is_up
    assert rotation.last_life_s == 1.0


def test_one_that_cannot_be_reached_is_out_for_longer_each_time() -> None:
    """Twice as long for each failure after it had come up again, within a bound."""
    rotation, now, outs = up(), 10.0, []
    for _ in range(8):
        rotation.fail(now)
        assert rotation.state is EndpointState.DOWN
        outs.append(rotation.up_again_at_s - now)
        assert not rotation.come_up(rotation.up_again_at_s - 0.01)
        assert rotation.come_up(rotation.up_again_at_s)
        now = rotation.up_again_at_s + 1.0
    assert [BACK_OFF_FIRST_S * 2**n for n in range(6)] == outs[:6]
    assert BACK_OFF_LONGEST_S == outs[-1]


def test_failures_of_one_outage_are_one() -> None:
    """All that was in flight fails by the same cause."""
    rotation = up()
    for _ in range(5):
        rotation.fail(2.0)
    assert (1, 2.0 + BACK_OFF_FIRST_S) == (rotation.failures, rotation.up_again_at_s)


@pytest.mark.parametrize("good_between", [False, True])
def test_failed_attempts_in_a_row_take_it_out_for_a_moment(good_between: bool) -> None:
    """A good answer between them clears it."""
    rotation = up()
    for number in range(DOUBTS):
        assert rotation.is_up
        if good_between and number == DOUBTS - 1:
            rotation.show_life(1.5)
        rotation.doubt(2.0)
    assert rotation.is_up is good_between
    assert rotation.may_come_soon is not good_between


def test_a_sign_of_life_ends_a_stall() -> None:
    """And what was held against it."""
    rotation = up()
    rotation.state, rotation.trial, rotation.failures = EndpointState.STALLED, True, 3
    rotation.show_life(5.0)
    assert rotation.is_up
    assert (False, 0, 5.0) == (rotation.trial, rotation.failures, rotation.last_life_s)


def test_one_that_was_removed_does_not_come_back_by_itself() -> None:
    """Whatever is heard of it."""
    rotation = up()
    rotation.state = EndpointState.REMOVED
    rotation.fail(2.0)
    assert not rotation.come_up(60.0)
    rotation.show_life(61.0)
    assert rotation.state is EndpointState.REMOVED


def test_one_that_says_that_it_takes_no_work_is_out_until_it_says_otherwise() -> None:
    """Whatever state it was in, short of what an operator decided; then it comes up as if it were new."""
    for state in (EndpointState.STARTING, EndpointState.UP, EndpointState.STALLED, EndpointState.DOWN):
        rotation = Rotation()
        rotation.state = state
        rotation.hear("it is asleep")
        rotation.hear("it is asleep")
        assert (rotation.state, rotation.faults) == (EndpointState.UNREADY, {"unready": 1})
        assert not rotation.come_up(100.0)
        rotation.hear("")
        assert rotation.come_up(100.0)
    for state in (EndpointState.REMOVED, EndpointState.DRAINED):
        rotation = Rotation()
        rotation.state = state
        rotation.hear("it is asleep")
        assert rotation.state is state


def test_one_that_says_nothing_stays_as_it_is() -> None:
    """That an engine does not say that it takes no work is no evidence for it."""
    rotation = up()
    rotation.state = EndpointState.STALLED
    rotation.hear("")
    assert rotation.state is EndpointState.STALLED


def test_one_that_was_ejected_is_out_for_longer_each_time() -> None:
    """Twice as long, within a bound, until it has come back wholly."""
    rotation, now, outs = up(), 10.0, []
    for _ in range(6):
        rotation.eject(now)
        outs.append(rotation.up_again_at_s - now)
        assert not rotation.come_up(rotation.up_again_at_s - 0.01)
        now = rotation.up_again_at_s
        assert rotation.come_up(now)
        rotation.show_life(now)
    assert [EJECT_FIRST_S, 1.0, 2.0, 4.0, 8.0, BACK_OFF_LONGEST_S] == outs
    while rotation.entry_limit:
        rotation.enter()
    rotation.eject(now)
    assert rotation.up_again_at_s - now == EJECT_FIRST_S


def test_one_that_was_ejected_comes_back_slowly() -> None:
    """One request until a byte moves, then room for twice as many with each first token."""
    rotation = up()
    rotation.eject(2.0)
    rotation.come_up(9.0)
    assert (True, 1) == (rotation.trial, rotation.entry_limit)
    rotation.show_life(9.5)
    limits = []
    while rotation.entry_limit:
        limits.append(rotation.entry_limit)
        rotation.enter()
    assert [1, 2, 4, 8, 16, 32, ENTERED] == limits
    assert not rotation.trial


def test_an_outlier_is_one_whose_last_attempts_all_failed() -> None:
    """A sign of life between them clears it; one that is not up cannot be one."""
    rotation, seen = up(), []
    for failures in (OUTLIER - 1, OUTLIER):
        rotation.failures_in_row = failures
        seen.append(rotation.is_outlier)
    rotation.show_life(3.0)
    assert [False, True, False] == [*seen, rotation.is_outlier]


def test_one_that_is_not_up_is_no_outlier() -> None:
    """It is out already."""
    rotation = Rotation()
    rotation.failures_in_row = OUTLIER
    assert not rotation.is_outlier
