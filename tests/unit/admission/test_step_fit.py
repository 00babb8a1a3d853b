"""The regression behind the step law."""

from __future__ import annotations

import random

import pytest

from forebay.admission.step_fit import BASE, EACH, HIGH, LOW, SHARED, SIZE, TIME, StepFit, add_row


def fit_of(rows: list[list[float]], *, decay: float = 1.0) -> StepFit:
    """A regression over these rows, solved."""
    shared = [[0.0] * (place + 1) for place in range(SHARED)]
    fit = StepFit(256.0, shared)
    for row in rows:
        add_row(shared, row, 1.0, decay)
        add_row(fit.own, row, 1.0, decay)
    fit.solve(0.3, float(len(rows)))
    return fit


def rows_of(beta: list[float], count: int = 400) -> list[list[float]]:
    """Rows with some of each column, and the time that these coefficients give, as errors relative to it."""
    chance = random.Random(7)
    rows = []
    for _ in range(count):
        row = [0.0] + [chance.random() for _ in range(SIZE - 1)]
        row[TIME] = sum(value * times for value, times in zip(row, beta, strict=True))
        rows.append([value / row[TIME] for value in row])
    return rows


def test_coefficients_are_found() -> None:
    """What made the times comes out again, and is what predicts."""
    beta = [0.0, 2.0, 0.5, 1.0, 3.0, 0.7, 1.4]
    rows = rows_of(beta)
    fit = fit_of(rows)
    assert fit.beta == pytest.approx(beta, rel=0.05, abs=0.03)
    assert fit.predict(rows[0]) == pytest.approx(1.0, rel=0.02)


def test_no_coefficient_is_below_zero() -> None:
    """One that least squares would make negative is 0, and the others make the best of it."""
    beta = [0.0, 2.0, -0.2, 1.0, 1.0, 1.0, 1.0]
    fit = fit_of(rows_of(beta))
    assert fit.beta[EACH] == 0.0
    assert min(fit.beta) >= 0.0


def test_one_observation_sets_the_scale() -> None:
    """Of the prior only the proportions are believed."""
    row = [1.0] + [1.0 / 6 / 10] * (SIZE - 1)
    fit = fit_of([row])
    assert fit.beta[BASE:] == pytest.approx([10.0] * (SIZE - 1), rel=0.01)


def test_nothing_seen_changes_nothing() -> None:
    """Without observations the law is the prior."""
    fit = fit_of([])
    assert fit.beta[BASE:] == [1.0] * (SIZE - 1)


def test_sums_fade() -> None:
    """Older rows count for less: after a change the newer ones speak."""
    slow, fast = rows_of([0.0, *[2.0] * (SIZE - 1)], 200), rows_of([0.0, *[1.0] * (SIZE - 1)], 200)
    fit = fit_of(slow + fast, decay=0.9)
    assert fit.beta[HIGH] == pytest.approx(1.0, rel=0.02)
    assert fit.beta[LOW] == pytest.approx(1.0, rel=0.02)
