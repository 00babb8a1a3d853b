from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from forebay.admission.pace_alarm import PaceAlarm
from forebay.admission.pools import Pool
from forebay.admission.timers import Timers
from tests.unit.admission.build import Scenario, Site, dispatched, held, pool_settings

Begin = Callable[..., Scenario]
PROMPT = {"prompt_tokens": 1500, "stream": False}


def paced(begin: Begin, **changes: object) -> Scenario:
    """An engine with a stream that decodes, whose pace a long prompt has just used up."""
    scenario = begin(pool_settings(**changes))
    scenario.arrive(1, 0.0)
    scenario.first_token(1, 0.1)
    scenario.progress("a", 0.2, 1)
    assert [(2, "a")] == dispatched(scenario.arrive(2, 0.2, prompt_tokens=2500, stream=False))
    return scenario


def test_a_newcomer_that_only_its_pace_holds_up_starts_when_that_is_over(begin: Begin) -> None:
    """No event follows its arrival, and nobody waited before it: its moment is known all the same."""
    scenario = paced(begin)
    assert [3] == held(scenario.arrive(3, 0.3, **PROMPT))
    due_s = scenario.controller.next_deadline()
    assert due_s is not None
    assert [] == dispatched(scenario.run_until(due_s - 1e-4))
    assert due_s < 0.5
    assert [(3, "a")] == dispatched(scenario.run_until(due_s))


def test_nothing_is_set_for_one_that_something_else_holds_up(begin: Begin) -> None:
    """Its pace would be over before its wait is looked at, but the pool has no place, or the cache no room."""
    for full in ({"max_pool_requests": 2}, {"max_inflight_tokens": 3000}):
        scenario = paced(begin, **full)
        assert [3] == held(scenario.arrive(3, 0.3, **PROMPT))
        due_s = scenario.controller.next_deadline()
        assert due_s is not None
        assert due_s > 1.0


def test_one_timer_serves_a_pool() -> None:
    """A look that was superseded by an earlier one is not repeated, so their number does not grow."""
    looks: list[float] = []
    timers, pool = Timers(), Site().pool

    def fill(of: Pool, now: float) -> None:
        looks.append(now)
        alarm.arm(of, now + 3.0)

    alarm = PaceAlarm(timers, fill)
    alarm.arm(pool, inf)
    assert 0 == len(timers)
    for until_s in (9.0, 6.0, 7.0, 3.0):
        alarm.arm(pool, until_s)
    assert 3 == len(timers)
    for now in (3.0, 6.0, 9.0, 12.0):
        timers.run_due(now)
    assert [3.0, 6.0, 9.0, 12.0] == looks
    assert 1 == len(timers)
    assert pytest.approx(15.0) == pool.pace_armed_s
