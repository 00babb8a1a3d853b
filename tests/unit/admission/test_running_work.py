from __future__ import annotations

import math

import pytest

from forebay.admission.running_work import LOOKED_UP_EVERY, RunningWork
from tests.unit.admission.build import Site, know_lengths, pool_settings

SECOND_US = 1_000_000
TWO = pool_settings(max_inflight_requests=2)


def left_s(site: Site, now: float, drain: float = 1.0) -> float:
    """Endpoint-seconds left of what runs."""
    return site.pool.running.left_us(site.pool.books.in_flight, drain * SECOND_US, now) / SECOND_US


def release_s(site: Site, now: float, drain: float = 1.0) -> float:
    """Seconds until something ends."""
    return site.pool.running.first_release_s(site.pool.books.in_flight, drain * SECOND_US, now)


def site_of(requests: int, *, stream: bool = True) -> Site:
    """Some run, of an endpoint-second each."""
    site = Site(TWO)
    know_lengths(site.pool)
    for number in range(1, requests + 1):
        site.running(number, stream=stream)
    return site


@pytest.mark.parametrize(("requests", "drain", "expected_s"), [(0, 2.0, 0.0), (2, 2.0, 0.5), (4, 2.0, 0.5)])
def test_at_first_it_is_one_mean_request_away(requests: int, drain: float, expected_s: float) -> None:
    """Whole works over the drain rate, however many share it."""
    assert expected_s == release_s(site_of(requests), 0.0, drain)


def test_where_nothing_drains_nothing_ends() -> None:
    """An infinite wait, and no division by zero."""
    assert math.inf == release_s(site_of(1), 0.0, 0.0)
    assert 0.0 == release_s(site_of(0), 0.0, 0.0)


def test_tokens_of_a_stream_count_it_down() -> None:
    """The prompt is done at the first token, then each of 99 tokens takes a part off; at its end nothing is kept."""
    site = site_of(1)
    ticket = site.life.tickets[site.ticket(1).demand.ticket]
    site.life.first_token(ticket, 0.1)
    assert pytest.approx(0.99) == left_s(site, 0.1)
    before = 1.0
    for number in range(9):
        site.life.progress(ticket, 11, 0.2 + number / 10)
        now_left = left_s(site, 1.0)
        assert now_left <= before
        before = now_left
    assert 0.0 == before
    site.pool.running.end(ticket)
    assert 1.0 == left_s(site, 1.0)


def test_a_stream_is_looked_up_now_and_then_only() -> None:
    """From one look-up to the next it takes eight tokens, and later an eighth of what came."""
    site = site_of(1)
    ticket = site.life.tickets[site.ticket(1).demand.ticket]
    running = RunningWork()
    running.advance(ticket, 5)
    assert 5 + LOOKED_UP_EVERY == ticket.look_up_at
    running.advance(ticket, 800)
    assert 900 == ticket.look_up_at


def test_lengths_that_nobody_knows_do_not_run_out() -> None:
    """What outlives its expectation is expected to go on: something is left, and never more than booked."""
    site = Site(TWO)
    ticket = site.running(1, max_output_tokens=4000)
    booked_s = ticket.booking.work_us / SECOND_US
    for tokens in (100, 400, 1600):
        site.pool.running.advance(ticket, tokens)
        assert 0.3 * booked_s < left_s(site, 9.0) <= booked_s


def test_a_whole_answer_counts_down_by_the_clock_to_a_half() -> None:
    """Two that share an endpoint get half of it each; how long either becomes nobody knows."""
    site = site_of(2, stream=False)
    assert pytest.approx(2.0) == left_s(site, 0.0)
    assert pytest.approx(1.5) == left_s(site, 0.5)
    assert pytest.approx(1.0) == left_s(site, 30.0)


def test_what_ends_takes_its_part_with_it() -> None:
    """The sums are empty again, and what comes next counts as whole."""
    site = site_of(2, stream=False)
    for number in (1, 2):
        site.pool.running.end(site.life.tickets[site.ticket(number).demand.ticket])
    site.running(3)
    assert pytest.approx(3.0) == left_s(site, 30.0)
