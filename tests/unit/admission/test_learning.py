from __future__ import annotations

import json

import pytest

from forebay.admission.learning import (
    CAUTIOUS,
    CAUTIOUS_QUANTILE,
    CONFIDENT,
    GUARD_S,
    LEARNED_REQUESTS,
    LEARNED_STEPS,
    LEARNING,
    Learning,
    LearningPhase,
)


def learned(*, confident: bool = False, speed_known: bool = False, now: float = 0.0) -> Learning:
    """A pool that has just learned."""
    learning = Learning(speed_known=speed_known)
    learning.observed(LEARNED_STEPS, LEARNED_REQUESTS, 0.1, confident, now)
    assert learning.phase is (CONFIDENT if confident else CAUTIOUS)
    return learning


# The way out of learning


def test_a_new_pool_refuses_nobody() -> None:
    """It is learning, with or without a profile."""
    for speed_known in (False, True):
        learning = Learning(speed_known=speed_known)
        assert (LEARNING, False) == (learning.phase, learning.may_refuse)


@pytest.mark.parametrize(
    ("steps", "finished", "error", "lacking"),
    [
        (199, 30, 0.1, ("steps",)),
        (200, 29, 0.1, ("finished",)),
        (200, 30, 0.3, ("error",)),
        (200, 30, None, ("error",)),
        (0, 0, None, ("steps", "finished", "error")),
        (200, 30, 0.29, ()),
    ],
)
def test_learning_ends_with_steps_and_answers_and_a_small_error(
    steps: int, finished: int, error: float | None, lacking: tuple[str, ...]
) -> None:
    """200 steps, 30 finished requests and a median error under 30 %: with any one lacking it goes on, and says why."""
    learning = Learning(speed_known=False)
    assert not learning.observed(steps, finished, error, False, 1.0)
    assert (LEARNING if lacking else CAUTIOUS) is learning.phase
    assert lacking == learning.view().lacking
    assert bool(lacking) is not learning.may_refuse


def test_where_nobody_waits_learning_never_ends() -> None:
    """Any number of steps and requests without a judged wait leaves the pool learning, which refuses nobody."""
    learning = Learning(speed_known=True)
    for n in range(1000):
        learning.observed(1, 1, None, True, float(n))
    assert LEARNING is learning.phase
    assert ("error",) == learning.view().lacking


def test_a_profile_stands_for_the_steps_and_nothing_else() -> None:
    """With a configured profile no step is needed; finished requests and the error are."""
    learning = Learning(speed_known=True)
    learning.observed(0, 29, 0.1, False, 1.0)
    assert ("finished",) == learning.view().lacking
    learning.observed(0, 1, 0.1, False, 2.0)
    assert CAUTIOUS is learning.phase


def test_coverage_makes_it_confident() -> None:
    """Just after learning it is cautious; once coverage is in order it is confident, and stays so."""
    learning = learned(now=3.0)
    learning.observed(100, 10, 0.1, False, 4.0)
    assert (CAUTIOUS, 3.0) == (learning.phase, learning.view().since_s)
    learning.observed(0, 1, 0.1, True, 5.0)
    assert (CONFIDENT, 5.0) == (learning.phase, learning.view().since_s)
    learning.observed(0, 1, 0.1, False, 6.0)
    assert (CONFIDENT, 5.0) == (learning.phase, learning.view().since_s)


def test_coverage_that_is_in_order_at_once_needs_no_caution() -> None:
    """Where coverage was proved while learning, the pool is confident as soon as it has learned."""
    assert CONFIDENT is learned(confident=True).phase


@pytest.mark.parametrize(
    ("confident", "trusted", "confidence", "quantile"),
    [
        (False, True, 0.9, CAUTIOUS_QUANTILE),
        (True, False, 0.9, CAUTIOUS_QUANTILE),
        (True, True, 0.9, 0.9),
        (True, True, 0.5, 0.5),
        (False, True, 0.05, 0.05),
    ],
)
def test_which_quantile_refuses(confident: bool, trusted: bool, confidence: float, quantile: float) -> None:
    """The lower 10 % while cautious and for a class that proved nothing, else the class's confidence."""
    assert quantile == learned(confident=confident).quantile_for(confidence, trusted)


