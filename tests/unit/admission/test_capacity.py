from __future__ import annotations

import pytest

from forebay.admission.capacity import HIGHEST_LIMIT, ConcurrencyLimit
from tests.unit.admission.build import reading

TIGHTEST_S = 1.5


def limit_at(limit: int) -> ConcurrencyLimit:
    """A limit that has been found to be this."""
    found = ConcurrencyLimit(TIGHTEST_S)
    found.limit = limit
    return found


def first_tokens(found: ConcurrencyLimit, count: int, took_s: float = 0.2, *, in_flight: int = 4096) -> None:
    """So many first tokens come, each after `took_s`."""
    for _ in range(count):
        found.first_token(took_s, in_flight=in_flight)


def test_it_starts_at_eight() -> None:
    """An unknown engine is given eight requests at a time."""
    assert 8 == ConcurrencyLimit(TIGHTEST_S).limit


def test_it_doubles_with_each_good_round() -> None:
    """A round is as many first tokens as the limit; all in time doubles it, and the next round is as much longer."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 7)
    assert 8 == found.limit
    first_tokens(found, 1)
    assert 16 == found.limit
    first_tokens(found, 15)
    assert 16 == found.limit
    first_tokens(found, 1)
    assert 32 == found.limit


def test_a_first_token_at_the_budget_is_in_time() -> None:
    """The tightest wait budget itself is not late."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 8, TIGHTEST_S)
    assert 16 == found.limit


def test_it_does_not_grow_where_it_was_not_reached() -> None:
    """First tokens that came in time with few requests in flight say nothing about more of them."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 80, in_flight=6)
    assert 8 == found.limit
    first_tokens(found, 8, in_flight=7)
    assert 16 == found.limit


def test_late_first_tokens_lower_it_by_a_fifth() -> None:
    """More than a tenth of a round late means that the engine is past its knee."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 7)
    first_tokens(found, 1, 1.6)
    assert 6 == found.limit


def test_a_few_late_ones_stop_growth() -> None:
    """A tenth of a round or less late keeps the limit where it is."""
    found = limit_at(20)
    first_tokens(found, 2, 1.6)
    first_tokens(found, 18)
    assert 20 == found.limit


def test_late_ones_are_forgotten_with_their_round() -> None:
    """Each round is judged by itself."""
    found = limit_at(20)
    first_tokens(found, 2, 1.6)
    first_tokens(found, 18)
    first_tokens(found, 20)
    assert 40 == found.limit


def test_it_stays_between_one_and_the_highest() -> None:
    """However well or badly it goes, an endpoint is tried, and never without bound."""
    found = limit_at(1)
    first_tokens(found, 10, 60.0)
    assert 1 == found.limit
    found = limit_at(HIGHEST_LIMIT)
    first_tokens(found, HIGHEST_LIMIT)
    assert HIGHEST_LIMIT == found.limit


def test_a_queue_in_the_engine_shows_what_it_runs() -> None:
    """An engine that queues in two readings in a row runs what it can: that becomes the limit."""
    found = limit_at(64)
    found.sampled(reading(0.0, running=40, waiting=3))
    assert 64 == found.limit
    found.sampled(reading(0.2, running=40, waiting=3))
    assert 40 == found.limit


def test_one_glimpse_of_a_queue_is_chance() -> None:
    """Arrivals on their way into the batch look like a queue; a calm reading between two makes them chance."""
    found = limit_at(64)
    for at_s, waiting in enumerate([3, 0, 3, 0]):
        found.sampled(reading(float(at_s), running=40, waiting=waiting))
    assert 64 == found.limit


def test_a_queue_never_raises_the_limit() -> None:
    """An engine that runs other people's requests too does not entitle us to more."""
    found = limit_at(8)
    for at_s in range(4):
        found.sampled(reading(float(at_s), running=100, waiting=5))
    assert 8 == found.limit


@pytest.mark.parametrize("running", [0, None])
def test_a_queue_with_nothing_running_says_nothing(running: int | None) -> None:
    """A missing or zero running count cannot be a limit."""
    found = limit_at(64)
    for at_s in range(4):
        found.sampled(reading(float(at_s), running=running, waiting=5))
    assert 64 == found.limit


def test_it_does_not_grow_while_the_engine_queues() -> None:
    """First tokens in time do not double a limit at which the engine already queues."""
    found = limit_at(8)
    found.sampled(reading(0.0, running=40, waiting=3))
    first_tokens(found, 8)
    assert 8 == found.limit
    found.sampled(reading(0.2, running=40, waiting=0))
    first_tokens(found, 8)
    assert 16 == found.limit


def test_preemptions_lower_it_by_a_fifth() -> None:
    """A preemption count that grew since the last reading lowers the limit; the first reading only sets the mark."""
    found = limit_at(10)
    found.sampled(reading(0.0, preemptions_total=700))
    assert 10 == found.limit
    found.sampled(reading(0.2, preemptions_total=703))
    assert 8 == found.limit
    found.sampled(reading(0.4, preemptions_total=703))
    assert 8 == found.limit


def test_a_restarted_engine_has_preempted_nothing() -> None:
    """A count that falls is a restart, and the next growth is measured from there."""
    found = limit_at(10)
    for at_s, total in enumerate([700, 0, 0]):
        found.sampled(reading(float(at_s), preemptions_total=total))
    assert 10 == found.limit
    found.sampled(reading(3.0, preemptions_total=1))
    assert 8 == found.limit


def test_an_engine_that_says_nothing_changes_nothing() -> None:
    """Missing gauges are not zeros: the limit and what is known stay."""
    found = limit_at(10)
    found.sampled(reading(0.0, running=9, waiting=1, preemptions_total=5))
    found.sampled(reading(0.2, running=None, waiting=None, preemptions_total=None))
    found.sampled(reading(0.4, running=9, waiting=1, preemptions_total=5))
    assert 9 == found.limit
