from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from forebay.admission import Controller, Settings
from forebay.admission.effects import Abort, Dispatch, Evict, Hold, Refuse, Settle
from forebay.admission.errors import ConfigRefused, MisuseError
from forebay.admission.events import (
    Arrived,
    AttemptFailed,
    Described,
    DrainStarted,
    Ended,
    EndpointsChanged,
    Event,
    Failure,
    FirstTokenCame,
    Progressed,
    Sampled,
    SampleMissed,
    ShareChanged,
    WaitTold,
)
from forebay.admission.model import EndpointId, EndpointState, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.rotation import DOUBTS
from forebay.admission.settings import ClassOrder, Displace, Order
from tests.unit.admission.build import (
    VLLM,
    Scenario,
    demand,
    dispatched,
    held,
    pool_settings,
    reading,
    settings_for,
    turned_away,
    with_class,
)

Begin = Callable[..., Scenario]
A, B = EndpointId("a"), EndpointId("b")
ONE_PLACE = pool_settings(max_inflight_requests=1)
LEARNING = replace(ONE_PLACE, law=None)


def fail(
    scenario: Scenario, number: int, endpoint: str, now: float, failure: Failure = Failure.CLOSED
) -> list[tuple[int, Outcome]]:
    """An attempt fails; who is turned away by that."""
    return turned_away(scenario.tell(AttemptFailed(TicketId(number), EndpointId(endpoint), failure), now))


# Starting at once, and waiting in order


def test_an_idle_pool_dispatches_at_once(begin: Begin) -> None:
    """A request that comes to an idle engine starts in the same call, and nothing else is said of it."""
    scenario = begin()
    (effect,) = scenario.arrive(1, 1.0)
    assert isinstance(effect, Dispatch)
    assert (1, "a", 1, "passed", "dispatch") == (
        effect.ticket,
        effect.endpoint,
        effect.attempt,
        effect.record.decided_by,
        effect.record.action,
    )
    assert (0.0, 0.0, 0) == (effect.record.waited_s, effect.record.predicted_wait_s, effect.record.position)


def test_a_burst_at_an_idle_engine_passes(begin: Begin) -> None:
    """While the engine is calm thirty requests in one instant start at once, a sample's worth of them per reading."""
    scenario = begin(pool_settings(law=None))
    scenario.sample("a", 0.5)
    effects = scenario.arrive_many(range(1, 31), 1.0)
    assert 8 == len(dispatched(effects))
    assert [] == turned_away(effects)
    for step in range(1, 4):
        now = 1.0 + 0.2 * step
        effects += scenario.sample("a", now, running=len(scenario.running))
    assert list(range(1, 31)) == [number for number, _ in dispatched(effects)]


def test_inside_a_class_first_come_is_first_served(begin: Begin) -> None:
    """Waiters of a class start in the order in which they came."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    assert [2, 3, 4] == held(scenario.arrive_many([2, 3, 4], 0.5))
    started = [dispatched(scenario.end(number, float(number))) for number in (1, 2, 3)]
    assert [[(2, "a")], [(3, "a")], [(4, "a")]] == started


def test_in_strict_order_rank_decides(begin: Begin) -> None:
    """Without a floor to claim, realtime starts before standard and standard before batch, whoever came first."""
    strict = settings_for(ONE_PLACE, class_order=ClassOrder.STRICT)
    for name in ("realtime", "standard", "batch"):
        strict = with_class(name, strict, weight=1e-9 if name != "realtime" else 1.0)
    scenario = begin(settings=strict)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.1, class_name="batch")
    scenario.arrive(3, 0.2)
    scenario.arrive(4, 0.3, class_name="realtime")
    started = []
    for number, now in [(1, 0.5), (4, 0.6), (3, 0.7)]:
        started += dispatched(scenario.end(number, now))
    assert [(4, "a"), (3, "a"), (2, "a")] == started


def test_a_class_within_its_floor_is_served_though_a_higher_one_asks_for_all_there_is(begin: Begin) -> None:
    """By rank with half as its floor it asks for a tenth: all of it starts, where predictions refuse as they please."""
    settings = settings_for(pool_settings(max_inflight_requests=4), class_order=ClassOrder.STRICT)
    for name, weight in (("realtime", 1.0), ("standard", 1.0), ("batch", 1e-6)):
        settings = with_class(name, settings, weight=weight, ttft_s=5.0, wait_budget_s=5.0)
    scenario = begin(settings=settings)
    pool = scenario.controller._pools["llama"]
    pool.learning.observed(1000, 1000, 0.1, True, 0.0)
    for state in pool.classes.values():
        state.waits.trusted = True
    small = {"max_output_tokens": 9}  # a tenth of a second each, and one ends each tenth
    for tick in range(1, 201):
        now = tick / 10
        scenario.run_until(now)
        scenario.arrive_many(range(10 * tick, 10 * tick + 3), now, class_name="realtime", **small)
        if tick % 10 == 0:
            scenario.arrive(10 * tick + 9, now, **small)
        oldest, *_, newest = list(scenario.running) * 2
        scenario.progress("a", now, newest)
        scenario.end(oldest, now)
    of_standard = {number for number in scenario.demands if number % 10 == 9}
    ended = Counter(settled.outcome for n, settled in scenario.settlements.items() if n in of_standard)
    assert {Outcome.COMPLETED} == set(ended)
    assert ended[Outcome.COMPLETED] >= 17
    assert of_standard <= {*scenario.settlements, *scenario.waiting, *scenario.running}


def test_who_waits_is_told_where_he_stands(begin: Begin) -> None:
    """The record of a hold has the place in the queue and the predicted wait: a prompt, one running, one before it."""
    scenario = begin(settings=with_class("standard", settings_for(ONE_PLACE), order=Order.FIFO))
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.1)
    (hold,) = scenario.arrive(3, 0.2)
    assert isinstance(hold, Hold)
    assert pytest.approx(2.01) == hold.record.predicted_wait_s
    assert (1, 5.0, "hold", None) == (
        hold.record.position,
        hold.record.wait_budget_s,
        hold.record.action,
        hold.record.endpoint,
    )


def test_work_goes_to_the_least_loaded_endpoint(begin: Begin) -> None:
    """Requests spread over equal endpoints in turn."""
    scenario = begin(endpoints=("a", "b", "c"))
    effects = scenario.arrive_many(range(1, 7), 0.0)
    assert ["a", "b", "c", "a", "b", "c"] == [endpoint for _, endpoint in dispatched(effects)]


def test_ties_follow_the_newest_configuration(begin: Begin) -> None:
    """When the endpoints are listed in another order, that order breaks ties."""
    scenario = begin(endpoints=("a", "b"))
    scenario.tell(EndpointsChanged("llama", (B, A)), 1.0)
    assert [(1, "b")] == dispatched(scenario.arrive(1, 2.0))


@pytest.mark.parametrize(
    "event", [FirstTokenCame(TicketId(1)), Progressed(A, [(TicketId(1), 1)])], ids=lambda e: type(e).__name__
)
def test_a_first_token_makes_room_in_the_prefill_window(begin: Begin, event: Event) -> None:
    """A waiter whose prompt had to wait behind others' prefill starts when a first token comes."""
    scenario = begin()
    scenario.arrive_many([1, 2], 0.0, prompt_tokens=1600)
    assert [2] == list(scenario.waiting)
    assert [(2, "a")] == dispatched(scenario.tell(event, 0.3))


