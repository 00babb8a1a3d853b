from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.admission import Settings
from forebay.admission.effects import Evict, Refuse
from forebay.admission.events import (
    Described,
    EndpointsChanged,
    SampleMissed,
)
from forebay.admission.model import EndpointId, EndpointState, EngineInfo, EngineKind
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import OnStale
from tests.unit.admission.build import (
    VLLM,
    Scenario,
    dispatched,
    held,
    pool_settings,
    settings_for,
    turned_away,
    with_class,
)

Begin = Callable[..., Scenario]
A, B = EndpointId("a"), EndpointId("b")
ONE_PLACE = pool_settings(max_inflight_requests=1)
LEARNING = replace(ONE_PLACE, law=None)


# Pools that start, lose and regain their endpoints


def test_a_starting_pool_holds_until_the_first_sample(begin: Begin) -> None:
    """A request that comes before anything is known of the engine starts with the first reading."""
    scenario = begin(up=False)
    assert [1] == held(scenario.arrive(1, 0.5))
    assert [(1, "a")] == dispatched(scenario.sample("a", 1.0))


def test_an_engine_that_answers_at_all_can_be_used(begin: Begin) -> None:
    """Being identified is evidence enough, also of an engine that does not tell its load."""
    scenario = begin(up=False)
    scenario.arrive(1, 0.5)
    assert [(1, "a")] == dispatched(scenario.tell(Described(A, VLLM), 1.0))
    scenario.tell(SampleMissed(A, unreachable=False), 1.5)
    assert [(2, "a")] == dispatched(scenario.arrive(2, 2.0))


def test_an_engine_that_has_answered_nothing_yet_is_not_used(begin: Begin) -> None:
    """One that takes connections and says nothing, or only that it is loading, gets no work; clients are told soon."""
    scenario = begin(up=False)
    scenario.arrive(1, 0.5, class_name="batch")
    assert [] == scenario.tell(SampleMissed(A, unreachable=False), 2.0)
    assert EndpointState.STARTING is scenario.state()
    assert [(1, Outcome.NO_ENDPOINTS)] == turned_away(scenario.run_until(2.5))
    assert [2] == held(scenario.arrive(2, 3.0))
    assert [(2, "a")] == dispatched(scenario.sample("a", 3.5))


def test_a_starting_pool_holds_for_the_connect_timeout_at_most(begin: Begin) -> None:
    """After two seconds without a sign of the engine the answer is 503, whatever the budget; not before."""
    scenario = begin(up=False)
    scenario.arrive(1, 0.5, class_name="batch")
    assert [] == turned_away(scenario.run_until(2.499))
    effects = scenario.run_until(2.5)
    assert [(1, Outcome.NO_ENDPOINTS)] == turned_away(effects)
    (evict,) = [effect for effect in effects if isinstance(effect, Evict)]
    assert evict.refusal.retry_after_s is not None


def test_a_budget_below_the_connect_timeout_ends_a_start_sooner(begin: Begin) -> None:
    """A realtime request does not wait two seconds, and the reason is still that there is no engine."""
    scenario = begin(up=False)
    scenario.arrive(1, 0.0, class_name="realtime")
    assert [(1, Outcome.NO_ENDPOINTS)] == turned_away(scenario.run_until(1.5))


def test_an_unreachable_endpoint_takes_itself_out(begin: Begin) -> None:
    """A reading whose connection fails is evidence that the process is gone: work goes elsewhere at once."""
    scenario = begin(endpoints=("a", "b"))
    scenario.tell(SampleMissed(A, unreachable=True), 1.0)
    assert EndpointState.DOWN is scenario.state("a")
    assert [(1, "b"), (2, "b")] == dispatched(scenario.arrive_many([1, 2], 1.0))
    scenario.sample("a", 1.5)
    assert [(3, "a")] == dispatched(scenario.arrive(3, 2.0))


def test_a_slow_reading_takes_nothing_out(begin: Begin) -> None:
    """An engine that is too busy to answer its metrics is still there."""
    scenario = begin()
    scenario.tell(SampleMissed(A, unreachable=False), 1.0)
    assert [(1, "a")] == dispatched(scenario.arrive(1, 1.0))


