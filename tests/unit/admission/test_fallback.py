from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.effects import Dispatch, Hold, Refuse
from forebay.admission.events import AttemptFailed, Described, EndpointsChanged, Failure, SampleMissed
from forebay.admission.fallback import HOPS, SHARED
from forebay.admission.model import EndpointId, Mode, TicketId
from forebay.admission.outcomes import Group, Outcome
from forebay.admission.settings import PlanSettings
from tests.unit.admission.build import (
    VLLM,
    Scenario,
    dispatched,
    held,
    know_lengths,
    pool_settings,
    settings_for,
    turned_away,
    with_class,
)
from tests.unit.admission.rule_making import book, over, rule


def chain(*names: str, rules: Any = None, up: bool = True, **changes: Any) -> Scenario:
    """Each falls back to the next: `llama` with endpoint a, then b, c and so on, each for one request at a time."""
    own = pool_settings(max_inflight_requests=1, max_queue=0, **changes)
    pools = [replace(own, name=name) for name in ("llama", *names)]
    pools = [replace(pool, fallback=following.name) for pool, following in pairwise(pools)] + pools[-1:]
    wanted = replace(settings_for(), pools=tuple(pools), rules=rules)
    one = Scenario(settings=wanted, up=up)
    for place, name in enumerate(names):
        endpoint = EndpointId("bcdef"[place])
        one.tell(EndpointsChanged(name, (endpoint,)), 0.0)
        one.tell(Described(endpoint, replace(VLLM, models=(name,))), 0.0)
    return one


def test_what_the_pool_would_refuse_goes_to_its_fallback() -> None:
    """R13: with a model of that pool; the record has what both compared, and names the step."""
    one = chain("small")
    assert [(1, "a")] == dispatched(one.arrive(1, 0.0))
    (effect,) = one.arrive(2, 0.0)
    assert isinstance(effect, Dispatch)
    assert effect.change is not None
    record = effect.record
    assert ("b", "small", "small", "small") == (
        effect.endpoint,
        effect.change.model,
        record.pool,
        record.model,
    )
    names = [(check.name, check.passed) for check in record.checks]
    assert ("pool_queue_requests", False) in names
    assert ("fallback:small", True) in names
    assert names.index(("pool_queue_requests", False)) < names.index(("fallback:small", True))
    assert 1 == one.pool_view().fell_back
    one.close()
    assert "small" == one.settlements[2].pool


def test_a_refusal_of_all_is_the_first_pools_and_tells_which_were_asked() -> None:
    """The client asked for that one: its reason and its Retry-After are told."""
    one = chain("small")
    one.arrive_many((1, 2), 0.0)
    effects = one.arrive(3, 0.0)
    assert [(3, Outcome.QUEUE_FULL)] == turned_away(effects)
    assert isinstance(effects[0], Refuse)
    record = effects[0].refusal.record
    assert ("llama", "llama", "pool_queue_requests") == (record.pool, record.model, record.decided_by)
    assert ("fallback:small", False) in [(check.name, check.passed) for check in record.checks]
    assert 0 < (effects[0].refusal.retry_after_s or 0)
    assert 1 == one.pool_view().fell_back


def test_nobody_takes_more_than_three_steps() -> None:
    """And none comes back to a pool that was tried, whatever the settings."""
    one = chain("b1", "c1", "d1", "e1")
    assert 3 == HOPS
    assert ["a", "b", "c", "d"] == [e for _, e in dispatched(one.arrive_many(range(1, 6), 0.0))]
    assert Outcome.QUEUE_FULL is one.outcome(5)
    circle = chain("small")
    pools = circle.controller._settings.pools
    circle.reconfigure(
        replace(circle.controller._settings, pools=(pools[0], replace(pools[1], fallback="llama"))), 0.0
    )
    circle.arrive_many((1, 2), 0.0)
    assert [(3, Outcome.QUEUE_FULL)] == turned_away(circle.arrive(3, 0.0))


