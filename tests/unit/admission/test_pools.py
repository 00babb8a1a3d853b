from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.capacity import tightest_tpot_s
from forebay.admission.common_law import learn_law
from forebay.admission.endpoints import Endpoint
from forebay.admission.events import Described, SampleMissed
from forebay.admission.learning import CAUTIOUS, CONFIDENT, LEARNING
from forebay.admission.lengths import OutputLengths
from forebay.admission.model import EndpointId, EndpointState, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.pools import Pool
from forebay.admission.settings import OPTIMISTIC_LAW, ClassOrder, Order, Settings, SpeedLaw
from forebay.admission.tickets import Ticket
from tests.unit.admission.build import (
    LAW,
    SLOW,
    VLLM,
    Scenario,
    Site,
    demand,
    pool_settings,
    run_steps,
    settings_for,
    turned_away,
    with_class,
)

SECOND_US = 1_000_000


def usual(site: Site, work_us: int) -> Ticket:
    """A request that is alone in its tenant, of so much work."""
    ticket = site.ticket(99)
    ticket.work_us = work_us
    return ticket


LEARNS = pool_settings(law=None)
"""A pool without a profile."""


def reserved_at(site: Site) -> Endpoint | None:
    """The endpoint that is kept free for one request."""
    return site.pool.reserved


def learns(pool: Pool) -> bool:
    """Whether it may refuse nobody on a prediction."""
    return not pool.learning.may_refuse


def teach(site: Site, *, steps: int = 200, finished: int = 30, error: float | None = 0.1) -> None:
    """Evidence for a pool that learns: engine steps, finished requests, and the error of predictions."""
    site.endpoint("a").sources.learner.steps = steps
    if error is not None:
        for _ in range(64):
            site.pool.errors.observe(1.0 + error, 1.0)
    for number in range(finished):
        ticket = site.ticket(number)
        ticket.endpoint = site.endpoint("a")
        site.pool.learn_end(ticket, None, 0, 1.0, whole=True)


def trust(pool: Pool, *, confident: bool = False) -> None:
    """From now on its predictions may refuse; `confident`: with nothing held against them."""
    pool.learning._enter(CONFIDENT if confident else CAUTIOUS, 0.0)
    for state in pool.classes.values():
        state.waits.trusted = confident


def arrive(site: Site, class_name: str, gpu_s_per_s: float, each_us: int = 1000, now: float = 0.0) -> None:
    """So much work per second has been arriving in a class, in requests of one size, up to now."""
    state = site.pool.classes[class_name]
    for _ in range(round(gpu_s_per_s * state.arrivals.time_constant_s * SECOND_US / each_us)):
        state.arrived(each_us, now)


def waited(site: Site, number: int, *, foretold_s: float, waited_s: float, **changes: Any) -> Ticket:
    """A ticket that was told one wait and has had another."""
    ticket = site.ticket(number, **changes)
    forecast = site.pool.classes[ticket.demand.class_name].waits.forecast(foretold_s)
    ticket.forecast = replace(forecast, expected_s=foretold_s)
    ticket.waited_s = waited_s
    return ticket


# What a request would cost


def test_a_request_is_priced_by_what_the_pool_has_learned() -> None:
    """The pool's own lengths, law and limits: here a second of work for a hundred tokens and an answer of 99."""
    price = Site().pool.price(demand(1))
    assert (SECOND_US, 150, 99) == (price.cost.work_us, price.cost.kv_tokens, price.cap)


def test_an_answer_cannot_outgrow_the_context_window() -> None:
    """With 50 tokens of the window left the answer has at most 50, whatever the client allows."""
    site = Site()
    site.describe("a", context_tokens=1000)
    price = site.pool.price(demand(1, prompt_tokens=950, max_output_tokens=4000))
    assert (50, 50) == (price.cap, price.cost.output_tokens)


def test_a_reserve_is_cut_to_the_whole_cache() -> None:
    """A request that needs more than the cache can hold books the whole cache: it runs alone."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    price = site.pool.price(demand(1, max_output_tokens=5000))
    assert (1000, 5000) == (price.cost.kv_tokens, price.cap)
    assert 10_000 + 5000 * 10_000 == price.cost.work_us


def test_costs_are_reckoned_with_the_cache_that_engines_have() -> None:
    """The fixed cost of a step is shared by what the cache holds: told by all engines, that is taken for the law's."""
    law = replace(LAW, c0_s=0.01)
    site = Site(pool_settings(law=law), endpoints=("a", "b"))
    before = site.pool.price(demand(1)).cost.work_us
    site.describe("a", kv_tokens=10_000)
    assert before == site.pool.price(demand(1)).cost.work_us
    site.describe("b", kv_tokens=5_000)
    assert 10_000 == site.pool.pricing.law.kv_tokens
    assert before < site.pool.price(demand(1)).cost.work_us


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
        assert site.pool.has_place(0.0)
        site.running(number, name)
    assert not site.pool.has_place(0.0)
    site = Site(pool_settings(max_pool_requests=4))
    site.pool.set_share(0.25)
    site.running(1)
    assert not site.pool.has_place(0.0)


def test_without_a_cap_there_is_always_a_place() -> None:
    """Unlimited is the default."""
    assert Site().pool.has_place(0.0)


