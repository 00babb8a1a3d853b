from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import EndpointId, EndpointState, EngineSample, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import OnStale
from forebay.admission.steplaw import StepLearner
from forebay.admission.tickets import Ticket
from tests.unit.admission.build import (
    LAW,
    Site,
    pool_settings,
    reading,
    settings_for,
    with_class,
)


def fill(site: Site, first: int, last: int, now: float = 0.0, **changes: Any) -> list[Ticket]:
    """Requests `first` to `last` run at endpoint a."""
    return [site.running(number, "a", now, **changes) for number in range(first, last + 1)]


def begin(site: Site, tickets: list[Ticket], now: float = 0.0) -> None:
    """First tokens come."""
    for ticket in tickets:
        site.life.first_token(ticket, now)


def leave(site: Site, ticket: Ticket, now: float, *, engine_goes_on: bool = False) -> None:
    """A client goes away."""
    site.life.finish(ticket, Outcome.CLIENT_GONE, None, now, engine_goes_on=engine_goes_on)


def state_of(endpoint: Endpoint) -> EndpointState:
    """Its state now."""
    return endpoint.state


# Room: how many


def test_an_endpoint_of_which_nothing_is_known_gets_no_work() -> None:
    """Configured is not yet up: nothing is dispatched before there is evidence."""
    endpoint = Site(up=False).endpoint()
    assert EndpointState.STARTING is state_of(endpoint)
    assert not endpoint.is_open(0.0)
    endpoint.come_up(1.0)
    assert endpoint.is_open(1.0)


@pytest.mark.parametrize("state", [s for s in EndpointState if s is not EndpointState.UP])
def test_only_what_is_up_is_open(state: EndpointState) -> None:
    """An endpoint in any other state takes nothing, however empty it is."""
    endpoint = Site().endpoint()
    endpoint.state = state
    assert not endpoint.is_open(0.0)
    assert not endpoint.is_up


def test_the_found_limit_holds_without_a_sample() -> None:
    """An engine that tells nothing of itself gets eight requests and no ninth."""
    site = Site()
    fill(site, 1, 7)
    assert site.endpoint().is_open(0.0)
    fill(site, 8, 8)
    assert not site.endpoint().is_open(0.0)


def test_a_calm_engine_may_get_more_than_was_found() -> None:
    """While the last sample shows no queue and KV to spare, a found limit does not hold up a burst."""
    site = Site()
    endpoint = site.endpoint()
    fill(site, 1, 8)
    endpoint.take_sample(reading(0.1, running=8), 0.1)
    fill(site, 9, 15, 0.2)
    assert endpoint.is_open(0.2)


def test_the_calm_is_believed_for_one_more_limit_of_requests() -> None:
    """What was dispatched since the sample is not in it: after as many as the limit, the next waits for a new one."""
    site = Site()
    endpoint = site.endpoint()
    fill(site, 1, 8, prompt_tokens=10)
    endpoint.take_sample(reading(0.1, running=8), 0.1)
    fill(site, 9, 16, 0.2, prompt_tokens=10)
    assert not endpoint.is_open(0.2)
    endpoint.take_sample(reading(0.3, running=16), 0.3)
    assert endpoint.is_open(0.3)


def test_what_was_dispatched_during_a_reading_is_not_in_it() -> None:
    """A reading tells of the time it began: dispatches after that still count against it."""
    site = Site()
    endpoint = site.endpoint()
    fill(site, 1, 8, 1.0)
    endpoint.take_sample(reading(0.9), 1.1)
    assert not endpoint.is_open(1.1)


@pytest.mark.parametrize(
    ("fields", "now", "calm"),
    [
        ({}, 1.0, True),
        ({"waiting": 1}, 1.0, False),
        ({"waiting": None}, 1.0, False),
        ({"kv_usage": 0.79}, 1.0, True),
        ({"kv_usage": 0.8}, 1.0, False),
        ({"kv_usage": None}, 1.0, True),
        ({}, 5.5, True),
        ({}, 5.6, False),
    ],
    ids=["calm", "queue", "no queue gauge", "kv below", "kv at", "no kv gauge", "old", "stale"],
)
def test_what_counts_as_calm(fields: dict[str, Any], now: float, calm: bool) -> None:
    """A fresh sample with an empty queue and a KV cache below 0.8 lets a ninth request in, and nothing else does."""
    site = Site()
    fill(site, 1, 8)
    site.endpoint().take_sample(reading(0.5, running=8, **fields), 0.5)
    assert calm is site.endpoint().is_open(now)


def test_a_configured_limit_is_firm() -> None:
    """A limit of the operator holds at a calm engine too, and goes before what the engine says."""
    site = Site(pool_settings(max_inflight_requests=2))
    endpoint = site.describe(max_requests=64)
    endpoint.take_sample(reading(0.0), 0.0)
    fill(site, 1, 2)
    assert (2, True) == endpoint.request_limit
    assert not endpoint.is_open(0.0)


def test_the_engines_own_limit_is_firm() -> None:
    """An engine with four slots gets four requests: a fifth would only wait there."""
    site = Site()
    endpoint = site.describe(max_requests=4)
    endpoint.take_sample(reading(0.0), 0.0)
    fill(site, 1, 4)
    assert (4, True) == endpoint.request_limit
    assert not endpoint.is_open(0.0)


def test_draining_requests_keep_their_place() -> None:
    """Room of a request that was given up is free only when the engine has let go of it."""
    site = Site(pool_settings(max_inflight_requests=1))
    ticket = site.running(1)
    site.life.ledger.abandon(ticket.booking, EndpointId("a"))
    assert not site.endpoint().is_open(0.0)
    site.life.ledger.release_draining(ticket.booking, EndpointId("a"))
    assert site.endpoint().is_open(0.0)


