from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from forebay.admission.common_law import learn_law
from forebay.admission.effects import Hold
from forebay.admission.model import EndpointId
from forebay.admission.settings import OPTIMISTIC_LAW, SpeedLaw
from tests.unit.admission.build import LAW, SLOW, Scenario, Site, demand, held, pool_settings, run_steps

LEARNS = pool_settings(law=None)
"""A pool without a profile."""


def test_a_learned_law_is_what_requests_are_counted_by() -> None:
    """An engine ten times slower than assumed makes requests ten times as dear."""
    site = Site(LEARNS)
    before = site.pool.price(demand(1)).cost.work_us
    run_steps(site.endpoint(), SLOW)
    assert learn_law(site.pool, 1.0)
    assert pytest.approx(10 * before, rel=0.1) == site.pool.price(demand(1)).cost.work_us


def test_speeds_are_kept_when_the_law_is_learned() -> None:
    """What drained a tenth of the assumed work per second drains as much as the reference by its own law."""
    site = Site(LEARNS, endpoints=("a", "b"))
    for name, speed in [("a", 0.1), ("b", 0.05)]:
        site.endpoint(name).meter.speed, site.endpoint(name).meter.windows = speed, 3
    run_steps(site.endpoint(), SLOW)
    assert learn_law(site.pool, 1.0)
    assert pytest.approx([1.0, 0.5], rel=0.1) == [e.meter.speed for e in site.pool.endpoints.values()]
    assert pytest.approx(1_500_000, rel=0.1) == site.pool.drain_us_per_s()


def test_a_law_is_not_taken_before_it_is_trusted() -> None:
    """Under two hundred steps nothing changes."""
    site = Site(LEARNS)
    run_steps(site.endpoint(), SLOW, 12)
    assert not learn_law(site.pool, 1.0)
    assert OPTIMISTIC_LAW == site.pool.pricing.law


def test_a_configured_law_is_not_learned_anew() -> None:
    """The operator's profile is what is counted by, whatever steps take; speeds tell the difference."""
    site = Site()
    run_steps(site.endpoint(), SLOW)
    assert not learn_law(site.pool, 1.0)
    assert LAW == site.pool.pricing.law


def test_a_law_that_is_as_assumed_changes_nothing() -> None:
    """Estimates, bookings and speeds are not moved for less than a tenth."""
    site = Site(LEARNS)
    site.endpoint().meter.speed, site.endpoint().meter.windows = 0.7, 3
    run_steps(site.endpoint(), OPTIMISTIC_LAW)
    assert not learn_law(site.pool, 1.0)
    assert (OPTIMISTIC_LAW, 0.7) == (site.pool.pricing.law, site.endpoint().meter.speed)


def test_the_law_is_looked_at_once_a_second() -> None:
    """Estimating everything anew is not done for each batch of progress."""
    site = Site(LEARNS)
    assert not learn_law(site.pool, 1.0)
    run_steps(site.endpoint(), SLOW)
    assert not learn_law(site.pool, 1.9)
    assert learn_law(site.pool, 2.0)
    assert not learn_law(site.pool, 9.0)


def test_the_endpoint_that_was_seen_most_speaks() -> None:
    """The law is that of one engine, the reference; the others differ from it by their speed."""
    site = Site(LEARNS, endpoints=("a", "b", "c"))
    double = replace(SLOW, c0_s=2 * SLOW.c0_s, c1_s=2 * SLOW.c1_s, c2_s=2 * SLOW.c2_s)
    run_steps(site.endpoint("a"), double, 30)
    run_steps(site.endpoint("b"), SLOW, 60)
    assert learn_law(site.pool, 1.0)
    assert site.endpoint("b").sources.learner.law() == site.pool.pricing.law


def test_the_law_has_the_sizes_of_its_engine() -> None:
    """KV cache and slots are those that the engine has told; a found limit is none of them."""
    site = Site(LEARNS)
    site.describe(kv_tokens=50_000)
    run_steps(site.endpoint(), SLOW)
    assert learn_law(site.pool, 1.0)
    law = site.pool.pricing.law
    assert (50_000, OPTIMISTIC_LAW.max_requests) == (law.kv_tokens, law.max_requests)
    site = Site(LEARNS)
    site.describe(max_requests=32)
    run_steps(site.endpoint(), SLOW)
    assert learn_law(site.pool, 1.0)
    assert 32 == site.pool.pricing.law.max_requests


def test_where_a_step_gives_several_tokens_a_token_costs_a_part_of_it() -> None:
    """Speculative decoding: two tokens of each sequence in a step halve what a token costs, not what a prompt does."""
    site = Site(LEARNS)
    run_steps(site.endpoint(), SLOW)
    pace = site.endpoint().sources.pace
    for _ in range(8):
        pace.ended(200, 100)
    pace._ratios, pace._windows = 10.0, 10.0
    assert 2.0 == pace.tokens_per_step
    learned = site.endpoint().sources.learner.law()
    assert learn_law(site.pool, 1.0)
    law = site.pool.pricing.law
    assert (learned.c0_s / 2, learned.c2_s / 2, learned.c3_s / 2) == (law.c0_s, law.c2_s, law.c3_s)
    assert (learned.c1_s, learned.c4_s) == (law.c1_s, law.c4_s)