def test_an_arrival_may_wait_at_the_fallback() -> None:
    """As if it had come there."""
    one = chain("small")
    pools = one.controller._settings.pools
    one.reconfigure(
        replace(one.controller._settings, pools=(pools[0], replace(pools[1], max_queue=None))), 0.0
    )
    one.arrive_many((1, 2), 0.0)
    effects = one.arrive(3, 0.0)
    assert [3] == held(effects)
    assert [(3, "b")] == dispatched(one.end(2, 1.0))
    one.close()


def test_a_pool_without_an_engine_falls_back() -> None:
    """503 only if nobody serves."""
    one = chain("small")
    one.tell(SampleMissed(EndpointId("a"), unreachable=True), 1.0)
    assert [(1, "b")] == dispatched(one.arrive(1, 1.0))


@pytest.mark.parametrize("changes", [{"prompt_tokens": 200_000}, {"first_token_by_s": 0.0}])
def test_what_is_not_the_pools_fault_is_refused_at_once(changes: dict[str, Any]) -> None:
    """What can never fit there; a deadline that has passed is refused by the other pool too unless it is free."""
    one = chain("small")
    one.arrive_many((1, 2), 0.0)
    effects = one.arrive(3, 1.0, **changes)
    assert [3] == [number for number, _ in turned_away(effects)]


def test_only_refusals_that_others_share_are_tried_elsewhere() -> None:
    """Not those that can never pass, nor a tenant's own limit, nor a shutdown."""
    groups = {outcome.group for outcome in SHARED}
    assert {Group.CONTENDED, Group.ABSENT} == groups
    assert not {Outcome.RATE_LIMIT_EXCEEDED, Outcome.DRAINING, Outcome.LIMITS_UNAVAILABLE} & set(SHARED)


def test_a_rule_that_refuses_is_asked_again_at_the_fallback() -> None:
    """About the engines there."""
    cliff = rule("cliff", ("running_seq_count",), over("running_seq_count", 5), refuses=True)
    one = chain("small", rules=book(cliff, names=("running_seq_count",)))
    one.sample("a", 0.0, running=6)
    one.sample("b", 0.0, running=0)
    assert [(1, "b")] == dispatched(one.arrive(1, 0.0))
    one.sample("b", 0.1, running=6)
    assert [(2, Outcome.RULE_REFUSED)] == turned_away(one.arrive(2, 0.1))


def waiting(**changes: Any) -> Scenario:
    """Requests wait at `llama`, whose fallback is free."""
    one = chain("small", **changes)
    pools = one.controller._settings.pools
    one.reconfigure(replace(one.controller._settings, pools=(replace(pools[0], max_queue=1), pools[1])), 0.0)
    for live in one.controller._pools.values():
        know_lengths(live)
    return one


def test_a_waiter_whose_time_is_over_starts_at_the_fallback_if_there_is_room() -> None:
    """It keeps its time of waiting, and the checks of its arrival."""
    one = waiting()
    one.arrive(1, 0.0)
    assert [2] == held(one.arrive(2, 0.0))
    effects = one.run_until(5.0)
    assert [(2, "b")] == dispatched(effects)
    (effect,) = effects
    assert isinstance(effect, Dispatch)
    record = effect.record
    assert ("small", 0.0 < record.waited_s <= 5.0) == (record.pool, True)
    names = [check.name for check in record.checks]
    assert names.index("pool_queue_requests") < names.index("fallback:small")
    assert [] == turned_away(effects)
    one.end(2, 6.0)
    assert record.waited_s == one.settlements[2].waited_s
    assert 6.0 == one.settlements[2].duration_s
    one.close()


def test_a_waiter_finds_no_room_at_the_fallback_and_is_told_so() -> None:
    """It does not wait a second time."""
    one = waiting()
    one.arrive(1, 0.0)
    one.arrive(2, 0.0)
    one.arrive(3, 0.0)
    assert "small" == one.controller._life.tickets[TicketId(3)].demand.pool
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(one.run_until(5.0))
    one.close()


