from __future__ import annotations

import random

import pytest

from forebay.admission.class_queue import ClassRules
from forebay.admission.errors import InvariantError
from forebay.admission.queues import PoolQueue
from forebay.admission.settings import Order
from forebay.admission.tenant_queue import KeyRule
from forebay.admission.waiter import Waiter


class Site:
    """A pool queue whose waiters are named by numbers."""

    def __init__(
        self,
        *weights: float,
        strict: bool = False,
        order: Order = Order.FIFO,
        max_share: tuple[float, ...] = (),
        floors: tuple[float, ...] = (),
    ) -> None:
        self.pool = PoolQueue(
            tuple(
                ClassRules(
                    KeyRule(order, 2.5),
                    weight=weight,
                    max_share=max_share[index] if max_share else 1.0,
                    floor=floors[index] if floors else 0.0,
                )
                for index, weight in enumerate(weights)
            ),
            strict=strict,
        )
        self.sequence = 0

    def new(
        self, index: int = 0, tenant: str = "a", work_us: int = 1000, kv_tokens: int = 10, weight: float = 1.0
    ) -> Waiter:
        """A request that is not filed."""
        self.sequence += 1
        return Waiter(
            self.sequence, index, tenant, weight, work_us, kv_tokens, self.sequence / 100, 99.0, False
        )

    def add(
        self, index: int = 0, tenant: str = "a", work_us: int = 1000, kv_tokens: int = 10, weight: float = 1.0
    ) -> Waiter:
        """A request that waits."""
        waiter = self.new(index, tenant, work_us, kv_tokens, weight)
        self.pool.add(waiter)
        return waiter

    def serve(self, count: int, now: float = 0.0) -> list[Waiter]:
        """Dispatch so many, and let them end as expected."""
        served = []
        for _ in range(count):
            waiter = self.pool.first()
            assert waiter is not None
            self.pool.take(waiter, now)
            self.pool.settle(waiter, waiter.work_us)
            served.append(waiter)
        return served

    def first(self) -> Waiter:
        """The next one, which is there."""
        waiter = self.pool.first()
        assert waiter is not None
        return waiter


def test_an_empty_queue_is_empty() -> None:
    """Nobody waits, nobody is first, nothing is ahead of an arrival."""
    site = Site(1.0, 2.0)
    pool = site.pool
    assert (0, [], None, None) == (len(pool), list(pool), pool.first(), pool.smallest_kv_waiter())
    assert (0, 0) == pool.work_ahead(site.new())
    pool.restore()


def test_classes_share_by_weight() -> None:
    """With weights 3 and 1, three of four requests of equal cost are of the first class."""
    site = Site(3.0, 1.0)
    for _ in range(40):
        site.add(0)
        site.add(1)
    assert 30 == sum(waiter.class_index == 0 for waiter in site.serve(40))


def test_a_class_takes_what_others_leave() -> None:
    """With one class waiting it is served whole, and has nothing to make up for afterwards."""
    site = Site(1.0, 1.0)
    for _ in range(20):
        site.add(1)
    assert 20 == len(site.serve(20))
    for _ in range(10):
        site.add(1)
        site.add(0)
    assert 5 == sum(waiter.class_index == 0 for waiter in site.serve(10))


def test_tenants_share_by_cost_not_by_requests() -> None:
    """One tenant's requests cost four times as much: it gets a fifth as many, and half of the work."""
    site = Site(1.0)
    for _ in range(100):
        site.add(tenant="heavy", work_us=4000)
        site.add(tenant="light", work_us=1000)
    served = site.serve(50)
    assert 10 == sum(waiter.tenant == "heavy" for waiter in served)


def test_a_flood_does_not_delay_another_tenant() -> None:
    """Behind a thousand requests of one tenant, the first of another is served next."""
    site = Site(1.0)
    for _ in range(1000):
        site.add(tenant="flood")
    site.serve(10)
    other = site.add(tenant="other")
    assert other in site.serve(2)


def test_strict_is_by_rank() -> None:
    """The first class is served before the second, whatever its tags."""
    site = Site(1.0, 1.0, 1.0, strict=True)
    for index in (2, 1, 0, 1, 0, 2):
        site.add(index)
    assert [0, 0, 1, 1, 2, 2] == [waiter.class_index for waiter in site.serve(6)]


