from __future__ import annotations

import pytest

from forebay.admission.ledger import booking_for
from forebay.admission.tickets import Phase
from forebay.admission.waiter import Waiter
from tests.unit.admission.build import Site, demand, settings_for, with_class


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
    one.tried |= {site.endpoint().id}
    assert not other.tried


def test_a_ticket_waits_as_what_it_is() -> None:
    """The order of service sees its arrival, its class, its tenant, and what it is expected to take and to hold."""
    ticket = Site().ticket(7, 2.0, class_name="batch", tenant="acme")
    assert isinstance(ticket, Waiter)
    assert (7, 2, "acme", 1.0, 2.0) == (
        ticket.sequence,
        ticket.class_index,
        ticket.tenant,
        ticket.weight,
        ticket.arrived_s,
    )
    assert (1_000_000, 150) == (ticket.work_us, ticket.kv_tokens)
    assert (ticket.work_us, ticket.kv_tokens) == (ticket.booking.work_us, ticket.booking.kv_tokens)
    assert ticket.price.cost is ticket.cost


@pytest.mark.parametrize(("class_name", "rank"), [("realtime", 0), ("standard", 1), ("batch", 2)])
def test_only_one_class_is_the_most_important(class_name: str, rank: int) -> None:
    """It is the first in the order of the settings."""
    ticket = Site().ticket(1, class_name=class_name)
    assert (rank, rank == 0) == (ticket.rank, ticket.rank_is_first)


def test_short_is_what_its_class_calls_short() -> None:
    """By the output tokens that are expected, and none where the class says nothing."""
    site = Site(settings=with_class("standard", settings_for(), short_tokens=99))
    assert [True, False] == [site.ticket(1, max_output_tokens=tokens).short for tokens in (98, 99)]
    assert not site.ticket(1, class_name="batch", max_output_tokens=1).short


def test_a_new_estimate_is_booked_whole() -> None:
    """Cost, booking, and what the order of service sees change together."""
    site = Site()
    ticket = site.ticket(1)
    wanted = demand(1, max_output_tokens=199)
    price = site.pool.price(wanted)
    ticket.book_as(price, booking_for(wanted, price.cost))
    assert (2_000_000, 200) == (ticket.work_us, ticket.kv_tokens)
    assert (2_000_000, 200) == (ticket.booking.work_us, ticket.booking.kv_tokens)
    assert (2_000_000, 199) == (ticket.cost.work_us, ticket.price.cap)


def test_work_is_credited_by_the_law_that_its_end_is_counted_by() -> None:
    """The law says now that it takes a tenth: so it does of what was done, and its end is told by the new law."""
    ticket = Site().ticket(1)
    ticket.credited_us, ticket.law_factor = 200, 0.1
    assert 10 == ticket.by_new_law_us(300, ended=False)
    assert 30 == ticket.by_new_law_us(50, ended=True)
