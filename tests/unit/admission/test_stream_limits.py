"""Streams that take long, and others that wait."""

from __future__ import annotations

import pytest

from forebay.admission.effects import Dispatch
from forebay.admission.events import ModeChanged
from forebay.admission.model import BodyChange, Mode
from forebay.admission.outcomes import Outcome
from tests.unit.admission.build import (
    Scenario,
    dispatched,
    pool_settings,
    settings_for,
    turned_away,
    with_class,
)

TWO_PLACES = pool_settings(max_inflight_requests=2)
PATIENT = with_class("standard", settings_for(TWO_PLACES), wait_budget_s=1000.0, max_stream_s=300.0)
CUT = Outcome.STREAM_LIMIT


def two_streams(first_s: float = 0.0, second_s: float = 10.0, **changes: object) -> Scenario:
    """Two streams that fill the pool and have begun."""
    scenario = Scenario(settings=PATIENT)
    scenario.arrive(1, first_s, **changes)
    scenario.first_token(1, first_s)
    scenario.arrive(2, second_s, **changes)
    scenario.first_token(2, second_s)
    return scenario


def moving(scenario: Scenario, until_s: float, *numbers: int) -> list[tuple[int, Outcome]]:
    """Tokens come on these streams every second: who was turned away."""
    gone: list[tuple[int, Outcome]] = []
    while scenario.now + 1.0 <= until_s:
        now = scenario.now + 1.0
        gone += turned_away(scenario.run_until(now))
        gone += turned_away(scenario.progress("a", now, *[n for n in numbers if n in scenario.running]))
        gone += turned_away(scenario.sample("a", now, running=len(scenario.running)))
    return gone


def test_while_nobody_waits_there_is_no_limit() -> None:
    """Two streams run for twenty minutes."""
    scenario = two_streams()
    assert [] == moving(scenario, 1200.0, 1, 2)


def test_when_others_wait_the_longest_is_ended_when_its_time_is_over() -> None:
    """One waits: one stream goes, at five minutes and not before, and the waiter starts when the engine lets go."""
    scenario = two_streams()
    moving(scenario, 100.0, 1, 2)
    scenario.arrive(3, 100.0)
    assert [] == moving(scenario, 299.0, 1, 2)
    assert [(1, CUT)] == moving(scenario, 300.0, 1, 2)
    assert [] == moving(scenario, 309.0, 2)
    assert 3 in scenario.running


def test_it_needs_no_event() -> None:
    """The core asks to be woken at that moment."""
    scenario = two_streams()
    scenario.arrive(3, 11.0)
    moving(scenario, 299.0, 1, 2)
    assert [] == turned_away(scenario.run_until(299.999))
    assert [(1, CUT)] == turned_away(scenario.run_until(300.0))


def test_no_more_go_than_wait() -> None:
    """Both are over their limit, one waits: the older goes. When a second one waits the other goes too."""
    scenario = two_streams()
    moving(scenario, 400.0, 1, 2)
    assert [(1, CUT)] == turned_away(scenario.arrive(3, 400.0)) + moving(scenario, 410.0, 1, 2)
    scenario.first_token(3, 410.0)
    assert [(2, CUT)] == turned_away(scenario.arrive(4, 410.0)) + moving(scenario, 420.0, 2, 3)
    assert {3, 4} == set(scenario.running)


def test_what_is_not_streamed_or_has_no_limit_stays() -> None:
    """Whole answers and classes without a limit are never ended for it."""
    for changes in ({"stream": False}, {"class_name": "batch"}):
        scenario = two_streams(**changes)
        scenario.arrive(3, 11.0)
        assert [] == moving(scenario, 500.0, 1, 2)


def test_waiters_that_may_not_start_end_nobody() -> None:
    """A class below its ceiling waits for gaps; no stream is ended for it."""
    settings = with_class("batch", PATIENT, admit_below_utilization=0.5, wait_budget_s=1000.0)
    scenario = Scenario(settings=settings)
    for number in (1, 2):
        scenario.arrive(number, 0.0)
        scenario.first_token(number, 0.0)
    scenario.arrive(3, 1.0, class_name="batch")
    assert [] == moving(scenario, 500.0, 1, 2)