# Bounds


def test_the_pool_bound_holds_however_many_arrive_at_once(begin: Begin) -> None:
    """Of 200 requests in one instant nine get into 10 GPU-seconds with a headroom of 0.9; the others are told why."""
    scenario = begin(pool_settings(max_gpu_s=10.0, headroom=0.9, max_inflight_requests=4))
    effects = scenario.arrive_many(range(1, 201), 0.0, class_name="batch")
    assert (4, 5) == (len(dispatched(effects)), len(held(effects)))
    assert [(number, Outcome.QUEUE_FULL) for number in range(10, 201)] == turned_away(effects)
    view = scenario.pool_view()
    assert (9.0, 9.0) == (view.waiting_gpu_s + view.in_flight_gpu_s, view.max_gpu_s)
    promised = [e.refusal.retry_after_s for e in effects if isinstance(e, Refuse)]
    assert 191 == len(set(promised))


def test_the_last_room_is_given_once(begin: Begin) -> None:
    """Two requests decided in the same instant cannot both take it."""
    scenario = begin(replace(ONE_PLACE, max_queue=0))
    effects = scenario.arrive_many([1, 2], 0.0)
    assert [(1, "a")] == dispatched(effects)
    assert [(2, Outcome.QUEUE_FULL)] == turned_away(effects)


def test_bytes_of_waiting_bodies_are_bounded_over_all_requests(begin: Begin) -> None:
    """The bound is on what is held: a body that was sent makes room for another."""
    scenario = begin(settings=settings_for(ONE_PLACE, max_waiting_bytes=1500))
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.1)
    assert [(3, Outcome.QUEUE_FULL)] == turned_away(scenario.arrive(3, 0.2))
    scenario.end(1, 0.5)
    assert [4] == held(scenario.arrive(4, 0.6))


def test_a_refusal_is_settled_with_its_reason(begin: Begin) -> None:
    """A refused request is charged nothing and its record names the check that decided."""
    scenario = begin(replace(ONE_PLACE, max_queue=0))
    scenario.arrive(1, 0.0)
    refuse, settle = scenario.arrive(2, 1.0)
    assert isinstance(refuse, Refuse)
    assert isinstance(settle, Settle)
    record = refuse.refusal.record
    assert ("pool_queue_requests", "refuse", Outcome.QUEUE_FULL) == (
        record.decided_by,
        record.action,
        record.outcome,
    )
    assert (0.0, None, False) == (
        settle.settlement.charged_gpu_s,
        settle.settlement.endpoint,
        settle.settlement.met_objective,
    )


# Shares of classes and tenants


def served(scenario: Scenario, turns: int) -> list[int]:
    """One place, and one second for each: who started, in order."""
    started: list[int] = []
    for turn in range(turns):
        now = scenario.now + 1.0
        started += [number for number, _ in dispatched(scenario.end(next(iter(scenario.running)), now))]
        assert turn + 1 == len(started)
    return started


def test_classes_share_by_weight(begin: Begin) -> None:
    """Of a hundred seconds that all three want, realtime gets 30, standard 50 and batch 20: as 3, 5 and 2."""
    settings = settings_for(ONE_PLACE)
    for name in ("realtime", "standard", "batch"):
        settings = with_class(name, settings, wait_budget_s=1000.0)
    scenario = begin(settings=settings)
    for index, name in enumerate(("realtime", "standard", "batch")):
        scenario.arrive_many(range(100 * index, 100 * index + 100), 0.0, class_name=name)
    shares = Counter(scenario.demands[number].class_name for number in served(scenario, 100))
    assert pytest.approx([30, 50, 20], abs=1) == [shares[name] for name in ("realtime", "standard", "batch")]


def test_one_tenant_does_not_hold_up_another(begin: Begin) -> None:
    """Who sends fifty requests at once shares with who sends two: those start within the next four."""
    scenario = begin(settings=with_class("standard", settings_for(ONE_PLACE), wait_budget_s=100.0))
    scenario.arrive_many(range(50), 0.0, tenant="many")
    scenario.arrive_many([90, 91], 0.1, tenant="few")
    assert {90, 91} <= set(served(scenario, 4))


# Displacement


def test_a_more_important_request_takes_the_place_of_another(begin: Begin) -> None:
    """At the bound on what waits a batch request goes for a standard one, and is told why and when to return."""
    scenario = begin(replace(ONE_PLACE, max_queue=1))
    scenario.arrive_many([1, 2], 0.0, class_name="batch")
    evict, settle, hold = scenario.arrive(3, 1.0)
    assert isinstance(evict, Evict)
    assert isinstance(settle, Settle)
    assert isinstance(hold, Hold)
    assert (2, Outcome.DISPLACED, 3) == (evict.ticket, settle.settlement.outcome, hold.ticket)
    assert evict.refusal.retry_after_s is not None
    assert ("rank", "evict") == (evict.refusal.record.decided_by, evict.refusal.record.action)
    assert "'standard'" in evict.refusal.record.detail


def test_with_displacement_off_the_newcomer_is_refused(begin: Begin) -> None:
    """Then who waits stays, whoever comes."""
    scenario = begin(settings=settings_for(replace(ONE_PLACE, max_queue=1), displace=Displace.OFF))
    scenario.arrive_many([1, 2], 0.0, class_name="batch")
    assert [(3, Outcome.QUEUE_FULL)] == turned_away(scenario.arrive(3, 1.0, class_name="realtime"))