def test_the_bound_on_work_has_headroom_and_share() -> None:
    """120 GPU-seconds on endpoints of four GPUs are 30 endpoint-seconds; 0.9 of that, and half for this replica."""
    site = Site(pool_settings(max_gpu_s=120.0, gpus=4, headroom=0.9))
    assert 27_000_000 == site.pool.max_work_us()
    site.pool.set_share(0.5)
    assert 13_500_000 == site.pool.max_work_us()
    assert Site().pool.max_work_us() is None


def test_in_strict_order_a_class_gets_what_higher_ranks_leave() -> None:
    """The first rank all; a later one what the others' arrivals leave, and its floor while one of them waits."""
    site = Site(settings=settings_for(class_order=ClassOrder.STRICT))
    rate = site.pool.class_rate_us_per_s
    assert [1_000_000] * 3 == [rate(name, 0.0) for name in ("realtime", "standard", "batch")]
    arrive(site, "realtime", 0.6)
    assert [1_000_000, 400_000] == pytest.approx([rate("realtime", 0.0), rate("batch", 0.0)], rel=0.01)
    site.queued(1, class_name="standard")
    assert [1_000_000, 200_000] == pytest.approx([rate("realtime", 0.0), rate("batch", 0.0)], rel=0.01)
    assert (1_000_000, 0.0) == site.pool.most_of_class("batch")


def test_the_bound_on_a_class_follows_the_drain_rate() -> None:
    """Unconfigured, a class may have waiting what it gets within its wait budget; while learning, anything."""
    site = Site(endpoints=("a", "b"))
    assert site.pool.max_class_work_us(site.class_settings("standard"), 0.0) is None
    trust(site.pool)
    assert (
        site.pool.max_class_work_us(site.class_settings("standard"), 0.0) is None
    )  # the lower quantile decides alone
    trust(site.pool, confident=True)
    assert 10_000_000 == site.pool.max_class_work_us(site.class_settings("standard"), 0.0)
    site.queued(1, class_name="realtime")
    assert 10_000_000 * 5 / 8 == site.pool.max_class_work_us(site.class_settings("standard"), 0.0)


def test_a_configured_bound_on_a_class_holds_while_learning() -> None:
    """What the operator set is no prediction."""
    settings = with_class("batch", settings_for(pool_settings(law=None, gpus=2)), max_queue_gpu_s=8.0)
    site = Site(settings=settings)
    assert 4_000_000 == site.pool.max_class_work_us(site.class_settings("batch"), 0.0)


def test_the_tightest_budget_is_that_of_the_most_impatient_class() -> None:
    """Found limits are judged by it."""
    site = Site()
    assert 1.5 == site.pool.tightest_s() == site.endpoint().limit.tightest_s


# How long it would wait


def test_a_class_gets_its_part_of_the_weight_of_those_that_wait() -> None:
    """Alone it gets all that drains; beside realtime (3) and batch (2), standard (5) gets a half."""
    site = Site(endpoints=("a", "b"))
    for name in ("realtime", "standard", "batch"):
        assert 2_000_000 == site.pool.class_rate_us_per_s(name, 0.0)
    site.queued(1, class_name="realtime")
    assert 2_000_000 * 5 / 8 == site.pool.class_rate_us_per_s("standard", 0.0)
    assert 2_000_000 == site.pool.class_rate_us_per_s("realtime", 0.0)
    site.queued(2, class_name="batch")
    assert 1_000_000 == site.pool.class_rate_us_per_s("standard", 0.0)
    site.endpoint("b").fail(0.0)
    assert 500_000 == site.pool.class_rate_us_per_s("standard", 0.0)


def test_the_base_is_what_is_before_it_over_the_drain_rate_and_a_release() -> None:
    """Two seconds ahead and 20 ms of prefill on two endpoints, and half a second until one of two works ends."""
    site = Site(endpoints=("a", "b"))
    first, _ = site.running(1, "a"), site.running(2, "b")
    assert pytest.approx(1.01 + 0.5) == site.pool.base_wait_s("standard", 2e6, usual(site, SECOND_US), 0.0)
    site.life.first_token(first, 0.0)
    assert 10_000 == site.pool.prefill_in_engines_us()
    assert pytest.approx(1.005 + 0.4975) == site.pool.base_wait_s(
        "standard", 2e6, usual(site, SECOND_US), 0.0
    )


def test_the_plain_predictor_counts_all_that_is_in_flight() -> None:
    """Two seconds ahead and two in flight on two endpoints are two seconds, whatever arrives."""
    site = Site(pool_settings(wait_predictor="plain"), endpoints=("a", "b"))
    site.running(1, "a")
    site.running(2, "b")
    arrive(site, "standard", 1.0)
    arrive(site, "realtime", 1.0)
    assert 2.0 == site.pool.base_wait_s("standard", 2e6, usual(site, SECOND_US), 0.0)


@pytest.mark.parametrize("predictor", ["backlog", "plain"])
def test_where_nothing_drains_the_wait_is_endless(predictor: str) -> None:
    """No endpoint that is up means an infinite wait, in every order of service and however much arrives."""
    for order in Order:
        settings = with_class("standard", settings_for(pool_settings(wait_predictor=predictor)), order=order)
        site = Site(settings=settings, up=False)
        arrive(site, "standard", 1.0)
        assert math.inf == site.pool.base_wait_s("standard", 1e6, usual(site, SECOND_US), 0.0)
        assert math.inf == site.pool.predict_wait_s("standard", 0.0)