def test_a_share_scales_the_firm_limits() -> None:
    """A replica with a quarter of the pool uses a quarter of the requests and of the KV."""
    site = Site(pool_settings(max_inflight_requests=8, max_inflight_tokens=10_000))
    site.pool.set_share(0.25)
    assert (2, True) == site.endpoint().request_limit
    assert 2500 == site.endpoint().kv_limit


# Room: KV


@pytest.mark.parametrize(
    ("settings", "told", "limit"),
    [
        ({"max_inflight_tokens": 18_000}, 50_000, 18_000),
        ({"headroom": 0.9}, 50_000, 45_000),
        ({"headroom": 0.9}, None, 90_000),
        ({"law": None}, None, None),
    ],
    ids=["configured", "told by the engine", "from the profile", "unknown"],
)
def test_where_the_kv_limit_comes_from(settings: dict[str, Any], told: int | None, limit: int | None) -> None:
    """Configuration goes before the engine's word, that before the profile; headroom comes off a capacity."""
    site = Site(pool_settings(**settings))
    assert limit == site.describe(kv_tokens=told).kv_limit


@pytest.mark.parametrize(("headroom", "fits"), [(0.075, True), (0.0749, False)])
def test_kv_is_booked_up_to_the_limit_and_not_beyond(headroom: float, fits: bool) -> None:
    """Five requests of 150 tokens fit 750 tokens exactly; one token less and the fifth waits."""
    site = Site(pool_settings(headroom=headroom))
    site.describe(kv_tokens=10_000)
    fill(site, 1, 4)
    assert fits is site.endpoint().has_room(site.ticket(5), 0.0)


@pytest.mark.parametrize(("prompt_tokens", "fits"), [(60, True), (61, False)])
def test_the_cache_is_filled_as_far_as_is_foreseen(prompt_tokens: int, fits: bool) -> None:
    """Four of 198 tokens at the end and a fifth of its prompt and 98: up to 950 of 1000, whatever their means say."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    fill(site, 1, 4)
    ticket = site.ticket(5, prompt_tokens=prompt_tokens)
    assert 4 * 150 + ticket.cost.kv_tokens < 750
    assert fits is site.endpoint().has_room(ticket, 0.0)


@pytest.mark.parametrize(("class_name", "fits"), [("realtime", True), ("standard", False), ("batch", False)])
def test_the_most_important_class_may_use_the_last_of_the_cache(class_name: str, fits: bool) -> None:
    """980 of 1000 tokens are more than others may fill, and less than the first rank may."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    fill(site, 1, 4)
    ticket = site.ticket(5, prompt_tokens=90, class_name=class_name)
    assert fits is site.endpoint().has_room(ticket, 0.0)


def test_after_a_preemption_less_of_the_cache_is_filled() -> None:
    """The cache ran over, whatever was foreseen: 3 % less are filled, and more again with each quiet second."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    endpoint = site.endpoint()
    fill(site, 1, 4)
    ticket = site.ticket(5, prompt_tokens=50)
    endpoint.take_sample(reading(1.0, preemptions_total=7), 1.0)
    assert endpoint.fits_now(ticket)
    endpoint.take_sample(reading(2.0, preemptions_total=8), 2.0)
    assert not endpoint.fits_now(ticket)
    for now in range(3, 12):
        endpoint.take_sample(reading(float(now), preemptions_total=8), float(now))
    assert not endpoint.fits_now(ticket)
    endpoint.take_sample(reading(12.0, preemptions_total=8), 12.0)
    assert endpoint.fits_now(ticket)


def test_what_will_have_ended_by_then_leaves_its_room() -> None:
    """Four that end within ten tokens do not meet the end of a long one: at most 528 tokens are held at once."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    fill(site, 1, 4, max_output_tokens=10)
    assert site.endpoint().fits_now(site.ticket(5, max_output_tokens=840))
    assert not site.endpoint().fits_now(site.ticket(6, max_output_tokens=860))


def test_samples_share_the_prompt_only() -> None:
    """Four answers of 98 tokens and one prompt are 492 tokens at the end: beside 198 they fit 750 · 0.95, not 725."""
    for capacity, fits in [(750, True), (725, False)]:
        site = Site(pool_settings(max_inflight_tokens=capacity))
        site.running(1)
        assert fits is site.endpoint().fits_now(site.ticket(2, samples=4))


def test_embeddings_need_no_room_in_the_cache() -> None:
    """They hold none of it, however full it is foreseen to get."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    fill(site, 1, 4)
    assert not site.endpoint().fits_now(site.ticket(5))
    assert site.endpoint().fits_now(site.ticket(6, generates=False))
    site.running(7, generates=False)
    assert 4 == len(site.endpoint().forecast)


def test_a_share_of_an_endpoint_is_a_share_of_its_cache() -> None:
    """With half of 2000 tokens, as much is filled as of 1000."""
    site = Site(pool_settings(max_inflight_tokens=2000))
    site.pool.set_share(0.5)
    assert 1000 == site.endpoint().kv_capacity
    fill(site, 1, 4)
    assert site.endpoint().fits_now(site.ticket(5, prompt_tokens=60))
    assert not site.endpoint().fits_now(site.ticket(6, prompt_tokens=61))


def test_what_lingers_is_not_foreseen_but_held() -> None:
    """The 150 tokens that were booked for a client who left come off the room: 800 are left for four of 198."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    tickets = fill(site, 1, 4)
    leave(site, tickets[0], 1.0, engine_goes_on=True)
    assert site.endpoint().fits_now(site.ticket(5, prompt_tokens=108))
    assert not site.endpoint().fits_now(site.ticket(6, prompt_tokens=109))
    site.life.release_draining(site.endpoint(), site.endpoint().draining[0])
    assert site.endpoint().fits_now(site.ticket(6, prompt_tokens=109))