def test_the_retry_of_a_displaced_request_is_left_alone(begin: Begin) -> None:
    """It goes once, not twice: when it comes back the next newcomer is refused instead."""
    scenario = begin(replace(ONE_PLACE, max_queue=1))
    scenario.arrive_many([1, 2], 0.0, class_name="batch")
    assert [(2, Outcome.DISPLACED)] == turned_away(scenario.arrive(3, 1.0))
    scenario.leave(3, 2.0)
    assert [4] == held(scenario.arrive(4, 3.0, class_name="batch", retry_count=1))
    assert [(5, Outcome.QUEUE_FULL)] == turned_away(scenario.arrive(5, 4.0))


def test_later_calls_of_an_admitted_session_are_left_alone(begin: Begin) -> None:
    """A conversation that was let in is not cut off in the middle; a new one may be pushed out."""
    for session, outcome in (("s", (4, Outcome.QUEUE_FULL)), ("t", (3, Outcome.DISPLACED))):
        scenario = begin(replace(ONE_PLACE, max_queue=1))
        scenario.arrive(1, 0.0, class_name="batch", session="s")
        scenario.arrive(3, 1.0, class_name="batch", session=session)
        assert [outcome] == turned_away(scenario.arrive(4, 2.0))


FEW_PLACES = replace(ONE_PLACE, max_queue=20)
MODEST = range(9)


def test_a_flooding_tenant_makes_room_for_more_important_requests(begin: Begin) -> None:
    """Of eleven waiters of one tenant and one each of nine others ten of the former go, though worth more."""
    scenario = begin(FEW_PLACES)
    scenario.arrive(0, 0.0, class_name="batch", tenant="flood")
    for n in MODEST:
        scenario.arrive(10 + n, 0.0, class_name="batch", tenant=f"modest {n}", max_output_tokens=101)
    scenario.arrive_many(range(20, 31), 0.0, class_name="batch", tenant="flood")
    gone = [turned_away(scenario.arrive(40 + n, 1.0, tenant="another")) for n in range(11)]
    assert [[(30 - n, Outcome.DISPLACED)] for n in range(10)] == gone[:10]
    assert [(18, Outcome.DISPLACED)] == gone[10]
    assert [(60, Outcome.QUEUE_FULL)] == turned_away(scenario.arrive(60, 1.0, class_name="batch"))


def test_modest_tenants_get_into_a_class_that_one_has_filled(begin: Begin) -> None:
    """With `same` each takes the place of the flooding one's youngest, which takes nobody's place in turn."""
    scenario = begin(settings=settings_for(FEW_PLACES, displace=Displace.SAME))
    scenario.arrive_many(range(21), 0.0, class_name="batch", tenant="flood")
    for n in MODEST:
        mine = scenario.arrive(30 + n, 1.0, class_name="batch", tenant=f"modest {n}", max_output_tokens=101)
        assert ([(20 - n, Outcome.DISPLACED)], [30 + n]) == (turned_away(mine), held(mine))
        again = scenario.arrive(50 + n, 1.0, class_name="batch", tenant="flood")
        assert [(50 + n, Outcome.QUEUE_FULL)] == turned_away(again)


def test_with_lower_a_class_that_one_has_filled_stays_full(begin: Begin) -> None:
    """Then nobody of the own class makes room, whatever its tenant has, nor of a more important one."""
    scenario = begin(FEW_PLACES)
    scenario.arrive_many(range(21), 0.0, tenant="flood")
    for number, name in ((30, "standard"), (31, "batch")):
        arrived = scenario.arrive(number, 1.0, class_name=name, tenant="modest")
        assert [(number, Outcome.QUEUE_FULL)] == turned_away(arrived)


# Waits that end


def test_a_wait_ends_exactly_at_the_budget(begin: Begin) -> None:
    """A standard request waits five seconds and not a moment less; then it is told to come back later."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 1.0, class_name="batch")
    scenario.arrive(2, 2.0)
    assert [] == scenario.run_until(6.999)
    assert 7.0 == scenario.controller.next_deadline()
    evict, settle = scenario.wake(7.0)
    assert isinstance(evict, Evict)
    assert isinstance(settle, Settle)
    assert (Outcome.QUEUE_TIMEOUT, 5.0) == (settle.settlement.outcome, settle.settlement.waited_s)
    assert evict.refusal.retry_after_s is not None


def test_a_clients_deadline_ends_a_wait_sooner(begin: Begin) -> None:
    """Whose first token must be there in three seconds does not wait for five."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 1.0, first_token_by_s=4.0)
    assert [] == turned_away(scenario.run_until(3.999))
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(scenario.run_until(4.0))


def test_a_clients_deadline_cannot_prolong_a_wait(begin: Begin) -> None:
    """The budget of the class stands."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 1.0, first_token_by_s=100.0)
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(scenario.run_until(6.0))


@pytest.mark.parametrize("patience_until_s", [1.5, 1.0, 0.2])
def test_patience_sheds_and_never_refuses(begin: Begin, patience_until_s: float) -> None:
    """A client that will soon give up, or should have, is held all the same, and shed when its time is over."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    assert [2] == held(scenario.arrive(2, 1.0, patience_until_s=patience_until_s))
    effects = scenario.run_until(max(patience_until_s, 1.0))
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(effects)


def test_patience_ends_no_running_request(begin: Begin) -> None:
    """It is about waiting: what was dispatched runs on."""
    scenario = begin()
    scenario.arrive(1, 0.0, patience_until_s=0.5)
    assert [] == scenario.run_until(5.0)


def test_a_wait_that_is_over_in_time_leaves_no_deadline_behind(begin: Begin) -> None:
    """The deadline of a request that was dispatched means nothing when it comes."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 1.0)
    scenario.end(1, 2.0)
    assert [] == scenario.run_until(6.0)
    assert {2: "a"} == scenario.running


def test_thousands_of_ended_waits_leave_few_deadlines(begin: Begin) -> None:
    """Deadlines of requests that are long gone are swept: memory follows what waits, not what has waited."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0, class_name="batch")
    for number in range(2, 1600):
        scenario.arrive(number, 0.1, class_name="batch")
        scenario.end(number - 1, 0.1)
    assert len(scenario.controller._timers) < 1200


# Clients that leave


def test_a_waiting_client_that_leaves_is_never_dispatched(begin: Begin) -> None:
    """Its place in the queue is gone at once, and nobody is answered."""
    scenario = begin(ONE_PLACE)
    scenario.arrive_many([1, 2, 3], 0.0)
    (settle,) = scenario.leave(2, 0.5)
    assert isinstance(settle, Settle)
    assert (Outcome.CLIENT_GONE, None, 0.5) == (
        settle.settlement.outcome,
        settle.settlement.endpoint,
        settle.settlement.waited_s,
    )
    assert [(3, "a")] == dispatched(scenario.end(1, 1.0))


