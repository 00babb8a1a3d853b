from __future__ import annotations

import random
from dataclasses import replace

import pytest

from forebay.admission.class_state import ClassState
from forebay.admission.learning import CAUTIOUS_QUANTILE
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, ClassSettings
from forebay.admission.victims import Entry

STANDARD = next(c for c in ZERO_CONFIGURATION_CLASSES if c.name == "standard")
SECOND_US = 1_000_000


def state(settings: ClassSettings = STANDARD, *, corrects: bool = True) -> ClassState:
    """A class of which nothing has been seen."""
    return ClassState(settings, 1, corrects=corrects)


def taught(of_class: ClassState, *, first_s: float = 0.0, ratio: float = 1.0, times: int = 300) -> ClassState:
    """The same class after waits of about `first_s` + `ratio` times what was computed."""
    rng = random.Random(3)
    for _ in range(times):
        computed_s = rng.uniform(0.5, 5.0)
        waited_s = first_s + computed_s * ratio * rng.lognormvariate(0.0, 0.2)
        of_class.waits.served(of_class.waits.forecast(computed_s), waited_s)
    return of_class


def entry(number: int, start_by_s: float) -> Entry:
    """A waiter of one endpoint-second."""
    return Entry(start_by_s, SECOND_US, 1.0, number, False, "t", number)


def test_nothing_is_known_of_a_new_class() -> None:
    """It has its rank and its settings, predicts what is computed, and nothing arrives or waits in it."""
    new = state()
    assert (1, STANDARD, 3.0) == (new.index, new.settings, new.waits.predict(3.0))
    assert (0.0, 0.0, 0) == (new.arrivals.per_s(5.0), new.sizes.part_below(SECOND_US), len(new.deadlines))


def test_what_arrives_counts_for_rate_and_sizes() -> None:
    """Ten endpoint-seconds at once are one a second over ten, half of them in the smaller ones."""
    of_class = state()
    for work_us in (SECOND_US,) * 5 + (5 * SECOND_US,):
        of_class.arrived(work_us, 7.0)
    assert pytest.approx(SECOND_US) == of_class.arrivals.per_s(7.0)
    assert pytest.approx(0.5) == of_class.sizes.part_below(2_500_000)


def test_deadlines_lie_within_the_wait_budget() -> None:
    """Waiters of one budget are told apart by when they must start: those of the first half are late by themselves."""
    of_class = state(replace(STANDARD, wait_budget_s=8.0))
    for number in range(8):
        of_class.deadlines.add(entry(number, 1.0 if number < 4 else 8.0), 0.0)
    assert of_class.deadlines.overload(0.0, 1.5 * SECOND_US) == 0
    assert of_class.deadlines.overload(0.0, 4.0 * SECOND_US) is None


def test_a_class_may_have_no_budget() -> None:
    """Whoever may not wait at all is no division by zero."""
    of_class = state(replace(STANDARD, wait_budget_s=0.0))
    of_class.deadlines.add(entry(1, 0.0), 0.0)
    assert 1 == len(of_class.deadlines)


# New settings


def test_new_settings_are_taken() -> None:
    """What was learned, what arrives and who waits stays as it is."""
    of_class = taught(state(), ratio=1.5)
    of_class.arrived(SECOND_US, 1.0)
    of_class.deadlines.add(entry(1, 5.0), 0.0)
    waits, judged = of_class.waits, of_class.waits.judged
    changed = replace(STANDARD, weight=9, wait_budget_s=2.0)
    of_class.reconfigure(changed, 0.0)
    assert changed is of_class.settings
    assert waits is of_class.waits
    assert (300, 1) == (judged, len(of_class.deadlines))
    assert of_class.arrivals.per_s(1.0) > 0.0


def test_another_confidence_has_to_prove_itself() -> None:
    """Trust and coverage are those of a quantile, and begin anew with another one."""
    of_class = taught(state())
    assert of_class.waits.trusted
    of_class.reconfigure(replace(STANDARD, confidence=0.9), 0.0)
    assert (False, 0) == (of_class.waits.trusted, of_class.waits.judged)
    forecast = of_class.waits.forecast(2.0)
    assert forecast.confident_s == of_class.waits.at_quantile(2.0, 0.9) > of_class.waits.at_quantile(2.0, 0.5)
    taught(of_class)
    assert of_class.waits.trusted
    assert pytest.approx(0.9, abs=0.1) == of_class.waits.coverage(0.9)


def test_what_was_learned_of_waits_outlives_another_confidence() -> None:
    """How far predictions were off, and how widely waits spread, is true of any quantile."""
    of_class = taught(state(), ratio=1.6)
    kappa, careful = of_class.waits.kappa, of_class.waits.at_quantile(2.0, CAUTIOUS_QUANTILE)
    of_class.reconfigure(replace(STANDARD, confidence=0.8), 0.0)
    assert kappa == of_class.waits.kappa > 1.3
    assert pytest.approx(careful, rel=0.2) == of_class.waits.at_quantile(2.0, CAUTIOUS_QUANTILE)


def test_what_the_first_in_line_waits_outlives_another_confidence() -> None:
    """That part of a wait was learned too: the expected wait does not change with the confidence."""
    of_class = taught(state(), first_s=1.0)
    before = [of_class.waits.predict(base_s) for base_s in (0.0, 1.0, 5.0)]
    assert before[0] > 0.5
    of_class.reconfigure(replace(STANDARD, confidence=0.8), 0.0)
    assert pytest.approx(before) == [of_class.waits.predict(base_s) for base_s in (0.0, 1.0, 5.0)]


@pytest.mark.parametrize("corrects", [True, False])
def test_whether_predictions_are_corrected_outlives_another_confidence(corrects: bool) -> None:
    """The plain predictor stays as it is."""
    of_class = taught(state(corrects=corrects), ratio=1.6)
    of_class.reconfigure(replace(STANDARD, confidence=0.8), 0.0)
    assert corrects is of_class.waits.corrects
    assert (3.0 == of_class.waits.predict(3.0)) is not corrects


def test_another_wait_budget_files_those_who_wait_anew() -> None:
    """With 600 s instead of 5 s those who came one by one stand in many buckets again, not in the one beyond."""
    of_class = ClassState(replace(STANDARD, wait_budget_s=5.0), 0, corrects=True)
    entries = [Entry(100.0 + number, 1000, 1.0, number, False, "t", None) for number in range(50)]
    for entry in entries:
        of_class.deadlines.add(entry, 0.0)
    of_class.reconfigure(replace(STANDARD, wait_budget_s=600.0), 1.0)
    of_class.deadlines.verify()
    assert 50 == len(of_class.deadlines)
    assert len({id(entry.bucket) for entry in entries}) > 1
    for entry in entries:
        assert of_class.deadlines.remove(entry)
    assert 0 == len(of_class.deadlines)