def test_smaller_requests_that_come_later_go_first() -> None:
    """With `sjf` half the rate goes to later and smaller ones: one second becomes two. Other orders do not care."""
    for order, wait_s in [(Order.SJF, 2.0), (Order.FIFO, 1.0), (Order.EDF, 1.0)]:
        site = Site(settings=with_class("standard", settings_for(), order=order))
        arrive(site, "standard", 0.5)
        assert pytest.approx(wait_s) == site.pool.base_wait_s("standard", 1e6, usual(site, SECOND_US), 0.0)


def test_larger_requests_that_come_later_do_not() -> None:
    """What will be served after it does not make a request wait."""
    site = Site()
    arrive(site, "standard", 0.5, each_us=500_000)
    assert pytest.approx(1.0) == site.pool.base_wait_s("standard", 1e6, usual(site, 100_000), 0.0)


def test_how_long_smaller_ones_go_first_is_a_matter_of_aging() -> None:
    """Of half the size, and coming for a second only: half a second is added, then a quarter, and then nothing."""
    site = Site(settings=with_class("standard", settings_for(), aging_s=1.0))
    arrive(site, "standard", 0.5, each_us=500_000)
    assert pytest.approx(2.75) == site.pool.base_wait_s("standard", 2e6, usual(site, SECOND_US), 0.0)


def test_what_a_class_gets_is_what_smaller_ones_take_from() -> None:
    """Where others wait too, the class has a part of the rate, and its own arrivals weigh the more in it."""
    site = Site()
    site.queued(1, class_name="realtime")
    arrive(site, "standard", 0.25)
    rate = 5 / 8
    assert pytest.approx(1.0 * rate / (rate - 0.25)) == site.pool.base_wait_s(
        "standard", 1e6, usual(site, SECOND_US), 0.0
    )


def test_a_pool_in_which_nothing_is_ahead_has_no_wait() -> None:
    """However much came lately: once it is served nobody has to wait for it."""
    site = Site()
    for name in ("realtime", "standard", "batch"):
        arrive(site, name, 3.0)
    assert [0.0] * 3 == [site.pool.predict_wait_s(name, 0.0) for name in ("realtime", "standard", "batch")]


# What will arrive and be served first


def test_by_weight_what_arrives_without_waiting_is_served_first() -> None:
    """Classes that get all they ask for take it from those who wait; the class's own arrivals are not in it."""
    site = Site(endpoints=("a", "b"))
    arrive(site, "realtime", 0.1)
    arrive(site, "batch", 0.2)
    arrive(site, "standard", 0.9)
    assert pytest.approx(300_000) == site.pool.arriving_us_per_s("standard", 0.0)
    assert pytest.approx(300_000 / math.e) == site.pool.arriving_us_per_s("standard", 10.0)


def test_what_a_class_with_a_backlog_takes_is_ahead_already() -> None:
    """The work that waits in it is counted as such, and what arrives in it waits behind that."""
    site = Site()
    arrive(site, "realtime", 0.1)
    arrive(site, "batch", 0.2)
    site.queued(1, class_name="realtime")
    assert pytest.approx(200_000) == site.pool.arriving_us_per_s("standard", 0.0)


@pytest.mark.parametrize("others", [(), ("batch",)], ids=["alone", "beside another"])
def test_no_class_is_served_more_than_its_share_first(others: tuple[str, ...]) -> None:
    """What a class without a backlog asks for beyond its share would have to wait, as if it had one."""
    site = Site()
    for number, name in enumerate(("standard", *others)):
        site.queued(number, class_name=name)
    arrive(site, "realtime", 50.0, each_us=SECOND_US)
    share = site.pool.class_rate_us_per_s("realtime", 0.0)
    assert SECOND_US * 3 / (8 + 2 * len(others)) == share
    assert pytest.approx(share) == site.pool.arriving_us_per_s("standard", 0.0)


def test_in_strict_order_the_higher_ranks_are_served_first() -> None:
    """Whether they wait or not, and none of the lower ones."""
    site = Site(settings=settings_for(class_order=ClassOrder.STRICT))
    for name in ("realtime", "standard", "batch"):
        arrive(site, name, 0.1)
    site.queued(1, class_name="realtime")
    found = [site.pool.arriving_us_per_s(name, 0.0) for name in ("realtime", "standard", "batch")]
    assert pytest.approx([0.0, 100_000, 200_000]) == found


def test_what_is_served_first_makes_the_wait_longer() -> None:
    """A quarter of the rate gone to others makes a third more of a wait; it doubles at most."""
    site = Site()
    arrive(site, "realtime", 0.25)
    assert pytest.approx(4 / 3) == site.pool.base_wait_s("standard", 1e6, usual(site, 1), 0.0)
    strict = Site(settings=settings_for(class_order=ClassOrder.STRICT))
    arrive(strict, "realtime", 7.0)
    assert pytest.approx(2.0) == strict.pool.base_wait_s("standard", 1e6, usual(site, 1), 0.0)


# The wait of a usual request