def test_f009_dead_waiters_neither_run_nor_count(begin: Begin) -> None:
    """However many waiters leave, the live ones run and the queue takes as many as ever."""
    settings = settings_for(replace(ONE_PLACE, max_queue=5))
    scenario = begin(settings=with_class("standard", settings, wait_budget_s=60.0))
    scenario.arrive(1000, 0.0)
    running = 1000
    for turn in range(20):
        now, first = float(turn), 10 * turn + 1
        assert 5 == len(held(scenario.arrive_many(range(first, first + 5), now)))
        for number in range(first, first + 4):
            scenario.leave(number, now)
        assert [(first + 4, "a")] == dispatched(scenario.end(running, now + 0.5))
        running = first + 4
    assert 5 == len(held(scenario.arrive_many(range(500, 505), 30.0)))
    assert 5 == scenario.pool_view().waiting_requests


def test_a_running_client_that_leaves_is_settled_at_once(begin: Begin) -> None:
    """It pays for what was relayed; its room is draining, and there is no abort: the client is gone already."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.first_token(1, 0.5)
    scenario.progress("a", 1.0, *[1] * 19)
    (settle,) = scenario.leave(1, 1.5)
    assert isinstance(settle, Settle)
    settlement = settle.settlement
    assert (Outcome.CLIENT_GONE, 0.5, 19) == (
        settlement.outcome,
        settlement.ttft_s,
        settlement.output_tokens,
    )
    assert pytest.approx(0.01 + 0.19) == settlement.charged_gpu_s
    view = scenario.endpoint_view()
    assert (0, 1, 150) == (view.running_requests, view.draining_requests, view.kv_tokens)


def test_f001_streams_that_clients_drop_leak_no_place(begin: Begin) -> None:
    """Fifty times a client drops its stream on a pool of one place: each time the next one starts within a second."""
    scenario = begin(ONE_PLACE)
    for turn in range(50):
        now = 10.0 * turn
        assert [(2 * turn, "a")] == dispatched(scenario.arrive(2 * turn, now))
        scenario.first_token(2 * turn, now + 0.2)
        scenario.leave(2 * turn, now + 0.6)
        scenario.arrive(2 * turn + 1, now + 0.7)
        assert [(2 * turn + 1, "a")] == dispatched(scenario.run_until(now + 1.6))
        scenario.end(2 * turn + 1, now + 2.0)
    assert 0 == scenario.pool_view().in_flight_requests


# Attempts that fail


def test_a_failed_attempt_goes_elsewhere_and_then_gives_up(begin: Begin) -> None:
    """The second endpoint gets the second attempt; when that fails too the client is told so."""
    scenario = begin(endpoints=("a", "b", "c"))
    scenario.arrive(1, 0.0)
    effects = scenario.tell(AttemptFailed(TicketId(1), A, Failure.CLOSED), 1.0)
    assert ([1], [(1, "b")]) == (held(effects), dispatched(effects))
    abort, settle = scenario.tell(AttemptFailed(TicketId(1), B, Failure.CLOSED), 2.0)
    assert isinstance(abort, Abort)
    assert isinstance(settle, Settle)
    assert (Outcome.UPSTREAM_FAILED, None) == (abort.outcome, abort.retry_after_s)
    assert "closed" in abort.detail
    assert abort.record is not None
    assert ("abort", "attempts") == (abort.record.action, abort.record.decided_by)
    assert (2, "b", 0.0) == (
        settle.settlement.attempts,
        settle.settlement.endpoint,
        settle.settlement.charged_gpu_s,
    )


def test_without_another_endpoint_a_failure_is_final(begin: Begin) -> None:
    """A request is not sent again to the engine that failed it."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    assert [(1, Outcome.UPSTREAM_FAILED)] == fail(scenario, 1, "a", 1.0)