def test_without_a_known_capacity_kv_bounds_nothing() -> None:
    """An engine of unknown KV capacity is bounded by requests alone."""
    site = Site(pool_settings(law=None))
    assert site.endpoint().has_room(site.ticket(1, prompt_tokens=500_000, max_output_tokens=1), 0.0)


def test_draining_kv_is_not_given_away() -> None:
    """The KV of a request that was given up is booked until the engine has let go of it."""
    site = Site(pool_settings(max_inflight_tokens=300))
    ticket = site.running(1)
    site.life.ledger.abandon(ticket.booking, EndpointId("a"))
    assert not site.endpoint().has_room(site.ticket(2), 0.0)


def test_a_request_is_never_booked_above_an_endpoints_kv() -> None:
    """An endpoint with a smaller cache than its neighbour's has no room for what only the neighbour can hold."""
    site = Site(endpoints=("small", "big"))
    site.describe("small", kv_tokens=1000)
    site.describe("big", kv_tokens=10_000)
    ticket = site.ticket(1, prompt_tokens=5000)
    assert not site.endpoint("small").has_room(ticket, 0.0)
    assert site.endpoint("big").has_room(ticket, 0.0)


def test_the_largest_request_can_run_alone() -> None:
    """A prompt that fits, with a reserve that does not, runs alone: it has the whole cache and then it is full."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    assert site.endpoint().has_room(site.ticket(1, prompt_tokens=900, max_output_tokens=4000), 0.0)
    ticket = site.running(1, prompt_tokens=900, max_output_tokens=4000)
    assert 1000 == ticket.booking.kv_tokens == site.endpoint().books.kv_tokens
    assert not site.endpoint().has_room(site.ticket(2, prompt_tokens=1, max_output_tokens=1), 0.0)


# Room: context, prefill, trial, reservation


def test_a_prompt_beyond_the_context_never_fits() -> None:
    """An engine with a shorter window than its neighbour's gets no prompt that it must refuse."""
    site = Site()
    endpoint = site.describe(context_tokens=4096)
    assert endpoint.has_room(site.ticket(1, prompt_tokens=4096), 0.0)
    assert not endpoint.has_room(site.ticket(2, prompt_tokens=4097), 0.0)


def test_a_prompt_surely_beyond_the_context_never_fits() -> None:
    """A prompt of 200,000 bytes is not tried in a window of 4096 tokens just because nobody counted its tokens."""
    site = Site(endpoints=("small", "big"))
    site.describe("small", context_tokens=4096)
    site.describe("big", context_tokens=131_072)
    ticket = site.ticket(1, prompt_tokens=None, prompt_bytes=200_000)
    assert not site.endpoint("small").has_room(ticket, 0.0)
    assert site.endpoint("big").has_room(ticket, 0.0)


@pytest.mark.parametrize(("followed", "window_s"), [(False, 0.15), (True, 0.35)])
def test_prefill_is_sent_ahead_only_so_far(followed: bool, window_s: float) -> None:
    """Two chunks of prefill in hand, here 0.35 s at most and 0.15 s before anything was seen; the next waits here."""
    site = Site()
    if followed:
        site.pool.follow(site.endpoint(), 0.0)
    site.running(1, prompt_tokens=round(window_s * 10_000))
    assert site.endpoint().is_open(0.0)
    second = site.running(2, prompt_tokens=100)
    assert not site.endpoint().is_open(0.0)
    site.life.first_token(second, 0.1)
    assert site.endpoint().is_open(0.1)


def test_one_long_prompt_may_always_start() -> None:
    """A prompt longer than the window starts when none is in hand, and keeps others back until it is through."""
    site = Site()
    assert site.endpoint().has_room(site.ticket(1, prompt_tokens=50_000), 0.0)
    long = site.running(1, prompt_tokens=50_000)
    assert not site.endpoint().is_open(0.0)
    site.life.first_token(long, 5.0)
    assert site.endpoint().is_open(5.0)


def test_the_prefill_window_is_in_the_endpoints_own_time() -> None:
    """At twice the speed a chunk takes 0.1024 s: two of them are 0.2048 s, in which 4096 tokens are worked off."""
    site = Site()
    site.endpoint().meter.speed = 2.0
    site.pool.follow(site.endpoint(), 0.0)
    site.running(1, prompt_tokens=4096)
    assert site.endpoint().is_open(0.0)
    site.running(2, prompt_tokens=1)
    assert not site.endpoint().is_open(0.0)


def test_unstreamed_prompts_fill_the_window_for_as_long_as_they_should_take() -> None:
    """Their first byte is their last, so nobody says when such a prompt is through: one after the other, by the law."""
    site = Site()
    endpoint = site.endpoint()
    assert 0.15 == endpoint.prefill_window_s
    first = site.running(1, prompt_tokens=3000, stream=False)
    assert (0, 0.3) == (endpoint.pending_prefill_us, endpoint.prefill_under_way_s(0.0))
    assert [False, False, True] == [endpoint.is_open(now) for now in (0.0, 0.14, 0.15)]
    assert pytest.approx(0.15) == endpoint.opens_s(0.0)
    assert math.inf == endpoint.opens_s(0.15)
    second = site.running(2, now=0.1, prompt_tokens=3000, stream=False)
    assert pytest.approx(0.5) == endpoint.prefill_under_way_s(0.1)
    site.life.finish(first, Outcome.COMPLETED, None, 0.2, engine_goes_on=False)
    assert pytest.approx(0.4) == endpoint.prefill_under_way_s(0.2)
    site.life.finish(second, Outcome.COMPLETED, None, 0.21, engine_goes_on=False)
    assert 0.0 == endpoint.prefill_under_way_s(0.21)


