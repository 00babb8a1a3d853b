from __future__ import annotations

import pytest

from forebay.admission.model import EndpointState
from forebay.admission.rotation import BACK_OFF_FIRST_S, BACK_OFF_LONGEST_S, DOUBTS, Rotation


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
