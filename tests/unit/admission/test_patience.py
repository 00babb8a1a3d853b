from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission.effects import Evict
from forebay.admission.events import Described, DrainStarted, SampleMissed
from forebay.admission.model import EndpointId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Order
from tests.unit.admission.build import (
    VLLM,
    Scenario,
    held,
    pool_settings,
    settings_for,
    turned_away,
    with_class,
)

ONE_PLACE = pool_settings(max_inflight_requests=1)


@pytest.mark.parametrize(
    ("changes", "ends_s", "why"),
    [
        ({}, 5.0, ""),
        ({"first_token_by_s": 3.1}, 3.1, "The deadline that the client stated ended it."),
        ({"patience_until_s": 2.1}, 2.1, "The client's own timeout ended it."),
        ({"patience_until_s": 60.0}, 5.0, ""),
        ({"class_name": "realtime"}, 1.5, ""),
    ],
    ids=str,
)
def test_a_wait_ends_with_the_first_of_its_ends(changes: dict[str, object], ends_s: float, why: str) -> None:
    """The budget of the class, the client's stated deadline and the client's own timeout: the earliest rules."""
    scenario = Scenario(ONE_PLACE)
    scenario.arrive(1, 0.0)
    assert [2] == held(scenario.arrive(2, 0.0, **changes))
    assert [] == turned_away(scenario.run_until(ends_s - 0.001))
    ended = scenario.run_until(ends_s)
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(ended)
    assert [why] == [effect.refusal.record.detail for effect in ended if isinstance(effect, Evict)]


def test_each_waiter_has_one_alarm() -> None:
    """However often a waiter is looked at, one timer at a time stands for it."""
    scenario = Scenario(ONE_PLACE)
    scenario.arrive(1, 0.0)
    before = len(scenario.controller._timers)
    scenario.arrive_many(range(2, 102), 0.0, class_name="batch")
    assert before + 101 == len(scenario.controller._timers)  # and one for the stream limit of the pool
    scenario.run_until(59.0)
    assert len(scenario.controller._timers) <= before + 102


def test_a_waiter_is_looked_at_before_its_end() -> None:
    """In a pool that trusts its predictions, one that hardly has a chance left is told at four fifths of its wait."""
    settings = with_class("standard", settings_for(ONE_PLACE), order=Order.FIFO, max_queue_gpu_s=1e6)
    scenario = Scenario(settings=settings)
    scenario.arrive(1, 0.0)
    scenario.arrive_many(range(2, 10), 0.0)
    pool = scenario.controller._pools["llama"]
    pool.learning.observed(1000, 1000, 0.1, True, 0.0)
    early = turned_away(scenario.run_until(4.1))
    assert early
    assert {Outcome.QUEUE_TIMEOUT} == {outcome for _, outcome in early}
    assert (2, Outcome.QUEUE_TIMEOUT) not in early


def test_a_shutdown_shortens_every_wait() -> None:
    """From the start of a drain no wait goes on for longer than that gives, those that begin later included."""
    scenario = Scenario(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0)
    scenario.tell(DrainStarted(until_s=2.0), 1.0)
    assert [(2, Outcome.DRAINING)] == turned_away(scenario.run_until(2.0))


def test_engines_that_come_and_go_do_not_pile_up_timers() -> None:
    """A hundred absences while fifty wait set one timer each for the pool, not one for each waiter."""
    settings = settings_for(pool_settings(max_inflight_requests=1, hold_without_endpoints_s=3600.0))
    scenario = Scenario(settings=with_class("standard", settings, wait_budget_s=3600.0))
    scenario.arrive_many(range(1, 51), 0.0)
    before = len(scenario.controller._timers)
    for turn in range(1, 101):
        scenario.tell(SampleMissed(EndpointId("a"), unreachable=True), 30.0 * turn)
        scenario.sample("a", 30.0 * turn + 15.0)
    assert len(scenario.controller._timers) - before <= 100 + 10


def test_abandoned_requests_do_not_keep_timers() -> None:
    """Thousands of clients that leave while an engine may go on are forgotten once it has let go."""
    scenario = Scenario(pool_settings(max_inflight_requests=1))
    scenario.controller.handle(Described(EndpointId("a"), replace(VLLM, linger_s=600.0)), 0.0)
    for number in range(1, 3001):
        now = number * 0.01
        scenario.arrive(number, now)
        scenario.leave(number, now + 0.002)
        scenario.sample("a", now + 0.005, running=0)
    assert [] == held(scenario.arrive(9000, 40.0))
    assert [9001] == held(scenario.arrive(9001, 40.0))
    assert len(scenario.controller._timers) < 1100
