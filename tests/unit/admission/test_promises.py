"""A place kept in a bucket: for whom, how much of it, and for how long."""

from __future__ import annotations

from forebay.admission.model import MICRO
from forebay.admission.promises import LATE_S, Promise

MINE, OTHER = 1, 2


def given(cost: int = 80, by_s: float = 8.0, told_s: float = 8.0) -> Promise:
    """A promise that was given at 0."""
    promise = Promise()
    assert promise.give(MINE, cost * MICRO, by_s, told_s, 0.0)
    return promise


def test_nothing_is_kept_at_first() -> None:
    """Of nobody, for nobody."""
    assert (0, 0.0) == (Promise().left_for_it(MINE, 10.0, 0.0), Promise().wait_s(0.0))


def test_others_leave_what_will_not_have_been_refilled() -> None:
    """More and more of it as the time comes near, and all of it from then on."""
    promise = given()
    assert [0, 30 * MICRO, 80 * MICRO, 80 * MICRO] == [
        promise.left_for_it(OTHER, 10.0, now) for now in (0.0, 3.0, 8.0, 9.0)
    ]
    assert 0 == promise.left_for_it(MINE, 10.0, 9.0)
    assert 5.0 == promise.wait_s(3.0)


def test_it_lapses_or_is_kept() -> None:
    """Two seconds after the time that was told, or when its request is let in; that of another changes nothing."""
    promise = given()
    promise.keep(OTHER)
    assert promise.left_for_it(OTHER, 10.0, 8.0 + LATE_S - 0.1)
    assert not promise.left_for_it(OTHER, 10.0, 8.0 + LATE_S)
    kept = given()
    kept.keep(MINE)
    assert not kept.left_for_it(OTHER, 10.0, 8.0)


def test_it_is_one_requests_at_a_time() -> None:
    """Whoever has it may ask again, and is not put off by that."""
    promise = given()
    assert not promise.give(OTHER, MICRO, 1.0, 1.0, 1.0)
    assert promise.give(MINE, 80 * MICRO, 20.0, 19.0, 1.0)
    assert 7.0 == promise.wait_s(1.0)
    assert promise.left_for_it(OTHER, 10.0, 20.0)
    assert promise.give(OTHER, MICRO, 30.0, 5.0, 25.0)


def test_one_with_a_long_wait_is_waited_for_until_the_time_that_it_was_told() -> None:
    """Clients heed no more than a minute: it comes early, is told again, and keeps its time."""
    promise = given(by_s=300.0, told_s=60.0)
    assert promise.give(MINE, 80 * MICRO, 301.0, 60.0, 61.0)
    assert 239.0 == promise.wait_s(61.0)
    assert not promise.left_for_it(OTHER, 0.1, 123.1)