def test_streamed_and_unstreamed_prompts_share_the_window() -> None:
    """It opens by time only for what is not streamed."""
    site = Site()
    endpoint = site.endpoint()
    site.running(1, prompt_tokens=1000)
    site.running(2, prompt_tokens=1000, stream=False)
    assert pytest.approx(0.2) == endpoint.prefill_under_way_s(0.0)
    assert pytest.approx(0.05) == endpoint.opens_s(0.0)
    assert [False, True] == [endpoint.is_open(now) for now in (0.04, 0.05)]
    site.running(3, now=0.05, prompt_tokens=1000)
    assert (math.inf, False) == (endpoint.opens_s(0.06), endpoint.is_open(9.0))


def test_on_trial_one_request_at_a_time() -> None:
    """After a stall the endpoint holds one request until a byte moves."""
    site = Site()
    endpoint = site.endpoint()
    endpoint.trial = True
    assert endpoint.is_open(0.0)
    ticket = site.running(1)
    assert not endpoint.is_open(0.0)
    site.life.first_token(ticket, 1.0)
    assert endpoint.is_open(1.0)


def test_a_reserved_endpoint_is_kept_for_its_one_request() -> None:
    """Others find no room there; the one does."""
    site = Site()
    site.endpoint().reserved_for = TicketId(2)
    assert not site.endpoint().has_room(site.ticket(1), 0.0)
    assert site.endpoint().has_room(site.ticket(2), 0.0)


def test_load_is_work_in_own_time() -> None:
    """Two endpoint-seconds at a speed of 0.5 are four seconds."""
    site = Site()
    fill(site, 1, 2)
    site.endpoint().meter.speed = 0.5
    assert 4.0 == site.endpoint().load_s()


# Room: what is in use, and the pace of prompts


def test_above_the_target_nothing_more_is_dispatched() -> None:
    """Three of four places in use for a minute are 75 %: under a ceiling of 0.8, and not under one of 0.7."""
    for target, is_open in [(0.8, True), (0.7, False), (None, True)]:
        site = Site(pool_settings(max_inflight_requests=4, target_utilization=target))
        begin(site, fill(site, 1, 3))
        for now in (0.0, 60.0):
            site.pool.follow(site.endpoint(), now)
        assert pytest.approx(0.75, abs=0.01) == site.endpoint().utilization.value(60.0)
        assert is_open is site.endpoint().is_open(60.0)


def test_a_short_burst_is_not_utilisation() -> None:
    """All places in use for a second are a tenth over ten seconds: below the ceiling work goes on."""
    site = Site(pool_settings(max_inflight_requests=4, target_utilization=0.7))
    tickets = fill(site, 1, 4)
    site.pool.follow(site.endpoint(), 100.0)
    leave(site, tickets[0], 101.0)
    assert site.endpoint().utilization.value(101.0) < 0.15
    assert site.endpoint().is_open(101.0)


def test_an_endpoint_that_holds_nothing_is_open_whatever_was_in_use() -> None:
    """The ceiling is on what is in use besides: nobody waits for a mean to fade at an idle engine."""
    site = Site(pool_settings(max_inflight_requests=1, target_utilization=0.7))
    (ticket,) = fill(site, 1, 1)
    for now in (0.0, 60.0):
        site.pool.follow(site.endpoint(), now)
    leave(site, ticket, 60.0)
    assert site.endpoint().utilization.value(60.0) > 0.9
    assert site.endpoint().is_open(60.0)


def test_an_endpoint_at_which_nothing_runs_is_not_in_use() -> None:
    """Once the last request has ended its level is nought, also where no sample comes to say so."""
    site = Site(pool_settings(max_inflight_requests=2))
    tickets = fill(site, 1, 2)
    for now in (0.0, 60.0):
        site.pool.follow(site.endpoint(), now)
    for ticket in tickets:
        leave(site, ticket, 60.0)
    assert site.endpoint().utilization.value(160.0) < 0.01


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({"max_inflight_requests": 10}, 0.1),
        ({"max_inflight_requests": 100, "max_inflight_tokens": 396}, 0.5),
        ({"max_inflight_requests": 100, "law": replace(LAW, c0_s=0.01)}, 0.75),
    ],
    ids=["places", "cache", "steps"],
)
def test_whatever_runs_out_first_is_the_utilisation(settings: dict[str, Any], level: float) -> None:
    """One of ten places; 198 foreseen of 396 tokens; or steps of 40 ms where an empty one takes 10."""
    site = Site(pool_settings(**settings))
    begin(site, fill(site, 1, 1))
    site.endpoint().progressed(1, 0.04, 0.0)
    site.pool.follow(site.endpoint(), 0.0)
    assert pytest.approx(level) == site.endpoint().utilization.level


def paced() -> Site:
    """A stream of class `realtime` (TPOT 80 ms) decodes, in steps of 20 ms."""
    site = Site(pool_settings(law=replace(LAW, c0_s=0.01)))
    begin(site, fill(site, 1, 1, class_name="realtime"))
    site.pool.follow(site.endpoint(), 0.0)
    return site


def test_prompts_enter_no_faster_than_streams_can_bear() -> None:
    """Of 48 ms that a step may take 20 are for decoding: prompts get 7/12 of 10,000 tokens a second, 0.25 s at once."""
    site = paced()
    rate = (1 - 0.02 / 0.048) * 10_000
    first = site.ticket(2, prompt_tokens=round(rate * 0.25))
    assert site.endpoint().has_room(first, 0.0)
    begin(site, [site.running(2, prompt_tokens=round(rate * 0.25))])
    then = site.ticket(3, prompt_tokens=1000)
    assert site.endpoint().is_open(0.0)
    assert not site.endpoint().has_room(then, 0.0)
    assert not site.endpoint().has_room(then, 1000 / rate - 0.01)
    assert site.endpoint().has_room(then, 1000 / rate + 0.01)