# The ways back


@pytest.mark.parametrize("confident", [False, True])
def test_a_jump_in_error_returns_to_learning(confident: bool) -> None:
    """A median error above 60 % makes it learn everything anew; 60 % does not."""
    learning = learned(confident=confident)
    assert not learning.observed(100, 20, 0.6, True, 1.0)
    assert learning.may_refuse
    assert learning.observed(0, 0, 0.61, True, 2.0)
    assert (LEARNING, False) == (learning.phase, learning.may_refuse)
    view = learning.view()
    assert (0, 0, 1, 0, 2.0) == (view.steps, view.finished, view.error_jumps, view.guard_trips, view.since_s)
    assert ("steps", "finished", "error") == view.lacking


def test_after_a_return_old_steps_and_answers_do_not_count() -> None:
    """What was seen before is not enough, even with a small error again: 200 steps and 30 answers more are needed."""
    learning = learned()
    learning.observed(1000, 500, 0.7, False, 1.0)
    learning.observed(199, 30, 0.1, False, 2.0)
    assert ("steps",) == learning.view().lacking
    learning.observed(1, 0, 0.1, False, 3.0)
    assert CAUTIOUS is learning.phase


def test_a_profile_taken_away_returns_to_learning() -> None:
    """Where the speed was known from the profile alone, its loss is the loss of what was learned."""
    learning = Learning(speed_known=True)
    learning.observed(10, 30, 0.1, True, 1.0)
    assert learning.may_refuse
    assert learning.set_speed_known(False, 2.0)
    assert LEARNING is learning.phase
    assert ("steps", "finished", "error") == learning.view().lacking
    assert not learning.set_speed_known(True, 3.0)
    assert (LEARNING, 0, 0) == (learning.phase, learning.error_jumps, learning.guard_trips)


def test_a_profile_taken_away_after_enough_steps_changes_nothing() -> None:
    """Where enough steps were seen as well, the pool knows its speed by itself."""
    learning = learned(speed_known=True)
    assert not learning.set_speed_known(False, 2.0)
    assert CAUTIOUS is learning.phase


# The guard


def test_the_guard_trips_when_an_endpoint_stood_idle_while_requests_were_refused() -> None:
    """Idle since 10, refused at 12: due at 15, and then the pool learns again, counts it and says when."""
    learning = learned(confident=True)
    assert not learning.endpoint_idle_since(10.0, 10.0)
    assert learning.guard_due_s() is None
    assert not learning.refused_on_prediction(12.0)
    assert 10.0 + GUARD_S == learning.guard_due_s()
    assert not learning.check_guard(14.999)
    assert learning.check_guard(15.0)
    view = learning.view()
    assert (LEARNING, 1, 15.0, 0, 0) == (
        view.phase,
        view.guard_trips,
        view.guard_tripped_s,
        view.steps,
        view.finished,
    )
    assert learning.guard_due_s() is None
    assert not learning.check_guard(30.0)


def test_a_refusal_while_an_endpoint_has_long_been_idle_trips_at_once() -> None:
    """After five seconds of idling the first refusal is proof enough."""
    learning = learned()
    learning.endpoint_idle_since(10.0, 10.0)
    assert learning.refused_on_prediction(100.0)
    assert 1 == learning.guard_trips


def test_a_short_idle_time_does_not_trip() -> None:
    """An endpoint that is given work before the five seconds are over was only between two requests."""
    learning = learned()
    learning.endpoint_idle_since(10.0, 10.0)
    learning.refused_on_prediction(12.0)
    assert not learning.endpoint_idle_since(14.9, None)
    assert learning.guard_due_s() is None
    assert not learning.check_guard(1000.0)


def test_refusals_before_the_idle_time_do_not_trip() -> None:
    """What was refused while all were busy was refused rightly, also in the very instant in which the work ended."""
    learning = learned()
    learning.endpoint_idle_since(0.0, None)
    learning.refused_on_prediction(9.0)
    learning.refused_on_prediction(10.0)
    learning.endpoint_idle_since(10.0, 10.0)
    assert learning.guard_due_s() is None
    assert not learning.check_guard(1000.0)


