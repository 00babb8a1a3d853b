"""Shares: how far what two classes or two tenants are served may differ, and for how long anybody may be overtaken.

The bounds are those of `docs/explanation/order.md`, over everything that can happen to those who compete.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.class_queue import ClassRules
from forebay.admission.queues import PoolQueue
from forebay.admission.settings import Order
from forebay.admission.tenant_queue import KeyRule
from forebay.admission.waiter import Waiter

FLOWS: Final = 3
ROUNDING: Final = 1e-6

phases = st.lists(
    st.tuples(
        st.sets(st.integers(0, FLOWS - 1), min_size=1),  # who has work; the others idle
        st.lists(st.integers(1, 6), min_size=FLOWS, max_size=FLOWS),  # what a request of each costs
        st.integers(3, 50),  # so many are served
        st.sampled_from(["", "", "once", "hinder", "rate"]),
        st.integers(0, FLOWS - 1),
        st.floats(0.0, 2.0),  # true cost ÷ estimate
    ),
    min_size=4,
    max_size=16,
)
weights = st.lists(st.floats(0.5, 4.0), min_size=FLOWS, max_size=FLOWS)
seconds = st.lists(st.sampled_from([0.0, 0.25, 3.0, 10.0]), min_size=FLOWS, max_size=FLOWS)
Phase = tuple[set[int], list[int], int, str, int, float]
PLENTY: Final = 12
"""Requests of one that is never without."""


@dataclass(eq=False)
class Competitor:
    """What is known of one class or tenant. All amounts are µs ÷ weight."""

    weight: float
    allowed: float = 0.0
    """What it may save now."""
    served: float = 0.0
    """True costs of what it was served."""
    waiting: list[Waiter] = field(default_factory=list)
    largest: float = 0.0
    """The largest cost since its requests began to wait."""
    burst: float = 0.0
    """The largest allowance since then."""
    error: float = 0.0
    """By how much the estimates of what it has in flight are wrong."""
    worst: float = 0.0
    """The most that this ever was."""

    @property
    def slack(self) -> float:
        return max(self.largest, self.burst)


class Contest:
    """Three classes, or three tenants of a class beside a class that comes first, and what each was served."""

    def __init__(self, pool: PoolQueue, weights: list[float], *, by_class: bool, exact: bool) -> None:
        self.pool = pool
        self.by_class = by_class
        self.exact = exact
        self.flows = [Competitor(weight) for weight in weights]
        self.truth: dict[int, int] = {}
        self.in_flight: deque[Waiter] = deque()
        self.sequence = itertools.count()
        self.seconds: tuple[float, ...] = ()
        self.hindered: int | None = None
        self.leads: dict[tuple[int, int], tuple[float, float]] = {}
        """Of each over each whose requests wait and could be placed: by how much it was ahead at least in that time,
        and the first one's largest allowance or cost in it.
        """

    def live(self, phase: Phase) -> None:
        """One phase: some have more work than is done, the others idle, and something happens to one of them."""
        busy, costs, served, what, which, ratio = phase
        for number, flow in enumerate(self.flows):
            if number not in busy:
                for waiter in list(flow.waiting):
                    self.pool.remove(waiter)
                flow.waiting.clear()
        self.note()
        self.happen(what, which, costs[which], served, ratio)
        for _ in range(served):
            for number in sorted(busy):
                while len(self.flows[number].waiting) < PLENTY:
                    self.come(number, costs[number], ratio)
            self.note()
            first = self.pool.first()
            assert first is not None
            self.start(first)
            if len(self.in_flight) > served % 7:
                self.end(self.in_flight.popleft())

    def happen(self, what: str, which: int, cost: int, count: int, ratio: float) -> None:
        """Work starts at once, one cannot be placed, or the pool drains faster or slower."""
        if what == "hinder":
            self.hinder(which, count)
        elif what == "rate" and self.by_class:
            self.set_rate(count)
        elif what == "once":
            for _ in range(count):
                if self.by_class or not len(self.pool):
                    waiter = self.new(which, cost, ratio)
                    self.pool.charge(waiter, 0.0)
                    self.count(waiter)
                    self.leads.clear()  # it passed those who wait, so they could not be placed
        self.note()

    def set_rate(self, ms_per_s: int) -> None:
        """The allowances are so many seconds' worth of this."""
        self.pool.allow_bursts(ms_per_s * 1000.0, self.seconds)
        rate = ms_per_s * 1000.0 / sum(flow.weight for flow in self.flows)
        for flow, burst_s in zip(self.flows, self.seconds, strict=True):
            flow.allowed = rate * burst_s
            flow.burst = max(flow.burst, flow.allowed)

    def new(self, flow: int, cost: int, ratio: float) -> Waiter:
        number = next(self.sequence)
        name, weight = ("all", 1.0) if self.by_class else (str(flow), self.flows[flow].weight)
        index = flow if self.by_class else 1
        self.truth[number] = cost * 1000 if self.exact else int(cost * 1000 * ratio)
        return Waiter(number, index, name, weight, cost * 1000, 1, number / 8, number / 8 + cost, False)

    def come(self, flow: int, cost: int, ratio: float) -> None:
        waiter = self.new(flow, cost, ratio)
        self.wait(waiter)
        self.pool.add(waiter)

    def wait(self, waiter: Waiter) -> None:
        flow = self.flow(waiter)
        cost = waiter.work_us / flow.weight
        if not flow.waiting:
            flow.largest = 0.0
            flow.burst = flow.allowed
        flow.largest = max(flow.largest, cost)
        flow.waiting.append(waiter)

    def start(self, waiter: Waiter) -> None:
        self.pool.take(waiter, 0.0)
        if waiter.tenant != "first":
            self.flow(waiter).waiting.remove(waiter)
            self.count(waiter)
            self.note(waiter)

    def hinder(self, flow: int, count: int) -> None:
        """Nothing of this one can be placed, and of the others so many are."""
        self.hindered = flow
        while count and (first := self.pool.first()) is not None:
            if first.tenant != "first" and self.flow(first) is self.flows[flow]:
                self.pool.skip(first)
            else:
                self.start(first)
                count -= 1
        self.pool.restore()
        self.hindered = None

    def count(self, waiter: Waiter) -> None:
        flow, truth_us = self.flow(waiter), self.truth[waiter.sequence]
        flow.served += truth_us / flow.weight
        flow.error += abs(waiter.work_us - truth_us) / flow.weight
        flow.worst = max(flow.worst, flow.error)
        self.in_flight.append(waiter)

    def end(self, waiter: Waiter) -> None:
        """Its true cost is known; one that took nothing has failed, and comes back."""
        flow, truth_us = self.flow(waiter), self.truth[waiter.sequence]
        flow.error -= abs(waiter.work_us - truth_us) / flow.weight
        if truth_us:
            self.pool.settle(waiter, truth_us)
        else:
            self.truth[waiter.sequence] = waiter.work_us
            self.wait(waiter)
            self.pool.put_back(waiter)

    def flow(self, waiter: Waiter) -> Competitor:
        return self.flows[waiter.class_index if self.by_class else int(waiter.tenant)]

    def note(self, started: Waiter | None = None) -> None:
        """Take in who waits, and by how much each is ahead of each that does. A wait's last start belongs to it."""
        for pair in itertools.permutations(range(FLOWS), 2):
            one, other = (self.flows[number] for number in pair)
            if self.hindered in pair:
                self.leads.pop(pair, None)
                continue
            if pair in self.leads or other.waiting:
                lead = one.served - other.served
                least, slack = self.leads.get(pair, (lead, 0.0))
                if one.waiting or (started is not None and self.flow(started) is one):
                    slack = max(slack, one.slack)
                least = min(least, lead)
                self.leads[pair] = least, slack
                bound = slack + other.slack + 3.0 * (one.worst + other.worst)
                if not (self.by_class or self.exact):
                    bound += 2.0 * (
                        slack + other.slack
                    )  # what may be due from one and to the other, at both ends
                assert lead - least <= bound + ROUNDING * (1.0 + bound)
            if not other.waiting:
                self.leads.pop(pair, None)


