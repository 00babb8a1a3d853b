"""Waiters that go so that others can stay or come, through the controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission.events import WaitTold
from forebay.admission.model import TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Displace, PlanSettings
from tests.unit.admission.build import Scenario, held, pool_settings, settings_for, turned_away


def full(displace: Displace, *, short: str = "standard") -> Scenario:
    """One place, which is taken; number 2 is the last of four, of half a second each but for itself. Four may wait."""
    pool = pool_settings(max_inflight_requests=1, max_queue=4)
    scenario = Scenario(settings=settings_for(pool, displace=displace))
    scenario.controller._pools["llama"].learning.observed(1000, 1000, 0.1, True, 0.0)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0, max_output_tokens=990)
    for number in range(3, 6):
        scenario.arrive(number, 1.0, class_name=short, max_output_tokens=50)
    return scenario


@pytest.mark.parametrize("displace", list(Displace))
def test_who_waits_in_vain_goes_before_anybody_is_displaced(displace: Displace) -> None:
    """Told as at the end of a wait, whatever `displace` says, though more than half of its budget is over."""
    scenario = full(displace)
    scenario.run_until(3.5)
    said = scenario.arrive(7, 3.5)
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(said)
    assert [7] == held(said)


def test_if_that_is_not_enough_others_are_displaced_as_well() -> None:
    """One whose body needs the room of two: a batch request goes too."""
    pool = pool_settings(max_inflight_requests=1)
    scenario = Scenario(settings=settings_for(pool, max_waiting_bytes=5500))
    scenario.controller._pools["llama"].learning.observed(1000, 1000, 0.1, True, 0.0)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0, max_output_tokens=990)
    for number in range(3, 6):
        scenario.arrive(number, 1.0, max_output_tokens=50)
    scenario.run_until(3.0)
    scenario.arrive(7, 3.0, class_name="batch", max_output_tokens=50)
    said = scenario.arrive(8, 3.5, body_bytes=2500, max_output_tokens=10)
    assert [(2, Outcome.QUEUE_TIMEOUT), (7, Outcome.DISPLACED)] == turned_away(said)
    assert [8] == held(said)


def test_while_all_have_a_chance_somebody_is_displaced_or_the_newcomer_refused() -> None:
    """As `displace` says."""
    scenario = full(Displace.OFF)
    scenario.run_until(2.4)
    assert [(7, Outcome.QUEUE_FULL)] == turned_away(scenario.arrive(7, 2.4))
    scenario = full(Displace.LOWER, short="batch")
    scenario.run_until(2.4)
    said = turned_away(scenario.arrive(7, 2.4))
    assert [Outcome.DISPLACED] == [outcome for _, outcome in said]


def test_one_session_does_not_keep_everybody_out() -> None:
    """All of a full queue are later calls of one session: one of them is left alone, and the others make room."""
    scenario = Scenario(settings=settings_for(pool_settings(max_inflight_requests=1, max_queue=4)))
    for number in range(1, 6):
        scenario.arrive(number, 0.0, class_name="batch", session="one")
    said = [turned_away(scenario.arrive(number, 1.0)) for number in range(10, 14)]
    assert [[Outcome.DISPLACED]] * 3 + [[Outcome.QUEUE_FULL]] == [
        [outcome for _, outcome in each] for each in said
    ]
    assert {3, 4, 5} == {number for each in said[:3] for number, _ in each}


def test_a_session_goes_on_only_in_a_class_that_its_plan_has_now() -> None:
    """A plan loses a class: the next call of an open session that names none is in the one that it came with."""
    both = settings_for(plans=(PlanSettings("p", classes=("realtime", "standard")),))
    scenario = Scenario(settings=both)
    scenario.arrive(1, 0.0, plan="p", session="s", class_name="realtime")
    scenario.arrive(2, 1.0, plan="p", session="s", class_claimed=False)
    scenario.controller.reconfigure(replace(both, plans=(PlanSettings("p", classes=("standard",)),)), 2.0)
    scenario.arrive(3, 3.0, plan="p", session="s", class_claimed=False)
    tickets = scenario.controller._life.tickets
    assert ["realtime", "realtime", "standard"] == [tickets[TicketId(n)].demand.class_name for n in (1, 2, 3)]


def test_those_that_were_displaced_and_come_back_are_left_alone() -> None:
    """Each once: as many of the batch requests that come again as were pushed out, and none of the others."""
    one = Scenario(settings=settings_for(pool_settings(max_inflight_requests=1, max_queue=8)))
    one.arrive(1, 0.0)
    one.arrive_many(range(10, 18), 0.0, class_name="batch")
    gone = [turned_away(one.arrive(number, 0.1, class_name="realtime")) for number in range(20, 26)]
    assert [(17 - number, Outcome.DISPLACED) for number in range(6)] == [each for (each,) in gone]
    for number in range(20, 26):
        one.leave(number, 0.2)
    one.arrive_many(range(30, 36), 1.0, class_name="batch", retry_count=1)
    gone = [turned_away(one.arrive(number, 1.1, class_name="realtime")) for number in (40, 41)]
    assert [[(11, Outcome.DISPLACED)], [(10, Outcome.DISPLACED)]] == gone
    assert [(42, Outcome.QUEUE_FULL)] == turned_away(one.arrive(42, 1.1, class_name="realtime"))
    one.leave(40, 1.2)
    one.arrive(43, 1.2, class_name="batch", retry_count=1, max_output_tokens=7)
    assert [(43, Outcome.DISPLACED)] == turned_away(one.arrive(44, 1.2, class_name="realtime"))
    one.close()


def test_those_that_are_told_that_they_wait_are_left_alone() -> None:
    """All of them: a stream that is kept informed would learn in the middle of an answer that it was displaced."""
    one = Scenario(settings=settings_for(pool_settings(max_inflight_requests=1, max_queue=4)))
    one.arrive(1, 0.0)
    one.arrive_many(range(2, 6), 0.0, class_name="batch", stream=True)
    for number in range(2, 5):
        one.tell(WaitTold(TicketId(number)), 15.0)
    assert [(5, Outcome.DISPLACED)] == turned_away(one.arrive(6, 15.0, class_name="realtime"))
    assert [(7, Outcome.QUEUE_FULL)] == turned_away(one.arrive(7, 15.0, class_name="realtime"))
    one.close()