def test_with_nothing_up_arrivals_are_refused_at_once(begin: Begin) -> None:
    """No hang for clients of a pool whose engines are known to be gone."""
    scenario = begin()
    scenario.tell(SampleMissed(A, unreachable=True), 1.0)
    (refuse, _) = scenario.arrive(1, 1.1)
    assert isinstance(refuse, Refuse)
    assert Outcome.NO_ENDPOINTS is refuse.refusal.outcome


def test_waiters_of_a_lost_pool_get_the_connect_timeout(begin: Begin) -> None:
    """When the last endpoint goes, who waits is told so after two seconds, unless it comes back."""
    for back in (False, True):
        scenario = begin(ONE_PLACE)
        scenario.arrive_many([1, 2], 0.0)
        scenario.tell(SampleMissed(A, unreachable=True), 1.0)
        assert [] == turned_away(scenario.run_until(2.9))
        if back:
            scenario.sample("a", 2.95)
        assert ([] if back else [(2, Outcome.NO_ENDPOINTS)]) == turned_away(scenario.run_until(3.0))


def test_each_absence_has_its_own_grace(begin: Begin) -> None:
    """An engine that flaps does not use up in the first absence the time that waiters have in the second."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0)
    scenario.tell(SampleMissed(A, unreachable=True), 1.0)
    scenario.sample("a", 1.5)
    scenario.tell(SampleMissed(A, unreachable=True), 2.0)
    assert [] == turned_away(scenario.run_until(3.9))
    assert [(2, Outcome.NO_ENDPOINTS)] == turned_away(scenario.run_until(4.0))


def test_an_absence_after_a_stall_has_its_grace(begin: Begin) -> None:
    """A pool that came back by a byte, and not by a reading, goes absent like any other."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0, class_name="batch")
    scenario.run_until(10.0)
    scenario.progress("a", 11.0, 1)
    assert [2] == held(scenario.arrive(2, 11.5, class_name="batch"))
    scenario.tell(SampleMissed(A, unreachable=True), 12.0)
    assert [(2, Outcome.NO_ENDPOINTS)] == turned_away(scenario.run_until(14.0))


def test_an_absence_after_a_first_token_has_its_grace(begin: Begin) -> None:
    """A stall that a first token has ended is over: the next absence gives who waits then the connect timeout."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0, class_name="batch")
    scenario.run_until(10.0)
    assert EndpointState.STALLED is scenario.state()
    scenario.first_token(1, 11.0)
    assert [2] == held(scenario.arrive(2, 11.5, class_name="batch"))
    scenario.tell(SampleMissed(A, unreachable=True), 12.0)
    assert [] == turned_away(scenario.run_until(13.9))
    assert [(2, Outcome.NO_ENDPOINTS)] == turned_away(scenario.run_until(14.0))


def test_endpoints_that_come_are_used(begin: Begin) -> None:
    """Waiters start on an endpoint that was added and has come up."""
    scenario = begin(ONE_PLACE)
    scenario.arrive_many([1, 2], 0.0)
    scenario.tell(EndpointsChanged("llama", (A, B)), 0.5)
    assert EndpointState.STARTING is scenario.state("b")
    assert [(2, "b")] == dispatched(scenario.tell(Described(B, VLLM), 1.0))


def test_a_removed_endpoint_finishes_and_is_forgotten(begin: Begin) -> None:
    """It gets no new work, its streams run to their end, and then it is gone from the books."""
    scenario = begin(endpoints=("a", "b"))
    scenario.arrive(1, 0.0)
    scenario.tell(EndpointsChanged("llama", (B,)), 1.0)
    assert EndpointState.REMOVED is scenario.state("a")
    assert [(2, "b"), (3, "b")] == dispatched(scenario.arrive_many([2, 3], 2.0))
    scenario.progress("a", 2.5, 1)
    scenario.end(1, 3.0)
    assert Outcome.COMPLETED is scenario.outcome(1)
    assert ["b"] == [view.id for view in scenario.pool_view().endpoints]


def test_a_removed_endpoint_is_kept_while_it_drains(begin: Begin) -> None:
    """Room that the engine still holds is on the books until its linger is over."""
    scenario = begin(endpoints=("a", "b"))
    scenario.arrive(1, 0.0)
    scenario.tell(EndpointsChanged("llama", (B,)), 1.0)
    scenario.leave(1, 2.0)
    assert ["a", "b"] == [view.id for view in scenario.pool_view().endpoints]
    scenario.run_until(3.0)
    assert ["b"] == [view.id for view in scenario.pool_view().endpoints]


def test_a_removed_endpoint_whose_last_room_a_reading_frees_is_gone(begin: Begin) -> None:
    """Else another pool, to which it moves, would wait for it for ever."""
    scenario = begin(endpoints=("a", "b"))
    scenario.sample("a", 0.0, running=0)
    scenario.arrive(1, 0.0)
    scenario.sample("a", 0.5, running=1)
    scenario.tell(EndpointsChanged("llama", (B,)), 1.0)
    scenario.leave(1, 2.0)
    assert ["a", "b"] == [view.id for view in scenario.pool_view().endpoints]
    scenario.sample("a", 2.5, running=0)
    assert ["b"] == [view.id for view in scenario.pool_view().endpoints]


def test_an_idle_endpoint_is_forgotten_at_once(begin: Begin) -> None:
    """With nothing of ours there, removal leaves no trace, and coming back is starting anew."""
    scenario = begin(endpoints=("a", "b"))
    scenario.tell(EndpointsChanged("llama", (B,)), 1.0)
    assert ["b"] == [view.id for view in scenario.pool_view().endpoints]
    scenario.tell(EndpointsChanged("llama", (A, B)), 2.0)
    assert EndpointState.STARTING is scenario.state("a")


def test_an_endpoint_that_comes_back_keeps_its_running_work(begin: Begin) -> None:
    """Removed and listed again while a stream runs there, it has the same books, and a reading brings it up."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.tell(EndpointsChanged("llama", ()), 1.0)
    scenario.tell(EndpointsChanged("llama", (A,)), 2.0)
    assert (EndpointState.STARTING, 1) == (scenario.state(), scenario.endpoint_view().running_requests)
    scenario.sample("a", 2.5)
    assert EndpointState.UP is scenario.state()