def test_an_idle_time_is_judged_when_it_ends_unwatched() -> None:
    """If nobody called in between, the end of a long idle time still trips."""
    learning = learned()
    learning.endpoint_idle_since(10.0, 10.0)
    learning.refused_on_prediction(12.0)
    assert learning.endpoint_idle_since(20.0, None)
    assert (1, 20.0) == (learning.guard_trips, learning.guard_tripped_s)


def test_the_next_endpoint_has_an_idle_time_of_its_own() -> None:
    """When the longest idle one is given work, refusals since the next became idle still count, older ones do not."""
    learning = learned()
    learning.endpoint_idle_since(10.0, 10.0)
    learning.refused_on_prediction(12.0)
    learning.endpoint_idle_since(14.0, 13.0)
    assert learning.guard_due_s() is None
    learning.refused_on_prediction(14.5)
    assert 18.0 == learning.guard_due_s()
    learning.endpoint_idle_since(15.0, 14.0)
    assert 19.0 == learning.guard_due_s()


def test_an_idle_time_told_late_counts_from_its_begin() -> None:
    """The caller may tell of an idle endpoint later than it became idle: that may trip at once."""
    learning = learned()
    learning.refused_on_prediction(12.0)
    assert learning.endpoint_idle_since(20.0, 11.0)
    assert LEARNING is learning.phase


def test_while_learning_the_guard_sleeps() -> None:
    """A pool that refuses nobody on predictions cannot trip."""
    learning = Learning(speed_known=False)
    learning.endpoint_idle_since(0.0, 0.0)
    assert not learning.refused_on_prediction(1.0)
    assert learning.guard_due_s() is None
    assert not learning.check_guard(100.0)
    assert 0 == learning.guard_trips


def test_refusals_before_a_return_are_forgotten() -> None:
    """When the pool has learned again, old refusals do not trip the guard."""
    learning = learned()
    learning.refused_on_prediction(1.0)
    learning.observed(300, 50, 0.7, False, 2.0)
    learning.observed(200, 30, 0.1, False, 3.0)
    assert CAUTIOUS is learning.phase
    learning.endpoint_idle_since(3.0, 0.5)
    assert learning.guard_due_s() is None


# Keeping


@pytest.mark.parametrize("confident", [False, True])
def test_what_was_exported_can_be_taken_up(confident: bool) -> None:
    """The next start goes on where the last one was, with its counts."""
    first = learned(confident=confident)
    first.observed(0, 0, 0.9, False, 1.0)
    first.observed(250, 31, 0.1, confident, 2.0)
    second = Learning(speed_known=False)
    assert second.restore(json.loads(json.dumps(first.export())), 7.0)
    assert (first.phase, True, 1) == (second.phase, second.may_refuse, second.error_jumps)
    assert first.export() == second.export()
    assert 7.0 == second.view().since_s


def test_progress_is_taken_up_as_well() -> None:
    """What was lacking at the last stop is all that is lacking at the next start."""
    first = Learning(speed_known=False)
    first.observed(150, 29, None, False, 1.0)
    second = Learning(speed_known=False)
    assert second.restore(first.export(), 0.0)
    assert ("steps", "finished", "error") == second.view().lacking
    second.observed(50, 1, 0.1, False, 1.0)
    assert CAUTIOUS is second.phase


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "sure"},
        {"phase": None},
        {"steps": -1},
        {"steps": "200"},
        {"finished": 1.5},
        {"guard_trips": True},
        {"error_jumps": None},
    ],
    ids=str,
)
def test_nonsense_is_not_taken_up(change: dict[str, object]) -> None:
    """Saved data of another form changes nothing: the pool learns."""
    learning = Learning(speed_known=False)
    before = learning.export()
    assert not learning.restore({**learned().export(), **change}, 1.0)
    assert before == learning.export()


def test_what_is_no_mapping_is_not_taken_up() -> None:
    """Nor does a list in its place."""
    assert not Learning(speed_known=False).restore(["confident"], 0.0)


def test_phases_are_shown_by_their_names() -> None:
    """What surfaces and state files hold."""
    assert ["learning", "cautious", "confident"] == [phase.value for phase in LearningPhase]