def test_a_prompt_under_way_is_no_sequence_that_decodes() -> None:
    """What prompts leave of a step is reckoned with those that are being generated."""
    site = paced()
    rate = site.endpoint().pacer.rate_tokens_per_s
    assert pytest.approx((1 - 0.02 / 0.048) * 10_000) == rate
    ticket = site.running(2)
    site.pool.follow(site.endpoint(), 0.1)
    assert rate == site.endpoint().pacer.rate_tokens_per_s
    begin(site, [ticket], 0.2)
    site.pool.follow(site.endpoint(), 0.2)
    assert pytest.approx((1 - 0.03 / 0.048) * 10_000) == site.endpoint().pacer.rate_tokens_per_s


def test_where_nobody_decodes_in_time_prompts_are_not_paced() -> None:
    """A batch of prompts alone enters as the window allows."""
    site = Site()
    site.pool.follow(site.endpoint(), 0.0)
    for number in range(2, 12):
        ticket = site.ticket(number, prompt_tokens=3000)
        assert site.endpoint().has_room(ticket, 0.0)
        begin(site, [site.running(number, prompt_tokens=3000)])


def test_prompts_are_not_paced_by_what_whole_answers_said() -> None:
    """They say nothing sure of a step: costs may be counted by them, but no stream makes prompts wait for it."""
    site = Site(pool_settings(law=None))
    endpoint = site.endpoint()
    begin(site, [site.running(1)])

    def teach(learner: StepLearner) -> None:
        for number in range(60):
            sequences = 1.0 + number % 5
            learner.observe(
                5e-3 + 1e-3 * sequences,
                steps=16,
                prefill_tokens=0.0,
                prefill_steps=0.0,
                sequences=sequences,
                kv_tokens=0.0,
                attention=0.0,
            )

    teach(endpoint.whole_answers.learner)
    assert endpoint.learner is endpoint.whole_answers.learner
    site.pool.follow(endpoint, 1.0)
    assert not endpoint.pacer.paces
    teach(endpoint.sources.learner)
    assert endpoint.learner is endpoint.sources.learner
    site.pool.follow(endpoint, 2.0)
    assert endpoint.pacer.paces


# What runs there


def learned_steps(site: Site) -> int:
    """Engine steps that the endpoint's speed was learned from."""
    return site.endpoint().sources.learner.steps


def test_prompts_under_way_are_counted() -> None:
    """Each dispatch is pending until its first token, streamed or not, or until it leaves without one."""
    site = Site()
    endpoint = site.endpoint()
    streams = fill(site, 1, 3)
    unstreamed = fill(site, 4, 5, stream=False)
    assert (5, 30_000) == (endpoint.pending, endpoint.pending_prefill_us)
    begin(site, [streams[0], unstreamed[0]], 0.5)
    assert (3, 20_000) == (endpoint.pending, endpoint.pending_prefill_us)
    begin(site, [streams[0]], 0.6)
    leave(site, streams[1], 0.7)
    leave(site, streams[0], 0.8)
    site.life.take_back(streams[2], 0.9, engine_goes_on=False, detail="")
    assert (1, 0) == (endpoint.pending, endpoint.pending_prefill_us)
    leave(site, unstreamed[0], 1.0)
    site.life.finish(unstreamed[1], Outcome.COMPLETED, None, 1.1, engine_goes_on=False)
    assert (0, 0, {}) == (endpoint.pending, endpoint.pending_prefill_us, endpoint.running)


def test_prefill_is_counted_as_it_was_expected_at_dispatch() -> None:
    """Another law in the middle takes away what was added, and not what a prompt would cost now."""
    site = Site()
    first, second = fill(site, 1, 2)
    site.pool.pricing.law = replace(LAW, c1_s=9e-4)
    third = site.running(3)
    assert 110_000 == site.endpoint().pending_prefill_us
    begin(site, [first])
    leave(site, second, 1.0)
    leave(site, third, 1.0)
    assert 0 == site.endpoint().pending_prefill_us


def test_the_forecast_holds_what_runs() -> None:
    """Prompts at once, tokens as they come, samples each, and nothing of what has left."""
    site = Site()
    endpoint = site.endpoint()
    one, four, embedding = site.running(1), site.running(2, samples=4), site.running(3, generates=False)
    assert (2, 200.0) == (len(endpoint.forecast), endpoint.forecast.held_tokens)
    site.life.progress(one, 33, 1.0)
    site.life.progress(four, 40, 1.0)
    endpoint.progressed(33, None, 1.0)
    assert 100 + 33 + 100 + 40 == endpoint.forecast.held_tokens
    site.life.take_back(four, 1.0, engine_goes_on=False, detail="")
    assert 133.0 == endpoint.forecast.held_tokens
    leave(site, one, 2.0, engine_goes_on=True)
    leave(site, embedding, 2.0)
    assert (0, 0.0, 0.0) == (len(endpoint.forecast), endpoint.forecast.held_tokens, endpoint.forecast.peak())


def test_events_are_turned_into_the_tokens_that_they_stand_for() -> None:
    """Where an event carries two tokens, ten events are twenty tokens in the cache."""
    site = Site()
    site.endpoint().sources.pace.ended(200, 100)
    ticket = site.running(1)
    site.life.progress(ticket, 10, 1.0)
    site.endpoint().progressed(10, None, 1.0)
    assert 120.0 == site.endpoint().forecast.held_tokens


def test_idle_is_what_holds_nothing_of_ours() -> None:
    """From the last leave on until the next dispatch, however many come and go between."""
    site = Site()
    first, second = fill(site, 1, 2, 1.0)
    seen = [site.endpoint().idle_since_s]
    leave(site, first, 2.0)
    seen.append(site.endpoint().idle_since_s)
    leave(site, second, 3.0, engine_goes_on=True)
    seen.append(site.endpoint().idle_since_s)
    fill(site, 3, 3, 4.0)
    seen.append(site.endpoint().idle_since_s)
    assert [None, None, 3.0, None] == seen


