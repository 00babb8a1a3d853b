"""How the configured classes share a pool: their weights, floors and orders, and what each may save for a burst."""

from __future__ import annotations

from typing import Final

from forebay.admission.class_queue import ClassRules
from forebay.admission.settings import Settings
from forebay.admission.tenant_queue import KeyRule

BURST_S: Final = 10.0
"""Share that the class of the tightest budget may save: traffic comes in bursts, and shares are to hold over longer."""

LEAST_BURST_S: Final = 3.0
"""Where an operator has set how classes share (`max_share`): large requests wait for room to come together."""


def rules_of(common: Settings) -> tuple[ClassRules, ...]:
    """How the classes are served. In strict order each has its part of all weights as a floor."""
    total = sum(c.weight for c in common.classes)
    return tuple(
        ClassRules(
            KeyRule(c.order, c.aging, c.short_weight),
            weight=c.weight,
            max_share=c.max_share,
            floor=c.weight / total,
            may_shut=c.admit_below_utilization is not None or c.max_share < 1.0,
        )
        for c in common.classes
    )


def bursts_s_of(common: Settings) -> tuple[float, ...]:
    """For how many seconds each class may save its share: the tighter its budget, the longer."""
    tightest_s = min(c.wait_budget_s for c in common.classes)
    least_s = LEAST_BURST_S if any(c.max_share < 1.0 for c in common.classes) else 0.0
    return tuple(
        max(least_s, BURST_S * (tightest_s / c.wait_budget_s if c.wait_budget_s > 0 else 1.0))
        for c in common.classes
    )
