from __future__ import annotations

import random

import pytest

from forebay.admission.work_ahead import PER_OCTAVE, WEIGHT_UNITS, Backlogs, weight_units

UNIT = WEIGHT_UNITS
"""Units of a weight of 1."""


@pytest.mark.parametrize(
    ("weight", "units"), [(1.0, UNIT), (0.5, UNIT // 2), (1e-9, 1), (2.25, 9 * UNIT // 4)]
)
def test_weights_become_integers(weight: float, units: int) -> None:
    """In units of 1/1024, and never nothing."""
    assert units == weight_units(weight)


def test_nobody_is_ahead_in_an_empty_class() -> None:
    """No tenants, no work."""
    assert 0 == Backlogs().ahead_us(5000 / UNIT, -1, 0, 0)


@pytest.mark.parametrize(
    ("own_us", "own_weight", "other_us", "other_weight", "ahead"),
    [
        (1000, 1.0, 400, 1.0, 400),  # less than its share: all it has
        (1000, 1.0, 5000, 1.0, 1000),  # more: as much as we are served
        (1000, 1.0, 5000, 3.0, 3000),
        (1000, 2.0, 5000, 1.0, 500),
        (1000, 1.0, 1010, 1.0, 1000),  # in the same bin
        (1010, 1.0, 1000, 1.0, 1000),
    ],
)
def test_another_tenant_is_served_its_share_or_what_it_has(
    own_us: int, own_weight: float, other_us: int, other_weight: float, ahead: float
) -> None:
    """With one other tenant it is min(B, A · w ÷ own w), exactly."""
    backlogs = Backlogs()
    backlogs.move(-1, 0, other_us, weight_units(other_weight))
    assert ahead == pytest.approx(backlogs.ahead_us(own_us / weight_units(own_weight), -1, 0, 0))


@pytest.mark.parametrize("own_us", [10, 900, 1000, 1100, 10**6])
def test_the_tenant_itself_is_left_out(own_us: int) -> None:
    """Its own backlog is not ahead of it, be it in a lower, the same or a higher bin."""
    backlogs = Backlogs()
    own_bin = backlogs.move(-1, 0, own_us, UNIT)
    assert 0 == pytest.approx(backlogs.ahead_us(1000 / UNIT, own_bin, own_us, UNIT))


def test_the_sum_is_exact_within_a_bin() -> None:
    """Through any changes, the answer is between the exact sum and 2^(1/8) of it."""
    draw = random.Random("bins")
    backlogs = Backlogs()
    tenants = [(weight_units(draw.choice([0.5, 1.0, 7.0])), 0, -1) for _ in range(60)]
    for _ in range(3000):
        number = draw.randrange(len(tenants))
        units, work_us, at = tenants[number]
        new_us = draw.choice([0, draw.randint(1, 50), draw.randint(1, 10**9), work_us + 1])
        tenants[number] = (units, new_us, backlogs.move(at, work_us, new_us, units))
        per_unit = 2 ** draw.uniform(-12, 25)
        own = draw.randrange(len(tenants))
        exact = sum(min(work, per_unit * u) for n, (u, work, _) in enumerate(tenants) if n != own)
        got = backlogs.ahead_us(per_unit, tenants[own][2], tenants[own][1], tenants[own][0])
        assert exact * (1 - 1e-9) <= got <= exact * 2 ** (1 / PER_OCTAVE) + len(tenants)
    for units, work_us, at in tenants:
        assert -1 == backlogs.move(at, work_us, 0, units)
    assert 0 == backlogs.units == sum(backlogs._works) == sum(backlogs._units)
    assert 0 == sum(backlogs._block_works) == sum(backlogs._block_units)


def test_extremes_have_a_bin() -> None:
    """A backlog of a microsecond for a huge weight, and one of centuries, are counted like others."""
    backlogs = Backlogs()
    assert 0 == backlogs.move(-1, 0, 1, 10**9)
    backlogs.move(-1, 0, 10**18, 1)
    assert 1 + 10**15 == pytest.approx(backlogs.ahead_us(1e15, -1, 0, 0))
