from __future__ import annotations

from math import inf
from typing import Any

import pytest

from forebay.admission.deadlines import file_waiter, start_by_s, unfile
from tests.unit.admission.build import Site, know_lengths, settings_for, with_class


@pytest.mark.parametrize("protected", [False, True])
def test_a_waiter_is_filed_by_when_it_must_start(protected: bool) -> None:
    """What is filed has its deadline, its booked work, its worth, and the time from which it is left alone."""
    site = Site()
    ticket = site.queued(1, 10.0)
    file_waiter(ticket, 10.0, protected=protected)
    entry = ticket.entry
    assert entry is not None
    assert (15.0, ticket.booking.work_us, 2.0, 1) == (
        entry.start_by_s, entry.work_us, entry.value, entry.sequence,
    )  # fmt: skip
    assert (protected, 12.5) == (entry.protected, entry.firm_from_s)
    assert entry.owner is ticket
    assert 1 == site.pool.classes["standard"].deadlines.count


def test_filed_anew_it_keeps_the_time_from_which_it_is_left_alone() -> None:
    """Half of its budget counts from when it came to wait, not from when its cost was estimated anew."""
    site = Site()
    ticket = site.queued(1, 10.0)
    file_waiter(ticket, 10.0, protected=False)
    site.price_again(14.0)
    assert ticket.entry is not None
    assert 12.5 == ticket.entry.firm_from_s
    site.pool.classes["standard"].deadlines.verify()


def test_who_leaves_the_queue_leaves_the_deadlines() -> None:
    """A dispatch and a client's leaving both take the entry out."""
    site = Site()
    tickets = [site.queued(number, 0.0) for number in (1, 2)]
    for ticket in tickets:
        file_waiter(ticket, 0.0, protected=False)
    site.life.dispatch(tickets[0], site.endpoint(), 1.0)
    site.life.drop(tickets[1], 1.0)
    assert 0 == site.pool.classes["standard"].deadlines.count
    assert [None, None] == [ticket.entry for ticket in tickets]


def test_a_whole_answer_must_start_so_much_earlier_as_it_takes() -> None:
    """By the class's objective or the client's timeout; a token is a tenth of a second here, a faster engine's less."""
    site = Site(settings=with_class("standard", settings_for(), whole_answer_s=60.0))
    know_lengths(site.pool)

    def by_s(number: int, **changes: Any) -> float:
        return start_by_s(site.ticket(number, 10.0, max_output_tokens=100, **changes))

    law = site.pool.pricing.law
    step_s = law.c0_s + law.c2_s
    prefill_s = site.ticket(1).cost.prefill_us / 1e6
    assert 70.0 - prefill_s - 100 * step_s == pytest.approx(by_s(1))
    assert 30.0 - prefill_s - 100 * step_s == pytest.approx(by_s(2, patience_until_s=30.0))
    assert by_s(1) == pytest.approx(by_s(3, samples=4), abs=0.1), "samples are generated side by side"
    assert 10.0 == by_s(4, patience_until_s=11.0), "never before it came"
    site.endpoint().meter.speed = 2.0
    assert 70.0 - (prefill_s + 100 * step_s) / 2 == pytest.approx(by_s(5))
    plain = Site()
    assert inf == start_by_s(plain.ticket(1))


def test_a_waiter_is_filed_until_it_waits_no_more() -> None:
    """Taking it out twice does nothing; who is left alone is so from when it is protected on."""
    site = Site()
    deadlines = site.pool.classes["standard"].deadlines
    first, second = [site.queued(number, 0.0) for number in (1, 2)]
    for ticket in (first, second):
        file_waiter(ticket, 0.0, protected=ticket is first)
    site.life.protect(second, 1.0)
    assert [True, True] == [ticket.entry is not None and ticket.entry.protected for ticket in (first, second)]
    assert (2, first.work_us + second.work_us) == (deadlines.count, deadlines.work_us)
    for ticket in (first, second):
        unfile(ticket)
        unfile(ticket)
    assert (0, 0) == (deadlines.count, deadlines.work_us)