def test_a_displaced_waiter_goes_to_the_fallback() -> None:
    """It made room, and is served all the same."""
    one = waiting()
    one.arrive(1, 0.0)
    one.arrive(2, 0.0, class_name="batch")
    effects = one.arrive(3, 0.0, class_name="realtime")
    assert ([3], [(2, "b")], []) == (held(effects), dispatched(effects), turned_away(effects))
    one.close()


def test_a_waiter_whose_client_gives_up_now_is_not_sent_on() -> None:
    """Nobody would wait for the answer."""
    one = waiting()
    one.arrive(1, 0.0)
    one.arrive(2, 0.0, patience_until_s=1.0)
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(one.run_until(1.0))


def test_a_failed_attempt_counts_at_the_fallback_too() -> None:
    """No more attempts in all than `max_attempts`."""
    one = waiting()
    one.tell(EndpointsChanged("llama", (EndpointId("a"), EndpointId("z"))), 0.0)
    one.tell(Described(EndpointId("z"), VLLM), 0.0)
    one.arrive_many((1, 2), 0.0)
    running = one.running[1]
    effects = one.tell(AttemptFailed(TicketId(1), EndpointId(running), Failure.CLOSED), 0.1)
    assert [1] == held(effects)
    effects = one.run_until(5.2)
    ((number, endpoint),) = dispatched(effects)
    assert (1, "b") == (number, endpoint)
    (effect,) = effects
    assert isinstance(effect, Dispatch)
    assert 2 == effect.attempt


def test_a_quota_is_paid_once_wherever_the_request_ends() -> None:
    """By an arrival at the pool that takes it, by a waiter where it waited, also with its last place in flight."""
    plan = PlanSettings("p", requests_per_s=0.001, requests_capacity=3, max_inflight=2)
    one = waiting()
    one.reconfigure(replace(one.controller._settings, plans=(plan,)), 0.0)
    own = {"tenant": "acme", "plan": "p"}

    def used(now: float) -> tuple[int, int]:
        account = one.controller._life.quota.account("acme", plan, now)
        view = account.view(now)
        assert view is not None
        return 3 - view.requests_left, account.in_flight

    assert [(1, "a")] == dispatched(one.arrive(1, 0.0, **own))
    assert [2] == held(one.arrive(2, 0.0, **own))
    assert (2, 2) == used(0.0)
    assert [(2, "b")] == dispatched(one.run_until(5.0))
    assert (2, 2) == used(5.0)
    one.end(2, 6.0)
    one.end(1, 6.0)
    assert (2, 0) == used(6.0)
    one.arrive_many((3, 4), 6.0)
    assert [(5, "b")] == dispatched(one.arrive(5, 6.0, **own))
    assert (3, 1) == used(6.0)
    assert [(6, Outcome.RATE_LIMIT_EXCEEDED)] == turned_away(one.arrive(6, 6.0, **own))
    one.close()


def test_a_plan_that_does_not_have_the_fallbacks_model_is_not_sent_there() -> None:
    """It goes one step further, and is told why the first did not take it; other plans go there."""
    one = chain("big", "tiny")
    plans = (PlanSettings("free", models=("llama", "t*")), PlanSettings("all"))
    one.reconfigure(replace(one.controller._settings, plans=plans), 0.0)
    assert [(1, "a")] == dispatched(one.arrive(1, 0.0))
    (effect,) = one.arrive(2, 0.0, plan="free", tenant="acme")
    assert isinstance(effect, Dispatch)
    assert ("c", "tiny") == (effect.endpoint, effect.record.model)
    names = [(check.name, check.passed) for check in effect.record.checks]
    at = names.index(("fallback:big", False))
    assert [("plan_models", False), ("fallback:tiny", True)] == names[at + 1 : at + 3]
    assert [(3, Outcome.QUEUE_FULL)] == turned_away(one.arrive(3, 0.0, plan="free", tenant="acme"))
    assert [(4, "b")] == dispatched(one.arrive(4, 0.0, plan="all", tenant="other"))
    one.close()


