"""Scores, from what became of each request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission.model import TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.load.felt import End
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.request import Planned
from forebay.simulate.scenario import standard_classes
from forebay.simulate.scoring import score, wait_errors
from forebay.simulate.tries import Try
from forebay.simulate.world import World

PROFILE = load_profile("llama3-8b-h100x1-bf16")
SETTINGS = Settings(pools=(PoolSettings("p"),), classes=standard_classes())


def one(
    index: int,
    class_name: str,
    end: End,
    *,
    at_s: float = 0.0,
    first_s: float | None = 0.5,
    **changed: object,
) -> Try:
    """What became of a request of 101 output tokens that ended after 2 s."""
    planned = Planned(index, at_s, class_name, 100, 101, 256, 400, stream=class_name != "batch")
    made = Try(
        TicketId(index + 1),
        planned,
        end=end,
        outcome=Outcome.COMPLETED if end is End.COMPLETED else Outcome.CLIENT_GONE,
        ended_s=at_s + 2.0,
        dispatched_s=at_s,
        first_s=None if first_s is None else at_s + first_s,
        given_tokens=101,
        work_s=1.0,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def judged(*tries: Try) -> World:
    """A run that came to this."""
    world = World(SETTINGS, fleet("p", PROFILE, EngineConfig.from_profile(PROFILE), 1))
    world.tries.extend(tries)
    return world


def test_a_client_counts_once_and_is_met_by_its_return_too() -> None:
    """The refusal cost it nothing but time, counted from when it came back."""
    refused = one(
        0, "realtime", End.REFUSED, first_s=None, dispatched_s=None, work_s=0.0, outcome=Outcome.QUEUE_FULL
    )
    back = one(0, "realtime", End.COMPLETED, at_s=9.0)
    back = replace(back, planned=replace(back.planned, returned=True))
    again = replace(refused, planned=replace(refused.planned, index=1))
    scored = score(judged(refused, again, back), 10.0)
    realtime = scored.classes["realtime"]
    assert (2, 1, 1, 1) == (realtime.offered, realtime.met_slo, realtime.completed, realtime.refused)
    assert (3, 2, 0.1) == (scored.tries, scored.refused, scored.slo_met_rps)
    assert pytest.approx(0.3) == scored.utility
    assert (1, 1, 1) == (scored.returners.came, scored.returners.admitted, scored.returners.met)


def test_utility_is_by_the_value_of_the_class() -> None:
    """Three, two and one."""
    scored = score(
        judged(*(one(n, name, End.COMPLETED) for n, name in enumerate(("realtime", "standard", "batch")))),
        2.0,
    )
    assert (1.5, 3.0) == (scored.slo_met_rps, scored.utility)
    assert ["realtime", "standard", "batch"] == list(scored.classes)


def test_a_whole_answer_is_judged_by_its_end() -> None:
    """Batch: within a minute and 20 ms for each token."""
    in_time = one(0, "batch", End.COMPLETED, ended_s=62.0, first_s=62.0)
    late = one(1, "batch", End.COMPLETED, ended_s=62.1, first_s=62.1)
    assert 1 == score(judged(in_time, late), 10.0).classes["batch"].met_slo


def test_what_was_spent_on_those_that_missed_is_wasted() -> None:
    """Late answers, clients that left, and what engines lost when they died."""
    world = judged(
        one(0, "realtime", End.COMPLETED),
        one(1, "realtime", End.COMPLETED, first_s=1.6),
        one(2, "realtime", End.UNANSWERED, first_s=None),
        one(3, "realtime", End.COMPLETED, lost_work_s=1.0),
    )
    world.places[0].ended_busy_s = 10.0
    scored = score(world, 10.0)
    assert 10.0 == scored.gpu_seconds
    assert pytest.approx(6.0) == scored.wasted_gpu_seconds


def held(
    wait_s: float,
    predicted_s: float,
    *,
    stated_s: float | None = None,
    left: bool = False,
    budget_s: float = 5.0,
) -> Try:
    """A request that had to wait."""
    made = one(0, "standard", End.UNANSWERED if left else End.COMPLETED)
    return replace(
        made,
        held_s=0.0,
        dispatched_s=None if left else wait_s,
        ended_s=wait_s if left else wait_s + 2.0,
        predicted_wait_s=predicted_s,
        stated_wait_s=stated_s,
        budget_s=budget_s,
    )


def test_wait_errors_are_of_waits_that_matter() -> None:
    """From half a second on, relative to the real one, both clipped at what it might wait."""
    errors = wait_errors(
        [held(0.4, 4.0), held(1.0, 1.1), held(2.0, 1.0), held(4.0, 9.0, budget_s=4.0)], SETTINGS
    )
    assert 3 == errors.judged
    assert pytest.approx(0.1) == errors.median
    assert pytest.approx(0.5) == errors.p90


def test_who_left_or_was_turned_away_waited_at_least_so_long() -> None:
    """No error where more was predicted; what the prediction fell short of where less was."""
    assert 0.0 == wait_errors([held(2.0, 3.0, left=True)], SETTINGS).median
    assert pytest.approx(0.75) == wait_errors([held(2.0, 0.5, left=True)], SETTINGS).median


def test_stated_quantiles_are_held_against_waits() -> None:
    """One that left before its quantile was over says nothing of it."""
    errors = wait_errors(
        [held(1.0, 1.0, stated_s=1.5), held(2.0, 1.0, stated_s=1.5), held(1.0, 1.0, stated_s=3.0, left=True)],
        SETTINGS,
    )
    assert {0.5: (2, 1)} == errors.coverage


def test_a_run_in_which_nothing_waited_has_no_wait_error() -> None:
    """Not nought: nobody knows."""
    scored = score(judged(one(0, "realtime", End.COMPLETED)), 1.0).to_json()
    assert scored["wait_error_median"] is None
    assert scored["fairness_gap_gpu_seconds"] is None