def test_the_only_endpoint_unreachable_is_no_endpoint(begin: Begin) -> None:
    """Nothing was started, so nothing failed: the client may come back."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    (abort, _) = scenario.tell(AttemptFailed(TicketId(1), A, Failure.CONNECT), 2.0)
    assert isinstance(abort, Abort)
    assert Outcome.NO_ENDPOINTS is abort.outcome
    assert abort.retry_after_s is not None
    assert abort.record is not None
    assert "other_endpoints" == abort.record.decided_by
    assert EndpointState.DOWN is scenario.state()
    assert [(2, Outcome.NO_ENDPOINTS)] == turned_away(scenario.arrive(2, 2.1))


def test_an_endpoint_that_cannot_be_reached_is_out_until_it_is_read(begin: Begin) -> None:
    """It is out at once; a reading after the back-off brings it back, one before does not."""
    scenario = begin(endpoints=("a", "b"))
    scenario.arrive(1, 0.0)
    fail(scenario, 1, "a", 1.0, Failure.CONNECT)
    assert EndpointState.DOWN is scenario.state("a")
    scenario.sample("a", 1.2)
    assert EndpointState.DOWN is scenario.state("a")
    scenario.sample("a", 1.3)
    assert EndpointState.UP is scenario.state("a")


@pytest.mark.parametrize("failure", [Failure.CLOSED, Failure.TIMEOUT, Failure.MALFORMED])
def test_bad_answers_may_be_the_requests_fault(begin: Begin, failure: Failure) -> None:
    """Only several such failures in a row take an endpoint out; a good answer between them clears it."""
    scenario = begin()
    for number in range(1, DOUBTS):
        scenario.arrive(number, float(number))
        fail(scenario, number, "a", number + 0.5, failure)
    scenario.arrive(10, 10.0)
    scenario.first_token(10, 10.5)
    scenario.end(10, 11.0)
    for number in range(11, 11 + DOUBTS):
        assert EndpointState.UP is scenario.state()
        scenario.arrive(number, float(number))
        fail(scenario, number, "a", number + 0.5, failure)
    assert EndpointState.DOWN is scenario.state()


def test_a_poisonous_request_shuts_nobody_out(begin: Begin) -> None:
    """Who arrives while an endpoint is out by doubt waits for the next reading, which lets it in again."""
    scenario = begin()
    for number in range(1, 40):
        scenario.arrive(number, float(number))
        if number in scenario.running:
            fail(scenario, number, "a", number + 0.01, Failure.CLOSED)
        innocent = scenario.arrive(100 + number, number + 0.02)
        if held(innocent):
            innocent = scenario.sample("a", number + 0.3)
        assert [(100 + number, "a")] == dispatched(innocent)
        if number % DOUBTS == 0:
            scenario.first_token(100 + number, number + 0.4)


def test_an_engine_that_refuses_is_not_doubted(begin: Begin) -> None:
    """Its own limits are no failure: it goes on getting what it can take."""
    scenario = begin()
    for number in range(1, 20):
        scenario.arrive(number, float(number))
        fail(scenario, number, "a", number + 0.5, Failure.REFUSED)
    assert EndpointState.UP is scenario.state()


def test_a_request_that_failed_is_first_in_line(begin: Begin) -> None:
    """It has waited and run already: when the other endpoint has room it goes before those who came later."""
    scenario = begin(ONE_PLACE, endpoints=("a", "b"))
    scenario.arrive_many([1, 2, 3], 0.0)
    effects = scenario.tell(AttemptFailed(TicketId(1), A, Failure.CONNECT), 1.0)
    assert ([1], []) == (held(effects), dispatched(effects))
    assert [(1, "b")] == dispatched(scenario.end(2, 1.5))


def test_a_failure_frees_room_for_others(begin: Begin) -> None:
    """An endpoint that is still up after a bad answer serves the next waiter in the same call."""
    scenario = begin(ONE_PLACE, endpoints=("a", "b"))
    scenario.arrive_many([1, 2, 3], 0.0)
    effects = scenario.tell(AttemptFailed(TicketId(1), A, Failure.REFUSED), 1.0)
    assert ([1], [(3, "a")]) == (held(effects), dispatched(effects))


def test_an_engine_that_goes_on_after_a_failure_keeps_its_room(begin: Begin) -> None:
    """After a timeout the engine may still work on it: its place is draining while another endpoint serves it."""
    scenario = begin(endpoints=("a", "b"))
    scenario.arrive(1, 0.0)
    scenario.tell(AttemptFailed(TicketId(1), A, Failure.TIMEOUT, engine_goes_on=True), 1.0)
    assert {1: "b"} == scenario.running
    assert (0, 1) == (
        scenario.endpoint_view("a").running_requests,
        scenario.endpoint_view("a").draining_requests,
    )


def test_f002_no_way_of_failing_leaks_a_place(begin: Begin) -> None:
    """Twelve requests into each failure in turn, streamed and not, and then the pool takes as many as ever."""
    scenario = begin(pool_settings(max_inflight_requests=10))
    now, number = 0.0, 0
    for failure in Failure:
        for stream in (True, False):
            now += 100.0
            scenario.sample("a", now)
            for _ in range(12):
                number += 1
                scenario.arrive(number, now, stream=stream)
            while scenario.running:
                fail(scenario, next(iter(scenario.running)), "a", now + 1.0, failure)
            scenario.run_until(now + 50.0)
            assert (0, 0) == (scenario.pool_view().in_flight_requests, scenario.pool_view().waiting_requests)
    scenario.sample("a", now + 99.0)
    assert 10 == len(dispatched(scenario.arrive_many(range(1001, 1013), now + 100.0)))


def test_a_second_wait_keeps_to_the_clients_deadline(begin: Begin) -> None:
    """A failed attempt gives no new time: whose first token must be there at 3 s is turned away then."""
    scenario = begin(ONE_PLACE, endpoints=("a", "b"))
    scenario.arrive(1, 0.0, first_token_by_s=3.0)
    scenario.arrive(2, 0.0)
    fail(scenario, 1, "a", 1.0)
    assert [(1, Outcome.QUEUE_TIMEOUT)] == turned_away(scenario.run_until(3.0))


def test_two_waits_together_keep_to_the_budget(begin: Begin) -> None:
    """Who has waited 4 s of 5 s before a failed attempt waits one more second after it, not five."""
    scenario = begin(ONE_PLACE, endpoints=("a", "b"))
    scenario.arrive_many([1, 2], 0.0, class_name="batch")
    scenario.arrive(3, 0.0)
    assert [(3, "a")] == dispatched(scenario.end(1, 4.0))
    assert [] == fail(scenario, 3, "a", 5.0)
    effects = scenario.run_until(6.0)
    assert [(3, Outcome.QUEUE_TIMEOUT)] == turned_away(effects)
    assert 5.0 == scenario.settlements[3].waited_s


def test_a_failure_of_an_earlier_attempt_is_late_news(begin: Begin) -> None:
    """The request runs elsewhere already: what its former endpoint says of it changes nothing."""
    scenario = begin(endpoints=("a", "b"))
    scenario.arrive(1, 0.0)
    fail(scenario, 1, "a", 1.0)
    before = scenario.controller.snapshot()
    assert [] == scenario.tell(AttemptFailed(TicketId(1), A, Failure.CLOSED), 1.0)
    assert before == scenario.controller.snapshot()


def test_interrupted_streams_take_an_endpoint_out(begin: Begin) -> None:
    """An engine that dies in mid-stream shows by its streams breaking, one after the other."""
    scenario = begin()
    numbers = range(1, 1 + DOUBTS)
    scenario.arrive_many(numbers, 0.0)
    scenario.progress("a", 0.5, *numbers)
    for number in numbers:
        assert EndpointState.UP is scenario.state()
        scenario.end(number, 1.0, Outcome.UPSTREAM_INTERRUPTED)
    assert EndpointState.DOWN is scenario.state()


# Settings, shares, shutting down


def test_a_smaller_share_lets_less_in(begin: Begin) -> None:
    """With half the pool a replica dispatches half as much; what runs beyond that runs on, and no more is added."""
    scenario = begin(pool_settings(max_inflight_requests=4))
    scenario.arrive_many([1, 2, 3], 0.0)
    scenario.tell(ShareChanged("llama", 0.5), 1.0)
    assert {1, 2, 3} == set(scenario.running)
    assert [4] == held(scenario.arrive(4, 1.1))
    assert [] == dispatched(scenario.end(1, 1.2))
    assert [(4, "a")] == dispatched(scenario.end(2, 1.3))


def test_a_larger_share_starts_waiters_at_once(begin: Begin) -> None:
    """Room that a share brings is used in the same call."""
    scenario = begin(pool_settings(max_inflight_requests=4))
    scenario.tell(ShareChanged("llama", 0.25), 0.0)
    scenario.arrive_many([1, 2, 3], 0.0, class_name="batch")
    assert [(2, "a"), (3, "a")] == dispatched(scenario.tell(ShareChanged("llama", 1.0), 1.0))


@pytest.mark.parametrize("share", [-0.5, 1.5, math.inf])
def test_a_share_is_a_part(begin: Begin, share: float) -> None:
    """Nonsense from a store is cut to between nothing and everything."""
    scenario = begin(pool_settings(max_inflight_requests=4))
    scenario.tell(ShareChanged("llama", share), 0.0)
    assert (4 if share > 1 else 0) == scenario.endpoint_view().request_limit


def test_a_share_that_halves_the_cache_does_not_strand_a_big_waiter(begin: Begin) -> None:
    """What was priced for the whole cache runs alone in the half that is left, and is never booked above it."""
    scenario = begin(pool_settings(max_inflight_tokens=1000))
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0, prompt_tokens=300, max_output_tokens=5000)
    scenario.tell(ShareChanged("llama", 0.5), 0.5)
    assert [(2, "a")] == dispatched(scenario.end(1, 1.0))
    assert 500 == scenario.endpoint_view().kv_tokens


def test_a_waiter_priced_for_a_larger_endpoint_runs_on_the_one_that_is_left(begin: Begin) -> None:
    """When the endpoint with the larger cache is removed, what would have filled that fills the smaller one alone."""
    scenario = begin(endpoints=("small", "big"), up=False)
    small, big = EndpointId("small"), EndpointId("big")
    scenario.tell(Described(small, replace(VLLM, kv_tokens=500)), 0.0)
    scenario.tell(Described(big, replace(VLLM, kv_tokens=1000)), 0.0)
    scenario.arrive_many([1, 2], 0.0, prompt_tokens=300, max_output_tokens=100)
    assert [3] == held(scenario.arrive(3, 0.1, prompt_tokens=300, max_output_tokens=5000, class_name="batch"))
    scenario.tell(EndpointsChanged("llama", (small,)), 1.0)
    assert [(3, "small")] == dispatched(scenario.end(1, 2.0))
    assert 500 == scenario.endpoint_view("small").kv_tokens


def test_draining_refuses_arrivals_and_finishes_the_rest(begin: Begin) -> None:
    """On shutdown arrivals get 503, waiters may start until the given time, streams run on."""
    scenario = begin(ONE_PLACE)
    scenario.arrive_many([1, 2, 3], 0.0, class_name="batch")
    assert [] == scenario.tell(DrainStarted(10.0), 1.0)
    assert scenario.controller.snapshot().draining
    assert [(4, Outcome.DRAINING)] == turned_away(scenario.arrive(4, 1.5))
    assert [(2, "a")] == dispatched(scenario.end(1, 2.0))
    scenario.progress("a", 9.0, 2)
    effects = scenario.run_until(10.0)
    assert [(3, Outcome.DRAINING)] == turned_away(effects)
    assert all(e.refusal.retry_after_s is not None for e in effects if isinstance(e, Evict))
    assert {2: "a"} == scenario.running


def test_draining_prolongs_no_wait(begin: Begin) -> None:
    """Whose budget ends before the shutdown does is told so at its own time and with its own reason."""
    scenario = begin(ONE_PLACE)
    scenario.arrive_many([1, 2], 0.0)
    scenario.tell(DrainStarted(30.0), 1.0)
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(scenario.run_until(5.0))


def test_a_second_wait_ends_with_the_drain(begin: Begin) -> None:
    """A request whose attempt fails during shutdown waits no longer than the others may."""
    scenario = begin(ONE_PLACE, endpoints=("a", "b"))
    scenario.arrive_many([1, 2], 0.0)
    scenario.tell(DrainStarted(3.0), 1.0)
    fail(scenario, 1, "a", 2.0)
    scenario.progress("b", 2.5, 2)
    assert [(1, Outcome.DRAINING)] == turned_away(scenario.run_until(3.0))


def two_pools() -> Settings:
    """Settings with a pool beside the usual one."""
    return Settings(pools=(ONE_PLACE, replace(ONE_PLACE, name="other")))


def test_pools_do_not_share_room(begin: Begin) -> None:
    """A full pool takes nothing from another."""
    scenario = begin(settings=two_pools())
    scenario.tell(EndpointsChanged("other", (B,)), 0.0)
    scenario.tell(Described(B, VLLM), 0.0)
    scenario.arrive_many([1, 2], 0.0)
    assert [(3, "b")] == dispatched(scenario.arrive(3, 0.1, pool="other"))


def test_new_settings_take_effect_at_once(begin: Begin) -> None:
    """A limit that is raised starts waiters in the same call; books and queues stay."""
    scenario = begin(ONE_PLACE)
    scenario.arrive_many([1, 2, 3], 0.0)
    changed = settings_for(pool_settings(max_inflight_requests=2))
    assert [(2, "a")] == dispatched(scenario.reconfigure(changed, 1.0))
    assert (2, 1) == (len(scenario.running), scenario.pool_view().waiting_requests)


@pytest.mark.parametrize("where", ["waiting", "running"])
def test_a_pool_with_requests_cannot_be_taken_away(begin: Begin, where: str) -> None:
    """Refused with a reason, and nothing was changed; once they have ended it can."""
    scenario = begin(settings=two_pools())
    scenario.tell(EndpointsChanged("other", (B,)), 0.0)
    if where == "running":
        scenario.tell(Described(B, VLLM), 0.0)
    scenario.arrive(1, 0.1, pool="other")
    before = scenario.controller.snapshot()
    with pytest.raises(ConfigRefused, match="'other'"):
        scenario.reconfigure(settings_for(pool_settings(max_inflight_requests=99)), 0.1)
    assert before == scenario.controller.snapshot()
    assert 1 == scenario.endpoint_view("a").request_limit
    scenario.leave(1, 0.2) if where == "waiting" else scenario.end(1, 0.2)
    scenario.reconfigure(settings_for(ONE_PLACE), 0.3)
    assert ["llama"] == [pool.name for pool in scenario.controller.snapshot().pools]
    with pytest.raises(MisuseError):
        scenario.controller.handle(Arrived(demand(2, pool="other")), 0.4)


def test_a_pool_can_go_while_its_engine_still_drains(begin: Begin) -> None:
    """What a client abandoned there lingers on; when its time comes the pool is gone, and that is no error."""
    scenario = begin(settings=two_pools())
    scenario.tell(EndpointsChanged("other", (B,)), 0.0)
    scenario.tell(Described(B, VLLM), 0.0)
    scenario.arrive(1, 0.1, pool="other")
    scenario.leave(1, 0.2)
    scenario.reconfigure(settings_for(ONE_PLACE), 0.3)
    assert [] == scenario.run_until(10.0)


def test_a_pool_that_comes_with_new_settings_works(begin: Begin) -> None:
    """It starts empty, and serves as soon as it has an endpoint."""
    scenario = begin(settings=settings_for(ONE_PLACE))
    scenario.reconfigure(two_pools(), 1.0)
    assert [(1, Outcome.NO_ENDPOINTS)] == turned_away(scenario.arrive(1, 1.0, pool="other"))
    scenario.tell(EndpointsChanged("other", (B,)), 2.0)
    scenario.tell(Described(B, VLLM), 2.0)
    assert [(2, "b")] == dispatched(scenario.arrive(2, 2.0, pool="other"))


def test_a_shorter_budget_counts_for_waits_to_come(begin: Begin) -> None:
    """A class is changed while others stay as they are."""
    scenario = begin()
    settings = settings_for(ONE_PLACE)
    scenario.reconfigure(with_class("standard", settings, wait_budget_s=2.0), 1.0)
    scenario.arrive_many([1, 2], 2.0)
    assert [(2, Outcome.QUEUE_TIMEOUT)] == turned_away(scenario.run_until(4.0))


# Learning


def serve(scenario: Scenario, turns: int, *, first: int, start: float, took_s: float) -> float:
    """One place, three waiters: in each turn one ends after `took_s` and another arrives. The time after it."""
    now = start
    for turn in range(turns):
        now = start + took_s * (turn + 1)
        scenario.run_until(now)
        scenario.first_token(next(iter(scenario.running)), now)
        scenario.end(next(iter(scenario.running)), now)
        scenario.arrive(first + turn, now, class_name="batch")
    return now


def test_learning_ends_with_evidence(begin: Begin) -> None:
    """Once predictions have proved right, a pool refuses at once who cannot be in time; until then nobody."""
    settings = settings_for(pool_settings(max_inflight_requests=1))
    for name in ("realtime", "standard", "batch"):
        settings = with_class(name, settings, order=Order.FIFO, max_queue_gpu_s=1e6)
    scenario = begin(settings=settings)
    scenario.arrive_many(range(1, 5), 0.0, class_name="batch")
    assert scenario.pool_view().learning
    now = serve(scenario, 200, first=100, start=0.0, took_s=1.0)
    assert not scenario.pool_view().learning
    effects = scenario.arrive_many(range(1000, 1040), now)
    assert 2 <= len(held(effects)) <= 20
    assert {Outcome.DEADLINE_UNREACHABLE} == {outcome for _, outcome in turned_away(effects)}


def test_a_learning_pool_holds_what_it_would_refuse(begin: Begin) -> None:
    """However long the predicted wait is, only a measured wait over the budget turns anybody away."""
    scenario = begin(LEARNING)
    effects = scenario.arrive_many(range(1, 2001), 0.0)
    assert [] == turned_away(effects)
    records = [effect.record for effect in effects if isinstance(effect, Hold)]
    assert records[-1].predicted_wait_s > 5.0
    assert records[-1].learning
    assert {Outcome.QUEUE_TIMEOUT} == {outcome for _, outcome in turned_away(scenario.run_until(5.0))}


def test_the_speed_of_an_engine_is_learned_from_what_it_drains(begin: Begin) -> None:
    """An engine that takes two seconds for each second of reference work, one at a time, has a speed of a half."""
    scenario = begin(ONE_PLACE)
    scenario.arrive_many(range(1, 5), 0.0, class_name="batch")
    now = 0.0
    for turn in range(30):
        now += 2.0
        running = next(iter(scenario.running))
        scenario.progress("a", now - 0.1, running)
        usage = Usage(prompt_tokens=100, output_tokens=99)
        scenario.tell(Ended(TicketId(running), Outcome.COMPLETED, usage), now)
        scenario.arrive(100 + turn, now, class_name="batch")
    assert pytest.approx(0.5, rel=0.05) == scenario.endpoint_view().speed


def test_a_wait_for_a_first_sample_teaches_nothing_about_predictions(begin: Begin) -> None:
    """Nothing was predicted to who came before an engine was known, so nothing was predicted wrongly."""
    scenario = begin(LEARNING, up=False)
    scenario.arrive(1, 0.0)
    scenario.sample("a", 1.0)
    assert 0 == scenario.controller._pools["llama"].errors.count


# The contract


def test_time_cannot_go_back(begin: Begin) -> None:
    """However the machine is driven, an earlier time than the last is the caller's mistake, and changes nothing."""
    scenario = begin()
    scenario.arrive(1, 5.0)
    before = scenario.controller.snapshot()
    calls: list[Callable[[], object]] = [
        lambda: scenario.controller.handle(Arrived(demand(2)), 4.999),
        lambda: scenario.controller.wake(4.999),
        lambda: scenario.controller.reconfigure(settings_for(), 4.999),
    ]
    for call in calls:
        with pytest.raises(MisuseError, match="time went back"):
            call()
    assert before == scenario.controller.snapshot()
    assert [] == scenario.wake(5.0)


