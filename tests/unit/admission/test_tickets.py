from __future__ import annotations

from forebay.admission.tickets import Phase
from tests.unit.admission.build import Site


def test_a_ticket_is_itself_and_not_its_content() -> None:
    """Two tickets with the same fields are two tickets: they can be filed, compared and removed by identity."""
    site = Site()
    one, other = site.ticket(1), site.ticket(1)
    assert one != other
    assert [other, one].index(one) == 1
    assert len({one: "a", other: "b"}) == 2


def test_a_new_ticket_has_done_nothing() -> None:
    """Before the first move a ticket has no endpoint, no wait, no attempt and no first token."""
    ticket = Site().ticket(1, 7.5)
    assert (Phase.NEW, 7.5, 0.0, 0, None, None) == (
        ticket.phase,
        ticket.arrived_s,
        ticket.waited_s,
        ticket.attempts,
        ticket.endpoint,
        ticket.first_token_s,
    )
    assert not ticket.tried


def test_tickets_do_not_share_what_they_tried() -> None:
    """An endpoint that failed one request is not held against another."""
    site = Site()
    one, other = site.ticket(1), site.ticket(2)
    one.tried.add(site.endpoint().id)
    assert not other.tried
