from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import EndpointId, EndpointState, Usage
from forebay.admission.settings import SpeedLaw
from tests.unit.admission.build import LAW, Site, demand, pool_settings, settings_for, with_class


def reserved_at(site: Site) -> Endpoint | None:
    """The endpoint that is kept free for one request."""
    return site.pool.reserved


def teach(site: Site, *, windows: int = 3, finished: int = 30, error: float | None = 0.1) -> None:
    """Evidence for a pool that learns: saturated windows, finished requests, and the error of predictions."""
    site.endpoint("a").meter.windows = windows
    if error is not None:
        for _ in range(64):
            site.pool.errors.observe(1.0 + error, 1.0)
    for number in range(finished):
        site.pool.learn_end(site.ticket(number), None)


# What a request would cost


def test_a_known_prompt_is_priced_as_it_is() -> None:
    """The exact count goes before the bytes; images and audio come on top."""
    cost = Site().pool.cost_of(demand(1, prompt_tokens=500, extra_prompt_tokens=300, prompt_bytes=9999))
    assert (800, 99, 899) == (cost.prompt_tokens, cost.output_tokens, cost.kv_tokens)
    assert 80_000 + 990_000 == cost.work_us


def test_an_unknown_prompt_is_estimated_from_its_bytes() -> None:
    """Four bytes a token before anything is learned."""
    assert 250 == Site().pool.cost_of(demand(1, prompt_tokens=None, prompt_bytes=1000)).prompt_tokens


def test_every_sample_is_paid_for() -> None:
    """Four answers for one prompt cost four decodes, and KV for four answers and one prompt."""
    cost = Site().pool.cost_of(demand(1, samples=4))
    assert (10_000 + 4 * 990_000, 100 + 4 * 99) == (cost.work_us, cost.kv_tokens)


def test_an_embedding_holds_no_kv() -> None:
    """What generates nothing pays for its prompt alone."""
    cost = Site().pool.cost_of(demand(1, generates=False))
    assert (10_000, 0, 0) == (cost.work_us, cost.kv_tokens, cost.output_tokens)


def test_an_answer_cannot_outgrow_the_context_window() -> None:
    """With 50 tokens of the window left the answer has at most 50, whatever the client allows."""
    site = Site()
    site.describe("a", context_tokens=1000)
    cost = site.pool.cost_of(demand(1, prompt_tokens=950, max_output_tokens=4000))
    assert (50, 1000) == (cost.output_tokens, cost.kv_tokens)


def test_a_reserve_is_cut_to_the_whole_cache() -> None:
    """A request that needs more than the cache can hold books the whole cache: it runs alone."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    assert 1000 == site.pool.cost_of(demand(1, max_output_tokens=5000)).kv_tokens


def test_what_a_request_surely_needs() -> None:
    """An exact count is sure; of a guess from bytes only a quarter is."""
    pool = Site().pool
    assert 500 == pool.surely_needs(demand(1, prompt_tokens=500))
    assert 250 == pool.surely_needs(demand(1, prompt_tokens=None, prompt_bytes=4000))


# What the world looks like


def test_a_pool_is_starting_until_something_is_heard() -> None:
    """Starting means: nothing up, and something not heard of yet. An endpoint that is down is heard of."""
    site = Site(endpoints=("a", "b"), up=False)
    assert (True, False) == (site.pool.is_starting(), site.pool.has_up())
    site.endpoint("a").fail(0.0)
    assert site.pool.is_starting()
    site.endpoint("b").fail(0.0)
    assert not site.pool.is_starting()
    site.endpoint("b").come_up(10.0)
    assert (False, True) == (site.pool.is_starting(), site.pool.has_up())
    assert not Site(endpoints=()).pool.is_starting()


def test_the_drain_rate_is_the_sum_of_speeds_of_what_is_up() -> None:
    """Endpoints that are down drain nothing; a replica drains its share."""
    site = Site(endpoints=("a", "b", "c"))
    for name, speed in [("a", 1.0), ("b", 0.5), ("c", 8.0)]:
        site.endpoint(name).meter.speed = speed
    site.endpoint("c").fail(0.0)
    assert 1_500_000 == site.pool.drain_us_per_s()
    site.pool.set_share(0.5)
    assert 750_000 == site.pool.drain_us_per_s()


@pytest.mark.parametrize("fact", ["context_tokens", "kv_tokens"])
def test_sizes_are_the_largest_if_all_say(fact: str) -> None:
    """A request is too large only if it is for every endpoint; where one does not say, nobody can tell."""
    site = Site(pool_settings(law=None, headroom=1.0), endpoints=("a", "b", "gone"))
    site.endpoint("gone").state = EndpointState.REMOVED
    site.describe("gone", **{fact: 999_999})
    site.describe("a", **{fact: 1000})

    def found() -> int | None:
        return site.pool.context_tokens if fact == "context_tokens" else site.pool.kv_limit

    assert found() is None
    site.describe("b", **{fact: 2000})
    assert 2000 == found()


def test_a_pool_without_endpoints_has_no_sizes() -> None:
    """Nothing is too large for nothing: that is not why such a request is refused."""
    pool = Site(endpoints=()).pool
    assert (None, None) == (pool.context_tokens, pool.kv_limit)


def test_the_cap_over_all_endpoints() -> None:
    """A pool's requests are capped over its endpoints together, and a replica has its share of the cap."""
    site = Site(pool_settings(max_pool_requests=4), endpoints=("a", "b"))
    for number, name in enumerate("abab", 1):
        assert site.pool.has_place()
        site.running(number, name)
    assert not site.pool.has_place()
    site = Site(pool_settings(max_pool_requests=4))
    site.pool.set_share(0.25)
    site.running(1)
    assert not site.pool.has_place()