def test_a_usual_request_waits_for_what_would_be_served_before_it() -> None:
    """2.1 s of work in standard: two seconds of its own class, and what batch (2 to 5) gets by its weight, a second."""
    site = Site(endpoints=("a", "b"))
    site.running(1, "a")
    site.running(2, "b")
    for number in (3, 4):
        site.queued(number)
    site.queued(5, class_name="batch")
    assert pytest.approx(0.01 + 3.0 / 2 + 0.5) == site.pool.predict_wait_s("standard", 0.0)
    # Of batch no more than 0.4 · 4.1 s are served before it, however much is queued there.
    for number in range(6, 20):
        site.queued(number, class_name="batch")
    assert pytest.approx(0.01 + (2.0 + 0.4 * 4.1) / 2 + 0.5) == site.pool.predict_wait_s("standard", 0.0)


def test_the_expected_wait_is_corrected_by_experience() -> None:
    """Waits of one and a half times what was computed are expected from then on, in the class that had them."""
    site = Site()
    site.queued(1)
    before = [site.pool.predict_wait_s(name, 0.0) for name in ("standard", "batch")]
    for number in range(600):
        base_s = 0.5 * (1 + number % 8)
        site.pool.learn_wait(waited(site, number, foretold_s=base_s, waited_s=1.5 * base_s), 0.0)
    after = [site.pool.predict_wait_s(name, 0.0) for name in ("standard", "batch")]
    assert pytest.approx([1.5 * before[0], before[1]], rel=0.02) == after


# Cold start


def test_a_configured_profile_counts_as_learned_speed_and_nothing_else() -> None:
    """With a law no steps have to be seen; answers and waits have to be, as without one."""
    for settings, lacking in [(None, ("finished", "error")), (LEARNS, ("steps", "finished", "error"))]:
        pool = Site(settings).pool
        assert learns(pool)
        assert lacking == pool.learning.view().lacking
    site = Site()
    teach(site, steps=0)
    assert CAUTIOUS is site.pool.learning.phase


def test_learning_ends_with_evidence() -> None:
    """Once speed is known and predictions have proved right, a pool without a profile refuses who cannot be in time."""
    site = Site(LEARNS)
    teach(site)
    assert CAUTIOUS is site.pool.learning.phase


@pytest.mark.parametrize(
    "lacking", [{"steps": 199}, {"finished": 29}, {"error": 0.31}, {"error": None}], ids=str
)
def test_learning_lasts_while_any_evidence_is_lacking(lacking: dict[str, Any]) -> None:
    """Each kind of evidence is needed."""
    site = Site(LEARNS)
    teach(site, **lacking)
    assert learns(site.pool)


def test_steps_are_those_of_all_endpoints() -> None:
    """A pool learns from whichever of its engines runs."""
    site = Site(LEARNS, endpoints=("a", "b"))
    site.endpoint("b").sources.learner.steps = 80
    site.pool.learned(site.endpoint("b"), 1.0)
    teach(site, steps=119)
    assert learns(site.pool)
    site.pool.learned(site.endpoint("b"), 2.0)
    assert learns(site.pool)
    site.endpoint("b").sources.learner.steps = 81
    site.pool.learned(site.endpoint("b"), 3.0)
    assert not learns(site.pool)


def test_steps_from_before_a_return_to_learning_are_no_evidence() -> None:
    """Neither those that were counted, nor those that had not been asked for."""
    site = Site(LEARNS, endpoints=("a", "b"))
    teach(site)
    assert not learns(site.pool)
    site.endpoint("b").sources.learner.steps = 5000
    for number in range(64):
        site.pool.learn_wait(waited(site, 100 + number, foretold_s=9.0, waited_s=1.0), 2.0)
    assert learns(site.pool)
    site.pool.learned(site.endpoint("b"), 3.0)
    assert 0 == site.pool.learning.view().steps


def test_only_whole_answers_are_finished_requests() -> None:
    """Of answers that were cut off thirty are no evidence."""
    site = Site()
    teach(site, finished=29)
    for number in range(40):
        site.pool.learn_end(site.ticket(number), None, 5, 1.0, whole=False)
    assert (29, True) == (site.pool.learning.view().finished, learns(site.pool))


@pytest.mark.parametrize("profile", [True, False])
def test_a_jump_in_error_returns_to_learning(profile: bool) -> None:
    """Predictions off by more than 60 % of half the budget may refuse nobody, profile or not; up to that they may."""
    site = Site(None if profile else LEARNS)
    teach(site)
    for number in range(64):
        site.pool.learn_wait(waited(site, number, foretold_s=2.45, waited_s=1.0), 2.0)
    assert not learns(site.pool)
    for number in range(64):
        site.pool.learn_wait(waited(site, number, foretold_s=2.55, waited_s=1.0), 2.0)
    assert learns(site.pool)
    assert 1 == site.pool.learning.view().error_jumps


def test_what_was_in_error_is_forgotten_with_the_return() -> None:
    """Only waits that are judged from then on may end the learning, and each class must prove its quantiles again."""
    site = Site()
    teach(site)
    waits = site.pool.classes["standard"].waits
    for number in range(64):
        site.pool.learn_wait(waited(site, number, foretold_s=1.1, waited_s=1.0), 2.0)
    waits.trusted = True
    for number in range(64):
        site.pool.learn_wait(waited(site, number, foretold_s=9.0, waited_s=1.0), 3.0)
        if learns(site.pool):
            break
    assert learns(site.pool)
    assert (None, False, 0) == (site.pool.errors.median, waits.trusted, waits.judged)


