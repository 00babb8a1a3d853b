from __future__ import annotations

from collections.abc import Callable

from forebay.admission.events import (
    AttemptFailed,
    Failure,
    SampleMissed,
)
from forebay.admission.filling import SKIPPED_MAX, SMALL_SKIPPED_MAX
from forebay.admission.model import EndpointId, TicketId
from forebay.admission.outcomes import Outcome
from tests.unit.admission.build import (
    Scenario,
    dispatched,
    held,
    pool_settings,
    turned_away,
)

Begin = Callable[..., Scenario]
A, B = EndpointId("a"), EndpointId("b")
ONE_PLACE = pool_settings(max_inflight_requests=1)


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
