from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.admission.events import AttemptFailed, Failure
from forebay.admission.model import EndpointId, EndpointState, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.rotation import EJECT_FIRST_S, OUTLIER
from tests.unit.admission.build import Scenario, dispatched, pool_settings, settings_for

Begin = Callable[..., Scenario]
PLACES = settings_for(pool_settings(max_inflight_requests=8))


def fail(scenario: Scenario, number: int, endpoint: str, failure: Failure, now: float) -> None:
    """A request that runs there fails there."""
    scenario.tell(AttemptFailed(TicketId(number), EndpointId(endpoint), failure), now)


def fail_in_row(scenario: Scenario, count: int, failure: Failure, now: float) -> None:
    """So many requests, each dispatched to `a` first, fail there; the other endpoint serves them."""
    for number in range(1, count + 1):
        assert [(number, "a")] == dispatched(scenario.arrive(number, now))
        fail(scenario, number, "a", failure, now)
        scenario.end(number, now)


def begin_with(begin: Begin, *endpoints: str) -> Scenario:
    """Endpoints that are up."""
    scenario = begin(settings=PLACES, endpoints=endpoints)
    for name in endpoints:
        scenario.sample(name, 0.5)
    return scenario


@pytest.mark.parametrize("failure", [Failure.REFUSED, Failure.MALFORMED, Failure.CUT, Failure.CLOSED])
def test_an_engine_that_only_fails_is_ejected_where_others_work(begin: Begin, failure: Failure) -> None:
    """Five failures in a row of any kind: it is out, and counted as such; the others get everything."""
    scenario = begin_with(begin, "a", "b")
    fail_in_row(scenario, OUTLIER, failure, 1.0)
    assert scenario.state("a") is EndpointState.DOWN
    assert dict(scenario.endpoint_view("a").faults) == {failure.value: OUTLIER, "ejected": 1}
    assert [(20, "b")] == dispatched(scenario.arrive(20, 1.1))


def test_an_ejected_engine_comes_back_by_one_request_at_a_time(begin: Begin) -> None:
    """After its time out a reading lets one request try it; each first token makes room for twice as many."""
    scenario = begin_with(begin, "a", "b")
    fail_in_row(scenario, OUTLIER, Failure.REFUSED, 1.0)
    scenario.sample("a", 1.2)
    assert scenario.state("a") is EndpointState.DOWN
    back_s = 1.0 + EJECT_FIRST_S
    scenario.sample("a", back_s)
    assert scenario.state("a") is EndpointState.UP
    started = dispatched(scenario.arrive_many(range(20, 26), back_s))
    assert 1 == [endpoint for _, endpoint in started].count("a")
    (tried,) = (number for number, endpoint in started if endpoint == "a")
    scenario.first_token(tried, back_s + 0.1)
    started = dispatched(scenario.arrive_many(range(30, 40), back_s + 0.1))
    assert 1 == [endpoint for _, endpoint in started].count("a")


def test_an_engine_that_fails_its_trial_is_out_for_longer(begin: Begin) -> None:
    """It takes as many failures again, one at a time, and then twice the time out."""
    scenario = begin_with(begin, "a", "b")
    fail_in_row(scenario, OUTLIER, Failure.REFUSED, 1.0)
    scenario.sample("a", 2.0)
    fail_in_row_from = 50
    for number in range(fail_in_row_from, fail_in_row_from + OUTLIER):
        assert [(number, "a")] == dispatched(scenario.arrive(number, 2.0))
        fail(scenario, number, "a", Failure.REFUSED, 2.0)
        scenario.end(number, 2.0)
    scenario.sample("a", 2.0 + EJECT_FIRST_S)
    assert scenario.state("a") is EndpointState.DOWN
    scenario.sample("a", 2.0 + 2 * EJECT_FIRST_S)
    assert scenario.state("a") is EndpointState.UP


def test_the_last_engine_is_never_ejected(begin: Begin) -> None:
    """With nobody to do its work an engine that refuses stays: it works, and says so."""
    scenario = begin_with(begin, "a")
    for number in range(1, 3 * OUTLIER):
        assert [(number, "a")] == dispatched(scenario.arrive(number, 1.0))
        fail(scenario, number, "a", Failure.REFUSED, 1.0)
    assert scenario.state("a") is EndpointState.UP


def test_half_of_a_pool_always_stays(begin: Begin) -> None:
    """Whose requests break every engine cannot keep all engines from everybody."""
    scenario = begin_with(begin, "a", "b", "c", "d")
    for number in range(1, 60):
        for _, endpoint in dispatched(scenario.arrive(number, 1.0)):
            fail(scenario, number, endpoint, Failure.REFUSED, 1.0)
        for view in scenario.pool_view().endpoints:
            if view.running_requests:
                fail(scenario, number, view.id, Failure.REFUSED, 1.0)
    assert 2 == sum(view.state is EndpointState.UP for view in scenario.pool_view().endpoints)


def test_a_good_answer_between_them_clears_it(begin: Begin) -> None:
    """An engine that fails some requests and serves others stays."""
    scenario = begin_with(begin, "a", "b")
    fail_in_row(scenario, OUTLIER - 1, Failure.REFUSED, 1.0)
    scenario.arrive(20, 1.0)
    scenario.first_token(20, 1.1)
    scenario.end(20, 1.2)
    for number in range(30, 30 + OUTLIER - 1):
        assert [(number, "a")] == dispatched(scenario.arrive(number, 2.0))
        fail(scenario, number, "a", Failure.REFUSED, 2.0)
        scenario.end(number, 2.0)
    assert scenario.state("a") is EndpointState.UP


def test_answers_that_break_off_count_as_well(begin: Begin) -> None:
    """An engine whose streams all break off is an outlier like one that refuses."""
    scenario = begin_with(begin, "a", "b")
    for number in range(1, OUTLIER + 1):
        assert [(number, "a")] == dispatched(scenario.arrive(number, 1.0))
        scenario.end(number, 1.0, Outcome.UPSTREAM_INTERRUPTED)
    assert scenario.state("a") is EndpointState.DOWN
    assert dict(scenario.endpoint_view("a").faults) == {"interrupted": OUTLIER, "ejected": 1}
