from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.model import EndpointState
from forebay.admission.outcomes import Outcome
from forebay.admission.placement import finish_s, place
from forebay.admission.settings import SpeedLaw
from tests.unit.admission.build import LAW, Site, pool_settings

LATE = 500
"""Number of the request that is placed: those that run have smaller ones."""


def chosen(site: Site, now: float = 0.0, **changes: Any) -> str | None:
    """Where the next request goes."""
    found = place(site.ticket(LATE, **changes), site.pool.endpoints.values(), now)
    return None if found is None else found.id


def two(law: SpeedLaw = LAW) -> Site:
    """Two endpoints, a before b."""
    return Site(pool_settings(law=law), endpoints=("a", "b"))


def decoding(site: Site, number: int, endpoint: str, **changes: Any) -> None:
    """A request runs there whose prompt has been worked off."""
    site.life.first_token(site.running(number, endpoint, **changes), 0.0)


# Where it would finish first


def test_a_finish_is_prefill_and_the_answers_steps() -> None:
    """10 ms of its own prefill after 20 ms of another, 99 steps of 20 ms with one that decodes, at half the speed."""
    site = Site()
    decoding(site, 1, "a")
    ticket = site.ticket(LATE)
    assert pytest.approx(0.01 + 99 * 0.02) == finish_s(ticket, site.endpoint(), 0.0)
    site.running(2, "a", prompt_tokens=200)
    assert pytest.approx(0.03 + 99 * 0.03) == finish_s(ticket, site.endpoint(), 0.0)
    site.endpoint().meter.speed = 0.5
    assert pytest.approx((0.03 + 99 * 0.03) * 2) == finish_s(ticket, site.endpoint(), 0.0)


def test_a_step_takes_its_fixed_time_and_reads_the_cache() -> None:
    """5 ms for the step itself, 10 ms a sequence and 1 µs for each token held: 300 and its own 100."""
    site = Site(pool_settings(law=replace(LAW, c0_s=5e-3, c3_s=1e-6)))
    decoding(site, 1, "a", prompt_tokens=300)
    assert pytest.approx(0.01 + 99 * (0.005 + 0.02 + 400e-6)) == finish_s(
        site.ticket(LATE), site.endpoint(), 0.0
    )


def test_the_endpoint_with_fewer_sequences_is_chosen() -> None:
    """Each of those that decode makes every step longer."""
    site = two()
    decoding(site, 1, "a")
    decoding(site, 2, "a")
    decoding(site, 3, "b")
    assert "b" == chosen(site)


def test_prefill_under_way_is_waited_for() -> None:
    """With as many sequences in both, the one that has no prompt in hand gives the first token sooner."""
    site = two()
    site.running(1, "a", prompt_tokens=1000)
    decoding(site, 2, "b", prompt_tokens=1000)
    assert "b" == chosen(site)


def test_what_is_held_is_read_in_each_step() -> None:
    """Where reading the cache is what takes time, two short sequences are better company than one long one."""
    site = two(replace(LAW, c2_s=1e-4, c3_s=1e-5))
    decoding(site, 1, "a", prompt_tokens=5000)
    decoding(site, 2, "b")
    decoding(site, 3, "b")
    assert "b" == chosen(site)


def test_speed_makes_up_for_company() -> None:
    """An engine of four times the speed is the better one with two sequences, and not with ten."""
    site = two()
    site.endpoint("b").meter.speed = 4.0
    decoding(site, 1, "b")
    decoding(site, 2, "b")
    assert "b" == chosen(site)
    for number in range(3, 8):
        decoding(site, number, "b")
    assert "a" == chosen(site)


def test_a_short_answer_goes_by_prefill_and_a_long_one_by_steps() -> None:
    """One token: to where no prompt is in hand, though three decode there. Ninety-nine: to where one does."""
    site = two()
    site.running(1, "a", prompt_tokens=1000)
    for number in (2, 3, 4):
        decoding(site, number, "b")
    assert "b" == chosen(site, max_output_tokens=1)
    assert "a" == chosen(site, max_output_tokens=99)


def test_how_long_the_others_have_to_go_does_not_count() -> None:
    """They run side by side: one that will take ten times as long slows a newcomer no more than another."""
    site = two()
    decoding(site, 1, "a", max_output_tokens=990)
    decoding(site, 2, "b")
    assert finish_s(site.ticket(LATE), site.endpoint("a"), 0.0) == finish_s(
        site.ticket(LATE), site.endpoint("b"), 0.0
    )
    assert "a" == chosen(site)


def test_the_best_of_many_is_chosen() -> None:
    """Wherever in the configuration it stands."""
    names = ("a", "b", "c", "d")
    for best in names:
        site = Site(endpoints=names)
        number = 0
        for name in names:
            for _ in range(1 if name == best else 6 - names.index(name)):
                number += 1
                decoding(site, number, name)
        assert best == chosen(site)


def test_draining_work_is_company_too() -> None:
    """What an engine goes on with for clients that left is in its steps as before."""
    site = two()
    ticket = site.running(1, "a")
    site.life.first_token(ticket, 0.0)
    site.life.finish(ticket, Outcome.CLIENT_GONE, None, 0.0, engine_goes_on=True)
    assert (0, 1) == (len(site.endpoint("a").running), len(site.endpoint("a").draining))
    assert "b" == chosen(site)


# Among equals, and where there is no choice


def test_ties_go_to_the_first_in_the_configuration() -> None:
    """Among equals the choice is the same in every run."""
    assert "a" == chosen(Site(endpoints=("a", "b", "c")))