def test_a_floor_is_kept_under_a_strict_order() -> None:
    """A low class with a floor of a fifth gets a fifth while a higher one floods, and no more."""
    site = Site(1.0, 1.0, strict=True, floors=(0.0, 0.2))
    for _ in range(400):
        site.add(0)
        site.add(1)
    served = [waiter.class_index for waiter in site.serve(200, now=5.0)]
    assert 0 == served[0]
    assert 38 <= sum(served) <= 42


def test_max_share_caps_a_class_while_others_wait() -> None:
    """Of weight 3 against 1 but capped at 0.3, it gets 0.3; alone it gets all."""
    site = Site(3.0, 1.0, max_share=(0.3, 1.0))
    for _ in range(200):
        site.add(0)
        site.add(1)
    served = [waiter.class_index for waiter in site.serve(100)]
    assert 28 <= served.count(0) <= 32
    for waiter in [waiter for waiter in site.pool if waiter.class_index == 1]:
        site.pool.remove(waiter)
    assert 100 == len(site.serve(100))


def test_what_nobody_else_wanted_does_not_count_towards_a_cap() -> None:
    """A class that was served alone for a minute is not shut out when another one comes."""
    site = Site(1.0, 1.0, max_share=(0.5, 1.0))
    for second in range(60):
        site.add(0)
        site.serve(1, now=float(second))
    for _ in range(20):
        site.add(0)
        site.add(1)
    assert 4 <= sum(waiter.class_index == 0 for waiter in site.serve(10, now=60.0)) <= 6


def test_a_capped_class_is_served_if_the_others_cannot_be() -> None:
    """A cap does not leave room idle: when the others are skipped, the capped class is next."""
    site = Site(1.0, 1.0, max_share=(0.1, 1.0))
    for _ in range(3):
        site.add(0)
        site.add(1)
    site.serve(2)
    skipped = []
    while (waiter := site.first()).class_index == 1:
        site.pool.skip(waiter)
        skipped.append(waiter)
    assert 2 == len(skipped)
    assert 0 == waiter.class_index


@pytest.mark.parametrize("strict", [False, True])
def test_a_charge_taken_back_frees_the_cap(strict: bool) -> None:
    """What was charged and then settled with nothing is no part of any share."""
    site = Site(2.0, 1.0, strict=strict, max_share=(0.4, 1.0))
    for _ in range(3):
        site.add(0)
        site.add(1)
    one = site.first()
    site.pool.take(one, 7.0)
    assert (0, 1) == (one.class_index, site.first().class_index)
    site.pool.settle(one, 0)
    assert 0 == site.first().class_index


def test_a_failed_attempt_goes_to_the_front_and_costs_nothing() -> None:
    """It is the next of its tenant, before shorter ones, and the tenant is no worse off against others."""
    site = Site(1.0, order=Order.SJF)
    failed = site.add(tenant="a", work_us=5000)
    site.pool.take(failed, 0.0)
    site.add(tenant="a", work_us=10)
    site.add(tenant="b", work_us=5000)
    site.pool.put_back(failed)
    assert site.first() is failed
    assert [failed, failed] == [next(iter(site.pool)), min(site.pool, key=lambda w: w.key)]


def test_a_failed_attempt_does_not_cost_its_class_what_it_had_saved() -> None:
    """The only request of a class fails and waits again: its class is as far behind the others as it was before."""
    site = Site(1.0, 1.0)
    site.pool.allow_bursts(100_000.0, (1.0, 0.0))
    for _ in range(100):
        started = site.new(1)
        site.pool.charge(started, 0.0)
        site.pool.settle(started, started.work_us)
    failed = site.new(0)
    site.pool.charge(failed, 0.0)
    site.pool.put_back(failed)
    assert 50_000.0 == site.pool.classes[0].finish


def test_a_request_can_be_costed_anew_before_it_is_put_back() -> None:
    """What was charged is what is given back, not the new cost."""
    site = Site(1.0)
    waiter = site.new(work_us=1000)
    site.pool.charge(waiter, 0.0)
    waiter.work_us, waiter.kv_tokens = 7000, 99
    site.pool.put_back(waiter)
    queue = site.pool.classes[0]
    smallest = site.pool.smallest_kv_waiter()
    assert smallest is not None
    assert (1, 7000, 99) == (queue.count, queue.work_us, smallest.kv_tokens)
    assert 7000 == queue.tenants["a"].waiters.work_us