def test_a_pool_that_serves_several_is_asked_for_one_that_the_plan_has() -> None:
    """Not for its first."""
    one = chain("big")
    pools = one.controller._settings.pools
    pools = (pools[0], replace(pools[1], models=("big", "small")))
    plan = PlanSettings("free", models=("llama", "small"))
    one.reconfigure(replace(one.controller._settings, pools=pools, plans=(plan,)), 0.0)
    one.arrive(1, 0.0)
    (effect,) = one.arrive(2, 0.0, plan="free", tenant="acme")
    assert isinstance(effect, Dispatch)
    assert ("b", "small") == (effect.endpoint, effect.record.model)


def test_a_waiter_whose_plan_is_gone_falls_back_as_it_stood() -> None:
    """A reload while it waits is no misuse, and gives it no model that nobody granted."""
    one = waiting()
    settings = replace(one.controller._settings, plans=(PlanSettings("p", weight=3.0, max_inflight=5),))
    one.reconfigure(settings, 0.0)
    for number in (1, 2):
        one.arrive(number, 0.0, plan="p", tenant="acme", model="small")
    one.reconfigure(replace(settings, plans=()), 1.0)
    assert [(2, "b")] == dispatched(one.run_until(5.0))
    assert 3.0 == one.controller._life.tickets[TicketId(2)].weight
    one.close()
    other = waiting()
    other.reconfigure(settings, 0.0)
    for number in (1, 2):
        other.arrive(number, 0.0, plan="p", tenant="acme")
    other.reconfigure(replace(settings, plans=()), 1.0)
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(other.run_until(5.0))


def test_where_nothing_is_enforced_nobody_comes_to_wait() -> None:
    """A fallback in shadow takes what has room there."""
    one = chain("small")
    pools = one.controller._settings.pools
    lenient = replace(pools[1], mode=Mode.SHADOW, max_queue=None)
    one.reconfigure(replace(one.controller._settings, pools=(pools[0], lenient)), 0.0)
    assert [(1, "a"), (2, "b")] == dispatched(one.arrive_many((1, 2), 0.0))
    assert [(3, Outcome.QUEUE_FULL)] == turned_away(one.arrive(3, 0.0))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_request_ends_once_and_the_books_balance(data: st.DataObject) -> None:
    """Whatever arrives, ends, fails or waits, over three pools with little room (`Scenario` checks each step)."""
    one = chain("small", "tiny")
    pools = one.controller._settings.pools
    config = replace(
        one.controller._settings,
        pools=tuple(replace(p, max_queue=data.draw(st.integers(0, 3))) for p in pools),
    )
    one.reconfigure(with_class("standard", config, max_queue=2), 0.0)
    now = 0.0
    for number in range(1, data.draw(st.integers(5, 30))):
        now += data.draw(st.sampled_from([0.0, 0.1, 1.0, 4.0]))
        one.run_until(now)
        step = data.draw(st.sampled_from(["arrive", "arrive", "end", "leave", "fail"]))
        if step == "arrive" or not one.running:
            name = data.draw(st.sampled_from(["realtime", "standard", "batch"]))
            effects = one.arrive(
                number, now, class_name=name, max_output_tokens=data.draw(st.integers(1, 200))
            )
            assert 1 == sum(isinstance(e, Dispatch | Hold | Refuse) and e.ticket == number for e in effects)
        elif step == "end":
            one.end(next(iter(one.running)), now)
        elif step == "leave":
            one.leave(next(iter({**one.waiting, **one.running})), now)
        else:
            ticket, endpoint = next(iter(one.running.items()))
            one.tell(AttemptFailed(TicketId(ticket), EndpointId(endpoint), Failure.REFUSED), now)
    one.close()
