"""What a request costs its tenant, on every way in and out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.effects import Dispatch, Hold, Refuse
from forebay.admission.events import AttemptFailed, ClientLeft, Ended, Failure, ModeChanged
from forebay.admission.model import EndpointId, Mode, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.quota import Account
from forebay.admission.settings import PlanSettings, Settings
from tests.unit.admission.build import Scenario, pool_settings, settings_for

PLAN = PlanSettings(
    "p", tokens_per_s=1.0, tokens_capacity=1000, requests_per_s=0.001, requests_capacity=5, max_inflight=5
)
ESTIMATE = 199
"""100 prompt tokens and 99 of output."""


def site(plan: PlanSettings = PLAN, **pool: Any) -> Scenario:
    """A controller with one plan."""
    return Scenario(settings=settings_for(pool_settings(**pool), plans=(plan,)))


def arrive(scenario: Scenario, number: int, now: float = 0.0, **changes: Any) -> object:
    """A request of acme comes; the first thing that is said about it."""
    return scenario.arrive(number, now, tenant="acme", plan=PLAN.name, **changes)[0]


def used(scenario: Scenario, now: float = 0.0) -> tuple[int, int, int]:
    """Tokens and requests spent, and requests in flight."""
    account: Account = scenario.controller._life.quota.account(
        "acme", scenario.controller._reception._plans["p"], now
    )
    view = account.view(now)
    assert view is not None
    return 1000 - view.tokens_left, 5 - view.requests_left, account.in_flight


def end(scenario: Scenario, number: int, outcome: Outcome, usage: Usage | None, events: int = 0) -> None:
    """A request is over."""
    scenario.tell(Ended(TicketId(number), outcome, usage, events), 0.0)


def test_a_request_is_charged_as_expected_and_settled_on_the_truth() -> None:
    """F027: what counts in the end is what the engine counted."""
    scenario = site()
    assert isinstance(arrive(scenario, 1), Dispatch)
    assert (ESTIMATE, 1, 1) == used(scenario)
    scenario.first_token(1, 0.0)
    end(scenario, 1, Outcome.COMPLETED, Usage(1108, 12))
    assert (1000, 1, 0) == used(scenario)


def test_part_of_an_answer_is_paid_for_as_far_as_it_came() -> None:
    """With the input."""
    scenario = site()
    arrive(scenario, 1)
    scenario.first_token(1, 0.0)
    end(scenario, 1, Outcome.UPSTREAM_INTERRUPTED, None, 10)
    assert (110, 1, 0) == used(scenario)


@pytest.mark.parametrize(("gpus", "expected"), [(1, Dispatch), (4, Refuse)])
def test_work_in_flight_counts_on_all_gpus_of_an_engine(gpus: int, expected: type) -> None:
    """R23: a second of an engine on four GPUs is four GPU-seconds, so two of them are above a cap of five."""
    scenario = site(replace(PLAN, max_inflight_gpu_us=5_000_000), gpus=gpus)
    assert isinstance(arrive(scenario, 1), Dispatch)
    account = scenario.controller._life.quota.account("acme", scenario.controller._reception._plans["p"], 0.0)
    assert gpus * 1_000_000 == account.in_flight_gpu_us
    assert isinstance(arrive(scenario, 2), expected)
    end(scenario, 1, Outcome.COMPLETED, Usage(100, 99))
    assert isinstance(arrive(scenario, 3), Dispatch)


def test_what_was_not_served_costs_nothing() -> None:
    """An engine that failed before it began; not even the request."""
    scenario = site()
    arrive(scenario, 1)
    end(scenario, 1, Outcome.UPSTREAM_FAILED, None)
    assert (0, 0, 0) == used(scenario)


def test_what_an_engine_rejects_was_a_request_without_tokens() -> None:
    """Else wrong requests could be sent without end."""
    scenario = site()
    arrive(scenario, 1)
    end(scenario, 1, Outcome.ENGINE_REJECTED, None)
    assert (0, 1, 0) == used(scenario)


def test_who_leaves_early_pays_for_the_input() -> None:
    """Asking for much work and leaving at once is not free; leaving while waiting is."""
    scenario = site(max_inflight_requests=1)
    arrive(scenario, 1)
    assert isinstance(arrive(scenario, 2), Hold)
    assert (2 * ESTIMATE, 2, 2) == used(scenario)
    scenario.leave(2, 0.0)
    assert (ESTIMATE, 1, 1) == used(scenario)
    scenario.leave(1, 0.0)
    assert (100, 1, 1) == used(scenario)  # the engine is at it still


def test_with_bill_cap_the_limit_counts_from_beginning_to_end() -> None:
    """However short the answer turns out; no estimate is involved, so nothing is ever owed."""
    scenario = site(replace(PLAN, bills_cap=True))
    arrive(scenario, 1, max_output_tokens=300, samples=2)
    assert (700, 1, 1) == used(scenario)
    scenario.first_token(1, 0.0)
    end(scenario, 1, Outcome.COMPLETED, Usage(100, 3))
    assert (700, 1, 0) == used(scenario)
    arrive(scenario, 2, max_output_tokens=100)
    end(scenario, 2, Outcome.UPSTREAM_FAILED, None)
    assert (700, 1, 0) == used(scenario)


def test_a_request_that_is_sent_to_another_engine_pays_once() -> None:
    """A failed attempt is not the tenant's."""
    scenario = Scenario(settings=settings_for(plans=(PLAN,)), endpoints=("a", "b"))
    first = arrive(scenario, 1)
    assert isinstance(first, Dispatch)
    scenario.tell(AttemptFailed(TicketId(1), first.endpoint, Failure.CLOSED), 0.0)
    assert {EndpointId("a"), EndpointId("b")} == {
        e.endpoint for e in scenario.said if isinstance(e, Dispatch)
    }
    assert (ESTIMATE, 1, 1) == used(scenario)


