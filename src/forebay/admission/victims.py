"""Who of those that wait would go first: waiters of one class by the slot of time they are in, and by their tenant.

A `Bucket` holds the waiters of one slot of time: their work, their largest, and a heap of those that may be displaced.
Each of these is also in the `Pile` of its tenant in that slot, so that a tenant's first to go up to any slot is found
without asking the others. Inside a heap the order is the lowest value per work, then the youngest; that a tenant above
its fair share goes first is not in it, since that changes with every event (`tenant_shares`).

Nothing is taken out of a heap when it leaves: it is passed by when it comes to the top, and swept out when a bucket
holds more that have left than that wait. Nothing here knows a rule or chooses a bucket: `feasibility` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, TypeAlias

from forebay.admission.errors import invariant
from forebay.admission.work_ahead import WEIGHT_UNITS

GARBAGE: Final = 16
"""A heap may always hold as many that have left, and beyond that no more than twice as many as wait."""


@dataclass(slots=True, eq=False)
class Entry:
    """One waiter. It is filed once; when its work or its deadline changes, it leaves and a new one is filed."""

    start_by_s: float
    """When it must have started; infinite if it may wait for ever."""
    work_us: int
    """What it is expected to take, as booked. Not changed while it is filed."""
    value: float
    """Of meeting its objective."""
    sequence: int
    """Order of arrival: the larger, the younger. Used once only."""
    protected: bool
    """Never displaced. May be set at any time, and not taken back."""
    tenant: str
    """Whose it is."""
    owner: object
    """Whatever the caller knows it by."""
    firm_from_s: float = inf
    """After that it is not displaced (more than half its budget is gone)."""
    weight_units: int = WEIGHT_UNITS
    """Weight of its tenant, in the units of `work_ahead`."""
    bucket: Bucket | None = None
    """Where it is filed. Kept by `DeadlineBuckets`, as all below."""
    share: TenantShare | None = None
    """Its tenant's part of what waits in the class."""
    was_filed: bool = False

    @property
    def density(self) -> float:
        """Its value per work: the lowest goes first."""
        return self.value / self.work_us if self.work_us > 0 else inf


Victim: TypeAlias = tuple[float, int, int, Entry]
"""Value per work, minus sequence, number: the smallest goes first. The number decides before entries: a waiter that
was filed anew has left an entry of the same sequence behind."""
Size: TypeAlias = tuple[int, int, Entry]
"""Minus work, number."""


class TenantShare:
    """What waits of one tenant in one class. For `TenantShares` and for buckets."""

    __slots__ = ("bin", "count", "name", "piles", "units", "work_us")

    def __init__(self, name: str) -> None:
        self.name = name
        self.units = 0
        """Its weight, as its latest request says."""
        self.work_us = 0
        self.count = 0
        """Requests."""
        self.bin = -1
        """Where `TenantShares` lists it; -1 if nowhere, for it has nobody who may be displaced."""
        self.piles: dict[Bucket, Pile] = {}

    def first_pile(self, now: float, last: Bucket) -> Pile | None:
        """The pile whose top it would lose first, up to this bucket; None if none of its own may be displaced."""
        best: Pile | None = None
        for pile in self.piles.values():
            victims = pile.victims
            # What is found under a top that has left goes later still.
            if not victims or (best is not None and victims[0] > best.victims[0]):
                continue
            bucket = pile.bucket
            if bucket.end_s > last.end_s or (bucket.end_s == last.end_s and bucket.key > last.key):
                continue
            if pile.clean(now) and (best is None or victims[0] < best.victims[0]):
                best = pile
        return best


class Pile:
    """Those of one tenant in one bucket who may be displaced. For buckets alone."""

    __slots__ = ("bucket", "share", "victims")

    def __init__(self, bucket: Bucket, share: TenantShare) -> None:
        self.bucket = bucket
        self.share = share
        self.victims: list[Victim] = []
        """A heap, with some that have left."""

    def clean(self, now: float) -> bool:
        """Bring the first to go to the top. False if there is none."""
        victims, bucket = self.victims, self.bucket
        while victims:
            if may_go(victims[0][3], bucket, now):
                return True
            heappop(victims)
        return False


