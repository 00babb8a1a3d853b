"""Which tenants of a class have more waiting than their fair share.

    above its share    work of it that waits  >  its weight ÷ weight of all tenants with work waiting
                                                 × work of all that waits

Victims come from such tenants first. With one tenant none is above. The sums are of integers, and the comparison is
exact whenever it is made: when a victim is chosen, not when a waiter was filed. One request can take any number of
tenants above their share or below it, so a mark on each waiter would be out of date with the next event.

Tenants who have somebody that may be displaced are listed in bins of work ÷ weight, eight to the octave. So those above
their share, which is one line through these bins, are found from the top, those furthest above it first (to 9 %),
without looking at the others. An update costs O(1), whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator

from forebay.admission.errors import invariant
from forebay.admission.victims import TenantShare
from forebay.admission.work_ahead import bin_of


class TenantShares:
    """What waits of each tenant of one class."""

    __slots__ = ("_bins", "_tenants", "_units", "_work_us")

    def __init__(self) -> None:
        self._tenants: dict[str, TenantShare] = {}
        """Those with something waiting."""
        self._units = 0
        """Weight of all of them."""
        self._work_us = 0
        self._bins: dict[int, dict[str, TenantShare]] = {}
        """Those that are listed. No bin is empty."""

    def file(self, tenant: str, units: int, work_us: int, *, may_go: bool) -> TenantShare:
        """One more request waits.

        Args:
            units: weight of the tenant. The latest counts.
            may_go: it may be displaced.
        """
        share = self._tenants.get(tenant)
        if share is None:
            share = TenantShare(tenant)
        if units != share.units:
            if share.count:
                self._units += units - share.units
            share.units = units
        self.enter(share, work_us)
        if may_go:
            self.list_again(share)
        return share

    def visit(self, tenant: str, units: int, work_us: int) -> TenantShare:
        """Count a newcomer as if it waited already, until `leave`. A tenant that waits keeps its weight."""
        share = self._tenants.get(tenant)
        if share is None:
            share = TenantShare(tenant)
            share.units = units
        self.enter(share, work_us)
        return share

    def enter(self, share: TenantShare, work_us: int) -> None:
        """So much more waits of a tenant: one request."""
        share.count += 1
        share.work_us += work_us
        self._work_us += work_us
        if share.count > 1:
            self._place(share)
            return
        self._tenants[share.name] = share
        self._units += share.units
        if len(self._tenants) == 2:
            for one in self._tenants.values():  # the first was not kept in its place while it was alone
                self._place(one)

    def leave(self, share: TenantShare, work_us: int) -> None:
        """One request of a tenant waits no longer."""
        share.count -= 1
        share.work_us -= work_us
        self._work_us -= work_us
        if share.count:
            self._place(share)
        else:
            self._units -= share.units
            del self._tenants[share.name]
            self.strike_off(share)

    def is_above(self, share: TenantShare) -> bool:
        """Has this tenant more than its fair share of what waits?"""
        return share.work_us * self._units > self._work_us * share.units

    def above(self) -> Iterator[TenantShare]:
        """Listed tenants above their share, those furthest above first. Nothing may change meanwhile."""
        if len(self._tenants) < 2:  # alone, a tenant has its share
            return
        line = bin_of(self._work_us / self._units)
        for place in sorted(self._bins, reverse=True):
            if place < line:
                return
            for share in self._bins[place].values():
                if self.is_above(share):
                    yield share

    def list_again(self, share: TenantShare) -> None:
        """Some of it may be displaced after all."""
        if share.count and share.bin < 0:
            self._put(share, bin_of(share.work_us / share.units))

    def strike_off(self, share: TenantShare) -> None:
        """Nobody of it may be displaced, until the next that is filed."""
        if share.bin >= 0:
            group = self._bins[share.bin]
            del group[share.name]
            if not group:
                del self._bins[share.bin]
            share.bin = -1

    def verify(self, work_us: int, count: int) -> None:
        """Check that the totals are these, and the sums of their parts. Raises: InvariantError. For tests and dumps."""
        shares = self._tenants.values()
        invariant(
            self._work_us == work_us == sum(share.work_us for share in shares), "work of tenants is missing"
        )
        invariant(count == sum(share.count for share in shares), "waiters of tenants are missing")
        invariant(self._units == sum(share.units for share in shares), "weight of tenants is missing")
        for share in shares:
            invariant(share.count > 0, f"tenant {share.name!r} has nothing waiting")
            if share.bin >= 0:
                is_placed = len(shares) == 1 or share.bin == bin_of(share.work_us / share.units)
                invariant(is_placed, f"tenant {share.name!r} is misplaced")
                invariant(self._bins[share.bin][share.name] is share, f"tenant {share.name!r} is not found")
        listed = sum(len(group) for group in self._bins.values())
        invariant(
            listed == sum(share.bin >= 0 for share in shares), "a tenant is listed that has nothing waiting"
        )

    def __len__(self) -> int:
        return len(self._tenants)

    def _place(self, share: TenantShare) -> None:
        """Its work has changed. Alone, a tenant may be listed anywhere: it has its share."""
        if share.bin >= 0 and len(self._tenants) > 1:
            place = bin_of(share.work_us / share.units)
            if place != share.bin:
                self.strike_off(share)
                self._put(share, place)

    def _put(self, share: TenantShare, place: int) -> None:
        group = self._bins.get(place)
        if group is None:
            group = self._bins[place] = {}
        group[share.name] = share
        share.bin = place