def test_waiting_ends_without_a_charge() -> None:
    """Whoever waited in vain, or was displaced, has what it had."""
    scenario = site(max_inflight_requests=1)
    arrive(scenario, 1)
    arrive(scenario, 2)
    scenario.run_until(6.0)
    assert Outcome.QUEUE_TIMEOUT is scenario.outcome(2)
    assert 1 == used(scenario, 6.0)[2]
    assert 1 == used(scenario, 6.0)[1]


def test_refusals_by_quota_name_it_and_when_to_come_back() -> None:
    """Nothing is booked, nothing is charged, and the refusal says what is left."""
    scenario = site()
    for number in range(1, 6):
        arrive(scenario, number)
    refused = arrive(scenario, 6)
    assert isinstance(refused, Refuse)
    record = refused.refusal.record
    assert (Outcome.RATE_LIMIT_EXCEEDED, "quota_tokens") == (refused.refusal.outcome, record.decided_by)
    assert {"quota_tokens", "quota_requests", "quota_inflight_requests"} == {
        check.name for check in record.checks if not check.passed and check.name.startswith("quota")
    }
    assert record.quota is not None
    assert (5, 0, 1000, 5) == (
        record.quota.requests, record.quota.requests_left, record.quota.tokens, record.quota.tokens_left,
    )  # fmt: skip
    assert "There is room for this request in 1000 s." in record.detail
    assert 1000.0 == pytest.approx(refused.refusal.predicted_wait_s)
    assert 60.0 >= (refused.refusal.retry_after_s or 0.0) >= 46.0
    assert (995, 5, 5) == used(scenario)


def test_input_above_the_bucket_can_never_pass() -> None:
    """Refused for good, and told so."""
    refused = arrive(site(), 1, prompt_tokens=1001)
    assert isinstance(refused, Refuse)
    assert Outcome.REQUEST_EXCEEDS_QUOTA is refused.refusal.outcome
    assert refused.refusal.retry_after_s is None


def test_a_reload_keeps_what_was_used() -> None:
    """And requests that run then are settled by the plan that there is."""
    scenario = site()
    arrive(scenario, 1)
    changed: Settings = replace(
        scenario.controller._settings, plans=(replace(PLAN, tokens_per_s=2.0, tokens_capacity=300),)
    )
    scenario.reconfigure(changed, 0.0)
    second = arrive(scenario, 2)
    assert isinstance(second, Refuse)
    assert 49.0 == pytest.approx(second.refusal.predicted_wait_s, abs=0.01)
    scenario.first_token(1, 0.0)
    end(scenario, 1, Outcome.COMPLETED, Usage(100, 0))
    assert isinstance(arrive(scenario, 3), Dispatch)


def test_weight_of_the_plan_is_that_of_its_tenants() -> None:
    """Of two tenants that wait, the heavier is served more often; without a plan everybody weighs 1."""
    heavy = PlanSettings("p", weight=3.0)
    scenario = Scenario(settings=settings_for(pool_settings(max_inflight_requests=1), plans=(heavy,)))
    scenario.arrive(1, 0.0)
    for number in range(2, 12):
        scenario.arrive(2 * number, 0.0, tenant="light")
        scenario.arrive(2 * number + 1, 0.0, tenant="heavy", plan="p")
    served = []
    running = 1
    for step in range(8):
        (dispatch,) = [e for e in scenario.end(running, 0.1 * (step + 1)) if isinstance(e, Dispatch)]
        running = dispatch.ticket
        served.append(scenario.demands[running].tenant)
    assert (6, 2) == (served.count("heavy"), served.count("light"))