def test_the_controller_counts_waiters_by_the_learned_law(begin: Callable[..., Scenario]) -> None:
    """Who waits is booked at the new cost, what runs stays as it was booked, and arrivals are told the new cost."""
    scenario = begin(replace(LEARNS, max_pool_requests=1))
    scenario.arrive(1, 0.0)
    (hold,) = [e for e in scenario.arrive(2, 0.0, class_name="batch") if isinstance(e, Hold)]
    before = scenario.pool_view()
    assert before.waiting_gpu_s == hold.record.cost_gpu_s == before.in_flight_gpu_s
    run_steps(scenario.controller._pools["llama"].endpoints[EndpointId("a")], SLOW)
    scenario.sample("a", 2.0, running=1)
    after = scenario.pool_view()
    assert pytest.approx(10 * before.waiting_gpu_s, rel=0.1) == after.waiting_gpu_s
    assert before.in_flight_gpu_s == after.in_flight_gpu_s
    effects = scenario.arrive(3, 2.0, class_name="batch")
    assert [3] == held(effects)
    assert pytest.approx(2 * after.waiting_gpu_s) == scenario.pool_view().waiting_gpu_s


@pytest.mark.parametrize(("windows", "kept"), [(0, False), (3, True)])
def test_what_was_learned_of_waits_is_kept_where_speeds_were_measured(windows: int, kept: bool) -> None:
    """The same engines at the same pace, only counted otherwise; a pace that was a guess is another story."""
    site = Site(LEARNS)
    for _ in range(64):
        site.pool.errors.observe(1.1, 1.0)
    site.endpoint().meter.speed, site.endpoint().meter.windows = 0.1, windows
    run_steps(site.endpoint(), SLOW)
    assert learn_law(site.pool, 1.0)
    assert kept is (site.pool.errors.median is not None)


# Speeds


def slowed(law: SpeedLaw, times: float) -> SpeedLaw:
    """The same engine on a slower machine."""
    seconds = ("c0_s", "c1_s", "c2_s", "c3_s", "c4_s")
    return replace(law, **{name: times * getattr(law, name) for name in seconds})


def two(fast_windows: int = 0, slow_windows: int = 0) -> Site:
    """Two endpoints whose steps are known: "b" takes four times as long for each as "a", which was seen more."""
    site = Site(LEARNS, endpoints=("a", "b"))
    run_steps(site.endpoint("a"), OPTIMISTIC_LAW, 90)
    run_steps(site.endpoint("b"), slowed(OPTIMISTIC_LAW, 4.0))
    site.endpoint("a").meter.windows, site.endpoint("b").meter.windows = fast_windows, slow_windows
    learn_law(site.pool, 1.0)
    return site


def test_a_slow_endpoint_is_known_for_one_by_its_steps() -> None:
    """Without ever having been saturated: a usual request is four times as dear there."""
    site = two()
    assert pytest.approx([1.0, 0.25], rel=0.1) == [e.meter.speed for e in site.pool.endpoints.values()]


def test_a_measured_speed_is_not_replaced() -> None:
    """What an endpoint did while requests waited is better evidence than its law."""
    site = two(slow_windows=1)
    assert 1.0 == site.endpoint("b").meter.speed


def test_an_endpoint_that_is_not_known_yet_is_taken_for_the_reference() -> None:
    """Too few steps say nothing."""
    site = Site(LEARNS, endpoints=("a", "b"))
    run_steps(site.endpoint("a"), OPTIMISTIC_LAW, 90)
    run_steps(site.endpoint("b"), SLOW, 5)
    learn_law(site.pool, 1.0)
    assert 1.0 == site.endpoint("b").meter.speed


def test_a_profile_that_is_wrong_shows_in_the_speed() -> None:
    """A single engine, never saturated, that is half as fast as its profile says."""
    site = Site()
    run_steps(site.endpoint(), slowed(LAW, 2.0))
    assert not learn_law(site.pool, 1.0)
    assert pytest.approx(0.5, rel=0.1) == site.endpoint().meter.speed
    assert LAW == site.pool.pricing.law


def test_when_costs_change_speeds_that_were_only_supposed_are_worked_out_anew() -> None:
    """Costs go up four times when the slow endpoint becomes the reference: the other is four times as fast then."""
    site = Site(LEARNS, endpoints=("a", "b"))
    run_steps(site.endpoint("a"), OPTIMISTIC_LAW, 60)
    run_steps(site.endpoint("b"), slowed(OPTIMISTIC_LAW, 4.0), 90)
    assert learn_law(site.pool, 1.0)
    assert pytest.approx([4.0, 1.0], rel=0.1) == [e.meter.speed for e in site.pool.endpoints.values()]