def test_coverage_in_order_gives_classes_their_own_confidence() -> None:
    """Once a class's quantiles have held as often as stated, and none shows the contrary, the pool is confident."""
    site = Site()
    teach(site)
    waits = site.pool.classes["standard"].waits
    for number in range(200):
        ticket = site.ticket(number)
        ticket.forecast = waits.forecast(2.0)
        # Nine of ten waits are above the careful quantile, half of them above the median.
        part = number * 7 % 20
        low_s, middle_s = ticket.forecast.cautious_s, ticket.forecast.confident_s
        ticket.waited_s = low_s * 0.99 if part < 2 else middle_s * (0.99 if part < 10 else 1.01)
        site.pool.learn_wait(ticket, 5.0)
    assert (CONFIDENT, True) == (site.pool.learning.phase, waits.trusted)


def test_a_wait_of_which_nothing_was_said_teaches_nothing() -> None:
    """Whoever was told no wait cannot have been told a wrong one."""
    site = Site()
    ticket = site.ticket(1)
    ticket.waited_s = 3.0
    site.pool.learn_wait(ticket, 3.0)
    site.pool.learn_cut_wait(ticket, 3.0)
    assert (0, 0) == (site.pool.errors.count, site.pool.classes["standard"].waits.judged)


def test_a_wait_that_was_cut_short_was_to_be_longer() -> None:
    """It raises the quantiles and leaves the expected wait to those who were served."""
    site = Site()
    waits = site.pool.classes["standard"].waits
    middle_s, kappa = waits.at_quantile(2.0, 0.5), waits.kappa
    for number in range(20):
        site.pool.learn_cut_wait(waited(site, number, foretold_s=2.0, waited_s=4.0), 4.0)
    assert waits.at_quantile(2.0, 0.5) > middle_s
    assert kappa == waits.kappa
    judged = waits.judged
    retried = waited(site, 99, foretold_s=2.0, waited_s=4.0)
    retried.attempts = 1
    site.pool.learn_cut_wait(retried, 4.0)
    assert judged == waits.judged


def test_who_waited_as_long_as_it_may_judges_the_prediction() -> None:
    """Beyond the end of its wait all is alike, too long: foretold as that it is no error, foretold as little it is."""
    site = Site()
    for number in range(64):
        site.pool.learn_cut_wait(waited(site, number, foretold_s=9.0, waited_s=5.0), 5.0)
    assert 0.0 == site.pool.errors.median
    for number in range(64):
        site.pool.learn_cut_wait(waited(site, number, foretold_s=1.0, waited_s=5.0), 5.0)
    assert pytest.approx(0.8) == site.pool.errors.median
    before = site.pool.errors.count
    site.pool.learn_cut_wait(waited(site, 1, foretold_s=1.0, waited_s=2.0), 2.0)
    assert before == site.pool.errors.count


# The guard


def refused_beside_idle(site: Site, idle_s: float = 10.0, refused_s: float = 11.0) -> None:
    """Endpoint b is idle from one time on, and at another a request is refused on its predicted wait."""
    teach(site)
    site.running(1000, "a", 1.0)
    ticket = site.running(1001, "b", 1.0)
    site.life.finish(ticket, Outcome.CLIENT_GONE, None, idle_s, engine_goes_on=False)
    site.pool.watch_idle(idle_s)
    site.pool.refused_on_prediction("standard", refused_s)


def test_refusals_beside_an_idle_endpoint_trip_the_guard() -> None:
    """Idle for five seconds in which a request was refused on its prediction: the pool learns anew, and says why."""
    site = Site(endpoints=("a", "b"))
    refused_beside_idle(site)
    site.pool.watch_idle(14.9)
    assert not learns(site.pool)
    site.pool.watch_idle(15.0)
    view = site.pool.learning.view()
    assert (LEARNING, 1, 15.0) == (view.phase, view.guard_trips, view.guard_tripped_s)
    assert site.pool.errors.median is None


def test_the_next_refusal_trips_a_guard_that_is_due() -> None:
    """It need not wait for somebody to look."""
    site = Site(endpoints=("a", "b"))
    refused_beside_idle(site)
    site.pool.refused_on_prediction("standard", 15.5)
    assert learns(site.pool)
    assert site.pool.errors.median is None


def test_an_endpoint_that_works_again_in_time_trips_nothing() -> None:
    """Idle for less than five seconds is not idle, nor is it without a refusal meanwhile."""
    site = Site(endpoints=("a", "b"))
    refused_beside_idle(site)
    site.running(1002, "b", 14.0)
    site.pool.watch_idle(14.0)
    site.pool.watch_idle(60.0)
    assert not learns(site.pool)
    site = Site(endpoints=("a", "b"))
    refused_beside_idle(site, refused_s=9.0)
    site.pool.watch_idle(60.0)
    assert not learns(site.pool)