def test_costing_anew_keeps_arrival_and_standing() -> None:
    """The waiter moves inside its tenant only, and a tenant's claim is not lifted."""
    site = Site(1.0, order=Order.SJF)
    one, other = site.add(tenant="a", work_us=1000), site.add(tenant="a", work_us=2000)
    site.add(tenant="b", work_us=9000)
    before = site.pool.classes[0].tenants["a"].finish
    site.serve(0)
    site.pool.recost(one, 4000, 77)
    assert site.first() is other
    assert before == site.pool.classes[0].tenants["a"].finish
    assert 15_000 == site.pool.classes[0].work_us
    assert site.pool.classes[0].oldest() is one


def test_a_walk_shows_the_next_ones_and_leaves_no_trace() -> None:
    """Skipped waiters come again after the walk, in the same order."""
    site = Site(2.0, 1.0)
    for number in range(12):
        site.add(number % 2, tenant="abc"[number % 3])
    walks = []
    for _ in range(2):
        walk = []
        while (waiter := site.pool.first()) is not None:
            site.pool.skip(waiter)
            walk.append(waiter.sequence)
        assert site.pool.smallest_kv_waiter() is None
        site.pool.restore()
        walks.append(walk)
    assert walks[0] == walks[1]
    assert list(range(1, 13)) == sorted(walks[0])


def test_an_arrival_ends_a_walk() -> None:
    """Nobody stays skipped when a request is filed or costed anew."""
    site = Site(1.0)
    one = site.add()
    site.pool.skip(one)
    assert site.pool.first() is None
    other = site.add()
    assert site.first() is one
    site.pool.skip(one)
    site.pool.recost(other, 500, 5)
    assert site.first() is one


def test_the_smallest_kv_need_is_known() -> None:
    """Of all waiters, ties by arrival, as they come, are skipped and go."""
    site = Site(1.0, 1.0)
    large, small, second = site.add(0, kv_tokens=500), site.add(1, kv_tokens=20), site.add(0, kv_tokens=20)
    assert small is site.pool.smallest_kv_waiter()
    site.pool.skip(small)
    assert second is site.pool.smallest_kv_waiter()
    site.pool.take(second, 0.0)
    assert large is site.pool.smallest_kv_waiter()
    site.pool.restore()
    site.pool.remove(small)
    assert large is site.pool.smallest_kv_waiter()


def test_one_skipped_for_its_kv_need_is_not_shown_again_in_that_walk() -> None:
    """Both ways through the waiters belong to one walk."""
    site = Site(1.0)
    one, two, three = site.add(kv_tokens=50), site.add(kv_tokens=1), site.add(kv_tokens=70)
    site.pool.skip(two)
    assert site.first() is one
    site.pool.take(one, 0.0)
    assert site.first() is three
    site.pool.restore()
    assert site.first() is two


def test_one_held_up_for_long_does_not_hold_up_the_others_afterwards() -> None:
    """A tenant that could not be placed while others were served a hundred times is next, and then they share."""
    site = Site(1.0)
    for _ in range(200):
        site.add(tenant="blocked", kv_tokens=9000)
        site.add(tenant="other")
    for _ in range(100):
        while (waiter := site.first()).tenant == "blocked":
            site.pool.skip(waiter)
        site.pool.take(waiter, 0.0)
        site.pool.settle(waiter, waiter.work_us)
        site.pool.restore()
    served = [waiter.tenant for waiter in site.serve(10)]
    assert "blocked" == served[0]
    assert 5 <= served.count("blocked") <= 6


def test_a_class_does_not_collect_what_others_start_at_once_while_it_cannot_be_placed() -> None:
    """A hundred small requests that come find room, one that waits does not: its class is next, and then they share."""
    site = Site(1.0, 1.0)
    site.add(0, work_us=2000)
    for _ in range(100):
        site.pool.charge(site.new(1), 0.0)
    for _ in range(20):
        site.add(0)
        site.add(1)
    served = [waiter.class_index for waiter in site.serve(10)]
    assert 0 == served[0]
    assert 4 <= served.count(0) <= 6


