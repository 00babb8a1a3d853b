"""Requests that start whatever is decided about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.effects import Dispatch, Effect
from forebay.admission.errors import MisuseError
from forebay.admission.events import (
    AttemptFailed,
    DrainStarted,
    EndpointDrained,
    EndpointsChanged,
    Failure,
    ModeChanged,
)
from forebay.admission.model import DecisionRecord, EndpointId, Mode, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PlanSettings, Settings
from forebay.admission.unenforced import BYPASSED, EXPECTED_WAIT, LET_GO_AT_ONCE
from tests.unit.admission.build import (
    Scenario,
    dispatched,
    held,
    pool_settings,
    settings_for,
    turned_away,
    with_class,
)

A = EndpointId("a")


def in_mode(mode: Mode, **pool: Any) -> Settings:
    """A pool that runs one request at a time, in this mode."""
    return replace(settings_for(pool_settings(max_inflight_requests=1, **pool)), mode=mode)


def record_of(effects: list[Effect]) -> DecisionRecord:
    """The record of the only dispatch."""
    (dispatch,) = [effect for effect in effects if isinstance(effect, Dispatch)]
    return dispatch.record


def test_shadow_says_what_enforcing_would_have_done_and_does_not_do_it() -> None:
    """What has room is dispatched, what has not would have been held or refused, and all start at once."""
    scenario = Scenario(settings=in_mode(Mode.SHADOW, max_queue=0))
    first = record_of(scenario.arrive(1, 0.0))
    assert ("dispatch", None, Mode.SHADOW, A) == (first.action, first.outcome, first.mode, first.endpoint)
    second = record_of(scenario.arrive(2, 0.1))
    assert ("refuse", Outcome.QUEUE_FULL, Mode.SHADOW, A) == (
        second.action, second.outcome, second.mode, second.endpoint,
    )  # fmt: skip
    assert "pool_queue_requests" == second.decided_by
    assert [1, 2] == sorted(scenario.running)
    assert 2 == scenario.endpoint_view().running_requests
    scenario.close()


def test_shadow_says_who_would_have_waited() -> None:
    """With its position, its predicted wait, and what would have held it."""
    scenario = Scenario(settings=in_mode(Mode.SHADOW))
    scenario.arrive(1, 0.0)
    record = record_of(scenario.arrive(2, 0.1))
    assert ("hold", None, "endpoint_requests") == (record.action, record.outcome, record.decided_by)
    assert record.predicted_wait_s > 0
    scenario.close()


def test_shadow_says_whose_time_would_have_run_out() -> None:
    """No prediction refuses while the pool is learning; the wait that is expected is held against the budget."""
    settings = with_class("standard", in_mode(Mode.SHADOW), wait_budget_s=0.5)
    scenario = Scenario(settings=settings)
    scenario.arrive(1, 0.0)
    record = record_of(scenario.arrive(2, 0.1))
    assert ("refuse", Outcome.QUEUE_TIMEOUT, EXPECTED_WAIT) == (
        record.action, record.outcome, record.decided_by,
    )  # fmt: skip
    scenario.close()


def test_shadow_pushes_nobody_out() -> None:
    """Where enforcing would displace a waiter of another class, that one goes on waiting."""
    settings = with_class(
        "realtime", in_mode(Mode.ENFORCE, max_queue=1), mode=Mode.SHADOW, wait_budget_s=60.0
    )
    scenario = Scenario(settings=settings)
    scenario.arrive(1, 0.0)
    assert [2] == held(scenario.arrive(2, 0.1, class_name="batch"))
    effects = scenario.arrive(3, 0.2, class_name="realtime")
    assert [] == turned_away(effects)
    assert ("hold", Mode.SHADOW) == (record_of(effects).action, record_of(effects).mode)
    assert [2] == list(scenario.waiting)
    scenario.close()


def test_bypass_asks_nothing() -> None:
    """No check is made; the request is booked like any other."""
    scenario = Scenario(settings=in_mode(Mode.BYPASS, max_queue=0))
    scenario.arrive(1, 0.0)
    record = record_of(scenario.arrive(2, 0.1))
    assert ("dispatch", None, BYPASSED, (), Mode.BYPASS) == (
        record.action, record.outcome, record.decided_by, record.checks, record.mode,
    )  # fmt: skip
    assert 2 == scenario.endpoint_view().running_requests
    scenario.close()


def test_bypass_leaves_no_debt() -> None:
    """What nobody limits is not owed once limits are back."""
    plan = PlanSettings("p", requests_per_s=0.001, requests_capacity=1)
    scenario = Scenario(settings=replace(in_mode(Mode.BYPASS), plans=(plan,)))
    for number in range(1, 6):
        scenario.arrive(number, 0.0, tenant="acme", plan="p")
    scenario.tell(ModeChanged(Mode.ENFORCE), 0.1)
    assert [] == turned_away(scenario.arrive(6, 0.2, tenant="acme", plan="p"))
    assert [(7, Outcome.RATE_LIMIT_EXCEEDED)] == turned_away(scenario.arrive(7, 0.2, tenant="acme", plan="p"))
    scenario.close()


def test_what_is_enforced_beside_knows_what_was_let_through() -> None:
    """A class that is enforced waits for the room that another one takes unasked."""
    scenario = Scenario(settings=with_class("batch", in_mode(Mode.ENFORCE), mode=Mode.BYPASS))
    scenario.arrive(1, 0.0, class_name="batch")
    assert [2] == held(scenario.arrive(2, 0.1))
    scenario.close()


def test_the_endpoint_that_is_soonest_done_gets_it() -> None:
    """Also when none has room."""
    scenario = Scenario(endpoints=("a", "b"), settings=in_mode(Mode.BYPASS))
    taken = [dispatched(scenario.arrive(number, 0.0))[0][1] for number in range(1, 5)]
    assert ["a", "b", "a", "b"] == taken
    scenario.close()


def test_waiters_start_when_their_mode_no_longer_holds_them() -> None:
    """Some in this call and the rest at the next wake; those of other classes go on waiting."""
    scenario = Scenario(settings=in_mode(Mode.ENFORCE))
    scenario.arrive(1, 0.0)
    scenario.arrive_many(range(2, 2 + LET_GO_AT_ONCE + 5), 0.1, class_name="batch")
    scenario.arrive(500, 0.1)
    effects = scenario.tell(ModeChanged(Mode.BYPASS, class_name="batch"), 0.2)
    assert LET_GO_AT_ONCE == len(dispatched(effects))
    assert 0.2 == scenario.controller.next_deadline()
    assert 5 == len(dispatched(scenario.wake(0.2)))
    assert [500] == list(scenario.waiting)
    scenario.close()


def test_enforcing_again_holds_those_who_come_then() -> None:
    """What was let through runs on."""
    scenario = Scenario(settings=in_mode(Mode.SHADOW))
    scenario.arrive_many((1, 2, 3), 0.0)
    assert [] == scenario.tell(ModeChanged(Mode.ENFORCE), 0.1)
    assert [4] == held(scenario.arrive(4, 0.2))
    scenario.close()


def test_nothing_is_sent_where_there_is_nothing_to_send_to() -> None:
    """Without an endpoint the decision stands, in any mode."""
    for mode in (Mode.SHADOW, Mode.BYPASS):
        scenario = Scenario(endpoints=(), settings=in_mode(mode))
        assert [(1, Outcome.NO_ENDPOINTS)] == turned_away(scenario.arrive(1, 0.0))
        assert Mode.ENFORCE is scenario.said[0].refusal.record.mode  # type: ignore[union-attr]
        scenario.close()


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.BYPASS])
def test_one_that_has_not_answered_yet_is_tried(mode: Mode) -> None:
    """A request does not wait for the first reading of an engine."""
    scenario = Scenario(settings=in_mode(mode), up=False)
    assert [(1, "a")] == dispatched(scenario.arrive(1, 0.0))
    scenario.close()


def test_a_failed_attempt_goes_on_at_once_elsewhere() -> None:
    """Also where nothing has room; and ends where every endpoint has failed."""
    scenario = Scenario(endpoints=("a", "b"), settings=in_mode(Mode.SHADOW))
    scenario.arrive_many((1, 2), 0.0)
    effects = scenario.tell(AttemptFailed(TicketId(1), A, Failure.CONNECT), 0.1)
    assert [(1, "b")] == dispatched(effects)
    effects = scenario.tell(AttemptFailed(TicketId(1), EndpointId("b"), Failure.CONNECT), 0.2)
    assert [(1, Outcome.NO_ENDPOINTS)] == turned_away(effects)
    scenario.close()


def test_shutting_down_refuses_in_every_mode() -> None:
    """It is no policy."""
    scenario = Scenario(settings=in_mode(Mode.BYPASS))
    scenario.tell(DrainStarted(5.0), 0.0)
    assert [(1, Outcome.DRAINING)] == turned_away(scenario.arrive(1, 0.1))
    scenario.close()


def test_a_reload_changes_modes_and_lets_waiters_go() -> None:
    """And the snapshot tells what is in force."""
    scenario = Scenario(settings=in_mode(Mode.ENFORCE))
    scenario.arrive_many((1, 2), 0.0)
    assert [(2, "a")] == dispatched(scenario.reconfigure(in_mode(Mode.SHADOW), 0.1))
    snapshot = scenario.controller.snapshot()
    assert (Mode.SHADOW, {Mode.SHADOW}) == (snapshot.mode, {c.mode for c in snapshot.pools[0].classes})
    scenario.close()


def test_a_mode_of_what_is_not_configured_is_misuse() -> None:
    """Nothing is changed."""
    scenario = Scenario(settings=in_mode(Mode.ENFORCE))
    for event in (ModeChanged(Mode.SHADOW, pool="x"), ModeChanged(Mode.SHADOW, class_name="x")):
        with pytest.raises(MisuseError):
            scenario.tell(event, 0.0)
    assert () == scenario.controller.snapshot().live_modes


def test_a_drained_endpoint_gets_nothing_in_any_mode() -> None:
    """What runs there ends; once put back it is used after its next reading."""
    for mode in Mode:
        scenario = Scenario(endpoints=("a", "b"), settings=in_mode(mode))
        assert [(1, "a")] == dispatched(scenario.arrive(1, 0.0))
        scenario.tell(EndpointDrained(A, out=True), 0.1)
        assert [(2, "b")] == dispatched(scenario.arrive(2, 0.2))
        scenario.sample("a", 0.3, running=1)
        assert "drained" == scenario.state().value
        scenario.end(1, 0.4)
        assert (0, "drained") == (scenario.endpoint_view().running_requests, scenario.state().value)
        scenario.tell(EndpointsChanged("llama", (A, EndpointId("b"))), 0.45)
        assert "drained" == scenario.state().value
        scenario.tell(EndpointDrained(A, out=False), 0.5)
        scenario.sample("a", 0.6)
        assert [(3, "a")] == dispatched(scenario.arrive(3, 0.7))
        scenario.close()


def test_draining_what_is_not_configured_is_misuse() -> None:
    """The event is at fault."""
    with pytest.raises(MisuseError):
        Scenario().tell(EndpointDrained(EndpointId("x"), out=True), 0.0)


def test_whoever_waits_for_an_engine_to_come_starts_with_it() -> None:
    """Without an endpoint there is nothing to send to; with one there is nothing to wait for."""
    settings = in_mode(Mode.SHADOW, hold_without_endpoints_s=60.0)
    scenario = Scenario(endpoints=(), settings=settings)
    assert [1, 2, 3] == held(scenario.arrive_many((1, 2, 3), 0.0))
    scenario.tell(EndpointsChanged("llama", (A,)), 0.5)
    assert [1, 2, 3] == sorted(scenario.running)
    scenario.close()
