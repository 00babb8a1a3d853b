"""The waiters of one tenant of one class, and the order among them.

The order is by a key that does not change while a request waits (`KeyRule`), ties by arrival. A request that was
dispatched before and came back is before all others.
"""

from __future__ import annotations

from math import log2
from typing import Final

from forebay.admission.fairness import Flow
from forebay.admission.ranking import Ranking
from forebay.admission.settings import Order
from forebay.admission.waiter import Waiter

_FRONT: Final = float("-inf")
_SJF: Final = Order.SJF
_FIFO: Final = Order.FIFO
_EDF: Final = Order.EDF


class KeyRule:
    """What a waiter's key is.

    For `sjf` it is log2(cost in endpoint-seconds) + arrival ÷ aging, less log2(short_weight) for a short request. So a
    request of r times the cost of later ones is overtaken by them for at most aging × log2(r) seconds, and by short
    ones for aging × log2(r · short_weight): that is how long anybody can starve behind requests of its own tenant.
    """

    __slots__ = ("_bonus", "aging_s", "order", "short_weight")

    def __init__(self, order: Order, aging_s: float, short_weight: float = 1.0) -> None:
        """`aging_s` is the wait that is worth one halving of the cost; it and `short_weight` are above zero."""
        self.order = order
        self.aging_s = aging_s
        self.short_weight = short_weight
        self._bonus = log2(short_weight)

    def key(self, waiter: Waiter) -> float:
        """The key of a waiter, smallest first."""
        if waiter.front:
            return _FRONT
        if self.order is _SJF:
            work_us = waiter.work_us
            came_s = waiter.arrived_s + waiter.shift_s
            key = log2(work_us / 1e6 if work_us > 0 else 1e-6) + came_s / self.aging_s
            return key - self._bonus if waiter.short else key
        if self.order is _EDF:
            by_s = waiter.start_by_s if waiter.start_by_s < waiter.deadline_s else waiter.deadline_s
            return by_s + waiter.shift_s
        return waiter.arrived_s + waiter.shift_s

    def same_as(self, other: KeyRule) -> bool:
        """True if both give the same keys."""
        return (
            self.order is other.order
            and self.aging_s == other.aging_s
            and self.short_weight == other.short_weight
        )


class TenantQueue(Flow):
    """The waiters of one tenant of one class. As a flow it is what competes with the other tenants of the class."""

    __slots__ = ("bin", "in_flight", "name", "number", "parked", "waiters", "weight", "weight_units")

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.name = name
        self.number = number
        """Place in the order in which tenants were first seen; makes ties between them come out the same always."""
        self.waiters = Ranking()
        self.weight = 0.0
        """As its latest request says."""
        self.weight_units = 0
        self.bin = -1
        """Where `work_ahead.Backlogs` has it."""
        self.in_flight = 0
        """Requests charged and not settled."""
        self.parked = False
        """True while `ClassQueue` waits for the fair time to reach it."""

    def add(self, waiter: Waiter) -> None:
        """File a waiter whose key is set. Not during a walk."""
        waiters = self.waiters
        waiters.add(waiter.key, waiter)
        self.head = waiters.head

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out, from wherever it stands. Raises: InvariantError if it is not here."""
        waiters = self.waiters
        waiters.remove(waiter.key, waiter)
        self.head = waiters.head

    def pass_over(self, walk: int) -> None:
        """Go on from the head to the next waiter that was not passed over in this walk."""
        self.waiters.pass_over(walk)
        self.head = self.waiters.head

    def restore(self) -> None:
        """The walk is over: those passed over count again."""
        self.waiters.restore()
        self.head = self.waiters.head