def test_an_endpoint_is_idle_from_when_it_came_up() -> None:
    """Before that it was not there to be given work."""
    endpoint = Site(up=False).endpoint()
    endpoint.come_up(7.0)
    assert 7.0 == endpoint.idle_since_s
    endpoint.fail(20.0)
    endpoint.come_up(30.0)
    assert 30.0 == endpoint.idle_since_s


def test_what_runs_through_an_outage_is_no_idleness() -> None:
    """An endpoint that comes up again with streams still on it works."""
    site = Site()
    fill(site, 1, 1, 1.0)
    site.endpoint().fail(2.0)
    site.endpoint().come_up(9.0)
    assert site.endpoint().idle_since_s is None


def test_an_engine_that_was_idle_since_its_sample_is_not_measured_by_it() -> None:
    """At some moment between two samples it had nothing to do: whatever it counts meanwhile is no rate."""
    site = Site()
    (ticket,) = fill(site, 1, 1)
    seen = [site.endpoint().was_idle]
    site.endpoint().take_sample(reading(1.0, running=1), 1.0)
    seen.append(site.endpoint().was_idle)
    leave(site, ticket, 1.5)
    fill(site, 2, 2, 1.6)
    seen.append(site.endpoint().was_idle)
    site.endpoint().take_sample(reading(2.0, running=1), 2.0)
    seen.append(site.endpoint().was_idle)
    assert [True, False, True, False] == seen
    site = Site()
    site.endpoint().take_sample(reading(1.0), 1.0)
    fill(site, 1, 1, 1.5)
    assert site.endpoint().was_idle


def counted(at_s: float, steps: int, *, running: int = 1) -> EngineSample:
    """A sample with the counters that steps are learned from: one sequence, a token a step."""
    return reading(
        at_s, running=running, steps_total=steps, step_tokens_total=steps, output_tokens_total=steps
    )


def test_steps_are_learned_from_the_counters_of_a_busy_engine() -> None:
    """A hundred steps between two samples are learned; with an idle moment between them they are not."""
    for pause, steps in [(False, 100), (True, 0)]:
        site = Site()
        begin(site, fill(site, 1, 2))
        site.endpoint().take_sample(counted(1.0, 1000), 1.0)
        site.endpoint().take_sample(counted(2.0, 1000), 2.0)
        if pause:
            for ticket in list(site.endpoint().running.values()):
                leave(site, ticket, 2.1)
            begin(site, fill(site, 3, 3, 2.2), 2.2)
        site.endpoint().take_sample(counted(3.0, 1100), 3.0)
        assert steps == learned_steps(site)


def test_half_a_prompt_is_in_no_window() -> None:
    """While a prompt longer than a chunk is worked off, the counters have a part of it that nobody knows."""
    for prompt_tokens, steps in [(2048, 100), (2049, 0)]:
        site = Site()
        begin(site, fill(site, 1, 1))
        site.endpoint().take_sample(counted(1.0, 1000), 1.0)
        site.endpoint().take_sample(counted(2.0, 1000), 2.0)
        site.running(2, "a", 2.1, prompt_tokens=prompt_tokens)
        site.endpoint().take_sample(counted(3.0, 1100), 3.0)
        assert steps == learned_steps(site)


def test_a_long_prompt_that_is_not_streamed_is_half_done_only_while_it_is_worked_off() -> None:
    """Its answer may take a minute, and steps are learned meanwhile: 0.3 s of prefill were over at 2.4 s."""
    for second_s, steps in [(2.5, 100), (2.35, 0)]:
        site = Site()
        begin(site, fill(site, 1, 1))
        site.endpoint().take_sample(counted(1.0, 1000), 1.0)
        site.endpoint().take_sample(counted(2.0, 1000), 2.0)
        site.running(2, "a", 2.1, prompt_tokens=3000, stream=False)
        site.endpoint().take_sample(counted(second_s, 1100), second_s)
        assert steps == learned_steps(site)


# First tokens that tell of prefill


def test_a_prompt_alone_tells_how_long_prefill_takes() -> None:
    """Nothing else was being worked off: the time to the first token is that of its prefill, once."""
    site = Site()
    (ticket,) = fill(site, 1, 1)
    begin(site, [ticket], 0.05)
    assert 1 == learned_steps(site)
    begin(site, [ticket], 0.06)
    assert 1 == learned_steps(site)
    begin(site, fill(site, 2, 2, 1.0), 1.05)
    assert 2 == learned_steps(site)


def test_a_long_prompt_takes_several_steps() -> None:
    """Five thousand tokens are worked off in three chunks."""
    site = Site()
    begin(site, fill(site, 1, 1, prompt_tokens=5000), 0.6)
    assert 3 == learned_steps(site)


def test_prompts_that_met_tell_nothing() -> None:
    """Neither the first nor the second, in whatever order they come through; the next one alone does."""
    for order in (1, -1):
        site = Site()
        begin(site, fill(site, 1, 2)[::order], 0.05)
        assert 0 == learned_steps(site)
        begin(site, fill(site, 3, 3, 1.0), 1.05)
        assert 1 == learned_steps(site)


@pytest.mark.parametrize("other", [{}, {"stream": False}, {"generates": False}], ids=str)
def test_a_prompt_that_met_another_which_left_tells_nothing(other: dict[str, Any]) -> None:
    """The other has had its part of the time, whatever became of it."""
    site = Site()
    first = site.running(1)
    second = site.running(2, **other)
    leave(site, second, 0.02)
    begin(site, [first], 0.05)
    assert 0 == learned_steps(site)


