"""Little's law and M/G/1, against figures worked by hand and a simulated queue."""

from __future__ import annotations

import math
import random

import pytest

from forebay.sizing.errors import SizingError
from forebay.sizing.queueing import (
    POLICY_CAPS,
    mean_wait_s,
    most_utilization,
    number_in_system,
    squared_variation,
)


def test_little() -> None:
    """4 requests a second that stay 2.5 s each are 10 at once."""
    assert number_in_system(4, 2.5) == 10


@pytest.mark.parametrize(
    ("square", "wait_s"),
    [(1.0, 2.0), (2.0, 4.0), (4.0, 8.0)],
    ids=["constant: D/1 half of M/M/1", "exponential: rho/(1-rho)", "C2 of 3: twice exponential"],
)
def test_pollaczek_khinchine(square: float, wait_s: float) -> None:
    """At ρ = 0.8 with a mean service of 1 s the wait is 0.8·E[S²] ÷ 0.4."""
    assert mean_wait_s(0.8, 1.0, square) == pytest.approx(wait_s)


def test_no_wait_is_finite_at_full_load() -> None:
    """From ρ = 1 on the queue grows for ever."""
    assert math.isinf(mean_wait_s(1.0, 1.0, 1.0))
    assert math.isinf(mean_wait_s(3.0, 1.0, 1.0))


def test_utilisation_for_a_wait_is_the_inverse() -> None:
    """The utilisation that a wait allows gives that wait."""
    load = most_utilization(0.5, 0.05, 0.006)
    assert 0.5 == pytest.approx(mean_wait_s(load / 0.05, 0.05, 0.006))
    assert 0.5 == most_utilization(1.0, 1.0, 2.0)  # exponential: W = S at half load


@pytest.mark.parametrize(("wait_s", "service_s"), [(-1, 1), (1, 0)])
def test_utilisation_of_nonsense_is_refused(wait_s: float, service_s: float) -> None:
    """A negative wait and a service that takes no time are errors."""
    with pytest.raises(SizingError):
        most_utilization(wait_s, service_s, 1.0)


def test_squared_variation() -> None:
    """0 for constants, 1 for an exponential, 0 where there is no mean."""
    assert (0, 1, 0) == (squared_variation(2, 4), squared_variation(2, 8), squared_variation(0, 0))


def test_caps_are_those_of_queue_policy() -> None:
    """latency, balanced, throughput: 70, 85, 95 %."""
    assert {"latency": 0.70, "balanced": 0.85, "throughput": 0.95} == POLICY_CAPS


def test_formula_gives_the_wait_of_a_simulated_queue() -> None:
    """One server, log-normal service with C² 0.65 at ρ 0.7: within 5 % over 200,000 requests."""
    stream, wait_s, total_s = random.Random(3), 0.0, 0.0
    spread, count = 0.7071, 200_000
    for _ in range(count):
        total_s += wait_s
        service_s = stream.lognormvariate(-spread * spread / 2, spread)
        wait_s = max(0.0, wait_s + service_s - stream.expovariate(0.7))
    assert total_s / count == pytest.approx(mean_wait_s(0.7, 1.0, math.exp(spread * spread)), rel=0.05)
