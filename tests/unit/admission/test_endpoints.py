from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import EndpointId, EndpointState, EngineSample, TicketId
from tests.unit.admission.build import LLAMACPP, VLLM, Site, pool_settings, reading


def fill(site: Site, first: int, last: int, now: float = 0.0) -> None:
    """Requests `first` to `last` run at endpoint a."""
    for number in range(first, last + 1):
        site.running(number, "a", now)


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
    fill(site, 1, 8)
    endpoint.take_sample(reading(0.1, running=8), 0.1)
    fill(site, 9, 16, 0.2)
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


def test_kv_is_booked_up_to_the_limit_and_not_beyond() -> None:
    """Five requests of 199 tokens fit 995 tokens exactly; one token less and the fifth waits."""
    for limit, fits in [(995, True), (994, False)]:
        site = Site(pool_settings(max_inflight_tokens=limit))
        fill(site, 1, 4)
        assert fits is site.endpoint().has_room(site.ticket(5), 0.0)


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


def test_prefill_is_sent_ahead_only_so_far() -> None:
    """Once prompts worth 0.35 s of prefill are in hand, the next waits here, where the order is decided."""
    site = Site()
    site.running(1, prompt_tokens=3500)
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
    """An engine of twice the speed gets twice the prompts ahead."""
    site = Site()
    site.endpoint().meter.speed = 2.0
    site.running(1, prompt_tokens=7000)
    assert site.endpoint().is_open(0.0)
    site.running(2, prompt_tokens=1)
    assert not site.endpoint().is_open(0.0)


def test_unstreamed_prompts_do_not_fill_the_window() -> None:
    """Their first byte is their last, so nobody could say when such a prompt is through."""
    site = Site()
    site.running(1, prompt_tokens=50_000, stream=False)
    assert 0 == site.endpoint().pending_prefill_us
    assert site.endpoint().is_open(0.0)


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


# Silence


def test_an_idle_endpoint_may_be_silent() -> None:
    """With nothing in flight silence proves nothing."""
    assert Site().endpoint().silence_limit_s() is None


def test_a_stream_may_be_silent_for_ten_seconds() -> None:
    """That is the least, however short the prompts are."""
    site = Site()
    site.running(1)
    assert 10.0 == site.endpoint().silence_limit_s()


def test_a_long_prefill_earns_a_longer_silence() -> None:
    """Twenty times the longest prefill in hand, in the endpoint's own time."""
    site = Site()
    site.running(1)
    long = site.running(2, prompt_tokens=20_000)
    assert 40.0 == site.endpoint().silence_limit_s()
    site.endpoint().meter.speed = 0.5
    assert 80.0 == site.endpoint().silence_limit_s()
    site.life.first_token(long, 3.0)
    assert 10.0 == site.endpoint().silence_limit_s()


def test_a_slow_engine_earns_a_longer_silence() -> None:
    """Twenty times its usual step, where that is more: a large model on a CPU takes a second for each token."""
    site = Site()
    site.running(1)
    site.endpoint().step_gap_s = 0.4
    assert 10.0 == site.endpoint().silence_limit_s()
    site.endpoint().step_gap_s = 1.5
    assert 30.0 == site.endpoint().silence_limit_s()


def test_unstreamed_answers_prove_nothing_by_silence() -> None:
    """They give no byte until they are whole; an engine whose counters move while it works is judged by those."""
    site = Site()
    site.running(1, stream=False)
    site.endpoint().info = LLAMACPP
    assert site.endpoint().silence_limit_s() is None
    site.endpoint().info = VLLM
    assert 10.0 == site.endpoint().silence_limit_s()
    site.endpoint().info = LLAMACPP
    site.running(2)
    assert 10.0 == site.endpoint().silence_limit_s()


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