def test_one_that_has_not_begun_is_not_ended() -> None:
    """Its limit counts once something was relayed: then it is ended in the stream."""
    settings = with_class("standard", PATIENT, max_stream_s=5.0)
    scenario = Scenario(settings=settings)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0)
    scenario.arrive(3, 0.0)
    assert [] == moving(scenario, 8.0)
    scenario.first_token(2, 8.0)
    assert [(2, CUT)] == turned_away(scenario.run_until(9.0))


@pytest.mark.parametrize("after", [5.0, None])
def test_a_new_limit_counts_for_what_runs(after: float | None) -> None:
    """A reload with a shorter limit ends what is over it; one without ends nobody."""
    scenario = two_streams()
    scenario.arrive(3, 20.0)
    scenario.reconfigure(with_class("standard", PATIENT, max_stream_s=after), 20.0)
    gone = turned_away(scenario.said) + moving(scenario, 400.0, 1, 2)
    assert (gone[:1] == [(1, CUT)]) is (after is not None)


def test_the_room_is_for_those_who_wait() -> None:
    """The cut request stays booked until the engine has let go; its work so far is charged."""
    scenario = two_streams()
    scenario.arrive(3, 20.0)
    moving(scenario, 299.0, 1, 2)
    effects = scenario.run_until(300.0)
    assert [] == dispatched(effects)
    assert 1 == scenario.endpoint_view().draining_requests
    assert scenario.settlements[1].charged_gpu_s > 0


def test_a_class_that_is_not_enforced_has_no_limit() -> None:
    """What starts unasked is not ended for others either."""
    scenario = two_streams()
    scenario.tell(ModeChanged(Mode.SHADOW, class_name="standard"), 10.5)
    settings = with_class("realtime", PATIENT, wait_budget_s=1000.0)
    scenario.reconfigure(settings, 10.6)
    scenario.arrive(3, 11.0, class_name="realtime")
    assert [] == moving(scenario, 500.0, 1, 2)
    assert [3] == list(scenario.waiting)


# The pool's limit on answers


def limited(**changes: object) -> Scenario:
    """A pool in which an answer has ten tokens at most."""
    return Scenario(pool_settings(max_output_tokens=10, **changes))


def test_a_stream_without_a_limit_ends_at_that_of_the_pool() -> None:
    """At the tenth token, also while nobody waits; with two samples at the twentieth."""
    scenario = limited()
    scenario.arrive(1, 0.0, max_output_tokens=None)
    scenario.arrive(2, 0.0, max_output_tokens=None, samples=2)
    for step in range(1, 10):
        assert [] == turned_away(scenario.progress("a", 0.1 * step, 1, 2))
    assert [(1, CUT)] == turned_away(scenario.progress("a", 1.0, 1, 2))
    for step in range(11, 20):
        assert [] == turned_away(scenario.progress("a", 0.1 * step, 2))
    assert [(2, CUT)] == turned_away(scenario.progress("a", 2.0, 2))


def test_a_limit_of_the_client_is_its_own() -> None:
    """Up to the pool's it stands, and the engine keeps it; above it the request is refused for good."""
    scenario = limited()
    assert [(2, Outcome.REQUEST_TOO_LARGE)] == turned_away(scenario.arrive(2, 0.0, max_output_tokens=11))
    scenario.arrive(1, 0.0, max_output_tokens=10)
    assert [] == [
        gone for step in range(1, 30) for gone in turned_away(scenario.progress("a", 0.1 * step, 1))
    ]


def test_where_the_limit_is_put_in_the_engine_ends_the_answer() -> None:
    """It is in the change of the body, for those who state none, and nothing is cut."""
    scenario = limited(inject_limit=True)
    (first,) = scenario.arrive(1, 0.0, max_output_tokens=None)
    (second,) = scenario.arrive(2, 0.0, max_output_tokens=5)
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert (BodyChange(max_tokens=10), None) == (first.change, second.change)
    assert [] == [
        gone for step in range(1, 30) for gone in turned_away(scenario.progress("a", 0.1 * step, 1))
    ]