def test_what_is_used_up_is_known_before_a_request_comes() -> None:
    """But where not everything is enforced it may ask: what it asks for may be let through."""
    scenario = site(replace(PLAN, max_inflight=1))
    assert scenario.controller.exhausted("acme", PLAN.name, 0.0) is None
    arrive(scenario, 1)
    found = scenario.controller.exhausted("acme", PLAN.name, 0.0)
    assert found is not None
    assert "quota_inflight_requests" == found.check
    scenario.tell(ModeChanged(Mode.SHADOW, class_name="batch"), 0.0)
    assert scenario.controller.exhausted("acme", PLAN.name, 0.0) is None


def test_in_shadow_what_would_have_been_refused_costs_nothing() -> None:
    """So that the limits refuse there what they would refuse in earnest, and nobody is in debt afterwards."""
    scenario = Scenario(
        settings=settings_for(pool_settings(), plans=(replace(PLAN, max_inflight=1),), mode=Mode.SHADOW)
    )
    assert isinstance(arrive(scenario, 1), Dispatch)
    said = arrive(scenario, 2)
    assert isinstance(said, Dispatch)
    assert Outcome.RATE_LIMIT_EXCEEDED is said.record.outcome
    assert (ESTIMATE, 1, 1) == used(scenario)
    scenario.first_token(2, 0.0)
    end(scenario, 2, Outcome.COMPLETED, Usage(100, 5))
    assert (ESTIMATE, 1, 1) == used(scenario)


def test_an_answer_that_nobody_waited_for_is_paid_for_by_the_clock() -> None:
    """Unstreamed, so that nobody saw its tokens: else asking, and leaving just before the end, would be free.

    100 prompt tokens take 10 ms, and each token 10 ms.
    """
    scenario = site()
    arrive(scenario, 1, stream=False)
    scenario.tell(ClientLeft(TicketId(1)), 0.51)
    assert (150, 1, 1) == used(scenario, 0.51)
    arrive(scenario, 2, now=0.51, stream=False)
    scenario.tell(ClientLeft(TicketId(2)), 0.515)
    assert (250, 2, 2) == used(scenario, 0.515)


def test_who_leaves_keeps_its_place_until_the_engine_has_let_go() -> None:
    """R23: else a tenant that asks and leaves again and again has more at the engines than its cap."""
    scenario = site(replace(PLAN, max_inflight=1))
    assert isinstance(arrive(scenario, 1), Dispatch)
    scenario.tell(ClientLeft(TicketId(1)), 1.0)
    refusal = arrive(scenario, 2, 1.5)
    assert isinstance(refusal, Refuse)
    assert "quota_inflight_requests" == refusal.refusal.record.decided_by
    scenario.sample("a", 1.8, running=0)
    assert isinstance(arrive(scenario, 3, 1.9), Dispatch)


def test_the_place_is_free_when_the_engines_linger_is_over() -> None:
    """Where no reading tells: with the room that was booked for it there, work in flight included."""
    scenario = site(replace(PLAN, max_inflight_gpu_us=1_500_000))
    arrive(scenario, 1)
    scenario.tell(ClientLeft(TicketId(1)), 1.0)
    assert isinstance(arrive(scenario, 2, 1.5), Refuse)
    scenario.run_until(2.1)  # a second after it has left
    assert isinstance(arrive(scenario, 3, 2.1), Dispatch)


def test_of_one_that_is_served_elsewhere_one_place_is_taken() -> None:
    """The engine that failed it may be at it still; the tenant has one request in flight."""
    scenario = Scenario(
        settings=settings_for(pool_settings(max_inflight_requests=1), plans=(replace(PLAN, max_inflight=2),)),
        endpoints=("a", "b"),
    )
    arrive(scenario, 1)
    running = scenario.controller._life.tickets[TicketId(1)].endpoint
    assert running is not None
    scenario.tell(AttemptFailed(TicketId(1), running.id, Failure.TIMEOUT, engine_goes_on=True), 0.0)
    assert 1 == used(scenario)[2]


def test_a_pool_that_goes_takes_the_places_of_what_lingers_there_with_it() -> None:
    """Nobody hears of its engines any more."""
    scenario = site(replace(PLAN, max_inflight=1))
    arrive(scenario, 1)
    scenario.tell(ClientLeft(TicketId(1)), 1.0)
    others = settings_for(pool_settings(name="other"), plans=(replace(PLAN, max_inflight=1),))
    scenario.controller.reconfigure(others, 1.1)
    assert 0 == used(scenario, 1.1)[2]