def test_being_passed_over_does_not_cost_a_refund() -> None:
    """What others were served with nobody passed over is no reason to lift a tenant that is passed over later."""
    site = Site(1.0)
    for _ in range(20):
        site.add(tenant="guessed")
        site.add(tenant="known")
    taken = []
    for _ in range(20):
        taken.append(site.first())
        site.pool.take(taken[-1], 0.0)
    for waiter in taken:
        site.pool.settle(waiter, 1000 if waiter.tenant == "known" else 100)
    tenant = site.pool.classes[0].tenants["guessed"]
    for expected in ((10_000.0, -9000.0), (3000.0, -1000.0)):
        assert expected == (tenant.finish, tenant.due)
        assert "guessed" == site.first().tenant
        site.pool.skip(site.first())
        site.pool.restore()
        assert expected == (tenant.finish, tenant.due)
        site.serve(1)


def test_a_request_that_starts_at_once_is_charged_as_well() -> None:
    """A tenant whose requests all found room is not ahead of one that waits."""
    site = Site(1.0)
    waiting = site.add(tenant="waits")
    for _ in range(5):
        started = site.new(tenant="starts")
        site.pool.charge(started, 0.0)
        site.pool.settle(started, started.work_us)
    site.add(tenant="starts")
    assert site.first() is waiting


def test_a_tenant_that_starts_one_and_waits_with_another_pays_for_both() -> None:
    """A charge moves the tag of what waits already."""
    site = Site(1.0)
    one, other = site.add(tenant="a"), site.add(tenant="b")
    assert site.first() is one
    site.pool.charge(site.new(tenant="a"), 0.0)
    assert site.first() is other


def test_of_two_capped_classes_the_usual_order_decides() -> None:
    """If all that could be served are above their caps, the one with the smaller tag is next, ties by arrival."""
    site = Site(1.0, 1.0, max_share=(0.1, 0.1))
    for index in (0, 1, 0, 1):
        site.add(index)
    assert [0, 1, 0, 1] == [waiter.class_index for waiter in site.serve(4)]


def test_truth_replaces_the_estimate() -> None:
    """A tenant charged ten times too much is served as if it had been charged right, but for two such charges."""
    site = Site(1.0)
    for _ in range(150):
        site.add(tenant="guessed", work_us=10_000)
        site.add(tenant="known", work_us=1000)
    served = []
    for _ in range(200):
        waiter = site.first()
        site.pool.take(waiter, 0.0)
        site.pool.settle(waiter, 1000)
        served.append(waiter.tenant)
    assert 100 - 20 <= served.count("guessed") <= 100


def test_work_ahead_of_one_tenant_is_what_stands_before() -> None:
    """With zero configuration the figures are exact: those before its place, and none behind."""
    site = Site(1.0, order=Order.SJF)
    for work_us in (1000, 2000, 4000, 8000):
        site.add(work_us=work_us)
    assert (3000, 2) == site.pool.work_ahead(site.new(work_us=3000))


def test_work_ahead_of_a_new_tenant_is_its_share_of_the_others() -> None:
    """An equal share of each that has more, all of one that has less; counted at the mean cost of their requests."""
    site = Site(1.0)
    for _ in range(5):
        site.add(tenant="a", work_us=800)
        site.add(tenant="b", work_us=100)
    assert (1000 + 500, 3) == site.pool.work_ahead(site.new(tenant="c", work_us=1000))


def test_work_ahead_over_classes_is_by_weight() -> None:
    """Another class is ahead with its share of what we are served, or all it has."""
    site = Site(1.0, 3.0, 1.0)
    for _ in range(4):
        site.add(0)
        site.add(1)
    assert (4000 + 4000, 8) == site.pool.work_ahead(site.new(0))
    assert (4000 + round(5000 / 3), 6) == site.pool.work_ahead(site.new(1))
    assert (1000 + 3000, 4) == site.pool.work_ahead(site.new(2))


def test_work_ahead_with_a_strict_order_is_of_the_higher_ranks() -> None:
    """All of the classes above and the own, none of those below."""
    site = Site(1.0, 1.0, 1.0, strict=True)
    for index in (0, 0, 1, 2, 2, 2):
        site.add(index)
    assert [(2000, 2), (3000, 3), (6000, 6)] == [site.pool.work_ahead(site.new(index)) for index in range(3)]


def test_higher_ranks_are_ahead_with_no_more_than_a_floor_leaves_them() -> None:
    """While a class with a floor of a half is served 1000, all above it together are served 1000, however many wait."""
    site = Site(1.0, 1.0, 2.0, strict=True, floors=(0.25, 0.25, 0.5))
    for index in (0, 0, 0, 1, 1):
        site.add(index)
    assert (2000 + 3000, 5) == site.pool.work_ahead(site.new(1))
    assert (1000, 1) == site.pool.work_ahead(site.new(2))
    site.add(2)
    assert (1000 + 2000, 3) == site.pool.work_ahead(site.new(2))


