"""The order of service against a slow copy of its rules that keeps everything in lists and adds up in fractions."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.class_queue import ClassRules
from forebay.admission.queues import PoolQueue
from forebay.admission.settings import Order
from forebay.admission.tenant_queue import KeyRule
from forebay.admission.waiter import Waiter
from forebay.admission.work_ahead import PER_OCTAVE

SOURCES = Path(__file__).parents[2] / "src"
TENANTS = ("ann", "bob", "cat", "dan")


@dataclass(eq=False)
class NaiveFlow:
    """A tenant or a class. Weights are powers of two, so that the fractions here and the floats there are the same."""

    finish: Fraction = Fraction(0)
    lifted: Fraction = Fraction(0)
    backlogged: bool = False
    due: Fraction = Fraction(0)


@dataclass(eq=False)
class NaiveLevel:
    """The fair time of one level."""

    now: Fraction = Fraction(0)
    served: Fraction = Fraction(0)

    def enter(self, flow: NaiveFlow, credit: Fraction) -> None:
        flow.due = max(flow.finish - self.now, Fraction(0))
        flow.finish = flow.lifted = max(flow.finish - flow.due, self.now - credit)
        flow.backlogged = True

    def leave(self, flow: NaiveFlow) -> None:
        flow.finish, flow.due, flow.backlogged = flow.finish + flow.due, Fraction(0), False

    def serve(self, flow: NaiveFlow, amount: Fraction, credit: Fraction = Fraction(0)) -> None:
        flow.finish = (flow.finish if flow.backlogged else max(flow.finish, self.now - credit)) + amount
        if abs(flow.due) > amount:
            part = flow.due - amount if flow.due > 0 else flow.due + amount
        else:
            part = max(flow.due / 16, min(self.now - flow.finish, flow.due * 0))
        flow.finish, flow.due = flow.finish + part, flow.due - part
        self.now, self.served = max(self.now, flow.finish), max(self.served, flow.finish)

    def correct(self, flow: NaiveFlow, amount: Fraction) -> None:
        flow.finish += amount
        if flow.backlogged:
            flow.finish = max(flow.finish, flow.lifted)

    def owe(self, flow: NaiveFlow, amount: Fraction) -> None:
        if flow.backlogged:
            flow.due = max(flow.due + amount, flow.lifted - flow.finish)
        else:
            flow.finish += amount


@dataclass(eq=False)
class NaivePool:
    """The rules of `queues`, `fairness` and `tenant_queue`, as slow as they read."""

    rules: tuple[ClassRules, ...]
    strict: bool
    bursts: list[int]
    waiting: list[Waiter] = field(default_factory=list)
    skipped: list[Waiter] = field(default_factory=list)
    fronts: list[Waiter] = field(default_factory=list)
    charges: list[tuple[int, float, float]] = field(default_factory=list)
    """Class, work and time of each charge that counts in the shares."""
    level: NaiveLevel = field(default_factory=NaiveLevel)
    now: float = 0.0
    walking: bool = False

    def __post_init__(self) -> None:
        self.flows = [NaiveFlow() for _ in self.rules]
        self.levels = [NaiveLevel() for _ in self.rules]
        self.tenants: dict[tuple[int, str], NaiveFlow] = {}

    def of(self, waiter: Waiter) -> NaiveFlow:
        return self.tenants.setdefault((waiter.class_index, waiter.tenant), NaiveFlow())

    def own(self, waiter: Waiter) -> Fraction:
        return Fraction(waiter.work_us) / Fraction(waiter.weight)

    def of_class(self, waiter: Waiter) -> Fraction:
        return Fraction(waiter.work_us) / Fraction(self.rules[waiter.class_index].weight)

    def key(self, waiter: Waiter) -> tuple[float, int]:
        rule = self.rules[waiter.class_index].key_rule
        if waiter in self.fronts:
            return (-math.inf, waiter.sequence)
        if rule.order is Order.FIFO:
            return (waiter.sequence, waiter.sequence)
        if rule.order is Order.EDF:
            return (waiter.deadline_s, waiter.sequence)
        bonus = math.log2(rule.short_weight) if waiter.short else 0.0
        return (math.log2(waiter.work_us / 1e6) + waiter.arrived_s / rule.aging_s - bonus, waiter.sequence)

    def add(self, waiter: Waiter, *, front: bool = False) -> None:
        self.restore()
        credit, burst = 1 if front else 0, Fraction(self.bursts[waiter.class_index])
        if not any(w.class_index == waiter.class_index for w in self.waiting):
            self.level.enter(self.flows[waiter.class_index], max(burst, credit * self.of_class(waiter)))
        if not self.of(waiter).backlogged:
            self.levels[waiter.class_index].enter(self.of(waiter), credit * self.own(waiter))
        if front:
            self.fronts.append(waiter)
        self.waiting.append(waiter)

    def remove(self, waiter: Waiter) -> None:
        self.waiting.remove(waiter)
        if waiter in self.skipped:
            self.skipped.remove(waiter)
        if waiter in self.fronts:
            self.fronts.remove(waiter)
        alike = [w for w in self.waiting if w.class_index == waiter.class_index]
        if not alike:
            self.level.leave(self.flows[waiter.class_index])
        if not any(w.tenant == waiter.tenant for w in alike):
            self.levels[waiter.class_index].leave(self.of(waiter))

    def charge(self, waiter: Waiter) -> None:
        self.levels[waiter.class_index].serve(self.of(waiter), self.own(waiter))
        burst = Fraction(self.bursts[waiter.class_index])
        self.level.serve(self.flows[waiter.class_index], self.of_class(waiter), burst)
        if any(w.class_index != waiter.class_index for w in self.waiting):
            self.charges.append((waiter.class_index, waiter.work_us, self.now))

    def begin(self, waiter: Waiter) -> None:
        """One that did not wait: whoever does was passed over."""
        if not self.walking:
            self.level.served = Fraction(0)
        self.charge(waiter)
        if not self.walking:
            for index in range(len(self.rules)):
                if index != waiter.class_index:
                    self.pass_over(index)

    def pass_over(self, index: int) -> None:
        """A class keeps a claim to one request, or to its burst."""
        if (head := self.head(index)) is not None:
            flow, claim = self.flows[index], max(self.of_class(head[2]), Fraction(self.bursts[index]))
            flow.finish = max(flow.finish, self.level.served - claim)

    def correct(self, waiter: Waiter, change_us: int, *, at_once: bool = False) -> None:
        index, level = waiter.class_index, self.levels[waiter.class_index]
        settle = level.correct if at_once else level.owe
        settle(self.of(waiter), Fraction(change_us) / Fraction(waiter.weight))
        self.level.correct(self.flows[index], Fraction(change_us) / Fraction(self.rules[index].weight))
        if waiter.in_window:
            self.charges.append((index, change_us, waiter.charged_s))

    def share(self, index: int) -> float:
        faded = [(of, work * math.exp((at - self.now) / 10.0)) for of, work, at in self.charges]
        total = sum(amount for _, amount in faded)
        return sum(amount for of, amount in faded if of == index) / total if total else 0.0

    def head(self, index: int) -> tuple[Fraction, int, Waiter] | None:
        """Tag and head of the tenant to serve next in a class."""
        heads: dict[str, Waiter] = {}
        for waiter in self.waiting:
            if waiter.class_index == index and waiter not in self.skipped:
                other = heads.get(waiter.tenant)
                if other is None or self.key(waiter) < self.key(other):
                    heads[waiter.tenant] = waiter
        tags = [(self.of(w).finish + self.own(w), w.sequence, w) for w in heads.values()]
        return min(tags) if tags else None

    def first(self) -> Waiter | None:
        """The waiter to serve next."""
        heads = [(index, self.head(index)) for index in range(len(self.rules))]
        there = [(index, head[2]) for index, head in heads if head is not None]
        total = sum(work for _, work, _ in self.charges) > 0
        fair = [(i, w) for i, w in there if not total or self.share(i) <= self.rules[i].max_share]
        candidates = fair or there
        if not candidates:
            return None
        if self.strict:
            low = [w for i, w in candidates if total and self.share(i) < self.rules[i].floor]
            return low[0] if low else candidates[0][1]
        return min((self.flows[i].finish + self.of_class(w), w.sequence, w) for i, w in candidates)[2]

    def skip(self, waiter: Waiter) -> None:
        self.skipped.append(waiter)
        self.walking = True

    def taken(self, waiter: Waiter) -> None:
        if not self.walking:
            self.level.served = self.levels[waiter.class_index].served = Fraction(0)

    def restore(self) -> None:
        if not self.walking:
            return
        skipped, self.skipped, self.walking = self.skipped, [], False
        passed = []
        for waiter in skipped:
            alike = [w for w in self.waiting if self.of(w) is self.of(waiter)]
            first = min(alike, key=self.key)
            if first in skipped:
                passed.append(first.class_index)
                flow, level = self.of(first), self.levels[first.class_index]
                flow.finish = max(flow.finish, level.served - self.own(first))
        for index in passed:
            self.pass_over(index)
        for level in (self.level, *self.levels):
            level.served = Fraction(0)


class_rules = st.builds(
    ClassRules,
    st.builds(KeyRule, st.sampled_from(Order), st.sampled_from([0.75, 2.5]), st.sampled_from([1.0, 3.0])),
    weight=st.sampled_from([0.5, 1.0, 4.0]),
    # No share of a few whole numbers is exactly this, so that rounding decides nothing.
    max_share=st.sampled_from([1.0, 1.0, 0.30173]),
    floor=st.sampled_from([0.0, 0.20173]),
)
some_bursts = st.lists(st.sampled_from([0, 0, 5_000, 90_000]), min_size=3, max_size=3)
operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["add"] * 4
            + ["take"] * 3
            + ["skip"] * 2
            + ["restore", "remove", "charge", "settle", "back", "recost", "kv", "now"]
        ),
        st.integers(0, 1000),
        st.integers(1, 40),
    ),
    min_size=10,
    max_size=90,
)


class Run:
    """The same operations on both."""

    def __init__(self, rules: tuple[ClassRules, ...], bursts: list[int], *, strict: bool) -> None:
        self.real = PoolQueue(rules, strict=strict)
        for queue, burst in zip(self.real.classes, bursts, strict=False):
            queue.burst = float(burst)
        self.naive = NaivePool(rules, strict, bursts)
        self.sequence = 0
        self.charged: list[Waiter] = []

    def new(self, number: int, size: int) -> Waiter:
        self.sequence += 1
        now = self.naive.now
        return Waiter(
            self.sequence,
            number % len(self.naive.rules),
            TENANTS[number // 7 % len(TENANTS)],
            (0.5, 1.0, 2.0)[number // 29 % 3],
            size * 1000,
            number % 90,
            now,
            now + number % 13,
            number % 2 == 0,
        )

    def do(self, what: str, number: int, size: int) -> None:
        real, naive = self.real, self.naive
        match what:
            case "now":
                naive.now += size / 4
            case "add" | "charge":
                waiter = self.new(number, size)
                if what == "add":
                    real.add(waiter)
                    naive.add(waiter)
                else:
                    naive.begin(waiter)
                    real.charge(waiter, naive.now)
                    self.charged.append(waiter)
            case "restore":
                real.restore()
                naive.restore()
            case "take" | "skip" if (first := real.first()) is not None:
                self.serve(first) if what == "take" else self.skip(first)
            case "kv" if (smallest := real.smallest_kv_waiter()) is not None:
                self.skip(smallest) if size % 3 else self.serve(smallest)
            case "remove" if naive.waiting:
                waiter = naive.waiting[number % len(naive.waiting)]
                real.remove(waiter)
                naive.remove(waiter)
            case "recost" if naive.waiting:
                waiter = naive.waiting[number % len(naive.waiting)]
                naive.restore()
                real.recost(waiter, size * 500, number % 70)
            case "settle" if self.charged:
                waiter = self.charged.pop(number % len(self.charged))
                naive.correct(waiter, size * 1000 - waiter.charged_us)
                real.settle(waiter, size * 1000)
            case "back" if self.charged:
                waiter = self.charged.pop(number % len(self.charged))
                naive.correct(waiter, -waiter.charged_us, at_once=True)
                naive.add(waiter, front=True)
                real.put_back(waiter)

    def serve(self, waiter: Waiter) -> None:
        self.naive.charge(waiter)
        self.naive.taken(waiter)
        self.naive.remove(waiter)
        self.real.take(waiter, self.naive.now)
        self.charged.append(waiter)

    def skip(self, waiter: Waiter) -> None:
        self.naive.skip(waiter)
        self.real.skip(waiter)

    def compare(self) -> None:
        real, naive = self.real, self.naive
        expected = naive.first()
        assert expected is real.first()
        unskipped = [w for w in naive.waiting if w not in naive.skipped]
        smallest = min(unskipped, key=lambda w: (w.kv_tokens, w.sequence), default=None)
        assert smallest is real.smallest_kv_waiter()
        assert len(naive.waiting) == len(real)
        assert sorted(w.sequence for w in naive.waiting) == sorted(w.sequence for w in real)
        for index, queue in enumerate(real.classes):
            mine = [w for w in naive.waiting if w.class_index == index]
            assert (len(mine), sum(w.work_us for w in mine)) == (queue.count, queue.work_us)
            assert min(mine, key=lambda w: w.sequence, default=None) is queue.oldest()
            flying = [w for w in self.charged if w.class_index == index]
            for name, tenant in queue.tenants.items():
                own = [w for w in mine if w.tenant == name]
                assert (len(own), sum(w.work_us for w in own)) == (
                    tenant.waiters.count,
                    tenant.waiters.work_us,
                )
                assert sum(w.tenant == name for w in flying) == tenant.in_flight
                owes = naive.tenants[index, name].finish > naive.levels[index].now
                assert own or tenant.in_flight or owes


@given(st.lists(class_rules, min_size=1, max_size=3), some_bursts, st.booleans(), operations)
def test_the_order_is_that_of_the_rules(
    rules: list[ClassRules], bursts: list[int], strict: bool, steps: list[tuple[str, int, int]]
) -> None:
    """After any history the next waiter, the sums and the smallest KV need are those of the slow copy, to the end."""
    run = Run(tuple(rules), bursts, strict=strict)
    for step in steps:
        run.do(*step)
        run.compare()
    run.do("restore", 0, 1)
    while run.naive.waiting:
        run.do("take", 0, 1)
        run.compare()
    for waiter in run.charged:
        run.real.settle(waiter, waiter.charged_us)


@given(st.lists(class_rules, min_size=1, max_size=3), some_bursts, st.booleans(), operations)
def test_a_walk_that_places_nobody_changes_nothing(
    rules: list[ClassRules], bursts: list[int], strict: bool, steps: list[tuple[str, int, int]]
) -> None:
    """Whoever is skipped is found again at the same place, and a whole walk shows everybody once."""
    run = Run(tuple(rules), bursts, strict=strict)
    for step in [*steps, ("skip", 0, 1), ("restore", 0, 1)]:
        run.do(*step)
    orders = []
    for _ in range(2):
        order = []
        while (waiter := run.real.first()) is not None:
            order.append(waiter.sequence)
            run.real.skip(waiter)
        run.real.restore()
        orders.append(order)
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == sorted(w.sequence for w in run.naive.waiting)


@given(
    st.booleans(),
    st.sampled_from([0.5, 2.0]),
    st.sampled_from([1.0, 3.0]),
    st.lists(
        st.tuples(
            st.sampled_from([(1, "one"), (1, "one"), (1, "two"), (0, "one")]),
            st.integers(1, 4000),
            st.floats(0.0, 0.5),
            st.booleans(),
            st.integers(0, 2),
            st.sampled_from([0, 0, 0, 1, 2, 5]),
        ),
        max_size=60,
    ),
)
def test_nobody_is_overtaken_for_longer_than_aging_allows(
    strict: bool,
    aging_s: float,
    short_weight: float,
    arrivals: list[tuple[tuple[int, str], int, float, bool, int, int]],
) -> None:
    """With sjf, a later arrival of its tenant overtakes one of r times its cost only if it came within aging × log2(r).

    So from that time on what is served before it of its tenant only grows less, in either order of the classes. And by
    the costs that all have then, where those who wait were priced anew.
    """
    rules = ClassRules(KeyRule(Order.SJF, aging_s, short_weight), floor=0.3)
    pool = PoolQueue((rules, rules), strict=strict)
    pool.allow_bursts(1e6, (3.0, 1.0))
    now, waiting = 0.0, list[Waiter]()

    def serve() -> None:
        first = pool.first()
        assert first is not None
        pool.take(first, now)
        waiting.remove(first)
        for other in waiting:
            same = (other.class_index, other.tenant) == (first.class_index, first.tenant)
            if same and other.arrived_s < first.arrived_s:
                ratio = other.work_us / first.work_us * (short_weight if first.short else 1.0)
                assert first.arrived_s - other.arrived_s <= aging_s * math.log2(ratio) + 1e-9

    for number, ((index, tenant), cost, gap_s, short, served, repriced) in enumerate(arrivals):
        now += gap_s
        for other in (
            waiting if repriced else ()
        ):  # not all by the same factor: law and sizes are learned apart
            pool.recost(other, other.work_us * (1 + (other.sequence + repriced) % 3) // 2 + 1, repriced)
        waiter = Waiter(number, index, tenant, 1.0, cost * 1000, 1, now, now, short)
        waiting.append(waiter)
        pool.add(waiter)
        for _ in range(min(served, len(waiting))):
            serve()
    while waiting:
        serve()


@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([0.0, 0.1, 0.6])), min_size=1, max_size=3
    ),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 10**7)), min_size=1, max_size=60),
    st.integers(0, 1000),
)
def test_work_ahead_is_the_fluid_sum_within_a_bin(
    shares: list[tuple[float, float]], strict: bool, sizes: list[tuple[int, int]], pick: int
) -> None:
    """Never below Σ min(backlog, A · w ÷ own w), taken over tenants and over classes, nor above it by over 2^(1/8).

    With ranks it is what the higher ones have waiting, at most what is left to them while the own floor is kept.
    """
    weights = [weight for weight, _ in shares]
    rules = tuple(ClassRules(KeyRule(Order.SJF, 2.5), weight=w, floor=floor) for w, floor in shares)
    pool = PoolQueue(rules, strict=strict)
    tenant_weights = {name: 0.25 * 3.0**number for number, name in enumerate(TENANTS)}
    waiters = []
    for number, (which, work_us) in enumerate(sizes):
        name = TENANTS[which // 3 % 4]
        index, now = which % len(weights), number / 10
        waiters.append(
            Waiter(number, index, name, tenant_weights[name], work_us, 1, now, now, which % 2 == 0)
        )
    arrival = waiters[pick % len(waiters)]
    for waiter in waiters:
        if waiter is not arrival:
            pool.add(waiter)

    def exact(slack: float) -> float:
        key = pool.classes[arrival.class_index].rules.key_rule.key
        backlogs: dict[tuple[int, str], int] = {}
        own = arrival.work_us
        for w in waiters:
            if w is not arrival:
                where = (w.class_index, w.tenant)
                backlogs[where] = backlogs.get(where, 0) + w.work_us
                if where == (arrival.class_index, arrival.tenant) and (key(w), w.sequence) < (
                    key(arrival),
                    arrival.sequence,
                ):
                    own += w.work_us
        others = sum(
            min(backlog, own * tenant_weights[name] / arrival.weight)
            for (index, name), backlog in backlogs.items()
            if index == arrival.class_index and name != arrival.tenant
        )
        upto = own + others * slack
        total = upto - arrival.work_us
        of_classes = [sum(b for (of, _), b in backlogs.items() if of == i) for i in range(len(weights))]
        if strict:
            higher, floor = sum(of_classes[: arrival.class_index]), rules[arrival.class_index].floor
            return total + (min(higher, upto * (1 - floor) / floor) if floor else higher)
        for index, weight in enumerate(weights):
            if index != arrival.class_index:
                total += min(of_classes[index], upto * weight / weights[arrival.class_index])
        return total

    ahead_us, requests = pool.work_ahead(arrival)
    assert exact(1.0) - 1 <= ahead_us <= exact(2 ** (1 / PER_OCTAVE)) + 1
    assert 0 <= requests < len(waiters)
    pool.add(arrival)
    assert (ahead_us, requests) == pool.work_ahead(arrival)


_SCRIPT = """
import hashlib, random
from forebay.admission.queues import ClassRules, PoolQueue
from forebay.admission.settings import Order
from forebay.admission.tenant_queue import KeyRule
from forebay.admission.waiter import Waiter

