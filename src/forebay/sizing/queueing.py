"""Closed forms of one queue in front of one server: Little's law and M/G/1.

The server has one *service time* per request, whatever else runs. An engine that batches has no such time: the answer
of one request takes longer the more others there are, and many are served at once. Two numbers can stand in for it:

- the cost of a request (GPU time that it takes of a full engine, `admission.cost`): then this is the queue of work in
  front of a *full* engine. It is the useful one, near saturation;
- the time that it takes on an idle engine: then the engine is taken to serve one at a time, and looks overloaded at a
  tenth of what it can do. That is the usual mistake.

These are long-run means. They say nothing of one arrival, nor of a burst.
"""

from __future__ import annotations

import math
from typing import Final

from forebay.sizing.errors import SizingError

__all__ = ["POLICY_CAPS", "mean_wait_s", "most_utilization", "number_in_system", "squared_variation"]

POLICY_CAPS: Final[dict[str, float]] = {"latency": 0.70, "balanced": 0.85, "throughput": 0.95}
"""Utilisation that a pool is planned for, by its `queue_policy`. At 0.70 the mean wait of M/G/1 is 2.3 times what it
is for one request ahead, at 0.85 5.7 times, at 0.95 19 times (ρ ÷ (1 − ρ))."""


def number_in_system(rate_rps: float, time_s: float) -> float:
    """Little's law, L = λ·W: how many are inside, from how many arrive and how long each stays (Little, 1961).

    It holds for any order, any distribution and any number of servers, as long as nothing piles up for good and both
    are means over the same requests. It does not say what W is: in a batch W grows with L.
    """
    return rate_rps * time_s


def squared_variation(mean: float, mean_square: float) -> float:
    """Variance over the square of the mean: 0 if all are equal, 1 for an exponential distribution."""
    if mean <= 0:
        return 0.0
    return max(0.0, mean_square / (mean * mean) - 1)


def mean_wait_s(rate_rps: float, service_s: float, service_square: float) -> float:
    """Mean wait in M/G/1, first come first served: Pollaczek–Khinchine, λ·E[S²] ÷ (2·(1 − ρ)), ρ = λ·E[S].

    The second moment is what counts: with the same mean, requests that vary (C² = 3) wait twice as long as with
    exponential service (C² = 1). Infinite from ρ = 1 on: without refusing, the queue then grows for ever.

    Limits: Poisson arrivals (bursts wait longer), one server, no priorities, nobody leaves; with heavy tails E[S²] of a
    sample is too small, since the longest have not been seen yet.

    Args:
        service_square: E[S²], the mean of the squares.
    """
    load = rate_rps * service_s
    if load >= 1:
        return math.inf
    return rate_rps * service_square / (2 * (1 - load))


def most_utilization(wait_s: float, service_s: float, service_square: float) -> float:
    """The ρ at which the mean wait of M/G/1 comes to `wait_s`: Pollaczek–Khinchine solved for ρ.

    With R = E[S²] ÷ (2·E[S]), what is left on average of the service that an arrival finds, W = ρ·R ÷ (1 − ρ), so
    ρ = W ÷ (W + R).
    """
    if wait_s < 0 or service_s <= 0:
        raise SizingError("a wait must be at least 0 and a service time above 0")
    residual_s = service_square / (2 * service_s)
    return wait_s / (wait_s + residual_s) if wait_s + residual_s > 0 else 1.0
