"""The ring of recent decisions."""

from __future__ import annotations

from forebay.admission.model import TicketId
from forebay.observe.decisions import RecentDecisions
from tests.unit.observe.records import record


def test_latest_come_first_and_the_oldest_are_dropped() -> None:
    """Only the newest are kept, and they are given newest first."""
    ring = RecentDecisions(capacity=3)
    for number in range(5):
        ring.add(record(ticket=TicketId(number)))
    assert [4, 3] == [kept.ticket for kept in ring.latest(2)]
    assert [4, 3, 2] == [kept.ticket for kept in ring.latest(100)]


def test_decisions_of_one_request_are_found() -> None:
    """All decisions about a request are given, oldest first."""
    ring = RecentDecisions()
    ring.add(record(ticket=TicketId(1), action="hold"))
    ring.add(record(ticket=TicketId(2)))
    ring.add(record(ticket=TicketId(1), action="dispatch"))
    assert ["hold", "dispatch"] == [kept.action for kept in ring.of_ticket(TicketId(1))]
    assert [] == ring.of_ticket(TicketId(3))
