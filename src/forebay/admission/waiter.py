"""One waiting request as the order of service sees it, and the order of arrival.

A `Waiter` holds what the order needs to know of a request and what it has noted down about it; it knows nothing of
engines, clients or outcomes. The core's own record of a request derives from it. (The other way round, a waiter
inside the record that points back to it, would be a reference cycle for each request.)
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.admission.groups import Member


class Waiter:
    """A request that waits, or has been dispatched and not yet settled.

    The first group is the caller's, and must not change while the waiter is filed (`PoolQueue.recost` changes costs).
    The second is the queue's own.
    """

    __slots__ = (
        "arrived_s",
        "charged",
        "charged_s",
        "charged_us",
        "class_index",
        "deadline_s",
        "front",
        "in_window",
        "key",
        "kv_tokens",
        "law_factor",
        "member",
        "older",
        "sequence",
        "shift_s",
        "short",
        "start_by_s",
        "tenant",
        "waiting",
        "walk",
        "weight",
        "work_us",
        "younger",
    )

    def __init__(  # noqa: PLR0917 - by position: one is built for each request
        self,
        sequence: int,
        class_index: int,
        tenant: str,
        weight: float,
        work_us: int,
        kv_tokens: int,
        arrived_s: float,
        deadline_s: float,
        short: bool,
    ) -> None:
        self.sequence = sequence
        """Place in the order of arrival; never given twice."""
        self.class_index = class_index
        """Rank of its class, 0 is most important."""
        self.tenant = tenant
        self.weight = weight
        """Share of its tenant among the tenants of the class; above zero."""
        self.work_us = work_us
        """Expected cost in µs of the reference endpoint."""
        self.kv_tokens = kv_tokens
        self.arrived_s = arrived_s
        """When it first arrived: a failed attempt does not make it younger."""
        self.deadline_s = deadline_s
        self.short = short
        """True if its answer is expected to be shorter than what its class calls short."""

        self.start_by_s = inf
        """When it must start for its whole answer to be there in time, where that matters (`edf`); else infinite."""
        self.shift_s = 0.0
        """In the order of its tenant it counts as if it had come so much later."""
        self.key = 0.0
        """Place inside its tenant, smallest first; set when it is filed."""
        self.front = False
        """True if it was dispatched before and came back."""
        self.waiting = False
        """True while it is filed."""
        self.walk = 0
        """The last walk in which it was passed over."""
        self.older: Waiter | None = None
        self.younger: Waiter | None = None
        """Its neighbours in the order of arrival."""
        self.charged = False
        self.charged_us = 0
        self.charged_s = 0.0
        self.law_factor = 1.0
        """What requests cost by the law that was learned since it started, over what they cost then."""
        self.in_window = False
        """True if the charge counts in the shares of its class."""
        self.member: Member | None = None
        """Who was charged for it among the pools of its group; None if no other one waited."""

    def __repr__(self) -> str:
        return f"Waiter({self.sequence}, class={self.class_index}, tenant={self.tenant!r}, work_us={self.work_us})"


class Arrivals:
    """Filed waiters in the order of their arrival. Each step is O(1) if they are filed in that order."""

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first: Waiter | None = None
        """The one that arrived first."""
        self.last: Waiter | None = None

    def add(self, waiter: Waiter) -> None:
        """File a waiter behind all that arrived before it."""
        older, younger = self.last, None
        while older is not None and older.sequence > waiter.sequence:
            younger, older = older, older.older
        waiter.older, waiter.younger = older, younger
        if older is None:
            self.first = waiter
        else:
            older.younger = waiter
        if younger is None:
            self.last = waiter
        else:
            younger.older = waiter

    def remove(self, waiter: Waiter) -> None:
        """Take out a waiter, from wherever it stands. It must be here."""
        older, younger = waiter.older, waiter.younger
        if older is None:
            self.first = younger
        else:
            older.younger = younger
        if younger is None:
            self.last = older
        else:
            younger.older = older
        waiter.older = waiter.younger = None
