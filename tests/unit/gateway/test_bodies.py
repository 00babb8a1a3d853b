from __future__ import annotations

import pytest

from forebay.gateway.bodies import SMALL_BYTES, BodyRoom


def test_room_is_taken_and_given_back() -> None:
    """What fits is taken, what does not is refused, and what was taken can be given back."""
    room = BodyRoom(100)
    assert room.reserve(60, 60)
    assert not room.reserve(41, 41)
    assert room.left_bytes(1) == 40
    room.add(50)
    assert room.left_bytes(1) == 0
    room.remove(60)
    assert room.reserve(50, 50)
    room.remove(50)
    room.remove(50)
    assert room.taken_bytes == 0


def test_large_bodies_leave_room_for_small_ones() -> None:
    """However many large ones are on their way, one eighth is for bodies up to 64 KiB."""
    room = BodyRoom(800_000)
    assert (700_000, 800_000) == (room.left_bytes(SMALL_BYTES + 1), room.left_bytes(SMALL_BYTES))
    assert room.reserve(700_000, 700_000)
    assert not room.reserve(1, 700_001)
    assert room.reserve(SMALL_BYTES, SMALL_BYTES)
    assert not room.reserve(1, SMALL_BYTES + 1)
    assert room.reserve(100, 100)


def test_bodies_at_silent_engines_may_take_as_much_again() -> None:
    """What engines have does not count up to the same bound; what they have beyond it is not there for others."""
    room = BodyRoom(100)
    room.send(100)
    assert room.left_bytes(1) == 100
    room.send(70)
    assert room.reserve(30, 30)
    assert room.left_bytes(1) == 0
    room.forget(170)
    assert room.left_bytes(1) == 70


def test_more_is_never_given_back_than_was_taken() -> None:
    """The account cannot go below zero."""
    with pytest.raises(AssertionError):
        BodyRoom(100).remove(1)
    with pytest.raises(AssertionError):
        BodyRoom(100).forget(1)


def test_comebacks_are_spread() -> None:
    """Those who found no room are told different times, from 1 s upwards."""
    room = BodyRoom(1)
    told = [room.promise_s() for _ in range(10)]
    assert len(set(told)) == 10
    assert all(1.0 <= seconds <= 1.3 for seconds in told)