def test_the_endpoint_that_has_been_idle_longest_counts() -> None:
    """Wherever in the configuration it stands, another that is idle for a moment hides nothing."""
    for idle in ("a", "c"):
        site = Site(endpoints=("a", "b", "c"))
        teach(site)
        tickets = {name: site.running(number, name, 1.0) for number, name in enumerate("abc", 1000)}
        for name, now in [(idle, 10.0), ("b", 13.0)]:
            site.life.finish(tickets[name], Outcome.CLIENT_GONE, None, now, engine_goes_on=False)
            site.pool.watch_idle(now)
            site.pool.refused_on_prediction("standard", now + 0.5)
        site.pool.watch_idle(15.0)
        assert learns(site.pool)


def test_an_endpoint_that_is_down_is_not_idle() -> None:
    """It could not have taken whoever was refused."""
    site = Site(endpoints=("a", "b"))
    refused_beside_idle(site)
    site.endpoint("b").fail(12.0)
    site.pool.watch_idle(12.0)
    site.pool.watch_idle(60.0)
    assert not learns(site.pool)


@pytest.mark.parametrize("way", ["was down", "is new"])
def test_idle_is_counted_from_when_an_endpoint_came_up(way: str) -> None:
    """A refusal while it could not be reached, or was not there yet, is not one beside an idle endpoint."""
    site = Site(endpoints=("a", "b"))
    refused_beside_idle(site)
    if way == "was down":
        site.endpoint("b").fail(11.0)
    else:
        site.pool.remove_endpoint(site.endpoint("b"))
        site.pool.add_endpoint(EndpointId("b"), 1)
    site.pool.watch_idle(11.0)
    site.endpoint("b").come_up(40.0)
    site.pool.watch_idle(40.0)
    site.pool.watch_idle(50.0)
    assert not learns(site.pool)


def beside_a_small_one(begin: Callable[..., Scenario], *, small_from_s: float) -> Scenario:
    """A busy engine, and from some time on one too small for anybody; at 3 s somebody is refused on a prediction."""
    scenario = begin(pool_settings(max_inflight_requests=2), endpoints=("big", "small"), up=False)
    scenario.tell(Described(EndpointId("big"), VLLM), 0.0)
    trust(scenario.controller._pools["llama"])
    small = Described(EndpointId("small"), replace(VLLM, kv_tokens=100))
    if small_from_s < 1.0:
        scenario.tell(small, small_from_s)
    scenario.arrive_many(range(1, 4), 1.0, class_name="batch", prompt_tokens=400)
    if small_from_s > 1.0:
        scenario.tell(small, small_from_s)
    assert {1: "big", 2: "big"} == scenario.running
    effects = scenario.arrive(10, 3.0, class_name="realtime", prompt_tokens=60, first_token_by_s=3.1)
    assert [(10, Outcome.DEADLINE_UNREACHABLE)] == turned_away(effects)
    return scenario


@pytest.mark.parametrize("small_from_s", [0.0, 2.0])
def test_the_controller_watches_for_idle_endpoints(
    begin: Callable[..., Scenario], small_from_s: float
) -> None:
    """Refusals beside one trip the guard at its time, without any other event; also if it came up beside busy ones."""
    scenario = beside_a_small_one(begin, small_from_s=small_from_s)
    scenario.run_until(small_from_s + 4.9)
    assert not scenario.pool_view().learning
    scenario.run_until(8.1)
    view = scenario.pool_view()
    assert (True, 1) == (view.learning, view.learned.guard_trips)


def test_an_endpoint_that_goes_down_in_time_trips_nothing(begin: Callable[..., Scenario]) -> None:
    """Idle for four seconds and then out of reach: it did not stand idle for five."""
    scenario = beside_a_small_one(begin, small_from_s=0.0)
    scenario.tell(SampleMissed(EndpointId("small"), unreachable=True), 4.0)
    scenario.run_until(20.0)
    assert 0 == scenario.pool_view().learned.guard_trips


# Refusals on predictions


def test_refusals_without_evidence_cost_a_class_its_trust() -> None:
    """Thirty in a row with nobody waiting who could tell: the class is back at the careful quantile, others are not."""
    site = Site()
    for state in site.pool.classes.values():
        state.waits.trusted = True
    for _ in range(29):
        site.pool.refused_on_prediction("standard", 1.0)
    assert site.pool.classes["standard"].waits.trusted
    site.pool.refused_on_prediction("standard", 1.0)
    assert [True, False, True] == [state.waits.trusted for state in site.pool.classes.values()]


def test_while_others_of_the_class_wait_its_trust_stays() -> None:
    """Their waits will show whether the predictions are right; those of another class will not."""
    for waits_in, kept in [("standard", True), ("batch", False)]:
        site = Site()
        site.pool.classes["standard"].waits.trusted = True
        site.queued(1, class_name=waits_in)
        for _ in range(100):
            site.pool.refused_on_prediction("standard", 1.0)
        assert kept is site.pool.classes["standard"].waits.trusted


# What it learns of requests


def test_usage_teaches_prompts_and_the_output_lengths() -> None:
    """The engine's own counts teach how many tokens bytes make, and how long answers are."""
    site = Site(LEARNS)
    for number in range(400):
        ticket = site.ticket(number, prompt_tokens=None, prompt_bytes=2000)
        site.pool.learn_end(ticket, Usage(prompt_tokens=1000, output_tokens=20), 20, 1.0, whole=True)
    assert pytest.approx(1000, rel=0.02) == site.pool.pricing.ratios.common.estimate(2000)
    assert pytest.approx(20, rel=0.2) == site.pool.price(demand(1)).cost.output_tokens


