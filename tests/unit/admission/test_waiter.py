from __future__ import annotations

import random

from forebay.admission.waiter import Arrivals, Waiter


def waiter(sequence: int) -> Waiter:
    """A waiter of which only the arrival matters."""
    return Waiter(sequence, 0, "a", 1.0, 1000, 10, float(sequence), 99.0, False)


def listed(arrivals: Arrivals) -> tuple[list[int], list[int]]:
    """Sequence numbers from the first to the last, and back."""
    there, back = [], []
    one = arrivals.first
    while one is not None:
        there.append(one.sequence)
        one = one.younger
    one = arrivals.last
    while one is not None:
        back.append(one.sequence)
        one = one.older
    return there, back


def test_a_new_waiter_neither_waits_nor_is_charged() -> None:
    """What the queue notes down starts empty."""
    new = waiter(1)
    assert (False, False, False, None, None) == (new.waiting, new.charged, new.front, new.older, new.younger)


def test_a_waiter_says_who_it_is() -> None:
    """Its text names its place, class, tenant and cost."""
    assert "Waiter(3, class=0, tenant='a', work_us=1000)" == repr(waiter(3))


def test_arrivals_keep_the_order_however_they_are_filed() -> None:
    """The list runs by arrival in both directions, with any order of filing and leaving."""
    draw = random.Random("arrivals")
    arrivals, there = Arrivals(), list[Waiter]()
    for number in range(400):
        if there and draw.random() < 0.4:
            arrivals.remove(there.pop(draw.randrange(len(there))))
        else:
            one = waiter(number if draw.random() < 0.7 else 1000 - number)
            there.append(one)
            arrivals.add(one)
        expected = sorted(one.sequence for one in there)
        assert (expected, expected[::-1]) == listed(arrivals)


def test_one_that_has_left_holds_nobody() -> None:
    """Neighbours are let go, so that no cycle keeps a request alive."""
    arrivals, one, other = Arrivals(), waiter(1), waiter(2)
    arrivals.add(one)
    arrivals.add(other)
    arrivals.remove(one)
    assert (None, None) == (one.older, one.younger)
    assert (None, None) == (other.older, other.younger)
    assert arrivals.first is other is arrivals.last