def test_waiters_of_a_pool_scaled_to_zero_are_held_as_configured(begin: Begin) -> None:
    """With `hold_without_endpoints` they wait for an endpoint to come, which then serves them."""
    scenario = begin(pool_settings(hold_without_endpoints_s=30.0), endpoints=())
    assert [1] == held(scenario.arrive(1, 0.0, class_name="batch"))
    scenario.run_until(20.0)
    scenario.tell(EndpointsChanged("llama", (A,)), 20.0)
    assert [(1, "a")] == dispatched(scenario.sample("a", 21.0))


def test_a_hold_without_endpoints_is_bounded(begin: Begin) -> None:
    """When nothing comes within the configured time the answer is 503."""
    scenario = begin(pool_settings(hold_without_endpoints_s=30.0), endpoints=())
    scenario.arrive(1, 0.0, class_name="batch")
    assert [] == turned_away(scenario.run_until(29.9))
    assert [(1, Outcome.NO_ENDPOINTS)] == turned_away(scenario.run_until(30.0))


def test_f007_an_endpoint_that_restarts_gets_its_share_and_no_more(begin: Begin) -> None:
    """After 100 abandoned requests and a restart of one endpoint, new requests spread evenly over all three."""
    scenario = begin(endpoints=("a", "b", "c"))
    for number in range(100):
        now = 0.1 * number
        scenario.arrive(number, now)
        scenario.leave(number, now + 0.05)
    scenario.run_until(20.0)
    scenario.tell(SampleMissed(EndpointId("c"), unreachable=True), 20.0)
    scenario.sample("c", 21.0, running=0)
    effects = scenario.arrive_many(range(200, 224), 22.0)
    placed = [endpoint for _, endpoint in dispatched(effects)]
    assert (8, 8, 8) == (placed.count("a"), placed.count("b"), placed.count("c"))


def test_an_endpoint_never_reached_does_not_hide_the_size_of_the_others(begin: Begin) -> None:
    """A prompt that no engine in reach can take is too large at once, and not a matter of waiting."""
    info = EngineInfo(EngineKind.VLLM, context_tokens=1000, kv_tokens=5000)
    scenario = begin(endpoints=("a", "b"), up=False)
    scenario.tell(Described(A, info), 0.1)
    assert [1] == held(scenario.arrive(1, 0.2, prompt_tokens=2000))
    scenario.tell(SampleMissed(B, unreachable=True), 0.3)
    assert [(2, Outcome.REQUEST_TOO_LARGE)] == turned_away(scenario.arrive(2, 0.4, prompt_tokens=2000))