def test_an_answer_that_was_cut_off_teaches_that_answers_are_longer() -> None:
    """It is no answer of 30 tokens: that was the least of it."""
    site = Site(LEARNS)
    site.pool.pricing.lengths = OutputLengths()
    before = site.pool.price(demand(1, max_output_tokens=None)).cost.output_tokens
    for number in range(100):
        site.pool.learn_end(site.ticket(number), None, 30, 1.0, whole=False)
    assert site.pool.price(demand(1, max_output_tokens=None)).cost.output_tokens > before


# What is followed at an endpoint


def test_slow_steps_lower_how_many_may_run(begin: Callable[..., Scenario]) -> None:
    """Steps of half a second, where 120 ms a token are asked for: sixteen are too many, a calm sample or not."""
    scenario = begin()
    endpoint = scenario.controller._pools["llama"].endpoints[EndpointId("a")]
    endpoint.sources.pace.ended(100, 100)
    for number in range(16):
        if number == 8:
            scenario.sample("a", 0.5, running=8)
        scenario.arrive(number, 0.5, prompt_tokens=1, max_output_tokens=500)
        scenario.first_token(number, 0.5)
    assert (16, 16) == (len(scenario.running), scenario.endpoint_view().request_limit)
    for batch in range(1, 151):
        scenario.progress("a", 0.5 + 0.5 * batch, *range(16), gap_s=0.5)
    assert 8 <= scenario.endpoint_view().request_limit < 16
    scenario.sample("a", 76.0, running=16)
    assert not scenario.endpoint_view().is_open


def test_classes_may_save_their_share_for_as_long_as_their_budgets_tell() -> None:
    """Ten seconds' worth for the tightest budget (1.5 s), three for 5 s, a quarter for 60 s; a weight of ten in all."""
    site = Site(endpoints=("a", "b"))
    assert [0.0, 0.0, 0.0] == [queue.burst for queue in site.pool.queue.classes]
    site.pool.follow(site.endpoint("a"), 1.0)
    assert pytest.approx([2_000_000, 600_000, 50_000]) == [queue.burst for queue in site.pool.queue.classes]
    site.endpoint("b").fail(2.0)
    site.pool.follow(site.endpoint("a"), 2.0)
    assert pytest.approx([1_000_000, 300_000, 25_000]) == [queue.burst for queue in site.pool.queue.classes]


def test_a_class_that_was_quiet_catches_up_for_its_burst() -> None:
    """Realtime, silent while batch was served, is served for ten seconds of its share (0.3) before batch is again."""
    site = Site(pool_settings(max_inflight_requests=1))
    site.pool.follow(site.endpoint(), 0.0)
    for number in range(200):
        site.queued(number, class_name="batch")
    for number in range(100):
        waiter = site.pool.queue.first()
        assert isinstance(waiter, Ticket)
        site.pool.queue.take(waiter, float(number))
        site.pool.queue.settle(waiter, SECOND_US)
    for number in range(200, 220):
        site.queued(number, class_name="realtime")
    served = []
    for _ in range(12):
        waiter = site.pool.queue.first()
        assert isinstance(waiter, Ticket)
        site.pool.queue.take(waiter, 100.0)
        served.append(waiter.demand.class_name)
    first = served.index("batch")
    assert 3 <= first <= 5
    assert served[first:].count("realtime") >= served[first:].count("batch")


def test_the_tightest_tpot_is_that_of_streams_that_decode() -> None:
    """Prompts under way and unstreamed answers have none."""
    site = Site()
    assert math.inf == tightest_tpot_s(site.endpoint().running.values())
    tickets = {
        number: site.running(number, class_name=name, stream=stream)
        for number, (name, stream) in enumerate(
            [("realtime", False), ("realtime", True), ("batch", True), ("standard", True)]
        )
    }
    assert math.inf == tightest_tpot_s(site.endpoint().running.values())
    for number, tpot_s in [(0, math.inf), (2, 0.2), (3, 0.12), (1, 0.08)]:
        site.life.first_token(tickets[number], 1.0)
        assert tpot_s == tightest_tpot_s(site.endpoint().running.values())


# New settings


def reconfigure(site: Site, settings: Settings, now: float = 5.0) -> None:
    """New settings for the pool."""
    site.pool.reconfigure(settings.pools[0], settings, now)


def test_new_settings_keep_what_was_learned() -> None:
    """Lengths, speeds and books outlive a change of the settings, which reaches every endpoint."""
    site = Site()
    ticket = site.running(1)
    site.endpoint().meter.speed = 0.5
    site.pool.learn_end(ticket, Usage(prompt_tokens=100, output_tokens=5), 5, 1.0, whole=True)
    trust(site.pool)
    changed = settings_for(pool_settings(max_inflight_requests=3, max_output_tokens=20), stale_after_s=9.0)
    changed = with_class("realtime", changed, wait_budget_s=0.7)
    reconfigure(site, changed)
    endpoint = site.endpoint()
    assert (3, True) == endpoint.request_limit
    assert (0.5, 9.0, 0.7) == (endpoint.meter.speed, endpoint.stale_after_s, endpoint.limit.tightest_s)
    assert (1, 1, CAUTIOUS) == (
        site.pool.learning.view().finished,
        site.pool.books.in_flight.requests,
        site.pool.learning.phase,
    )
    assert 20 == site.pool.price(demand(1)).cap


