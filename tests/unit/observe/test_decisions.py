"""The ring of recent decisions."""

from __future__ import annotations

from forebay.admission.model import TicketId
from forebay.observe.decisions import PLAIN, RecentDecisions
from tests.unit.observe.records import record, settlement


def test_latest_come_first_and_the_oldest_are_dropped() -> None:
    """Only the newest are kept, and they are given newest first."""
    ring = RecentDecisions(capacity=3)
    for number in range(5):
        ring.add(record(ticket=TicketId(number)))
    assert [4, 3] == [kept.ticket for kept in ring.latest(2)]
    assert [4, 3, 2] == [kept.ticket for kept in ring.latest(100)]


def test_plain_dispatches_do_not_push_out_what_there_is_to_explain() -> None:
    """Of those that started at once few are kept; whoever waited or was refused is found long after."""
    ring = RecentDecisions()
    ring.add(record(ticket=TicketId(1), action="hold"))
    ring.add(record(ticket=TicketId(1), action="dispatch", waited_s=0.5))
    for number in range(2, 2002):
        ring.add(record(ticket=TicketId(number)))
    ring.add(record(ticket=TicketId(2002), action="refuse"))
    latest = ring.latest(10_000)
    assert [2002, 2001, 2000] == [kept.ticket for kept in latest[:3]]
    assert [1, 1] == [kept.ticket for kept in latest[-2:]]
    assert PLAIN + 3 == len(latest)
    assert ["hold", "dispatch"] == [kept.action for kept in ring.of_ticket(TicketId(1))]


def test_decisions_of_one_request_are_found() -> None:
    """All decisions about a request are given, oldest first."""
    ring = RecentDecisions()
    ring.add(record(ticket=TicketId(1), action="hold"))
    ring.add(record(ticket=TicketId(2)))
    ring.add(record(ticket=TicketId(1), action="dispatch"))
    assert ["hold", "dispatch"] == [kept.action for kept in ring.of_ticket(TicketId(1))]
    assert [] == ring.of_ticket(TicketId(3))


def test_the_end_of_a_request_is_found() -> None:
    """Of the ends that are still kept, the one of this request; None for one that has not ended or is forgotten."""
    ring = RecentDecisions(capacity=2)
    for number in (1, 2, 3):
        ring.add_end(settlement(ticket=TicketId(number), duration_s=float(number)))
    end = ring.end_of(TicketId(2))
    assert end is not None
    assert 2.0 == end.duration_s
    assert (None, None) == (ring.end_of(TicketId(1)), ring.end_of(TicketId(4)))