def test_a_prompt_behind_one_that_lingers_tells_nothing() -> None:
    """Its client left before its first token, and the engine goes on with its prefill."""
    site = Site()
    leave(site, site.running(1, prompt_tokens=20_000), 0.01, engine_goes_on=True)
    begin(site, fill(site, 2, 2, 0.02), 2.0)
    assert 0 == learned_steps(site)


def test_a_prompt_that_may_have_queued_in_the_engine_tells_nothing() -> None:
    """The engine says that requests wait inside it."""
    site = Site()
    site.endpoint().take_sample(reading(0.0, waiting=1), 0.0)
    begin(site, fill(site, 1, 1, 0.1), 0.15)
    assert 0 == learned_steps(site)


def test_an_unstreamed_answer_tells_nothing_of_prefill() -> None:
    """Its first byte is its last."""
    site = Site()
    begin(site, fill(site, 1, 1, stream=False), 2.0)
    assert 0 == learned_steps(site)


# Progress that tells of steps


def gaps_learned(site: Site, now: float, gap_s: float | None = 0.02) -> int:
    """Steps learned from one batch of five tokens a stream."""
    before = learned_steps(site)
    site.endpoint().progressed(5, gap_s, now)
    return learned_steps(site) - before


def streaming() -> Site:
    """Two streams decode, an event a token, and a batch of their progress has been seen."""
    site = Site()
    site.endpoint().sources.pace.ended(100, 100)
    begin(site, fill(site, 1, 2))
    gaps_learned(site, 0.1)
    return site


def test_gaps_tell_of_decode_steps() -> None:
    """While nothing is worked off besides, the time between two events is that of a step."""
    site = streaming()
    assert 5 == gaps_learned(site, 0.2)
    assert 0 == gaps_learned(site, 0.3, None)
    assert 5 == gaps_learned(site, 0.4)


def test_the_batch_after_a_dispatch_tells_nothing() -> None:
    """A prompt was in some of its steps, also if it has come through or gone by now."""
    site = streaming()
    begin(site, fill(site, 3, 3, 0.15), 0.18)
    assert 0 == gaps_learned(site, 0.2)
    assert 5 == gaps_learned(site, 0.3)
    leave(site, site.running(4, now=0.35), 0.36)
    assert 0 == gaps_learned(site, 0.4)
    assert 5 == gaps_learned(site, 0.5)


def test_while_a_prompt_is_worked_off_gaps_tell_nothing() -> None:
    """And neither does the batch in which its first token came."""
    site = streaming()
    tickets = fill(site, 3, 3, 0.15)
    assert [0, 0] == [gaps_learned(site, now) for now in (0.2, 0.3)]
    begin(site, tickets, 0.35)
    assert [0, 5] == [gaps_learned(site, now) for now in (0.4, 0.5)]


def test_gaps_at_an_engine_with_a_queue_tell_nothing() -> None:
    """What waits inside it is worked off as soon as it can be."""
    site = streaming()
    site.endpoint().take_sample(reading(0.15, running=2, waiting=1), 0.15)
    assert 0 == gaps_learned(site, 0.2)


def test_the_usual_gap_is_a_slow_mean() -> None:
    """The first is taken as it is, and each later one for a tenth: what silence is measured by."""
    site = Site()
    for gap_s, mean_s in [(0.05, 0.05), (0.15, 0.06), (0.06, 0.06)]:
        site.endpoint().progressed(1, gap_s, 0.0)
        assert pytest.approx(mean_s) == site.endpoint().step_gap_s


# Old samples


def stale_site(on_stale: OnStale) -> Site:
    """An engine that tells its load, and has not for nine seconds; seven run there, in a class that says what then."""
    site = Site(settings=with_class("standard", settings_for(), on_stale=on_stale))
    site.describe(reports_load=True)
    begin(site, fill(site, 1, 7, 0.5), 0.6)
    site.endpoint().take_sample(reading(1.0, running=7), 1.0)
    return site


@pytest.mark.parametrize(
    ("on_stale", "seven", "eight", "sixteen"),
    [
        (OnStale.OWN_COUNT, True, False, False),
        (OnStale.LAST_KNOWN, True, True, False),
        (OnStale.REFUSE, False, False, False),
        (OnStale.ADMIT, True, True, True),
    ],
)
def test_what_is_believed_of_an_engine_that_has_fallen_silent(
    on_stale: OnStale, seven: bool, eight: bool, sixteen: bool
) -> None:
    """Our own count up to the found limit; the calm that was last seen, for as many more; nothing; or all."""
    site = stale_site(on_stale)
    assert seven is site.endpoint().has_room(site.ticket(100, 10.0), 10.0)
    site.running(8, "a", 10.0, prompt_tokens=1)
    assert eight is site.endpoint().has_room(site.ticket(100, 10.0), 10.0)
    fill(site, 9, 16, 10.0, prompt_tokens=1)
    assert sixteen is site.endpoint().has_room(site.ticket(100, 10.0), 10.0)


# Coming and going


@pytest.mark.parametrize(
    ("outages", "back_off_s"), [(1, 0.25), (2, 0.5), (3, 1.0), (6, 8.0), (7, 10.0), (2000, 10.0)]
)
def test_the_back_off_doubles_to_ten_seconds(outages: int, back_off_s: float) -> None:
    """Each outage in a row keeps the endpoint out twice as long, and never for more than ten seconds."""
    endpoint = Site().endpoint()
    for number in range(1, outages):
        endpoint.fail(100.0 * number)
        endpoint.come_up(100.0 * number + 50.0)
    now = 100.0 * outages
    endpoint.fail(now)
    assert EndpointState.DOWN is state_of(endpoint)
    assert now + back_off_s == endpoint.up_again_at_s
    endpoint.come_up(now + back_off_s - 0.001)
    assert EndpointState.DOWN is state_of(endpoint)
    endpoint.come_up(now + back_off_s)
    assert EndpointState.UP is state_of(endpoint)