@pytest.mark.parametrize("wrong", [{"pool": "nowhere"}, {"class_name": "nobody"}], ids=str)
def test_an_arrival_for_what_is_not_configured_is_misuse(begin: Begin, wrong: dict[str, str]) -> None:
    """The gateway resolves pool and class: one that does not exist is its mistake, and leaves no ticket behind."""
    scenario = begin()
    with pytest.raises(MisuseError, match="is configured"):
        scenario.controller.handle(Arrived(demand(1, **wrong)), 1.0)
    assert 0 == scenario.controller.snapshot().tickets


def test_a_ticket_in_use_cannot_come_again(begin: Begin) -> None:
    """Each request has a number of its own, whether the other runs or waits."""
    scenario = begin(ONE_PLACE)
    scenario.arrive_many([1, 2], 0.0)
    for number in (1, 2):
        with pytest.raises(MisuseError, match="in use"):
            scenario.controller.handle(Arrived(demand(number)), 0.0)


@pytest.mark.parametrize(
    "event", [EndpointsChanged("nowhere", (A,)), ShareChanged("nowhere", 0.5)], ids=lambda e: type(e).__name__
)
def test_news_of_a_pool_that_is_not_configured_is_misuse(begin: Begin, event: Event) -> None:
    """Pools come and go by `reconfigure` alone."""
    scenario = begin()
    with pytest.raises(MisuseError, match="nowhere"):
        scenario.controller.handle(event, 1.0)