def test_new_weights_and_budgets_count_at_once() -> None:
    """Shares, bursts and bounds are those of the new settings."""
    site = Site()
    trust(site.pool, confident=True)
    site.queued(1, class_name="realtime")
    changed = with_class("standard", settings_for(), weight=9, wait_budget_s=1.5)
    reconfigure(site, changed)
    assert 750_000 == site.pool.class_rate_us_per_s("standard", 0.0)
    standard = next(c for c in changed.classes if c.name == "standard")
    assert 750_000 * 1.5 == site.pool.max_class_work_us(standard, 0.0)
    site.pool.follow(site.endpoint(), 6.0)
    weights = 3 + 9 + 2
    assert pytest.approx([1e7 / weights, 1e7 / weights, 2.5e5 / weights]) == [
        queue.burst for queue in site.pool.queue.classes
    ]


def test_another_order_of_service_counts_at_once() -> None:
    """Waiters are served, and waits predicted, by the order of the new settings."""
    site = Site()
    site.queued(1, max_output_tokens=199)
    site.queued(2, max_output_tokens=9)
    assert 2 == getattr(site.pool.queue.first(), "sequence", None)
    arrive(site, "standard", 0.5)
    reconfigure(site, with_class("standard", settings_for(), order=Order.FIFO), 0.0)
    assert 1 == getattr(site.pool.queue.first(), "sequence", None)
    assert pytest.approx(1.0) == site.pool.base_wait_s("standard", 1e6, usual(site, SECOND_US), 0.0)


def test_a_new_confidence_reaches_its_class() -> None:
    """The quantile that decides is the new one, and has to prove itself; other classes keep their trust."""
    site = Site()
    for state in site.pool.classes.values():
        state.waits.trusted = True
    reconfigure(site, with_class("standard", settings_for(), confidence=0.8))
    assert [True, False, True] == [state.waits.trusted for state in site.pool.classes.values()]
    waits = site.pool.classes["standard"].waits
    assert waits.forecast(2.0).confident_s == waits.at_quantile(2.0, 0.8)


def test_a_pool_that_is_to_predict_plainly_does_not_correct() -> None:
    """The plain predictor is left as it is, also where corrections were learned before; and they are not lost."""
    site = Site()
    for number in range(600):
        base_s = 0.5 * (1 + number % 8)
        site.pool.learn_wait(waited(site, number, foretold_s=base_s, waited_s=1.5 * base_s), 0.0)
    site.running(1)
    reconfigure(site, settings_for(pool_settings(wait_predictor="plain")))
    assert 1.0 == site.pool.predict_wait_s("standard", 5.0)
    reconfigure(site, settings_for())
    assert pytest.approx(1.5 * 1.01, rel=0.02) == site.pool.predict_wait_s("standard", 5.0)


def test_a_new_profile_changes_what_requests_cost() -> None:
    """Costs follow the law of the settings, and a profile that comes later stands for the steps."""
    site = Site(LEARNS)
    slow: SpeedLaw = replace(LAW, c1_s=2e-4, c2_s=2e-2)
    reconfigure(site, settings_for(pool_settings(law=slow)))
    assert 2_000_000 == site.pool.price(demand(1)).cost.work_us
    teach(site, steps=0)
    assert not learns(site.pool)


def test_a_pool_whose_profile_is_taken_away_has_to_learn() -> None:
    """Without a profile and without steps nothing may be refused on predictions, and costs are guessed low."""
    site = Site()
    teach(site, steps=199)
    assert not learns(site.pool)
    reconfigure(site, settings_for(LEARNS))
    assert (LEARNING, None) == (site.pool.learning.phase, site.pool.errors.median)
    assert OPTIMISTIC_LAW == site.pool.pricing.law


def test_a_pool_that_has_seen_steps_does_not_need_its_profile() -> None:
    """What was learned of the speed stays when the profile goes."""
    site = Site()
    teach(site, steps=200)
    reconfigure(site, settings_for(LEARNS))
    assert not learns(site.pool)


def test_a_learned_law_outlives_new_settings() -> None:
    """Settings without a profile leave costs as they were learned."""
    site = Site(LEARNS)
    run_steps(site.endpoint(), SLOW)
    assert learn_law(site.pool, 1.0)
    law = site.pool.pricing.law
    reconfigure(site, settings_for(replace(LEARNS, max_inflight_requests=3)))
    assert law == site.pool.pricing.law


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


def test_a_new_endpoint_starts_with_the_speed_it_is_known_to_have() -> None:
    """What an earlier process measured of an endpoint holds until it is measured again; others are the reference."""
    site = Site()
    site.pool.known_speeds = {"late": 0.5}
    for name in ("late", "other"):
        site.pool.add_endpoint(EndpointId(name), 1)
    assert [0.5, 1.0] == [site.endpoint(name).meter.speed for name in ("late", "other")]