@pytest.mark.parametrize("exact", [True, False])
@given(st.sampled_from(Order), weights, seconds, phases)
def test_classes_differ_by_no_more_than_their_bursts_or_largest_requests(
    exact: bool, order: Order, weights: list[float], seconds: list[float], history: list[Phase]
) -> None:
    """No class is served more, by weight, than another one over any time in which that has requests waiting that could
    be placed, but for those: whatever was before, and whether the one idles now and then. In true costs three times the
    errors of what is in flight at one time come besides.
    """
    pool = PoolQueue(tuple(ClassRules(KeyRule(order, 2.5), weight=weight) for weight in weights))
    contest = Contest(pool, weights, by_class=True, exact=exact)
    contest.seconds = tuple(seconds)
    contest.set_rate(20)
    for phase in history:
        contest.live(phase)


@pytest.mark.parametrize("strict", [True, False])
@given(st.sampled_from(Order), weights, st.booleans(), phases)
def test_tenants_differ_by_no_more_than_their_largest_requests(
    strict: bool, order: Order, weights: list[float], exact: bool, history: list[Phase]
) -> None:
    """The same for tenants, who save nothing, in either order of the classes: another one comes first at times.

    In true costs two of the largest requests of each come besides: so much may be due from one and to the other.
    """
    rules = ClassRules(KeyRule(order, 2.5), floor=0.5)
    pool = PoolQueue((rules, rules), strict=strict)
    pool.allow_bursts(1e6, (10.0, 10.0))
    contest = Contest(pool, weights, by_class=False, exact=exact)
    for number, phase in enumerate(history):
        pool.add(Waiter(10**6 + number, 0, "first", 1.0, phase[2] * 1000, 1, 0.0, 1.0, False))
        contest.live(phase)


