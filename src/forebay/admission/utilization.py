"""How much of an endpoint is in use, as one number for scaling, ceilings and target levels.

    level = max(slots booked ÷ limit, forecast KV ÷ capacity, ρ)        ρ = 1 − empty step ÷ step

whichever runs out first; ρ is the share of the step time above that of an empty step, because a step settles at
t = c0 ÷ (1 − ρ). The utilisation is the decayed mean of the level over 10 s: a level counts for as long as it
lasted, with weight falling by e every 10 s.

It only measures. Targets by `queue_policy` (latency 0.70, balanced 0.85, throughput 0.95) cap it at admission,
which is the caller's part; without a policy there is none. Ceilings of classes: `ceilings`.
"""

from __future__ import annotations

from math import exp
from typing import Final

MEAN_S: Final = 10.0
TARGETS: Final = {"latency": 0.70, "balanced": 0.85, "throughput": 0.95}


def target_of(policy: str | None) -> float | None:
    """The utilisation that a pool with this `queue_policy` is kept below; None for none.

    Raises:
        ValueError: there is no such policy.
    """
    if policy is None:
        return None
    target = TARGETS.get(policy)
    if target is None:
        raise ValueError(f"queue_policy is one of {', '.join(TARGETS)}, not {policy!r}")
    return target


def rho_of(step_s: float, empty_step_s: float) -> float:
    """Share of the step time above the empty step, 0 to 1; 0 where either is not known (0)."""
    if empty_step_s <= 0.0 or step_s <= empty_step_s:
        return 0.0
    return 1.0 - empty_step_s / step_s


class Utilization:
    """Decayed mean of the level of one endpoint."""

    __slots__ = ("_at_s", "_mean", "level", "rho")

    def __init__(self) -> None:
        self.level = 0.0
        """As last observed, 0 to 1; it holds until the next time."""
        self.rho = 0.0
        """The share of the step time in it."""
        self._mean = 0.0
        self._at_s: float | None = None

    def observe(self, now: float, slots: float, kv: float, rho: float) -> None:
        """What is in use from now on, each as a share: request slots, forecast KV, step time above the empty step."""
        self._mean = self.value(now)
        self._at_s = now
        self.rho = rho
        level = slots if slots > kv else kv
        if rho > level:
            level = rho
        # Above full is full: a limit that was lowered under what runs must not count for longer than it lasts.
        self.level = 0.0 if level < 0.0 else 1.0 if level > 1.0 else level

    def value(self, now: float) -> float:
        """The utilisation now, 0 to 1."""
        at_s = self._at_s
        if at_s is None or now <= at_s:
            return self._mean
        return self.level + (self._mean - self.level) * exp((at_s - now) / MEAN_S)