def test_one_outage_is_one_failure() -> None:
    """All that fails while an endpoint is down is one step of back-off, counted from the last of it."""
    endpoint = Site().endpoint()
    for now in (10.0, 10.0, 10.0, 10.5):
        endpoint.fail(now)
    assert (1, 10.75) == (endpoint.failures, endpoint.up_again_at_s)


def test_life_ends_the_row_of_failures() -> None:
    """A byte from the engine means that the next failure is a first one again."""
    endpoint = Site().endpoint()
    for now in (10.0, 12.0, 14.0):
        endpoint.fail(now)
        endpoint.come_up(now + 1.5)
    endpoint.show_life(21.0)
    endpoint.fail(30.0)
    assert 30.25 == endpoint.up_again_at_s


def test_coming_up_is_no_life() -> None:
    """That a reading came does not end the row of failures: a broken engine may go on answering those."""
    endpoint = Site().endpoint()
    endpoint.fail(10.0)
    endpoint.come_up(11.0)
    endpoint.fail(12.0)
    assert 12.5 == endpoint.up_again_at_s


def test_life_ends_a_stall_but_not_an_outage() -> None:
    """A stalled endpoint is up with its first byte; one whose connections fail needs a reading."""
    endpoint = Site().endpoint()
    endpoint.state = EndpointState.STALLED
    endpoint.show_life(1.0)
    assert EndpointState.UP is state_of(endpoint)
    endpoint.fail(2.0)
    endpoint.show_life(3.0)
    assert EndpointState.DOWN is state_of(endpoint)


@pytest.mark.parametrize("happens", [Endpoint.fail, Endpoint.come_up, Endpoint.show_life])
def test_what_is_removed_stays_removed(happens: Any) -> None:
    """Nothing that happens at an endpoint brings it back into the configuration."""
    endpoint = Site().endpoint()
    endpoint.state = EndpointState.REMOVED
    happens(endpoint, 1.0)
    assert EndpointState.REMOVED is state_of(endpoint)


# Signs of life


@pytest.mark.parametrize("counter", ["prompt_tokens_total", "output_tokens_total", "steps_total"])
@pytest.mark.parametrize("after", [41, 43], ids=["fell", "rose"])
def test_a_counter_that_moves_is_life(counter: str, after: int) -> None:
    """Work done by the engine shows in its counters; one that fell is a restart, which is life too."""
    endpoint = Site().endpoint()
    endpoint.take_sample(reading(1.0, **{counter: 42}), 1.0)
    endpoint.state = EndpointState.STALLED
    endpoint.take_sample(reading(2.0, **{counter: after}), 2.1)
    assert (EndpointState.UP, 2.1) == (endpoint.state, endpoint.last_life_s)


def test_an_answered_scrape_is_no_life() -> None:
    """A hung engine goes on answering its metrics: the same counters again leave it stalled."""
    endpoint = Site().endpoint()
    still = reading(1.0, running=3, output_tokens_total=42, steps_total=7)
    endpoint.take_sample(still, 1.0)
    endpoint.state = EndpointState.STALLED
    endpoint.take_sample(replace(still, at_s=2.0), 2.0)
    assert EndpointState.STALLED is state_of(endpoint)


def test_an_older_reading_is_ignored() -> None:
    """Of two readings that overtook each other the later one stays."""
    endpoint = Site().endpoint()
    late, early = reading(2.0, running=5), EngineSample(1.0, running=1, output_tokens_total=9)
    endpoint.take_sample(late, 2.0)
    endpoint.take_sample(early, 2.5)
    assert late == endpoint.sample
    assert 0.0 == endpoint.last_life_s


def test_the_moment_at_which_pacing_lets_a_prompt_in_is_told() -> None:
    """Only where pacing is all that it waits for: not another's reservation, nor room, and not after another moment."""
    site = Site(pool_settings(max_inflight_tokens=8000))
    endpoint = site.endpoint()
    stream, prompt = site.running(1), site.ticket(2, 0.2, prompt_tokens=1500)
    assert math.inf == endpoint.paced_until_s(prompt, 0.2)
    begin(site, [stream], 0.1)
    site.pool.follow(endpoint, 0.2)
    endpoint.prefill_window_s = 9.0
    site.running(3, now=0.2, prompt_tokens=3500, stream=False)
    until_s = endpoint.paced_until_s(prompt, 0.2)
    assert 0.2 < until_s < 1.0
    assert not endpoint.has_room(prompt, until_s - 1e-3)
    assert endpoint.has_room(prompt, until_s)
    assert math.inf == endpoint.paced_until_s(prompt, until_s)
    assert math.inf == endpoint.paced_until_s(prompt, 0.2, before_s=until_s)
    assert math.inf == endpoint.paced_until_s(site.ticket(4, prompt_tokens=4500), 0.2)
    endpoint.reserved_for, endpoint.reserved_rank = TicketId(9), 1
    assert math.inf == endpoint.paced_until_s(prompt, 0.2)
    endpoint.reserved_for = TicketId(2)
    assert until_s == endpoint.paced_until_s(prompt, 0.2)
    prompt.tried = frozenset({endpoint.id})
    assert math.inf == endpoint.paced_until_s(prompt, 0.2)


def test_a_guessed_law_makes_no_endpoint_look_busy() -> None:
    """An engine that is slower than is assumed is not in use for that."""
    site = Site(pool_settings(law=None, max_inflight_requests=100))
    endpoint = site.endpoint()
    begin(site, [site.running(1)])
    endpoint.step_gap_s = 10.0
    site.pool.follow(endpoint, 1.0)
    assert endpoint.utilization.level < 0.1
