"""The waiters of one class: its tenants, and which of them is served next.

Tenants are flows in the fair time of their class. One is remembered while something of it waits or runs, and while its
finish tag is ahead of the fair time, which is what it owes; all others start anew, so that a name costs nothing once
its requests are over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from forebay.admission.fairness import FairTime, Flow, FlowOrder
from forebay.admission.ranking import Ranking
from forebay.admission.tenant_queue import KeyRule, TenantQueue
from forebay.admission.waiter import Arrivals, Waiter
from forebay.admission.work_ahead import Backlogs, weight_units


@dataclass(slots=True, eq=False)
class ClassRules:
    """How one class is served. Built from the settings; replaced whole."""

    key_rule: KeyRule
    weight: float = 1.0
    """Share among the classes; above zero."""
    max_share: float = 1.0
    """Share of recent work above which it is passed over while others wait; 1 is no cap."""
    floor: float = 0.0
    """With `strict`: share of recent work below which it is served before its rank; 0 is none."""
    may_shut: bool = False
    """At times it may not start (`ceilings`)."""


def has_shares(rules: tuple[ClassRules, ...], *, strict: bool) -> bool:
    """True if recent shares decide anything."""
    return any(of_class.max_share < 1.0 or (strict and of_class.floor > 0.0) for of_class in rules)


class ClassQueue(Flow):
    """The waiters of one class. Its state is for reading; `PoolQueue` changes it."""

    __slots__ = (
        "_arrivals",
        "_numbers",
        "_parked",
        "_returned",
        "backlogs",
        "burst",
        "count",
        "index",
        "kv",
        "order",
        "rules",
        "shut",
        "tenants",
        "time",
        "wants",
        "weight",
        "work_us",
    )

    def __init__(self, index: int, rules: ClassRules, kv: Ranking) -> None:
        super().__init__()
        self.index = index
        self.rules = rules
        self.weight = rules.weight
        self.burst = 0.0
        """Unused share, in µs ÷ weight, that it may have saved for later (`PoolQueue.allow_bursts`)."""
        self.shut = False
        """It may not start at present, and is passed over."""
        self.wants = True
        """What others are charged while it has waiters is held against them: it could use some of it (`ceilings`)."""
        self.kv = kv
        """Where its waiters stand by their KV need, with those of other classes."""
        self.count = 0
        """Requests waiting."""
        self.work_us = 0
        """Their expected work."""
        self.tenants: dict[str, TenantQueue] = {}
        """Those with requests waiting or in flight, and those whose finish tag is ahead of the fair time."""
        self.time = FairTime()
        self.order = FlowOrder()
        self.backlogs = Backlogs()
        self._arrivals = Arrivals()
        self._returned = Arrivals()
        """Those that came back after a failed attempt: few, but hardly in order, so they don't go with the many."""
        self._parked: list[tuple[float, int, TenantQueue]] = []
        """Idle tenants whose finish tag was ahead of the fair time when they were put here."""
        self._numbers = 0

    def tenant(self, name: str) -> TenantQueue:
        """The tenant of this name, new if it is not remembered."""
        tenant = self.tenants.get(name)
        if tenant is None:
            self._numbers += 1
            tenant = self.tenants[name] = TenantQueue(name, self._numbers)
        return tenant

    def reorder(self, tenant: TenantQueue) -> None:
        """The tenant's head or finish tag has changed."""
        self.order.put(tenant)
        first = self.order.first()
        self.head = first.head if first is not None else None

    def set_weight(self, tenant: TenantQueue, weight: float) -> None:
        """A request tells another weight of its tenant: the latest counts for what is predicted."""
        work_us = tenant.waiters.work_us
        tenant.bin = self.backlogs.move(tenant.bin, work_us, 0, tenant.weight_units)
        tenant.weight = weight
        tenant.weight_units = weight_units(weight)
        tenant.bin = self.backlogs.move(tenant.bin, 0, work_us, tenant.weight_units)

    def forget_if_idle(self, tenant: TenantQueue) -> None:
        """Drop a tenant of which nothing waits or runs, unless it is ahead of the fair time: then later."""
        if tenant.waiters.count or tenant.in_flight or tenant.parked:
            return
        if tenant.finish <= self.time.now:
            del self.tenants[tenant.name]
        else:
            tenant.parked = True
            heappush(self._parked, (tenant.finish, tenant.number, tenant))

    def sweep(self) -> None:
        """The fair time has moved: drop the idle tenants that it has reached."""
        parked = self._parked
        while parked and parked[0][0] <= self.time.now:
            tenant = heappop(parked)[2]
            tenant.parked = False
            self.forget_if_idle(tenant)

    def add(self, tenant: TenantQueue, waiter: Waiter) -> None:
        """File a waiter under one of its tenants. The caller goes on with `reorder`."""
        waiter.key = self.rules.key_rule.key(waiter)
        waiters = tenant.waiters
        old_us = waiters.work_us
        tenant.add(waiter)
        tenant.bin = self.backlogs.move(tenant.bin, old_us, waiters.work_us, tenant.weight_units)
        self.work_us += waiter.work_us
        self.count += 1
        (self._returned if waiter.front else self._arrivals).add(waiter)

    def remove(self, tenant: TenantQueue, waiter: Waiter) -> None:
        """Take a waiter out. The caller goes on with `reorder`, and `forget_if_idle`."""
        waiters = tenant.waiters
        old_us = waiters.work_us
        tenant.remove(waiter)
        tenant.bin = self.backlogs.move(tenant.bin, old_us, waiters.work_us, tenant.weight_units)
        self.work_us -= waiter.work_us
        self.count -= 1
        (self._returned if waiter.front else self._arrivals).remove(waiter)

    def parts_of(self, waiter: Waiter) -> tuple[float, float]:
        """(Part of what the class is served, part of what waits in it) that is of this one's tenant.

        By weight among the tenants that have work waiting, and its own. Both 1 where that is the only one.
        """
        tenant = self.tenants.get(waiter.tenant)
        own_us, others_units = 0, self.backlogs.units
        if tenant is not None and tenant.waiters.count:
            own_us = tenant.waiters.work_us
            others_units -= tenant.weight_units
        if own_us == self.work_us:
            return 1.0, 1.0
        units = weight_units(waiter.weight)
        return units / (units + others_units), own_us / self.work_us

    def tag_of(self, waiter: Waiter) -> float:
        """The finish tag that a request has, or would have, if it is the next of its tenant."""
        tenant = self.tenants.get(waiter.tenant)
        start = tenant.finish if tenant is not None and tenant.backlogged else self.time.now
        return start + waiter.work_us / waiter.weight

    def oldest(self) -> Waiter | None:
        """The waiter that arrived first."""
        one, other = self._arrivals.first, self._returned.first
        if one is None or (other is not None and other.sequence < one.sequence):
            return other
        return one

    def __iter__(self) -> Iterator[Waiter]:
        for tenant in self.tenants.values():
            yield from tenant.waiters