def test_ties_follow_the_configuration_when_it_is_reordered() -> None:
    """The position in the configuration breaks ties, and not the order of discovery."""
    site = Site(endpoints=("a", "b", "c"))
    for order, name in enumerate(["c", "a", "b"]):
        site.endpoint(name).order = order
    assert "c" == chosen(site)


def test_endpoints_that_failed_this_request_are_passed_over() -> None:
    """A request is not sent again to where it has failed, however idle that is."""
    site = two()
    site.running(1, "b")
    ticket = site.ticket(2)
    ticket.tried |= {site.endpoint("a").id}
    assert site.endpoint("b") is place(ticket, site.pool.endpoints.values(), 0.0)


def test_endpoints_without_room_are_passed_over() -> None:
    """Where nothing can be dispatched to is no choice, and with none left there is no place."""
    site = Site(pool_settings(max_inflight_requests=1), endpoints=("a", "b"))
    site.running(1, "a")
    assert "b" == chosen(site)
    site.endpoint("b").state = EndpointState.STALLED
    assert chosen(site) is None


def test_a_big_prompt_goes_where_it_fits() -> None:
    """An idle engine whose KV cache is too small for a prompt does not get it; a busy one that holds it does."""
    site = Site(pool_settings(law=None), endpoints=("small", "big"))
    site.describe("small", kv_tokens=1000)
    site.describe("big", kv_tokens=10_000)
    site.running(1, "big")
    assert "big" == chosen(site, prompt_tokens=5000)


def test_no_endpoints_no_place() -> None:
    """An empty pool has no place for anything."""
    assert chosen(Site(endpoints=())) is None


def test_an_endpoint_that_only_rejects_comes_after_all_others() -> None:
    """It would always be the one that finishes first; with nothing else there it is used all the same."""
    site = two()
    for number in range(1, 4):
        decoding(site, number, "b")
    for _ in range(8):
        assert "a" == chosen(site)
        site.endpoint("a").rejected(1.0)
    assert "b" == chosen(site)
    site.endpoint("b").state = EndpointState.DOWN
    assert "a" == chosen(site)


# Where the beginning of a prompt is cached

BEGINS = 77


def cached(site: Site, tokens: int) -> None:
    """So much of prompts with this beginning is cached, by what engines said."""
    for _ in range(5):
        site.pool.pricing.prefixes.observe(BEGINS, 1000, tokens)


def test_a_request_goes_to_where_its_beginning_is_cached() -> None:
    """What another endpoint would have to work out again counts against it."""
    site = two()
    site.pool.pricing.prefixes.homes.sent(BEGINS, site.endpoint("b").id, 1000)
    assert "b" == chosen(site, prefix_hash=BEGINS)
    assert "a" == chosen(site, prefix_hash=BEGINS + 1)
    assert "a" == chosen(site)


def test_company_counts_against_what_is_cached() -> None:
    """One second of steps beside another sequence is more than what 128 tokens take, and less than 20,000."""
    site = two()
    site.pool.pricing.prefixes.homes.sent(BEGINS, site.endpoint("b").id, 1000)
    decoding(site, 1, "b")
    assert "a" == chosen(site, prefix_hash=BEGINS)
    site.pool.pricing.prefixes.observe(BEGINS, 30_000, 20_000)
    site.endpoint("a").info = site.endpoint("b").info = replace(site.endpoint("a").info, context_tokens=None)
    assert "b" == chosen(site, prefix_hash=BEGINS, prompt_tokens=20_100)


def test_an_endpoint_that_holds_much_more_than_its_part_is_no_home() -> None:
    """However much is cached there: with a quarter more than its part of the work the others count as equals."""
    site = two()
    cached(site, 900)
    site.pool.pricing.prefixes.homes.sent(BEGINS, site.endpoint("b").id, 1000)
    ticket = site.ticket(LATE, prefix_hash=BEGINS, prompt_tokens=1000, max_output_tokens=1)
    assert finish_s(ticket, site.endpoint("b"), 0.0) < finish_s(ticket, site.endpoint("a"), 0.0)
    for number in range(1, 9):
        decoding(site, number, "b", max_output_tokens=900)
    cold = finish_s(ticket, site.endpoint("b"), 0.0)
    for number in range(11, 19):
        decoding(site, number, "a", max_output_tokens=900)
    assert finish_s(ticket, site.endpoint("b"), 0.0) < cold


def test_engines_that_cache_nothing_are_equals() -> None:
    """Once it was seen that nothing of such prompts is cached, it does not matter where they were sent."""
    site = two()
    site.pool.pricing.prefixes.homes.sent(BEGINS, site.endpoint("b").id, 1000)
    site.pool.pricing.prefixes.observe(BEGINS, 1000, 1)
    for _ in range(60):
        site.pool.pricing.prefixes.observe(BEGINS, 1000, 0)
    assert "a" == chosen(site, prefix_hash=BEGINS)


def test_dispatching_makes_an_endpoint_a_home() -> None:
    """Where there is more than one endpoint; where there is none other, nothing is kept."""
    site = two()
    site.running(1, "b", prefix_hash=BEGINS)
    assert site.pool.pricing.prefixes.homes.are_at(BEGINS, site.endpoint("b").id, None)
    alone = Site()
    alone.running(1, "a", prefix_hash=BEGINS)
    assert 0 == len(alone.pool.pricing.prefixes.homes)
