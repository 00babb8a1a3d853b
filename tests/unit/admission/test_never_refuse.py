"""Requests that are queued and not refused: what may end them, and what they cost others."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from forebay.admission.effects import Dispatch, Evict, Hold, Refuse, Settle
from forebay.admission.events import AttemptFailed, Described, DrainStarted, EndpointsChanged, Failure
from forebay.admission.model import EndpointId, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Displace, PlanSettings
from tests.unit.admission.build import VLLM, Scenario, pool_settings, settings_for, with_class

VIP = PlanSettings("vip", never_refuse=True)


def site(*, displace: Displace = Displace.LOWER, waiting_bytes: int = 10**9, **pool: object) -> Scenario:
    """One place, and a class whose requests are never refused; the plan `vip` gives the same in any class."""
    settings = settings_for(
        pool_settings(max_inflight_requests=1, **pool),
        plans=(VIP,),
        displace=displace,
        max_waiting_bytes=waiting_bytes,
    )
    return Scenario(settings=with_class("realtime", settings, never_refuse=True, max_queue=0))


def waiting(scenario: Scenario, number: int, now: float = 0.0, **changes: object) -> None:
    """A request of the class that has to wait."""
    said = scenario.arrive(number, now, **{"class_name": "realtime", **changes})
    assert isinstance(said[-1], Hold), said


def stream_until(scenario: Scenario, seconds: int) -> None:
    """The running one goes on and on."""
    for second in range(seconds):
        scenario.run_until(float(second))
        scenario.progress("a", float(second), 1)
    scenario.run_until(float(seconds))


def test_it_waits_beyond_budget_and_bounds_of_its_class() -> None:
    """However long the line is and however long it takes: then it starts."""
    scenario = site()
    scenario.arrive(1, 0.0)
    for number in range(2, 40):
        waiting(scenario, number)
    stream_until(scenario, 50)
    assert 38 == len(scenario.waiting)
    due_s = scenario.controller.next_deadline()
    assert due_s is None or due_s < inf
    now = 50.0
    for number in range(1, 40):
        running = next(iter(scenario.running))
        scenario.end(running, now + number)
    assert {Outcome.COMPLETED} == {scenario.outcome(number) for number in range(1, 40)}


def test_a_plan_gives_it_in_any_class() -> None:
    """Others of the class are refused and time out as ever."""
    scenario = site()
    scenario.arrive(1, 0.0)
    waiting(scenario, 2, class_name="batch", tenant="acme", plan="vip")
    waiting(scenario, 3, class_name="standard", tenant="acme", plan="vip")
    waiting(scenario, 4, class_name="standard")
    stream_until(scenario, 50)
    assert {2, 3} == set(scenario.waiting)
    assert Outcome.QUEUE_TIMEOUT is scenario.outcome(4)


def test_it_takes_the_bounds_of_the_pool_over_and_displaces_less_important_ones() -> None:
    """As many as may go, and then it comes in above the bound; everybody else is held to it."""
    scenario = site(max_gpu_s=3.0, max_queue=2)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0, class_name="batch")
    scenario.arrive(3, 0.0, class_name="batch")
    said = scenario.arrive(4, 0.1, class_name="realtime")
    assert [TicketId(3)] == [effect.ticket for effect in said if isinstance(effect, Evict)]
    for number in (5, 6, 7):
        waiting(scenario, number, 0.2)
    assert Outcome.DISPLACED is scenario.outcome(2)
    refused = scenario.arrive(8, 0.3, class_name="standard")[0]
    assert isinstance(refused, Refuse)
    assert Outcome.QUEUE_FULL is refused.refusal.outcome
    assert {4, 5, 6, 7} == set(scenario.waiting)


def test_it_comes_in_above_the_bound_where_nobody_may_go() -> None:
    """With displacement off."""
    scenario = site(displace=Displace.OFF, max_queue=1)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0, class_name="batch")
    waiting(scenario, 3)
    assert {2, 3} == set(scenario.waiting)


def test_it_is_not_displaced() -> None:
    """Not even by a more important one."""
    scenario = site(max_queue=1)
    scenario.arrive(1, 0.0)
    waiting(scenario, 2, class_name="batch", tenant="acme", plan="vip")
    refused = scenario.arrive(3, 0.0, class_name="standard")[0]
    assert isinstance(refused, Refuse)
    waiting(scenario, 4)
    assert {2, 4} == set(scenario.waiting)


def test_bytes_refuse_it_unless_others_may_go() -> None:
    """Memory is what there is."""
    scenario = site(waiting_bytes=2000, max_queue=1)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0, class_name="batch")
    waiting(scenario, 3, body_bytes=1500)
    assert Outcome.DISPLACED is scenario.outcome(2)
    refused = scenario.arrive(4, 0.0, class_name="realtime")[0]
    assert isinstance(refused, Refuse)
    assert (Outcome.QUEUE_FULL, "waiting_bytes") == (
        refused.refusal.outcome,
        refused.refusal.record.decided_by,
    )


@pytest.mark.parametrize("changes", [{"first_token_by_s": 3.0}, {"patience_until_s": 3.0}])
def test_its_client_ends_its_wait(changes: dict[str, float]) -> None:
    """By the deadline that it states, or by its own timeout; not before, however small the chance."""
    scenario = site()
    scenario.arrive(1, 0.0)
    for number in range(2, 12):
        waiting(scenario, number)
    said = scenario.arrive(12, 0.0, class_name="realtime", **changes)
    if isinstance(said[0], Refuse):
        assert Outcome.DEADLINE_UNREACHABLE is said[0].refusal.outcome
        return
    scenario.run_until(2.9)
    assert 12 in scenario.waiting
    scenario.run_until(3.1)
    assert Outcome.QUEUE_TIMEOUT is scenario.outcome(12)


def test_what_can_never_be_served_and_what_is_absent_end_it() -> None:
    """Too large, shutting down, no endpoint."""
    scenario = site(max_gpu_s=5.0)
    refused = scenario.arrive(1, 0.0, class_name="realtime", prompt_tokens=100_000)[0]
    assert isinstance(refused, Refuse)
    assert Outcome.REQUEST_TOO_LARGE is refused.refusal.outcome
    scenario.arrive(2, 0.0)
    waiting(scenario, 3)
    scenario.tell(EndpointsChanged("llama", ()), 0.0)
    scenario.run_until(3.0)
    assert Outcome.NO_ENDPOINTS is scenario.outcome(3)
    other = site()
    other.arrive(1, 0.0)
    waiting(other, 2)
    other.tell(DrainStarted(5.0), 1.0)
    other.run_until(6.0)
    assert Outcome.DRAINING is other.outcome(2)


def test_after_a_failed_attempt_it_waits_on_for_as_long_as_it_takes() -> None:
    """The time that it waited before is not held against it."""
    scenario = site()
    scenario.tell(EndpointsChanged("llama", (EndpointId("a"), EndpointId("b"))), 0.0)
    scenario.tell(Described(EndpointId("b"), VLLM), 0.0)
    scenario.arrive(3, 0.0)
    scenario.arrive(1, 0.0)
    waiting(scenario, 2)
    (started,) = [e for e in scenario.end(1, 100.0) if isinstance(e, Dispatch)]
    scenario.tell(AttemptFailed(started.ticket, started.endpoint, Failure.CLOSED), 100.0)
    assert 2 in scenario.waiting or 2 in scenario.running


def test_its_limits_hold() -> None:
    """A tenant's own quota is its contract: what is never refused is what the others' load would refuse."""
    plan = replace(VIP, requests_per_s=0.001, requests_capacity=1)
    scenario = Scenario(settings=settings_for(plans=(plan,)))
    assert isinstance(scenario.arrive(1, 0.0, plan="vip")[0], Dispatch)
    refused = scenario.arrive(2, 0.0, plan="vip")[0]
    assert isinstance(refused, Refuse)
    assert Outcome.RATE_LIMIT_EXCEEDED is refused.refusal.outcome


def test_a_record_of_it_has_no_limit_of_the_wait() -> None:
    """What is not compared is not shown as if it were."""
    scenario = site()
    scenario.arrive(1, 0.0)
    hold = scenario.arrive(2, 0.0, class_name="realtime")[0]
    assert isinstance(hold, Hold)
    assert inf == hold.record.wait_budget_s
    (check,) = [check for check in hold.record.checks if check.name == "predicted_wait"]
    assert (None, True) == (check.limit, check.passed)


def test_nobody_is_displaced_for_one_that_its_own_limits_refuse() -> None:
    """A tenant whose bucket is empty does not push others out on the way to its refusal."""
    spent = PlanSettings("spent", never_refuse=True, requests_per_s=0.0, requests_capacity=0)
    settings = settings_for(pool_settings(max_inflight_requests=1, max_queue=1), plans=(spent,))
    scenario = Scenario(settings=settings)
    scenario.arrive(1, 0.0)
    waiting(scenario, 2, class_name="batch")
    said = scenario.arrive(3, 0.1, class_name="realtime", tenant="acme", plan="spent")
    assert [Refuse] == [type(effect) for effect in said if not isinstance(effect, Settle)]
    assert Outcome.RATE_LIMIT_EXCEEDED is scenario.outcome(3)
    assert {2} == set(scenario.waiting)