def test_an_endpoint_belongs_to_one_pool(begin: Begin) -> None:
    """Listing it in a second pool is refused whole: nothing of that list is taken in."""
    scenario = begin(settings=two_pools())
    with pytest.raises(MisuseError, match="belongs to pool"):
        scenario.controller.handle(EndpointsChanged("other", (B, A)), 1.0)
    assert () == scenario.controller.snapshot().pools[1].endpoints


def test_an_idle_machine_wants_no_wake_up(begin: Begin) -> None:
    """With nothing in flight and nothing waiting no timer is armed, and a wake-up does nothing."""
    scenario = begin()
    assert scenario.controller.next_deadline() is None
    assert [] == scenario.wake(100.0)
    assert scenario.controller.next_deadline() is None


def test_late_events_about_ended_tickets_are_ignored(begin: Begin) -> None:
    """Whatever a network says of a request after its end, the books and the settlement stay as they are."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.end(1, 1.0)
    before = scenario.controller.snapshot()
    late: list[Event] = [
        FirstTokenCame(TicketId(1)),
        Ended(TicketId(1), Outcome.COMPLETED),
        AttemptFailed(TicketId(1), A, Failure.CLOSED),
    ]
    for event in late:
        assert [] == scenario.tell(event, 1.0)
    scenario.progress("a", 1.0, 1)
    assert [] == scenario.leave(1, 1.0)
    assert before == scenario.controller.snapshot()


def test_late_events_about_waiting_tickets_are_ignored(begin: Begin) -> None:
    """A request that waits, again or still, has no first token and no end."""
    scenario = begin(ONE_PLACE, endpoints=("a", "b"))
    scenario.arrive_many([1, 2, 3], 0.0)
    fail(scenario, 1, "a", 1.0, Failure.CONNECT)
    for number in (1, 3):
        assert [] == scenario.first_token(number, 1.5)
        assert [] == scenario.end(number, 1.5)
    assert {1, 3} == set(scenario.waiting)


def test_every_effect_of_a_call_has_the_time_of_the_call(begin: Begin) -> None:
    """One call reads one `now`: a chain of effects does not straddle two."""
    scenario = begin(ONE_PLACE)
    scenario.arrive_many([1, 2], 0.0)
    settle, dispatch = scenario.end(1, 1.25)
    assert isinstance(settle, Settle)
    assert isinstance(dispatch, Dispatch)
    assert (1.25, 1.25) == (settle.settlement.at_s, dispatch.record.at_s)


def test_the_same_events_give_the_same_effects() -> None:
    """There is no randomness: two machines fed alike say the same, word for word."""

    def run() -> list[object]:
        controller = Controller(settings_for(pool_settings(max_inflight_requests=2, max_gpu_s=8.0)), 0.0)
        said: list[object] = []
        events: list[Event] = [
            EndpointsChanged("llama", (A, B)),
            Sampled(A, reading(0.0)),
            Described(B, VLLM),
        ]
        events += [Arrived(demand(number, class_name="batch")) for number in range(20)]
        events += [AttemptFailed(TicketId(1), B, Failure.CLOSED), Ended(TicketId(0), Outcome.COMPLETED)]
        for index, event in enumerate(events):
            said += controller.handle(event, 0.1 * index)
        for now in (5.0, 10.0, 70.0, 200.0):
            said += controller.wake(now)
        return said

    first = run()
    assert first == run()
    assert 20 == len([effect for effect in first if isinstance(effect, Settle)])


def test_what_is_refused_is_no_work_that_arrives(begin: Begin) -> None:
    """Refusals do not lengthen the waits that are predicted: else they would bring about more of themselves."""
    scenario = begin(pool_settings(max_inflight_requests=1, max_queue=1))
    state = scenario.controller._pools["llama"].classes["standard"]
    scenario.arrive_many([1, 2], 0.0)
    before = state.arrivals.per_s(0.1)
    effects = scenario.arrive_many(range(3, 30), 0.1)
    assert {Outcome.QUEUE_FULL} == {outcome for _, outcome in turned_away(effects)}
    assert state.arrivals.per_s(0.1) == before


def test_waiters_fit_the_engines_that_are_left(begin: Begin) -> None:
    """When the only engine of unknown size cannot be reached, who waits is booked for the largest that can."""
    scenario = begin(pool_settings(law=None))
    scenario.tell(Described(A, replace(VLLM, kv_tokens=1000)), 0.0)
    scenario.arrive(1, 0.0)
    scenario.tell(EndpointsChanged("llama", (A, B)), 0.1)
    assert [2] == held(scenario.arrive(2, 0.2, class_name="batch", prompt_tokens=3000))
    scenario.tell(SampleMissed(B, unreachable=True), 0.3)
    assert [(2, "a")] == dispatched(scenario.end(1, 1.0))


def test_a_request_can_be_looked_up_while_it_is_there() -> None:
    """Looking changes nothing, and of one that is over nothing is left."""
    scenario = Scenario(settings=settings_for(pool_settings(max_inflight_requests=1)))
    scenario.arrive_many((1, 2), 0.0)
    due_s = scenario.controller.next_deadline()
    first, second = (scenario.controller.look_up(TicketId(number), 0.5) for number in (1, 2))
    assert first is not None
    assert second is not None
    assert (("running", None), ("waiting", 0)) == (
        (first.phase, first.position),
        (second.phase, second.position),
    )
    assert due_s == scenario.controller.next_deadline()
    scenario.end(1, 1.0)
    assert scenario.controller.look_up(TicketId(1), 1.0) is None
    scenario.close()


def test_whose_client_was_told_that_it_waits_is_not_pushed_out() -> None:
    """A more important newcomer takes the place of another one; late news of one that is gone is no error."""
    scenario = Scenario(settings=settings_for(pool_settings(max_inflight_requests=1, max_queue=2)))
    scenario.arrive(1, 0.0)
    scenario.arrive_many((2, 3), 0.1, class_name="batch")
    assert [] == scenario.tell(WaitTold(TicketId(3)), 0.2)  # the youngest would be the first to go
    assert [(2, Outcome.DISPLACED)] == turned_away(scenario.arrive(4, 0.3, class_name="realtime"))
    assert [(5, Outcome.QUEUE_FULL)] == turned_away(scenario.arrive(5, 0.4, class_name="standard"))
    for late in (1, 2, 99):
        assert [] == scenario.tell(WaitTold(TicketId(late)), 0.5)
    scenario.close()