@given(
    st.sampled_from([Order.SJF, Order.EDF]),
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 1), st.integers(6, 9)), min_size=2, max_size=12),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2)), min_size=8, max_size=60),
    st.integers(1, 9),
)
def test_before_a_quiet_tenants_request_others_are_served_their_largest_and_its_cost(
    order: Order,
    weights: list[float],
    first: list[tuple[int, int]],
    served: int,
    later: list[tuple[int, int]],
    cost: int,
) -> None:
    """Each other one, divided by its weight; also where small requests that come later stand first of its own."""
    pool = PoolQueue((ClassRules(KeyRule(order, 10.0)),))
    largest, work, sequence = [0.0] * 3, [0.0] * 3, itertools.count(1)

    def add(tenant: int, units: int, now: float) -> Waiter:
        work_us = units * 1000
        waiter = Waiter(next(sequence), 0, str(tenant), weights[tenant], work_us, 1, now, units, False)
        largest[tenant] = max(largest[tenant], work_us / waiter.weight)
        pool.add(waiter)
        return waiter

    def serve() -> Waiter:
        waiter = pool.first()
        assert waiter is not None
        pool.take(waiter, 0.0)
        work[int(waiter.tenant)] += waiter.work_us / waiter.weight
        return waiter

    for tenant, units in first:
        add(tenant, units, 0.0)
    for _ in range(min(served, len(first))):
        serve()
    for tenant, units in later:
        add(tenant, units, 1.0)
    work[:] = [0.0] * 3
    quiet = add(2, cost, 1.0)
    while serve() is not quiet:
        pass
    own = quiet.work_us / quiet.weight
    for tenant in (0, 1):
        assert work[tenant] <= largest[tenant] + own + ROUNDING