class Bucket:
    """Waiters of one slot of time. For `DeadlineBuckets` alone."""

    __slots__ = (
        "_in_piles",
        "_number",
        "_piles",
        "count",
        "end_s",
        "key",
        "largest_us",
        "latest_s",
        "sizes",
        "victims",
        "work_us",
    )

    def __init__(self, key: int, end_s: float) -> None:
        self.key = key
        self.end_s = end_s
        self.latest_s = -inf
        """No start-by here is later. Kept when that waiter leaves: it stays a bound."""
        self._number = 0
        """Entries ever filed here."""
        self.work_us = 0
        self.count = 0
        self.largest_us = 0
        """Largest work of one waiter, exactly: victims are often the largest, and a bound would hide the rest."""
        self.victims: list[Victim] = []
        """A heap of those that may be displaced, with some that have left."""
        self.sizes: list[Size] = []
        """A heap of all, largest first, with some that have left."""
        self._piles: list[Pile] = []
        """The same as `victims`, by tenant."""
        self._in_piles = 0
        """As many as were put there, and as piles were begun, since they were swept."""

    def file(self, entry: Entry) -> None:
        """Take an entry in, whose share is set."""
        entry.bucket = self
        work_us = entry.work_us
        self.work_us += work_us
        self.count += 1
        if entry.start_by_s > self.latest_s:
            self.latest_s = entry.start_by_s
        if work_us > self.largest_us:
            self.largest_us = work_us
        self._number += 1
        heappush(self.sizes, (-work_us, self._number, entry))
        if not entry.protected:
            victim = (entry.density, -entry.sequence, self._number, entry)
            heappush(self.victims, victim)
            self.pile_up(victim)

    def pile_up(self, victim: Victim) -> None:
        """Put a victim on the pile of its tenant."""
        share = victim[3].share
        if share is None:
            return
        pile = share.piles.get(self)
        if pile is None:
            pile = share.piles[self] = Pile(self, share)
            self._piles.append(pile)
            self._in_piles += 1
        heappush(pile.victims, victim)
        self._in_piles += 1

    def pass_over(self, pile: Pile) -> None:
        """Take the top off a pile of this bucket, to be put there again by `pile_up`."""
        heappop(pile.victims)
        self._in_piles -= 1

    def drop(self, entry: Entry) -> None:
        """Let an entry go; others stay."""
        entry.bucket = None
        self.work_us -= entry.work_us
        self.count -= 1
        if self.work_us < 0:
            invariant(False, f"a waiter's work changed while it was filed: {entry.owner!r}")
        if entry.work_us == self.largest_us:
            self._find_largest()
        keep = 2 * self.count + GARBAGE
        if len(self.sizes) > keep:
            self.sizes = [size for size in self.sizes if size[2].bucket is self]
            heapify(self.sizes)
        if len(self.victims) > keep:
            self.victims = [victim for victim in self.victims if victim[3].bucket is self]
            heapify(self.victims)
        if self._in_piles > 2 * keep:
            self._sweep_piles()

    def close(self) -> None:
        """Nobody is here any more."""
        for pile in self._piles:
            pile.share.piles.pop(self, None)
        self._piles = []

    def first(self, now: float) -> Victim | None:
        """Whom to give up first; None if nobody here may be displaced."""
        victims = self.victims
        while victims:
            if may_go(victims[0][3], self, now):
                return victims[0]
            heappop(victims)  # it is gone, or firm for good
        return None

    def verify(self) -> None:
        """Check that the totals are the sums of their parts. Raises: InvariantError. For tests and dumps."""
        entries = [size[2] for size in self.sizes if size[2].bucket is self]
        work = [entry.work_us for entry in entries]
        invariant(self.count == len(entries) > 0, f"bucket {self.key} counts {self.count}")
        invariant(self.work_us == sum(work), f"bucket {self.key} holds {self.work_us} µs")
        invariant(self.largest_us == max(work), f"bucket {self.key} has a larger waiter")
        latest_s = max(entry.start_by_s for entry in entries)
        invariant(self.latest_s >= latest_s, f"bucket {self.key} has a later waiter")
        keep = 2 * self.count + GARBAGE
        invariant(len(self.sizes) <= keep, f"bucket {self.key} has garbage")
        in_piles = sum(len(pile.victims) + 1 for pile in self._piles)
        invariant(in_piles <= self._in_piles <= 2 * keep + 2, f"bucket {self.key} has garbage in piles")
        for pile in self._piles:
            invariant(pile.share.piles.get(self) is pile, f"bucket {self.key} has a pile that is not found")
        piled = {victim[2] for pile in self._piles for victim in pile.victims}
        for _, _, number, entry in self.victims:  # those that may get firm may be out of one heap already
            if entry.bucket is self and not entry.protected and entry.firm_from_s == inf:
                invariant(number in piled, f"bucket {self.key} lacks a waiter in the piles")

    def _find_largest(self) -> None:
        sizes = self.sizes
        while sizes and sizes[0][2].bucket is not self:
            heappop(sizes)
        self.largest_us = -sizes[0][0] if sizes else 0

    def _sweep_piles(self) -> None:
        piles, self._piles = self._piles, []
        self._in_piles = 0
        for pile in piles:
            pile.victims = [victim for victim in pile.victims if victim[3].bucket is self]
            if pile.victims:
                heapify(pile.victims)
                self._piles.append(pile)
                self._in_piles += len(pile.victims) + 1
            else:
                del pile.share.piles[self]


def may_go(entry: Entry, bucket: Bucket, now: float) -> bool:
    """Is it still here, and may it be displaced? Once that is false it stays so."""
    return entry.bucket is bucket and not entry.protected and now <= entry.firm_from_s
