from __future__ import annotations

import math

import pytest

from forebay.admission.settings import Order
from forebay.admission.tenant_queue import KeyRule, TenantQueue
from forebay.admission.waiter import Waiter


def waiter(
    sequence: int,
    work_us: int = 1000,
    arrived_s: float = 0.0,
    deadline_s: float = 9.0,
    *,
    short: bool = False,
) -> Waiter:
    """A waiter of tenant a."""
    return Waiter(sequence, 0, "a", 1.0, work_us, 10, arrived_s, deadline_s, short)


def order_of(rule: KeyRule, waiters: list[Waiter]) -> list[int]:
    """Sequence numbers as one tenant with this rule would serve them."""
    tenant = TenantQueue("a", 1)
    for one in waiters:
        one.key = rule.key(one)
        tenant.add(one)
    return [one.sequence for one in tenant.waiters]


def test_fifo_is_by_arrival() -> None:
    """Neither cost nor deadline matters."""
    waiters = [waiter(1, 9000, 0.0, 9.0), waiter(2, 10, 1.0, 2.0), waiter(3, 500, 2.0, 3.0)]
    assert [1, 2, 3] == order_of(KeyRule(Order.FIFO, 1.0), waiters[::-1])


def test_edf_is_by_deadline_and_then_by_arrival() -> None:
    """The one that must start first is served first."""
    waiters = [waiter(1, deadline_s=5.0), waiter(2, deadline_s=3.0), waiter(3, deadline_s=5.0)]
    assert [2, 1, 3] == order_of(KeyRule(Order.EDF, 1.0), waiters[::-1])


def test_edf_is_by_what_a_whole_answer_needs_if_that_is_sooner() -> None:
    """Whichever of both is the earlier."""
    waiters = [waiter(1, deadline_s=5.0), waiter(2, deadline_s=6.0), waiter(3, deadline_s=4.0)]
    waiters[1].start_by_s, waiters[2].start_by_s = 4.5, 9.0
    assert [3, 2, 1] == order_of(KeyRule(Order.EDF, 1.0), waiters)


def test_sjf_is_by_cost_among_those_that_came_together() -> None:
    """The shortest first."""
    waiters = [waiter(1, 900), waiter(2, 30), waiter(3, 400)]
    assert [2, 3, 1] == order_of(KeyRule(Order.SJF, 1.0), waiters)


def test_aging_is_the_wait_that_is_worth_one_halving() -> None:
    """One of 8 times the cost is overtaken for 3 × aging seconds and no longer."""
    rule = KeyRule(Order.SJF, 2.5)
    big = waiter(1, 8000, 100.0)
    assert [2, 1] == order_of(rule, [big, waiter(2, 1000, 107.4)])
    assert [1, 2] == order_of(rule, [big, waiter(2, 1000, 107.6)])


def test_a_short_request_counts_as_if_its_cost_were_divided() -> None:
    """The key of a short one is lower by log2 of its weight, with sjf only."""
    rule = KeyRule(Order.SJF, 2.5, 3.0)
    assert rule.key(waiter(1, 3000, short=True)) == pytest.approx(rule.key(waiter(2, 1000)))
    assert 4.0 == KeyRule(Order.FIFO, 2.5, 3.0).key(waiter(4, arrived_s=4.0, short=True))


@pytest.mark.parametrize("order", list(Order))
def test_who_counts_as_earlier_or_later_stands_so(order: Order) -> None:
    """R12: a shift is worth as much as having come at another time, in every order."""
    rule = KeyRule(order, 2.5)
    shifted = waiter(1, 1000, 5.0, 15.0)
    shifted.shift_s = -3.0
    assert rule.key(waiter(2, 1000, 2.0, 12.0)) == pytest.approx(rule.key(shifted))


@pytest.mark.parametrize("order", list(Order))
def test_one_that_came_back_is_before_all(order: Order) -> None:
    """A request whose attempt failed has the lowest key there is; several stand by arrival."""
    waiters = [waiter(sequence, 10, 0.0, 1.0) for sequence in (1, 2)]
    back = [waiter(4, 9000, 7.0, 9.0), waiter(3, 9000, 7.0, 9.0)]
    for one in back:
        one.front = True
    assert [3, 4, 1, 2] == order_of(KeyRule(order, 1.0), waiters + back)


def test_no_cost_is_a_cost_of_one_microsecond() -> None:
    """A request that costs nothing has a finite key."""
    assert math.log2(1e-6) == KeyRule(Order.SJF, 1.0).key(waiter(1, 0))


def test_rules_are_the_same_if_their_keys_are() -> None:
    """Order, aging and the weight of short ones make the rule."""
    rule = KeyRule(Order.SJF, 2.5, 3.0)
    assert rule.same_as(KeyRule(Order.SJF, 2.5, 3.0))
    for other in (KeyRule(Order.EDF, 2.5, 3.0), KeyRule(Order.SJF, 2.0, 3.0), KeyRule(Order.SJF, 2.5, 2.0)):
        assert not rule.same_as(other)


def test_the_head_is_the_first_that_was_not_passed_over() -> None:
    """As a flow, the tenant shows the head of its waiters through filing, walking and leaving."""
    tenant = TenantQueue("a", 1)
    waiters = [waiter(sequence) for sequence in range(3)]
    for one in reversed(waiters):
        one.key = float(one.sequence)
        tenant.add(one)
    assert tenant.head is waiters[0]
    waiters[0].walk = 1
    tenant.pass_over(1)
    assert tenant.head is waiters[1]
    tenant.remove(waiters[1])
    assert tenant.head is waiters[2]
    tenant.restore()
    assert tenant.head is waiters[0]
    tenant.remove(waiters[0])
    tenant.remove(waiters[2])
    assert tenant.head is None
