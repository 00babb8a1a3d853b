from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from forebay.admission import Settings
from forebay.admission.events import (
    AttemptFailed,
    Described,
    Failure,
    SampleMissed,
)
from forebay.admission.filling import SKIPPED_MAX, SMALL_SKIPPED_MAX
from forebay.admission.model import EndpointId, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import ClassOrder, OnStale
from tests.unit.admission.build import (
    LAW,
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
ONE_PLACE_MORE = pool_settings(max_inflight_requests=3)
SMALL_CACHE = pool_settings(max_inflight_tokens=1100)


def fail(
    scenario: Scenario, number: int, endpoint: str, now: float, failure: Failure = Failure.CLOSED
) -> list[tuple[int, Outcome]]:
    """An attempt fails; who is turned away by that."""
    return turned_away(scenario.tell(AttemptFailed(TicketId(number), EndpointId(endpoint), failure), now))


def test_one_ending_can_start_several(begin: Begin) -> None:
    """When a big request leaves, as many waiters start in the same call as its room holds."""
    scenario = begin(pool_settings(max_inflight_tokens=1000))
    scenario.arrive(1, 0.0, prompt_tokens=900)
    assert [2, 3, 4] == held(scenario.arrive_many([2, 3, 4], 0.1))
    assert [(2, "a"), (3, "a"), (4, "a")] == dispatched(scenario.end(1, 1.0))


def test_a_request_that_does_not_fit_lets_others_pass(begin: Begin) -> None:
    """A big request at the head of the queue does not leave room unused for small ones behind it."""
    scenario = begin(pool_settings(max_inflight_tokens=1100))
    scenario.arrive_many([1, 2, 3, 4], 0.0)
    assert [5] == held(scenario.arrive(5, 0.1, prompt_tokens=801))
    assert [(6, "a")] == dispatched(scenario.arrive(6, 0.2))


def test_beyond_a_bounded_look_the_smallest_is_tried(begin: Begin) -> None:
    """However many large ones stand before it, one that is small enough for what is left starts."""
    scenario = begin(pool_settings(max_inflight_tokens=1100))
    scenario.arrive_many([1, 2], 0.0, class_name="batch", prompt_tokens=301)
    many = range(10, 10 + 4 * (SKIPPED_MAX + SMALL_SKIPPED_MAX))
    scenario.arrive_many(many, 0.1, class_name="standard", prompt_tokens=800)
    assert [5] == held(scenario.arrive(5, 0.2, class_name="batch", prompt_tokens=500))
    assert [(5, "a")] == dispatched(scenario.end(1, 0.3))


def test_an_eviction_makes_room_for_those_it_held_up(begin: Begin) -> None:
    """A big request for which an endpoint is kept free times out: the small one behind it starts in the same call."""
    scenario = begin(pool_settings(max_inflight_tokens=1100))
    scenario.arrive_many([1, 2, 3, 4], 0.0)
    scenario.arrive(5, 0.0, prompt_tokens=801)
    scenario.progress("a", 3.0, 1, 2, 3, 4)
    assert [6] == held(scenario.arrive(6, 3.5))
    effects = scenario.run_until(5.0)
    assert [(5, Outcome.QUEUE_TIMEOUT)] == turned_away(effects)
    assert [(6, "a")] == dispatched(effects)


def test_a_big_request_is_passed_over_for_half_its_budget(begin: Begin) -> None:
    """For 2.5 s of its 5 s smaller requests pass a big one; from then on the endpoint is kept free until it fits."""
    scenario = begin(pool_settings(max_inflight_tokens=1000))
    scenario.arrive_many([1, 2, 3], 0.0)
    scenario.arrive(5, 0.0, prompt_tokens=801)
    scenario.progress("a", 2.4, 1, 2, 3)
    assert [(6, "a")] == dispatched(scenario.arrive(6, 2.4))
    scenario.progress("a", 2.5, 1, 2, 3, 6)
    assert TicketId(5) == scenario.endpoint_view().reserved_for
    assert [7] == held(scenario.arrive(7, 2.6))
    for number, now in [(1, 3.0), (2, 3.1), (3, 3.2)]:
        assert [] == dispatched(scenario.end(number, now))
    assert [(5, "a")] == dispatched(scenario.end(6, 3.3))
    assert scenario.endpoint_view().reserved_for is None
    assert [(7, "a")] == dispatched(scenario.end(5, 4.0))


def test_the_endpoint_with_the_most_room_is_kept(begin: Begin) -> None:
    """Of two endpoints the emptier one is reserved; the other goes on serving small requests."""
    scenario = begin(pool_settings(max_inflight_tokens=1000), endpoints=("a", "b"))
    scenario.arrive_many([1, 2, 3, 4, 5], 0.0)
    scenario.arrive(9, 0.0, prompt_tokens=801)
    scenario.progress("a", 2.6, 1)
    reserved = [view.id for view in scenario.pool_view().endpoints if view.reserved_for is not None]
    assert ["b"] == reserved
    assert [(10, "a")] == dispatched(scenario.arrive(10, 2.7))


def test_nothing_is_kept_for_a_request_that_cannot_go_there(begin: Begin) -> None:
    """An endpoint that failed a request is not kept free for it, however long it waits for another."""
    scenario = begin(ONE_PLACE, endpoints=("a", "b"))
    scenario.arrive_many([1, 2], 0.0, class_name="batch")
    fail(scenario, 1, "a", 1.0, Failure.REFUSED)
    scenario.progress("b", 32.0, 2)
    assert [None, None] == [view.reserved_for for view in scenario.pool_view().endpoints]
    assert [(3, "a")] == dispatched(scenario.arrive(3, 33.0))


def test_a_client_that_leaves_gives_its_reservation_back(begin: Begin) -> None:
    """Whom the endpoint was kept free for is gone: who waited behind it starts in the same call."""
    scenario = begin(pool_settings(max_inflight_tokens=1100))
    scenario.arrive_many([1, 2, 3, 4], 0.0)
    scenario.arrive(5, 0.0, prompt_tokens=801)
    scenario.progress("a", 3.0, 1)
    assert [6] == held(scenario.arrive(6, 3.5))
    assert [(6, "a")] == dispatched(scenario.leave(5, 4.0))


def test_a_reserved_endpoint_that_is_lost_is_replaced(begin: Begin) -> None:
    """When the endpoint that was kept for a big request goes down, another is kept for it."""
    scenario = begin(pool_settings(max_inflight_tokens=1000), endpoints=("a", "b"))
    scenario.arrive_many([1, 2, 3, 4], 0.0)
    scenario.arrive(9, 0.0, prompt_tokens=801, class_name="batch")
    scenario.progress("a", 31.0, 1, 2)
    scenario.progress("b", 31.0, 3, 4)
    (kept,) = [view.id for view in scenario.pool_view().endpoints if view.reserved_for is not None]
    other = "b" if kept == "a" else "a"
    scenario.tell(SampleMissed(kept, unreachable=True), 32.0)
    scenario.progress(other, 33.0, 1, 2, 3, 4)
    assert TicketId(9) == scenario.endpoint_view(other).reserved_for


# Kept free


def test_who_waited_behind_a_kept_endpoint_starts_with_the_one_it_was_kept_for(begin: Begin) -> None:
    """A small request that was passed over for the sake of a big one uses what that leaves, in the same call."""
    scenario = begin(pool_settings(max_inflight_tokens=1400))
    scenario.arrive_many([1, 2, 3, 4], 0.0, tenant="u")
    scenario.arrive(5, 0.0, tenant="u", prompt_tokens=801)
    scenario.progress("a", 3.0, 1, 2, 3, 4)
    assert TicketId(5) == scenario.endpoint_view().reserved_for
    assert [6] == held(scenario.arrive(6, 3.5, tenant="u", prompt_tokens=10, max_output_tokens=10))
    assert [] == dispatched(scenario.end(1, 4.0))
    assert {(5, "a"), (6, "a")} == set(dispatched(scenario.end(2, 4.1)))


def test_a_big_request_is_not_held_up_by_a_younger_one_that_does_not_fit_either(begin: Begin) -> None:
    """An endpoint is kept for whoever has waited half its budget, also where a shorter one is next in line."""
    scenario = begin(pool_settings(max_inflight_tokens=2000, max_inflight_requests=100))
    scenario.arrive_many(range(10, 19), 0.0)
    scenario.progress("a", 0.1, *range(10, 18))
    assert [1] == held(scenario.arrive(1, 0.2, prompt_tokens=900, max_output_tokens=800))
    assert [2] == held(scenario.arrive(2, 2.6, prompt_tokens=1500))
    scenario.progress("a", 2.8, *range(10, 18))
    assert TicketId(1) == scenario.endpoint_view().reserved_for


def test_more_important_classes_pass_a_kept_endpoint_however_many_wait_for_it(begin: Begin) -> None:
    """Thirty waiters of the class it is kept from do not hide a realtime request, which does not wait for it."""
    scenario = begin(pool_settings(max_inflight_tokens=1100))
    scenario.arrive_many([1, 2, 3, 4], 0.0)
    scenario.arrive(5, 0.0, prompt_tokens=801)
    scenario.progress("a", 3.0, 1, 2, 3, 4)
    assert 30 == len(held(scenario.arrive_many(range(10, 40), 3.1)))
    assert [(50, "a")] == dispatched(scenario.arrive(50, 3.2, class_name="realtime"))
    assert [51] == held(scenario.arrive(51, 3.2, class_name="realtime"))
    assert [(51, "a")] == dispatched(scenario.end(1, 3.5))


@pytest.mark.parametrize("class_order", ClassOrder)
def test_a_more_important_waiter_behind_many_of_the_kept_class_starts(
    begin: Begin, class_order: ClassOrder
) -> None:
    """Thirty smaller ones that come first in the order, and wait for the kept endpoint, do not hide what need not."""
    scenario = begin(settings=settings_for(SMALL_CACHE, class_order=class_order))
    scenario.arrive_many([1, 2, 3, 4], 0.0)
    scenario.arrive(5, 0.0, prompt_tokens=801)
    scenario.progress("a", 3.0, 1, 2, 3, 4)
    assert TicketId(5) == scenario.endpoint_view().reserved_for
    assert 30 == len(held(scenario.arrive_many(range(10, 40), 3.1, max_output_tokens=50)))
    for number in range(50, 60):  # realtime has had more than its share
        assert [(number, "a")] == dispatched(scenario.arrive(number, 3.2, class_name="realtime"))
        if number < 59:
            scenario.end(number, 3.2)
    assert [60, 61] == held(scenario.arrive_many([60, 61], 3.2, class_name="realtime"))
    first = scenario.controller._pools["llama"].queue.first()
    assert first is not None
    assert 1 == first.class_index
    assert [(60, "a")] == dispatched(scenario.end(1, 3.3))
    assert [(61, "a")] == dispatched(scenario.end(2, 3.4))


def test_a_displaced_request_gives_its_kept_endpoint_back(begin: Begin) -> None:
    """Pushed out at the very moment in which an endpoint is kept for it, it lets those start who were held up by it."""
    scenario = begin(pool_settings(max_inflight_tokens=1100, max_queue=2))
    scenario.arrive_many([1, 2, 3, 4], 0.0, class_name="batch")
    scenario.arrive(5, 0.0, class_name="batch", prompt_tokens=801)
    scenario.progress("a", 30.0, 1, 2, 3, 4)
    assert TicketId(5) == scenario.endpoint_view().reserved_for
    assert [6] == held(scenario.arrive(6, 30.0, class_name="batch"))
    effects = scenario.arrive(7, 30.0, prompt_tokens=801)
    assert [(5, Outcome.DISPLACED)] == turned_away(effects)
    assert [(6, "a")] == dispatched(effects)


# Room that is not the same for all


def stale(settings: Settings, **classes: OnStale) -> Settings:
    """The same settings, samples believed for 5 s, and what these classes do after that."""
    for name, on_stale in classes.items():
        settings = with_class(name, settings, on_stale=on_stale)
    return replace(settings, stale_after_s=5.0)


def test_a_class_that_refuses_stale_engines_holds_nobody_up(begin: Begin) -> None:
    """Next in line is one that may not start at an engine which has fallen silent; one that may, does."""
    settings = settings_for(ONE_PLACE, class_order=ClassOrder.STRICT)
    scenario = begin(settings=stale(settings, realtime=OnStale.REFUSE))
    scenario.sample("a", 1.0)
    scenario.arrive(1, 2.0)
    assert [2] == held(scenario.arrive(2, 5.8, class_name="realtime"))
    assert [3] == held(scenario.arrive(3, 5.9))
    assert [(3, "a")] == dispatched(scenario.end(1, 6.5))


def test_no_stale_engine_is_kept_for_a_class_that_refuses_it(begin: Begin) -> None:
    """It could not start there anyway: an arrival that can, does."""
    scenario = begin(settings=stale(settings_for(ONE_PLACE), realtime=OnStale.REFUSE))
    scenario.sample("a", 1.0)
    scenario.arrive(1, 2.0)
    scenario.arrive(2, 5.8, class_name="realtime")
    scenario.end(1, 6.7)
    assert scenario.endpoint_view().reserved_for is None
    assert [(3, "a")] == dispatched(scenario.arrive(3, 6.8))


def test_a_waiter_that_passes_stale_engines_starts_when_one_is_stale(begin: Begin) -> None:
    """`admit` dispatches whatever the books say, to those who wait as to those who arrive."""
    scenario = begin(settings=stale(settings_for(), standard=OnStale.ADMIT))
    scenario.sample("a", 1.0, waiting=1)
    scenario.arrive_many(range(1, 9), 2.0)
    assert [9] == held(scenario.arrive(9, 3.0))
    assert [(9, "a")] == dispatched(scenario.tell(SampleMissed(A, unreachable=False), 6.1))


def test_a_waiter_that_believes_the_last_sample_starts_by_it(begin: Begin) -> None:
    """`last_known` takes an old calm sample for true: the concurrency that was found does not hold a waiter up."""
    scenario = begin(settings=stale(settings_for(), standard=OnStale.LAST_KNOWN))
    scenario.arrive_many(range(1, 10), 0.5)
    scenario.sample("a", 1.0, running=8)
    assert [(10, "a")] == dispatched(scenario.arrive(10, 7.0, prompt_tokens=3000))
    assert [11] == held(scenario.arrive(11, 7.1))
    assert [(11, "a")] == dispatched(scenario.first_token(10, 7.5))


def test_the_last_room_of_the_most_important_class_is_used_by_it(begin: Begin) -> None:
    """It may fill a little more of the cache: that the next in line and the smallest do not fit says nothing of it."""
    scenario = begin(pool_settings(law=replace(LAW, kv_tokens=1210)))
    scenario.arrive_many([1, 2, 3, 4, 5], 0.0)
    assert [(6, "a")] == dispatched(scenario.arrive(6, 0.1, class_name="realtime"))
    assert [7] == held(scenario.arrive(7, 0.2))
    assert [8] == held(scenario.arrive(8, 0.3, class_name="realtime"))
    assert [(8, "a")] == dispatched(scenario.end(1, 0.4))


def test_a_short_prompt_passes_where_pacing_holds_up_long_ones(begin: Begin) -> None:
    """What needs the least cache may have the longest prompt: an embedding has none of it, and waits for its pace."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.first_token(1, 0.1)
    scenario.progress("a", 0.2, 1)
    long = {"prompt_tokens": 2500, "stream": False, "generates": False}
    assert [(2, "a")] == dispatched(scenario.arrive(2, 0.2, **long))
    assert [3, 4] == held([*scenario.arrive(3, 0.3, **long), *scenario.arrive(4, 0.3, prompt_tokens=700)])
    assert [(4, "a")] == dispatched(scenario.progress("a", 0.35, 1))


def test_the_pace_of_any_waiter_is_known_and_not_only_that_of_the_first(begin: Begin) -> None:
    """The first does not fit the cache; the second only waits for its pace, and starts when that is over."""
    settings = settings_for(pool_settings(max_inflight_tokens=6000), class_order=ClassOrder.STRICT)
    scenario = begin(settings=settings)
    scenario.arrive(1, 0.0)
    scenario.first_token(1, 0.1)
    scenario.progress("a", 0.2, 1)
    assert [(2, "a")] == dispatched(scenario.arrive(2, 0.2, prompt_tokens=2500, stream=False))
    big = {"class_name": "realtime", "prompt_tokens": 1, "max_output_tokens": 5950}
    assert [3] == held(scenario.arrive(3, 0.25, **big))
    assert [4] == held(scenario.arrive(4, 0.3, prompt_tokens=1500, stream=False))
    scenario.progress("a", 0.31, 1)
    assert [(4, "a")] == dispatched(scenario.run_until(0.5))


def test_the_pace_of_each_endpoint_is_known(begin: Begin) -> None:
    """What the first waits for at one endpoint is over later than what the second waits for at another."""
    scenario = begin(ONE_PLACE_MORE, endpoints=("a", "b"))
    assert [(1, "a"), (2, "b")] == dispatched(scenario.arrive_many([1, 2], 0.0))
    for number, name in ((1, "a"), (2, "b")):
        scenario.first_token(number, 0.1)
        scenario.progress(name, 0.1, number)
    long = {"stream": False, "generates": False}
    assert [(3, "a")] == dispatched(scenario.arrive(3, 0.2, prompt_tokens=3600, **long))
    assert [(4, "b")] == dispatched(scenario.arrive(4, 0.2, prompt_tokens=2500, **long))
    assert [5, 6] == held(
        [
            *scenario.arrive(5, 0.3, prompt_tokens=2000, **long),
            *scenario.arrive(6, 0.3, prompt_tokens=900, **long),
        ]
    )
    scenario.progress("a", 0.31, 1)
    assert [(6, "b")] == dispatched(scenario.run_until(0.42))


def test_what_needs_no_cache_is_no_measure_of_those_that_do(begin: Begin) -> None:
    """The next in line is too big, an embedding is held up by its long prompt: a small request between them starts."""
    scenario = begin(settings=settings_for(SMALL_CACHE, class_order=ClassOrder.STRICT))
    scenario.arrive_many([1, 2, 3, 4], 0.0)
    scenario.progress("a", 0.2, 1, 2, 3, 4)
    long = {"class_name": "batch", "stream": False, "generates": False}
    assert [(5, "a")] == dispatched(scenario.arrive(5, 0.2, prompt_tokens=2500, **long))
    assert [6] == held(scenario.arrive(6, 0.5, class_name="realtime", prompt_tokens=300))
    assert [7] == held(scenario.arrive(7, 0.5, prompt_tokens=1000, **long))
    assert [8] == held(scenario.arrive(8, 0.5, class_name="batch", prompt_tokens=50))
    assert [(8, "a")] == dispatched(scenario.progress("a", 0.6, 1, 2, 3, 4))


def test_whom_an_endpoint_is_kept_for_is_tried_however_many_wait(begin: Begin) -> None:
    """Behind thirty shorter ones in the order it still starts once it fits: no engine is kept idle for it."""
    scenario = begin(SMALL_CACHE)
    scenario.arrive_many([1, 2, 3, 4], 0.0)
    assert [5] == held(scenario.arrive(5, 0.0, prompt_tokens=300, max_output_tokens=1400))
    scenario.progress("a", 3.0, 1, 2, 3, 4)
    assert TicketId(5) == scenario.endpoint_view().reserved_for
    assert 30 == len(held(scenario.arrive_many(range(10, 40), 3.1)))
    for number in (1, 2, 3):
        scenario.end(number, 3.2)
    assert [(5, "a")] == dispatched(scenario.end(4, 3.3))


def test_one_that_is_too_long_for_an_engine_hinders_nobody_there(begin: Begin) -> None:
    """An embedding holds no KV, so it is the smallest; being too long for one engine it says nothing of others."""
    settings = settings_for(pool_settings(law=LAW, max_inflight_requests=2), class_order=ClassOrder.STRICT)
    scenario = begin(settings=settings, endpoints=("a", "b"))
    for name, tokens in (("a", 16_000), ("b", 4000)):
        info = replace(VLLM, kv_tokens=20_000, context_tokens=tokens)
        scenario.tell(Described(EndpointId(name), info), 0.0)
    for number in (1, 2, 3, 4):
        scenario.arrive(number, 0.0, prompt_tokens=2000, stream=False)
    scenario.arrive(10, 0.1, class_name="realtime", prompt_tokens=9000, generates=False)
    scenario.arrive(11, 0.1, prompt_tokens=20, generates=False)
    scenario.arrive(12, 0.1, prompt_tokens=20)
    assert [10, 11, 12] == list(scenario.waiting)
    at_b = [n for n in (1, 2, 3, 4) if scenario.running[n] == "b"]
    started = [number for n in at_b for number, _ in dispatched(scenario.end(n, 0.2))]
    assert [11, 12] == sorted(started)


# Between tenants


def test_others_take_the_place_of_a_large_one_twice_and_no_more(begin: Begin) -> None:
    """Small requests of others pass a large one of a tenant that has had nothing; then an endpoint is kept for it."""
    scenario = begin(pool_settings(max_inflight_tokens=1200, max_inflight_requests=100))
    scenario.arrive_many(range(1, 6), 0.0, tenant="a")
    assert [7] == held(scenario.arrive(7, 0.1, tenant="quiet", prompt_tokens=500))
    small = {"prompt_tokens": 10, "max_output_tokens": 10}
    assert [(8, "a")] == dispatched(scenario.arrive(8, 0.2, tenant="b", **small))
    assert [9] == held(scenario.arrive(9, 0.3, tenant="b", prompt_tokens=700))
    scenario.end(8, 0.3)
    assert [(10, "a")] == dispatched(scenario.arrive(10, 0.4, tenant="b", **small))
    scenario.end(10, 0.5)
    assert TicketId(7) == scenario.endpoint_view().reserved_for
    assert [11] == held(scenario.arrive(11, 0.6, tenant="a", prompt_tokens=10, max_output_tokens=150))
    assert [(7, "a")] == dispatched(
        [effect for number in range(1, 5) for effect in scenario.end(number, 0.7)]
    )[:1]


def test_an_endpoint_that_is_kept_is_not_kept_from_a_tenant_that_comes_before(begin: Begin) -> None:
    """One of a greedy tenant has waited half its budget; a newcomer of one that had nothing does not wait for it."""
    scenario = begin(pool_settings(max_inflight_tokens=1400))
    scenario.arrive_many([1, 2, 3, 4], 0.0, tenant="greedy")
    scenario.arrive(5, 0.0, tenant="greedy", prompt_tokens=801)
    scenario.progress("a", 3.0, 1, 2, 3, 4)
    assert TicketId(5) == scenario.endpoint_view().reserved_for
    small = {"prompt_tokens": 10, "max_output_tokens": 10}
    assert [6] == held(scenario.arrive(6, 3.5, tenant="greedy", **small))
    assert [(7, "a")] == dispatched(scenario.arrive(7, 3.5, tenant="quiet", **small))
    scenario.close()


def test_with_one_tenant_nobody_is_passed_over_unfairly(begin: Begin) -> None:
    """Small requests of the same tenant pass a large one for half its budget, as ever."""
    scenario = begin(pool_settings(max_inflight_tokens=1200, max_inflight_requests=100))
    scenario.arrive_many(range(1, 6), 0.0)
    assert [7] == held(scenario.arrive(7, 0.1, prompt_tokens=500))
    small = {"prompt_tokens": 1, "max_output_tokens": 1}
    for number in range(8, 15):
        assert [(number, "a")] == dispatched(scenario.arrive(number, number / 10, **small))
        scenario.end(number, number / 10)
    assert scenario.endpoint_view().reserved_for is None