def test_without_a_cap_there_is_always_a_place() -> None:
    """Unlimited is the default."""
    assert Site().pool.has_place()


def test_the_bound_on_work_has_headroom_and_share() -> None:
    """120 GPU-seconds on endpoints of four GPUs are 30 endpoint-seconds; 0.9 of that, and half for this replica."""
    site = Site(pool_settings(max_gpu_s=120.0, gpus=4, headroom=0.9))
    assert 27_000_000 == site.pool.max_work_us()
    site.pool.set_share(0.5)
    assert 13_500_000 == site.pool.max_work_us()
    assert Site().pool.max_work_us() is None


def test_the_bound_on_a_class_follows_the_drain_rate() -> None:
    """Unconfigured, a class may have waiting what drains within its wait budget; while learning, anything."""
    site = Site(endpoints=("a", "b"))
    assert 10_000_000 == site.pool.max_class_work_us(site.class_settings("standard"))
    learning = Site(pool_settings(law=None))
    assert learning.pool.max_class_work_us(learning.class_settings("standard")) is None


def test_a_configured_bound_on_a_class_holds_while_learning() -> None:
    """What the operator set is no prediction."""
    settings = with_class("batch", settings_for(pool_settings(law=None, gpus=2)), max_queue_gpu_s=8.0)
    site = Site(settings=settings)
    assert 4_000_000 == site.pool.max_class_work_us(site.class_settings("batch"))


def test_the_tightest_budget_is_that_of_the_most_impatient_class() -> None:
    """Found limits are judged by it."""
    site = Site()
    assert 1.5 == site.pool.tightest_s() == site.endpoint().limit.tightest_s


# How long it would wait


def test_ahead_are_own_class_and_higher_ranks() -> None:
    """A standard arrival waits for realtime and standard work; batch work waits for it."""
    site = Site()
    site.queued(1, class_name="realtime")
    site.queued(2)
    site.queued(3, class_name="batch")
    assert [1_000_000, 2_000_000, 3_000_000] == [
        site.pool.ahead_us(name) for name in ("realtime", "standard", "batch")
    ]
    assert [1, 2, 3] == [site.pool.ahead_requests(name) for name in ("realtime", "standard", "batch")]


def test_the_prediction_is_work_ahead_over_the_drain_rate() -> None:
    """Two seconds ahead and a mean of one running, on two endpoints: 1.5 s. `plain` counts both running: 2 s."""
    for predictor, wait_s in [("backlog", 1.5), ("plain", 2.0)]:
        site = Site(pool_settings(wait_predictor=predictor), endpoints=("a", "b"))
        site.running(1, "a")
        site.running(2, "b")
        site.queued(3)
        site.queued(4)
        site.queued(5, class_name="batch")
        assert wait_s == site.pool.predict_wait_s("standard")


# What it learns


def test_a_configured_profile_counts_as_learned() -> None:
    """With a law nothing has to be learned before predictions may refuse; without one everything has."""
    assert not Site().pool.learning
    assert Site(pool_settings(law=None)).pool.learning


def test_learning_ends_with_evidence() -> None:
    """Once speed is known and predictions have proved right, a pool without a profile refuses who cannot be in time."""
    site = Site(pool_settings(law=None))
    teach(site)
    assert not site.pool.learning


@pytest.mark.parametrize(
    "lacking", [{"windows": 2}, {"finished": 29}, {"error": 0.31}, {"error": None}], ids=str
)
def test_learning_lasts_while_any_evidence_is_lacking(lacking: dict[str, Any]) -> None:
    """Each kind of evidence is needed."""
    site = Site(pool_settings(law=None))
    teach(site, **lacking)
    assert site.pool.learning


def test_a_jump_in_error_returns_to_learning() -> None:
    """Predictions that are off by more than 60 % may refuse nobody; in between the verdict stays."""
    site = Site(pool_settings(law=None))
    teach(site)
    wait = site.ticket(99)
    wait.predicted_wait_s, wait.waited_s = 1.5, 1.0
    for _ in range(64):
        site.pool.learn_wait(wait)
    assert not site.pool.learning
    wait.predicted_wait_s = 1.7
    for _ in range(64):
        site.pool.learn_wait(wait)
    assert site.pool.learning


