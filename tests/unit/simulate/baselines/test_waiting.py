from __future__ import annotations

from forebay.admission.model import TicketId
from forebay.simulate.baselines.waiting import WaitingList


def test_first_by_key_then_by_arrival() -> None:
    """Equal keys keep their order."""
    waiting = WaitingList(10)
    for ticket, key in ((1, 2.0), (2, 1.0), (3, 2.0), (4, 1.0)):
        waiting.add(TicketId(ticket), (key,))
    found = []
    while (first := waiting.first()) is not None:
        waiting.remove(first)
        found.append(first)
    assert [2, 4, 1, 3] == found


def test_expired_are_told_once_in_order() -> None:
    """What has left before is not told."""
    waiting = WaitingList(10)
    for ticket in range(1, 5):
        waiting.add(TicketId(ticket), (0.0,), 10.0 - ticket)
    waiting.remove(TicketId(4))
    assert 7.0 == waiting.next_expiry_s()
    assert [3, 2] == waiting.expired(8.0)
    assert [] == waiting.expired(8.0)


def test_what_left_is_swept_out() -> None:
    """A long life with many comers does not fill the heaps."""
    waiting = WaitingList(10)
    waiting.add(TicketId(0), (0.0,))
    for ticket in range(1, 10_000):
        waiting.add(TicketId(ticket), (1.0,), 1e9)
        waiting.remove(TicketId(ticket))
    assert len(waiting._order) + len(waiting._expiry) < 300
    assert (1, 0) == (len(waiting), waiting.first())


def test_full_is_full() -> None:
    """As many as were allowed."""
    waiting = WaitingList(1)
    waiting.add(TicketId(1), (0.0,))
    assert (True, False) == (waiting.is_full, WaitingList(1).is_full)
    assert TicketId(1) in waiting
