"""How much work arrives per second: a decayed sum, one for each class of a pool.

What will still arrive in classes served before a waiter makes it wait longer than the work queued now says
(`wait.inflation`). The estimate is that of a leaky counter: every arrival adds its work, the sum S fades with the
time constant τ, and S ÷ τ is the rate. For arrivals of work w at a rate λ its mean is λ·w once a few τ
have passed. Before that it is too low, by the factor 1 − exp(−t ÷ τ), and is left so: a rate that is guessed too low
refuses nobody.

One number and one time, so an arrival costs the same whatever the load. It never looks at a clock.
"""

from __future__ import annotations

import math
from math import inf
from typing import Final

TIME_CONSTANT_S: Final = 10.0
"""Long against the gaps between arrivals, short against the minutes in which a mix changes."""
SIZE_BINS: Final = 48
SIZES_HALVED_ABOVE: Final = 256
"""Requests of about the present size that are remembered."""
SIZES_LEAST_US: Final = 1_000_000
AGINGS_MAX: Final = 16


class ArrivalRate:
    """Work arriving per second, lately."""

    __slots__ = ("_at_s", "_sum_us", "time_constant_s")

    def __init__(self, time_constant_s: float = TIME_CONSTANT_S) -> None:
        self.time_constant_s = time_constant_s
        self._sum_us = 0.0
        self._at_s = 0.0
        """When the sum was last brought up to date."""

    def add(self, now: float, work_us: float) -> None:
        """A request with `work_us` of expected work arrived. Ask `per_s` first: it must not wait for itself."""
        elapsed = now - self._at_s
        if elapsed > 0.0:
            self._sum_us *= math.exp(-elapsed / self.time_constant_s)
            self._at_s = now
        self._sum_us += work_us

    def scale(self, factor: float) -> None:
        """Work is counted in a unit that is 1 ÷ `factor` of the old one from now on."""
        self._sum_us *= factor

    def per_s(self, now: float) -> float:
        """Work (µs at the reference endpoint) arriving per second."""
        elapsed = now - self._at_s
        if elapsed <= 0.0:
            return self._sum_us / self.time_constant_s
        return self._sum_us * math.exp(-elapsed / self.time_constant_s) / self.time_constant_s


class ArrivalSizes:
    """Which part of the arriving work comes in requests smaller than one of a given size.

    With `sjf` those are served before it although they come later. Decayed sums of work in one bin for each doubling.
    """

    __slots__ = ("_bins", "_total")

    def __init__(self) -> None:
        self._bins = [0.0] * SIZE_BINS
        self._total = 0.0

    def add(self, work_us: int) -> None:
        """A request with so much expected work arrived."""
        self._bins[min(work_us.bit_length(), SIZE_BINS - 1)] += work_us
        self._total += work_us
        if self._total > SIZES_HALVED_ABOVE * work_us and self._total > SIZES_LEAST_US:
            self._bins = [size * 0.5 for size in self._bins]
            self._total *= 0.5

    def part_below(self, work_us: int, halvings: int = 0) -> float:
        """The part of all arriving work in requests of less than `work_us` ÷ 2^`halvings`; half of its bin counts."""
        if self._total <= 0.0:
            return 0.0
        own = min(work_us.bit_length(), SIZE_BINS - 1) - halvings
        if own < 0:
            return 0.0
        below = self._bins[own] * 0.5
        for index in range(own):
            below += self._bins[index]
        return below / self._total


def wait_among_smaller_s(
    base_s: float,
    *,
    rate_us_per_s: float,
    arriving_us_per_s: float,
    sizes: ArrivalSizes,
    work_us: int,
    aging_s: float,
) -> float:
    """A wait in a class that serves the smallest first, where `base_s` would be the wait if nobody else came.

    Whoever comes t later is served before it if its cost is below `work_us` ÷ 2^(t ÷ aging). With F(c) the part of the
    arriving work in requests below c, and λ that work per second, the wait W is the time at which

        rate · W = rate · base + ∫₀ᵂ λ · F(work ÷ 2^(t ÷ aging)) dt

    which is solved with F constant over each aging time.

    Args:
        base_s: for the work that is before it now.
        rate_us_per_s: work per second that its class gets.
        arriving_us_per_s: λ, of its class.
    """
    left_us = base_s * rate_us_per_s
    waited_s = 0.0
    if rate_us_per_s <= 0.0 or base_s <= 0.0 or base_s == inf:
        return base_s
    for halvings in range(AGINGS_MAX):
        net = rate_us_per_s - arriving_us_per_s * sizes.part_below(work_us, halvings)
        if net * aging_s >= left_us:
            return waited_s + left_us / net if left_us > 0.0 else waited_s
        left_us -= net * aging_s
        waited_s += aging_s
    return waited_s + left_us / rate_us_per_s
