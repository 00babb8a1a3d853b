from __future__ import annotations

import pytest

from forebay.admission.class_queue import ClassQueue, ClassRules
from forebay.admission.queues import PoolQueue
from forebay.admission.ranking import Ranking
from forebay.admission.settings import Order
from forebay.admission.tenant_queue import KeyRule
from forebay.admission.waiter import Waiter

FIFO = ClassRules(KeyRule(Order.FIFO, 1.0))


def waiter(sequence: int, tenant: str = "a", work_us: int = 1000, weight: float = 1.0) -> Waiter:
    """A waiter of the only class."""
    return Waiter(sequence, 0, tenant, weight, work_us, 10, float(sequence), 99.0, False)


def test_tenants_are_remembered_while_they_matter_only() -> None:
    """A million names that come and go leave nothing behind."""
    pool = PoolQueue((FIFO,))
    queue = pool.classes[0]
    for number in range(2000):
        one = waiter(2 * number, f"waits-{number}")
        other = waiter(2 * number + 1, f"starts-{number}")
        pool.add(one)
        pool.charge(other, 0.0)
        pool.take(one, 0.0)
        pool.settle(one, 900)
        pool.settle(other, 0)
        gone = waiter(-number, f"leaves-{number}")
        pool.add(gone)
        pool.remove(gone)
    assert {} == queue.tenants
    assert (0, 0, -1) == (queue.count, queue.work_us, max(t.bin for t in [queue.tenant("new")]))


def test_a_tenant_in_flight_is_remembered() -> None:
    """What it is charged too little is held against it until others have had as much."""
    pool = PoolQueue((FIFO,))
    queue = pool.classes[0]
    one = waiter(1, "debtor")
    pool.charge(one, 0.0)
    assert ["debtor"] == list(queue.tenants)
    pool.settle(one, 10_000)  # 9,000 more than charged
    assert ["debtor"] == list(queue.tenants)
    for number in range(2, 20):
        other = waiter(number, f"other-{number}")
        pool.charge(other, 0.0)
        pool.settle(other, 1000)
        assert ("debtor" in queue.tenants) == (number < 10)


def test_those_who_owe_are_forgotten_in_any_order() -> None:
    """Debts of many idle tenants go as the fair time reaches them, also of those that came back in between."""
    pool = PoolQueue((FIFO,))
    queue = pool.classes[0]
    sequence = 0
    for number in range(300):
        sequence += 1
        one = waiter(sequence, f"t-{number % 40}")
        pool.charge(one, 0.0)
        pool.settle(one, 1000 + (number * 7919) % 50_000)
        owing = {name for name, tenant in queue.tenants.items() if tenant.finish > queue.time.now}
        parked = {name for name, tenant in queue.tenants.items() if tenant.parked}
        assert owing <= parked == set(queue.tenants)
        assert len(queue._parked) == len(parked)
    for _ in range(3000):
        sequence += 1
        one = waiter(sequence, "steady", work_us=10_000)
        pool.charge(one, 0.0)
        pool.settle(one, 10_000)
    assert {} == queue.tenants
    assert [] == queue._parked


def test_what_an_idle_tenant_owes_is_paid_when_it_returns() -> None:
    """With its first request: all that is more than that request. The next one is behind those who owe nothing."""
    pool = PoolQueue((FIFO,))
    one = waiter(1, "debtor")
    pool.charge(one, 0.0)
    pool.settle(one, 5000)
    waiters = [
        waiter(2, "debtor"),
        waiter(3, "debtor"),
        *(waiter(number, "other") for number in (4, 5, 6, 7, 8)),
    ]
    for each in waiters:
        pool.add(each)
    served = []
    while (first := pool.first()) is not None:
        served.append(first.sequence)
        pool.take(first, 0.0)
    assert [2, 4, 5, 6, 7, 3, 8] == served


def test_the_latest_weight_of_a_tenant_counts() -> None:
    """A changed plan changes what others must expect of a tenant, and no sum is lost."""
    pool = PoolQueue((FIFO,))
    queue = pool.classes[0]
    pool.add(waiter(1, "a", 10_000, weight=1.0))
    arrival = waiter(9, "b", 1000)
    assert (1000, 0) == pool.work_ahead(arrival)
    pool.add(waiter(2, "a", 10_000, weight=4.0))
    assert (4000, 0) == pool.work_ahead(arrival)
    assert 4 * 1024 == queue.backlogs.units


def test_the_oldest_is_the_first_to_arrive() -> None:
    """Also if it came back after a failed attempt, and whoever is served first."""
    pool = PoolQueue((FIFO,))
    queue = pool.classes[0]
    waiters = [waiter(number, f"t-{number % 3}") for number in range(4)]
    for one in waiters:
        pool.add(one)
    assert queue.oldest() is waiters[0]
    pool.take(waiters[0], 0.0)
    pool.take(waiters[1], 0.0)
    assert queue.oldest() is waiters[2]
    pool.put_back(waiters[1])
    assert queue.oldest() is waiters[1]
    pool.put_back(waiters[0])
    assert queue.oldest() is waiters[0]
    for one in waiters:
        pool.remove(one)
    assert queue.oldest() is None


def test_a_new_class_is_empty() -> None:
    """Nobody waits, nobody is first."""
    queue = ClassQueue(2, ClassRules(KeyRule(Order.SJF, 1.0), weight=3.0), Ranking())
    assert (2, 3.0, 0, 0) == (queue.index, queue.weight, queue.count, queue.work_us)
    assert (None, None, []) == (queue.head, queue.oldest(), list(queue))


@pytest.mark.parametrize("count", [1, 5])
def test_iteration_is_by_tenant(count: int) -> None:
    """Everybody once; tenants as they were first seen, each in its order."""
    queue_of = PoolQueue((FIFO,))
    for number in range(2 * count):
        queue_of.add(waiter(number, "ab"[number % 2]))
    expected = [*range(0, 2 * count, 2), *range(1, 2 * count, 2)]
    assert expected == [one.sequence for one in queue_of.classes[0]]