draw, digest = random.Random("order"), hashlib.sha256()
pool = PoolQueue(tuple(ClassRules(KeyRule(order, 2.5), weight=w) for w, order in enumerate(Order, 1)))
charged = []
for number in range(3000):
    what = draw.random()
    if what < 0.5:
        tenant = f"tenant-{draw.randint(0, 40)}"
        pool.add(Waiter(number, draw.randint(0, 2), tenant, 1.0, draw.randint(1, 9) * 1000, 5, 0.0, 9.0, False))
    elif what < 0.7 and (first := pool.first()) is not None:
        pool.take(first, 0.0)
        charged.append(first)
        digest.update(str(first.sequence).encode())
    elif what < 0.8 and charged:
        pool.settle(charged.pop(), 4000)
    elif what < 0.9 and charged:
        pool.put_back(charged.pop())
    elif (first := pool.first()) is not None:
        pool.skip(first)
        digest.update(str(pool.smallest_kv_waiter()).split(" at ")[0].encode())
        pool.restore()
digest.update(repr([waiter.sequence for waiter in pool]).encode())
while (first := pool.first()) is not None:
    pool.take(first, 0.0)
    digest.update(str(first.sequence).encode())
print(digest.hexdigest())
"""


def test_the_order_does_not_depend_on_the_hash_seed() -> None:
    """Equal costs, so that ties decide: the same history gives the same order in every process."""
    digests = [
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SOURCES)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    ]
    assert digests[0] == digests[1] == digests[2] != ""