def test_a_request_that_costs_nothing_has_work_ahead() -> None:
    """Zero cost divides nothing by zero, filed or not."""
    site = Site(1.0, 1.0)
    site.add(tenant="b")
    site.add(1, work_us=0)
    nothing = site.add(work_us=0)
    assert site.pool.work_ahead(nothing)[0] <= 2


def test_shares_are_those_of_the_classes_that_wait() -> None:
    """Weights of backlogged classes are added up, with the one that asks."""
    site = Site(3.0, 5.0, 2.0)
    assert (0.0, 5.0) == (site.pool.backlogged_weight(), site.pool.backlogged_weight(with_class=1))
    waiter = site.add(2)
    assert (2.0, 7.0) == (site.pool.backlogged_weight(), site.pool.backlogged_weight(with_class=1))
    site.pool.remove(waiter)
    assert 0.0 == site.pool.backlogged_weight()


def test_new_rules_apply_to_those_who_wait() -> None:
    """Another order, other weights and a strict order take effect at once; nobody is lost."""
    site = Site(1.0, 1.0)
    costs = (3000, 1000, 2000)
    for work_us in costs:
        site.add(0, work_us=work_us)
        site.add(1, work_us=work_us)
    site.pool.skip(site.first())
    rules = ClassRules(KeyRule(Order.SJF, 2.5))
    site.pool.reconfigure((rules, rules), strict=True)
    served = site.serve(6)
    assert [0, 0, 0, 1, 1, 1] == [waiter.class_index for waiter in served]
    assert [1000, 2000, 3000] * 2 == [waiter.work_us for waiter in served]


def test_a_waiter_cannot_be_in_two_places() -> None:
    """Filing, leaving, charging and closing each happen once."""
    site = Site(1.0)
    pool, waiter = site.pool, site.new()
    with pytest.raises(InvariantError):
        pool.remove(waiter)
    with pytest.raises(InvariantError):
        pool.skip(waiter)
    with pytest.raises(InvariantError):
        pool.settle(waiter, 1)
    with pytest.raises(InvariantError):
        pool.put_back(waiter)
    pool.add(waiter)
    with pytest.raises(InvariantError):
        pool.add(waiter)
    with pytest.raises(InvariantError):
        pool.charge(waiter, 0.0)
    pool.take(waiter, 0.0)
    with pytest.raises(InvariantError):
        pool.take(waiter, 0.0)
    with pytest.raises(InvariantError):
        pool.add(waiter)
    pool.settle(waiter, 1)
    with pytest.raises(InvariantError):
        pool.settle(waiter, 1)


def test_a_long_history_leaves_nothing_behind() -> None:
    """After everybody has left, no structure holds an entry, however they left."""
    draw = random.Random("history")
    site = Site(1.0, 2.0, order=Order.SJF, max_share=(0.4, 1.0))
    waiting: list[Waiter] = []
    charged: list[Waiter] = []
    for number in range(6000):
        what = draw.random()
        if what < 0.5:
            waiting.append(
                site.add(
                    draw.randrange(2), f"t{draw.randrange(200)}", draw.randint(1, 9999), draw.randint(1, 99)
                )
            )
        elif what < 0.7 and waiting:
            site.pool.remove(waiting.pop(draw.randrange(len(waiting))))
        elif what < 0.9 and waiting:
            waiter = site.first()
            site.pool.take(waiter, number / 50)
            waiting.remove(waiter)
            charged.append(waiter)
        elif charged:
            site.pool.settle(charged.pop(), draw.randint(1, 9999))
    for waiter in waiting:
        site.pool.remove(waiter)
    for waiter in charged:
        site.pool.settle(waiter, 0)
    for queue in site.pool.classes:
        site.serve(0)
        assert (0, 0, 0) == (queue.count, queue.work_us, queue.backlogs.units)
        assert all(tenant.parked for tenant in queue.tenants.values())
        assert len(queue.tenants) <= 200
        assert queue.order.first() is None
        assert 0 == len(queue.order)
    assert [] == list(site.pool)
    assert [] == site.pool._kv._blocks
