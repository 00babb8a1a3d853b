"""The gap between tenants that wait at the same time."""

from __future__ import annotations

import pytest

from forebay.simulate.service_gap import MOST_TENANTS, ServiceGap


def test_only_what_is_given_while_both_wait_counts() -> None:
    """Before and after, a tenant owes the other nothing."""
    gap = ServiceGap()
    gap.waits("batch", "a")
    gap.served("batch", "a", 5.0)
    gap.waits("batch", "b")
    assert 0.0 == gap.gpu_s
    gap.served("batch", "a", 2.0)
    gap.served("batch", "b", 1.0)
    assert 2.0 == gap.gpu_s
    gap.waits_no_more("batch", "b")
    gap.served("batch", "a", 9.0)
    gap.waits("batch", "b")
    gap.served("batch", "a", 1.0)
    assert 2.0 == gap.gpu_s


def test_the_gap_is_the_most_by_which_the_difference_changed() -> None:
    """First the one is ahead by two, then the other by one: three between the extremes."""
    gap = ServiceGap()
    for tenant in ("b", "a"):
        gap.waits("batch", tenant)
    for tenant, gpu_s in (("a", 2.0), ("b", 3.0)):
        gap.served("batch", tenant, gpu_s)
    assert 3.0 == gap.gpu_s


def test_weights_count() -> None:
    """Twice the work for twice the weight is even."""
    gap = ServiceGap()
    for tenant in ("a", "b"):
        gap.waits("batch", tenant)
    for _ in range(10):
        gap.served("batch", "a", 2.0, weight=2.0)
        gap.served("batch", "b", 1.0)
    assert pytest.approx(1.0) == gap.gpu_s


def test_classes_do_not_owe_each_other() -> None:
    """Each has its own tenants."""
    gap = ServiceGap()
    gap.waits("realtime", "a")
    gap.waits("batch", "b")
    gap.served("realtime", "a", 1.0)
    assert gap.gpu_s is None


def test_any_number_of_tenants_may_come() -> None:
    """The first ones are followed, the others are not, and nothing is left of them."""
    gap = ServiceGap()
    names = [f"t{n}" for n in range(MOST_TENANTS + 5)]
    for name in names:
        gap.waits("batch", name)
    for name in names:
        gap.served("batch", name, 1.0)
        gap.waits_no_more("batch", name)
    assert 1.0 == gap.gpu_s
