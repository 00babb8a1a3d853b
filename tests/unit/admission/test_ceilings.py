"""Classes that start only while their pool is used little."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import pytest

from forebay.admission.ceilings import use_of
from forebay.admission.events import AttemptFailed, Described, Failure, SampleMissed
from forebay.admission.model import EndpointId, TicketId
from forebay.admission.settings import Order, Settings
from tests.unit.admission.build import (
    VLLM,
    Scenario,
    Site,
    dispatched,
    held,
    pool_settings,
    settings_for,
    with_class,
)

TEN_PLACES = pool_settings(max_inflight_requests=10)


def with_ceiling(ceiling: float) -> Settings:
    """Batch starts only below this."""
    return with_class("batch", settings_for(TEN_PLACES), admit_below_utilization=ceiling)


def busy_for_a_minute(scenario: Scenario) -> None:
    """Ten requests run all the time."""
    for tick in range(600):
        scenario.progress("a", 0.1 * tick, *range(1, 11))


def test_a_class_starts_below_its_ceiling_and_waits_at_it() -> None:
    """Of ten places six are for batch; the seventh request waits and the record says for what; others start."""
    scenario = Scenario(settings=with_ceiling(0.6))
    assert 6 == len(dispatched(scenario.arrive_many(range(1, 7), 0.0, class_name="batch")))
    (hold,) = scenario.arrive(7, 0.0, class_name="batch")
    assert [7] == held([hold])
    check = hold.record.checks[-1]  # type: ignore[union-attr]
    assert ("admit_below_utilization", 0.6, 0.6, False) == (
        check.name,
        check.value,
        check.limit,
        check.passed,
    )
    assert [(8, "a")] == dispatched(scenario.arrive(8, 0.0))


def test_it_goes_on_when_room_below_the_ceiling_appears() -> None:
    """An end below the ceiling starts the next, one above it does not."""
    scenario = Scenario(settings=with_ceiling(0.6))
    scenario.arrive_many(range(1, 7), 0.0, class_name="batch")
    scenario.arrive(7, 0.0, class_name="batch")
    scenario.arrive(8, 0.0)
    assert [] == dispatched(scenario.end(8, 0.1))
    assert [(7, "a")] == dispatched(scenario.end(1, 0.2))


def test_the_mean_of_ten_seconds_counts_as_well() -> None:
    """After a busy time it starts when the mean has fallen, at the moment that the core asked to be woken for."""
    scenario = Scenario(settings=with_ceiling(0.5))
    scenario.arrive_many(range(1, 11), 0.0)
    busy_for_a_minute(scenario)
    scenario.arrive(11, 60.0, class_name="batch")
    for number in range(1, 9):
        assert [] == dispatched(scenario.end(number, 60.0))
    scenario.sample("a", 60.0, running=2)  # the level is 0.2 from now on
    due_s = 60.0 + 10.0 * log((1.0 - 0.2) / (0.5 - 0.2))
    assert [] == dispatched(scenario.run_until(due_s - 0.1))
    assert [(11, "a")] == dispatched(scenario.run_until(due_s + 0.1))


def test_an_idle_pool_is_never_shut() -> None:
    """With nothing in flight the first starts, however busy the pool was a moment ago."""
    scenario = Scenario(settings=with_ceiling(0.1))
    scenario.arrive_many(range(1, 11), 0.0)
    busy_for_a_minute(scenario)
    scenario.arrive_many(range(11, 13), 60.0, class_name="batch")
    effects = [effect for number in range(1, 11) for effect in scenario.end(number, 60.0)]
    assert [(11, "a")] == dispatched(effects)


def test_a_thousand_that_may_not_start_hold_up_nobody() -> None:
    """However many wait below a ceiling, and however small they are, the others fill the pool."""
    scenario = Scenario(settings=with_ceiling(0.3))
    scenario.arrive_many(range(1, 4), 0.0, class_name="batch", prompt_tokens=1)
    scenario.arrive_many(range(4, 1004), 0.0, class_name="batch", prompt_tokens=1)
    assert 7 == len(dispatched(scenario.arrive_many(range(2001, 2013), 0.0)))
    assert [(2008, "a")] == dispatched(scenario.end(1, 0.1))
    assert [(2009, "a")] == dispatched(scenario.end(2001, 0.2))


def test_the_wait_of_others_leaves_out_who_may_not_start() -> None:
    """Work that stands below a ceiling is not ahead of anybody, and takes no part of the shares."""
    scenario = Scenario(settings=with_ceiling(0.3))
    scenario.arrive_many(range(1, 4), 0.0, class_name="batch")
    scenario.arrive_many(range(4, 8), 0.0, class_name="batch")
    scenario.arrive_many(range(11, 18), 0.0)
    (pool,) = scenario.controller._pools.values()
    assert pool.queue.classes[2].shut
    assert 8.0 == pool.queue.backlogged_weight(with_class=0) - pool.queue.backlogged_weight() + 5.0
    scenario.arrive(20, 0.0)
    newcomer = Site(settings=with_ceiling(0.3)).ticket(21)
    assert (1_000_000, 1) == pool.queue.work_ahead(newcomer)


def test_no_share_is_saved_meanwhile() -> None:
    """A class that was shut for long does not catch up on what others were served in that time."""
    scenario = Scenario(settings=with_ceiling(0.1))
    scenario.arrive_many(range(1, 11), 0.0)
    scenario.arrive_many(range(1000, 1010), 0.0, class_name="batch")
    number, now = 11, 0.0
    for _ in range(200):
        now += 0.01
        scenario.arrive(number, now)
        scenario.end(number - 10, now)
        number += 1
    queue = scenario.controller._pools["llama"].queue
    behind = queue._time.now - queue.classes[2].finish
    assert behind <= max(queue.classes[2].burst, 1e6 / queue.classes[2].weight) + 1.0


def test_use_is_the_mean_over_endpoints() -> None:
    """Two endpoints, one with half of its places taken."""
    site = Site(TEN_PLACES, endpoints=("a", "b"))
    for number in range(1, 6):
        site.running(number)
    assert (0.0, 0.25) == use_of(site.pool.endpoints.values(), 0.0)
    assert (0.0, 0.0) == use_of([], 0.0)


def test_a_ceiling_comes_and_goes_with_the_settings() -> None:
    """Those that wait start when it is lifted, and are filed where they belong."""
    scenario = Scenario(settings=with_ceiling(0.2))
    scenario.arrive_many(range(1, 6), 0.0, class_name="batch")
    assert [1, 2] == list(scenario.running)
    assert 3 == len(dispatched(scenario.reconfigure(settings_for(TEN_PLACES), 0.1)))
    scenario.arrive_many(range(10, 20), 0.1, class_name="batch")
    scenario.reconfigure(with_ceiling(0.2), 0.2)
    assert [] == dispatched(scenario.end(1, 0.3))
    scenario.close()


@pytest.mark.parametrize("level", [0.0, 0.9])
def test_only_time_that_opens_is_told(level: float) -> None:
    """With no shut class, or one whose level alone is too high, no time helps."""
    site = Site(settings=with_ceiling(0.5))
    ceilings = site.pool.ceilings
    assert ceilings is not None
    ceilings.mean, ceilings.level = 0.8, level
    assert float("inf") == ceilings.opens_s(0.0)


# Caps on shares


def capped(share: float = 0.5, **changes: Any) -> Settings:
    """Realtime may have this part while others wait."""
    return with_class("realtime", settings_for(pool_settings(**changes)), max_share=share)


def test_a_class_above_its_share_starts_nothing_while_another_waits() -> None:
    """Not even where what the other one has waiting does not fit yet: its room would never come together."""
    scenario = Scenario(settings=capped(max_inflight_tokens=1100))
    scenario.arrive_many((1, 2), 0.0, class_name="realtime")
    scenario.arrive_many((3, 4), 0.0)
    assert [5] == held(scenario.arrive(5, 0.1, prompt_tokens=700))
    small = {"class_name": "realtime", "prompt_tokens": 10, "max_output_tokens": 10}
    assert [(6, "a")] == dispatched(
        scenario.arrive(6, 0.2, **small)
    )  # of what was charged lately it had nothing
    assert [7] == held(scenario.arrive(7, 0.3, **small))
    assert [8] == held(scenario.arrive(8, 0.3, **small))
    effects = [effect for number in (1, 2, 3) for effect in scenario.end(number, 0.4)]
    assert [(5, "a")] == dispatched(effects)[:1]
    assert {7, 8} <= set(scenario.running), "with nobody else waiting it has what it likes"


def test_the_cap_is_told_as_what_holds_a_request() -> None:
    """The record says which share it had of how much."""
    scenario = Scenario(settings=capped(max_inflight_tokens=1100))
    scenario.arrive_many((1, 2), 0.0)
    scenario.arrive(3, 0.0, prompt_tokens=1000)
    scenario.arrive(4, 0.1, class_name="realtime", prompt_tokens=10, max_output_tokens=10)
    (hold,) = scenario.arrive(5, 0.1, class_name="realtime", prompt_tokens=10, max_output_tokens=10)
    check = hold.record.checks[-1]  # type: ignore[union-attr]
    assert ("max_share", 1.0, 0.5, False) == (check.name, check.value, check.limit, check.passed)


def test_two_capped_classes_do_not_wait_for_each_other() -> None:
    """Both had their share: then whoever is next starts."""
    settings = with_class("standard", capped(0.1, max_inflight_requests=1), max_share=0.1)
    scenario = Scenario(settings=settings)
    scenario.arrive(1, 0.0)
    scenario.arrive_many((2, 3), 0.0, class_name="realtime")
    scenario.arrive_many((4, 5), 0.0)
    for _ in range(5):
        (running,) = scenario.running
        scenario.end(running, scenario.now + 0.1)
    assert [1, 2, 3, 4, 5] == sorted(scenario.settlements)


def test_an_endpoint_is_kept_for_a_class_that_was_passed_over() -> None:
    """Where shares are configured, small requests of others take the place of its large one twice."""
    scenario = Scenario(settings=with_class("batch", capped(0.9, max_inflight_tokens=1200), weight=10.0))
    scenario.arrive_many(range(1, 6), 0.0)
    assert [7] == held(scenario.arrive(7, 0.1, class_name="batch", prompt_tokens=500))
    for number, now in ((8, 0.2), (9, 0.3)):
        assert dispatched(scenario.arrive(number, now, prompt_tokens=1, max_output_tokens=1))
        scenario.end(number, now)
    assert 7 == scenario.endpoint_view().reserved_for
    heavy = {"prompt_tokens": 10, "max_output_tokens": 150}
    assert [10] == held(scenario.arrive(10, 0.4, class_name="standard", **heavy))


def test_a_share_of_long_ago_is_forgotten_and_the_core_asks_to_be_woken_for_that() -> None:
    """A tenth of a second of contested work is held against it for some seconds, not until others had more."""
    scenario = Scenario(settings=capped(max_inflight_tokens=1100))
    scenario.arrive_many((1, 2), 0.0)
    scenario.arrive(3, 0.0, prompt_tokens=1000, class_name="batch")
    small = {"class_name": "realtime", "prompt_tokens": 10, "max_output_tokens": 10}
    scenario.arrive(4, 0.1, **small)
    assert [5] == held(scenario.arrive(5, 6.5, **small))
    pool = scenario.controller._pools["llama"]
    assert pool.ceilings is not None
    opens_s = pool.ceilings.opens_s(6.5)
    assert 6.5 < opens_s < 8.0
    assert [] == dispatched(scenario.wake(opens_s - 0.01))
    assert [(5, "a")] == dispatched(scenario.wake(opens_s))


@pytest.mark.parametrize(("ceiling", "expected"), [(None, "max_share"), (0.6, "endpoint_requests")])
def test_what_nobody_below_a_ceiling_wanted_is_held_against_nobody(
    ceiling: float | None, expected: str
) -> None:
    """Realtime starts while batch waits at its ceiling: it has all of its share left when standard comes."""
    settings = with_class("batch", capped(0.3, max_inflight_requests=10), admit_below_utilization=ceiling)
    scenario = Scenario(settings=settings)
    scenario.arrive_many(range(1, 11), 0.0, class_name="realtime")
    scenario.arrive(11, 0.0, class_name="batch")
    for number in range(1, 10):
        if number < 3:
            scenario.arrive(20 + number, 0.1, class_name="realtime")
        scenario.end(number, 0.1)
    scenario.arrive_many(range(31, 45), 0.2)
    (hold,) = scenario.arrive(50, 0.2, class_name="realtime")
    assert expected == hold.record.checks[-1].name  # type: ignore[union-attr]


def two_contexts(settings: Settings) -> Scenario:
    """Engine `a` takes prompts of 1,000 tokens, `b` those of 100,000, and is away."""
    scenario = Scenario(settings=settings, endpoints=("a", "b"), up=False)
    for name, tokens in (("a", 1000), ("b", 100_000)):
        scenario.tell(Described(EndpointId(name), replace(VLLM, context_tokens=tokens)), 0.0)
    scenario.tell(SampleMissed(EndpointId("b"), unreachable=True), 0.0)
    return scenario


@pytest.mark.parametrize("fits", [False, True])
def test_a_waiter_that_no_engine_there_can_serve_holds_up_no_class_above_its_share(fits: bool) -> None:
    """Its engine is away: what realtime gets meanwhile is not what it could use. With another behind it, it is."""
    scenario = two_contexts(with_class("batch", capped(0.3, max_inflight_requests=4), order=Order.FIFO))
    scenario.arrive_many(range(1, 5), 0.0, class_name="realtime")
    assert [11] == held(scenario.arrive(11, 0.1, class_name="batch", prompt_tokens=5000))
    if fits:
        scenario.arrive_many((12, 13, 14), 0.1, class_name="batch", tenant="other")
    assert [15, 16] == held(scenario.arrive_many((15, 16), 0.1, class_name="realtime"))
    started = [number for n in (1, 2) for number, _ in dispatched(scenario.end(n, 0.2))]
    assert ([12, 15] if fits else [15, 16]) == sorted(started)
    (hold,) = scenario.arrive(17, 0.3, class_name="realtime")
    assert ("max_share" if fits else "endpoint_requests") == hold.record.checks[-1].name  # type: ignore[union-attr]


def test_one_that_failed_at_the_only_engine_there_holds_up_nobody_either() -> None:
    """It waits for the other one."""
    scenario = Scenario(settings=capped(0.3, max_inflight_requests=2), endpoints=("a", "b"))
    scenario.arrive_many(range(1, 4), 0.0, class_name="realtime")
    ((_, failed_at),) = dispatched(scenario.arrive(11, 0.0, class_name="batch"))
    others = "b" if failed_at == "a" else "a"
    scenario.arrive(12, 0.05, class_name="batch")
    scenario.tell(AttemptFailed(TicketId(11), EndpointId(failed_at), Failure.CLOSED), 0.1)
    assert 11 in scenario.waiting, "the other engine is full"
    scenario.leave(12, 0.1)
    scenario.tell(SampleMissed(EndpointId(others), unreachable=True), 0.1)
    scenario.run_until(2.0)  # what was left of those two is gone
    scenario.sample(failed_at, 2.0, running=1)
    assert 11 in scenario.waiting
    assert [(4, failed_at)] == dispatched(scenario.arrive(4, 2.0, class_name="realtime"))
    scenario.sample(failed_at, 2.1, running=2)
    scenario.end(4, 2.1)
    assert [(5, failed_at)] == dispatched(scenario.arrive(5, 2.2, class_name="realtime"))