# Engines that no longer tell their load


def stale_settings(on_stale: OnStale, **pool: Any) -> Settings:
    """One class that does this, with samples believed for 5 s."""
    settings = settings_for(pool_settings(**pool), stale_after_s=5.0)
    return with_class("standard", settings, on_stale=on_stale)


def test_at_a_stale_engine_own_counts_decide(begin: Begin) -> None:
    """By default nothing changes when samples stop, but for the calm that they used to prove."""
    scenario = begin(settings=stale_settings(OnStale.OWN_COUNT))
    scenario.arrive_many(range(1, 9), 0.5)
    scenario.sample("a", 1.0, running=8)
    assert [(9, "a")] == dispatched(scenario.arrive(9, 5.0))
    assert [10] == held(scenario.arrive(10, 7.0))


def test_at_a_stale_engine_the_last_sample_may_be_believed(begin: Begin) -> None:
    """`last_known` goes on as if the last sample were of now."""
    scenario = begin(settings=stale_settings(OnStale.LAST_KNOWN))
    scenario.arrive_many(range(1, 10), 0.5)
    scenario.sample("a", 1.0, running=8)
    assert [(10, "a")] == dispatched(scenario.arrive(10, 7.0))


def test_at_a_stale_engine_a_class_may_be_refused(begin: Begin) -> None:
    """`refuse` is a 503 of its own, at arrival and at the end of a wait, and passes with the next sample."""
    scenario = begin(settings=stale_settings(OnStale.REFUSE, max_inflight_requests=1))
    scenario.sample("a", 1.0)
    scenario.arrive(1, 2.0)
    assert [2] == held(scenario.arrive(2, 3.0))
    assert [(3, Outcome.STALE_ENGINE)] == turned_away(scenario.arrive(3, 7.0))
    assert [(2, Outcome.STALE_ENGINE)] == turned_away(scenario.run_until(9.0))
    scenario.end(1, 10.0)
    scenario.sample("a", 11.0)
    assert [(4, "a")] == dispatched(scenario.arrive(4, 11.5))


@pytest.mark.parametrize(
    ("own", "outcome"), [(None, Outcome.STALE_ENGINE), (OnStale.OWN_COUNT, None), (OnStale.ADMIT, None)]
)
def test_a_class_that_says_nothing_of_stale_engines_does_as_its_pool(
    begin: Begin, own: OnStale | None, outcome: Outcome | None
) -> None:
    """What the pool says holds for the classes that do not say themselves, and only for those."""
    settings = settings_for(pool_settings(on_stale=OnStale.REFUSE), stale_after_s=5.0)
    scenario = begin(settings=with_class("standard", settings, on_stale=own))
    scenario.sample("a", 1.0)
    expected = [] if outcome is None else [(1, outcome)]
    assert expected == turned_away(scenario.arrive(1, 7.0))


def test_a_class_that_refuses_stale_engines_uses_the_others(begin: Begin) -> None:
    """One stale endpoint beside a fresh one is only passed over."""
    scenario = begin(settings=stale_settings(OnStale.REFUSE), endpoints=("a", "b"))
    scenario.sample("b", 6.0)
    assert [(1, "b"), (2, "b")] == dispatched(scenario.arrive_many([1, 2], 7.0))


def test_at_a_stale_engine_a_class_may_pass_whatever_is_booked(begin: Begin) -> None:
    """`admit` fails open: the concurrency that was found does not hold it up."""
    scenario = begin(settings=stale_settings(OnStale.ADMIT))
    assert 20 == len(dispatched(scenario.arrive_many(range(1, 21), 7.0)))


def test_an_engine_without_samples_is_never_stale(begin: Begin) -> None:
    """What does not tell its load is not late in telling it."""
    info = EngineInfo(EngineKind.OPENAI)
    scenario = begin(settings=stale_settings(OnStale.REFUSE), info=info)
    assert [(1, "a")] == dispatched(scenario.arrive(1, 100.0))