def test_errors_do_not_unlearn_a_profile() -> None:
    """A configured profile is the operator's word."""
    site = Site()
    wait = site.ticket(99)
    wait.predicted_wait_s, wait.waited_s = 100.0, 1.0
    for _ in range(64):
        site.pool.learn_wait(wait)
    assert not site.pool.learning


def test_usage_teaches_ratio_and_length() -> None:
    """The engine's own counts teach how many tokens bytes make, without what images added, and how long answers are."""
    site = Site()
    for number in range(40):
        ticket = site.ticket(number, prompt_tokens=None, prompt_bytes=2000, extra_prompt_tokens=50)
        site.pool.learn_end(ticket, Usage(prompt_tokens=1050, output_tokens=20))
    assert pytest.approx(2.0, rel=0.1) == site.pool.ratio.bytes_per_token
    assert pytest.approx(20, rel=0.15) == site.pool.cost_of(demand(1)).output_tokens


def test_a_counted_prompt_teaches_no_ratio() -> None:
    """Token-id prompts have no text bytes to speak of."""
    site = Site()
    site.pool.learn_end(site.ticket(1), Usage(prompt_tokens=100, output_tokens=5))
    assert 0 == site.pool.ratio.observations


def test_answers_of_several_samples_are_learned_one_by_one() -> None:
    """Forty tokens over four samples are answers of ten."""
    site = Site()
    for number in range(40):
        site.pool.learn_end(site.ticket(number, samples=4), Usage(prompt_tokens=100, output_tokens=40))
    assert pytest.approx(10, rel=0.15) == site.pool.cost_of(demand(1)).output_tokens


def test_events_stand_in_for_missing_usage() -> None:
    """A stream without usage teaches by the data events that were relayed; an answer without either teaches nothing."""
    site = Site()
    for number in range(40):
        ticket = site.ticket(number)
        ticket.output_events = 30
        site.pool.learn_end(ticket, None)
    assert pytest.approx(30, rel=0.15) == site.pool.cost_of(demand(1)).output_tokens
    silent = Site()
    silent.pool.learn_end(silent.ticket(1), None)
    assert 99 == silent.pool.cost_of(demand(1)).output_tokens
    assert 1 == silent.pool.finished


def test_embeddings_teach_no_lengths() -> None:
    """What generates nothing has no answer length, whatever its usage says."""
    site = Site()
    site.pool.learn_end(site.ticket(1, generates=False), Usage(prompt_tokens=100, output_tokens=1))
    assert 256 == site.pool.cost_of(demand(1, max_output_tokens=None)).output_tokens


# New settings


def test_new_settings_keep_what_was_learned() -> None:
    """Ratio, lengths, speeds and books outlive a change of the settings, which reaches every endpoint."""
    site = Site()
    ticket = site.running(1)
    site.endpoint().meter.speed = 0.5
    site.pool.learn_end(ticket, Usage(prompt_tokens=100, output_tokens=5))
    changed = settings_for(pool_settings(max_inflight_requests=3), stale_after_s=9.0)
    changed = with_class("realtime", changed, wait_budget_s=0.7)
    site.pool.reconfigure(changed.pools[0], changed)
    endpoint = site.endpoint()
    assert (3, True) == endpoint.request_limit
    assert (0.5, 9.0, 0.7) == (endpoint.meter.speed, endpoint.stale_after_s, endpoint.limit.tightest_s)
    assert (1, 1) == (site.pool.finished, site.pool.books.in_flight.requests)


def test_a_new_profile_changes_what_requests_cost() -> None:
    """Costs follow the law of the settings, and a profile that comes later ends the learning."""
    site = Site(pool_settings(law=None))
    slow: SpeedLaw = replace(LAW, c1_s=2e-4, c2_s=2e-2)
    changed = settings_for(pool_settings(law=slow))
    site.pool.reconfigure(changed.pools[0], changed)
    assert 2_000_000 == site.pool.cost_of(demand(1)).work_us
    assert not site.pool.learning


def test_a_pool_whose_profile_is_taken_away_has_to_learn() -> None:
    """Without a profile and without evidence nothing may be refused on predictions."""
    site = Site()
    changed = settings_for(pool_settings(law=None))
    site.pool.reconfigure(changed.pools[0], changed)
    assert site.pool.learning


def test_a_removed_endpoint_takes_its_reservation_with_it() -> None:
    """Nothing stays reserved at an endpoint that is gone, and its books are closed."""
    site = Site(endpoints=("a", "b"))
    site.pool.reserved = site.endpoint("a")
    site.pool.remove_endpoint(site.endpoint("a"))
    assert reserved_at(site) is None
    assert [EndpointId("b")] == list(site.pool.endpoints) == list(site.pool.books.endpoints)


def test_a_new_endpoint_starts_with_the_pools_share() -> None:
    """An endpoint that is discovered while the replica has half the pool gets half its limits."""
    site = Site(pool_settings(max_inflight_requests=8))
    site.pool.set_share(0.5)
    site.pool.add_endpoint(EndpointId("late"), 1)
    assert (4, True) == site.endpoint("late").request_limit
