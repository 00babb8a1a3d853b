"""Can everybody who waits still start in time, and if not, who is to be turned away.

`DeadlineBuckets` holds the waiters of one class of one pool by the time until which each must have started (its
start-by time: wait budget or client deadline). It is asked after each arrival and each wake whether a set of them
cannot all be on time, and which ones to give up so that the rest can: those of the lowest value per work. It moves no
ticket and knows no rule about who may be displaced (`shedding`); it has no clock.

**What is reported.** Let S be waiters with total work W, drained at `rate`. In any order, one of them starts last, and
not before all others have been worked off: at now + (W − work of that one) ÷ rate. So somebody in S is late, whatever
the order, if

    W > max over x in S of  rate × (start_by(x) − now) + work(x).

That is tested for each S of "everybody up to a bucket". Of a bucket only the latest start-by and the largest work
are known, and they may belong to two waiters: the right side is never too small. So nothing is reported that could be
on time, not even without a bucket to spare; what is missed is overload inside one bucket.

**Buckets.** Three rings of slots aligned in absolute time, so log-spaced in steps: by its distance when it comes, a
waiter goes into a slot of 1/32 of the horizon, of 1/128 (distances up to an eighth) or of 1/1024 (up to a
sixty-fourth). It stays in its slot until it leaves, so nothing is filed anew as time passes. Slots of different rings
may overlap; they are taken by their ends, which keeps the test sound, since it holds for any S. About 64 are open at
once, 68 at most besides those of overdue waiters; one holds what lies beyond the horizon.

**Whom.** As in the pass of Moore and Hodgson (Moore, Management Science 15, 1968), by value per work: from everybody
up to the first overloaded bucket, tenants above their fair share first, then the lowest value per work, then the
youngest; again until nothing is overloaded or the limit is reached. Filing takes O(log n), the test one pass over the
buckets. How close this comes to the exact pass is tested in `tests/property`.

**Above its share** is asked of each tenant at the moment of the choice (`tenant_shares`). Compared are the waiters of
the 16 tenants furthest above: where more are, the lowest value per work is that among those. Nobody of a tenant within
its share is chosen while one of those above has somebody who may go; only where a bucket bounds the choice, and none of
the 16 has anybody up to it, does a 17th not come before the others.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Final, TypeAlias

from forebay.admission.errors import MisuseError, invariant
from forebay.admission.tenant_shares import TenantShares
from forebay.admission.victims import Bucket, Entry, Pile, TenantShare, Victim

VICTIMS_PER_EVENT: Final = 4
"""Most waiters given up in one call; the rest follows at the next wake."""
PASSED_OVER_MAX: Final = 16
"""Candidates that `allowed` may turn down in one call: bounds its cost where nearly nobody may be displaced."""
TENANTS_MAX: Final = 16
"""Tenants above their share whose first to go are compared: those furthest above it."""

FAR_SLOTS: Final = 32
"""Slots of the coarsest ring in one horizon. Where nobody states a deadline, all waiters are in this ring."""
MIDDLE_SLOTS: Final = 128
MIDDLE_REACH: Final = 1 / 8
"""Up to this part of the horizon the middle ring is used: 16 slots."""
NEAR_SLOTS: Final = 1024
NEAR_REACH: Final = 1 / 64
"""Up to this part the finest one: 16 slots again."""
ROUNDING_US: Final = 1
"""Overload by no more than the unit of the books is none: it may be the rounding of times."""
BUCKETS_MAX: Final = 96
"""Above it, overdue buckets are folded into one."""

_NEAR: Final = 0
_MIDDLE: Final = 1
_FAR: Final = 2
_BEYOND: Final = 3
_RINGS: Final = 4
_Passed: TypeAlias = tuple[Bucket, bool, Victim]
"""Where it was taken out, from a pile or from the bucket's own heap, and who."""


class DeadlineBuckets:
    """The waiters of one class of one pool, by when they must start."""

    __slots__ = (
        "_by_key",
        "_far_s",
        "_horizon_s",
        "_middle_s",
        "_near_s",
        "_order",
        "count",
        "shares",
        "work_us",
    )

    def __init__(self, horizon_s: float) -> None:
        """Open no bucket yet.

        Args:
            horizon_s: the class's wait budget, the longest a start-by time lies ahead; above 0. Whoever has longer
                shares one bucket.
        """
        if not 0 < horizon_s < inf:
            raise MisuseError(f"the horizon must be positive and finite, not {horizon_s}")
        self._horizon_s = horizon_s
        self._far_s = horizon_s / FAR_SLOTS
        self._middle_s = horizon_s / MIDDLE_SLOTS
        self._near_s = horizon_s / NEAR_SLOTS
        self._order: list[Bucket] = []
        """Open buckets, none of them empty, by their ends, then their keys."""
        self._by_key: dict[int, Bucket] = {}
        self.shares = TenantShares()
        self.count = 0
        self.work_us = 0

    def add(self, entry: Entry, now: float) -> None:
        """File a waiter. Raises: MisuseError if it was filed before."""
        if entry.was_filed:
            raise MisuseError("an entry is filed once")
        entry.was_filed = True
        start_by_s = entry.start_by_s
        if start_by_s < now:
            start_by_s = now
        distance_s = start_by_s - now
        if distance_s > self._horizon_s:
            key, end_s = _BEYOND, inf
        else:
            if distance_s > self._horizon_s * MIDDLE_REACH:
                ring, width_s = _FAR, self._far_s
            elif distance_s > self._horizon_s * NEAR_REACH:
                ring, width_s = _MIDDLE, self._middle_s
            else:
                ring, width_s = _NEAR, self._near_s
            slot = int(start_by_s // width_s)
            key, end_s = slot * _RINGS + ring, (slot + 1) * width_s
        bucket = self._by_key.get(key)
        if bucket is None:
            bucket = self._open(key, end_s, now)
        entry.share = self.shares.file(
            entry.tenant, entry.weight_units, entry.work_us, may_go=not entry.protected
        )
        bucket.file(entry)
        self.count += 1
        self.work_us += entry.work_us

    def remove(self, entry: Entry) -> bool:
        """A waiter is gone, to an endpoint or for good. False if it was not filed here any more."""
        bucket = entry.bucket
        if bucket is None:
            return False
        self.count -= 1
        self.work_us -= entry.work_us
        bucket.drop(entry)
        if entry.share is not None:
            self.shares.leave(entry.share, entry.work_us)
        if not bucket.count:
            self._close(bucket)
        return True

    def with_horizon(self, horizon_s: float, now: float) -> DeadlineBuckets:
        """The same waiters, filed for another wait budget. These buckets are of no use after that."""
        others = DeadlineBuckets(horizon_s)
        for bucket in self._order:
            for _, _, entry in bucket.sizes:
                if entry.bucket is bucket:
                    entry.was_filed = False
                    others.add(entry, now)
        return others

    def overload(self, now: float, rate_us_per_s: float, ahead_us: int = 0) -> int | None:
        """Place of the first bucket up to which not all can start in time, in whatever order; None if there is none.

        Args:
            rate_us_per_s: work per second that this class gets. Nothing is known if it is not positive, and nothing
                is reported then.
            ahead_us: work that is served before all of these.
        """
        return self._overload_from(0, now, rate_us_per_s, ahead_us)

    def take_victims(
        self,
        now: float,
        rate_us_per_s: float,
        limit: int = VICTIMS_PER_EVENT,
        allowed: Callable[[Entry], bool] | None = None,
        ahead_us: int = 0,
    ) -> list[Entry]:
        """Take out those to give up so that the others can start in time, at most `limit`. The caller ends them.

        Where nobody up to an overloaded bucket may be displaced, the next overloaded one is looked at.

        Args:
            allowed: asked about each candidate besides what the entry itself says; None allows all.
        """
        taken: list[Entry] = []
        passed_over: list[_Passed] = []
        floor = 0
        while len(taken) < limit and len(passed_over) <= PASSED_OVER_MAX:
            place = self._overload_from(floor, now, rate_us_per_s, ahead_us)
            if place is None:
                break
            victim = self._first_above(place, now, allowed, inf, passed_over)
            if victim is None:
                victim = self._first_allowed(place, now, allowed, inf, passed_over)
            if victim is None:
                floor = place + 1
            else:
                self.remove(victim)
                taken.append(victim)
        self._put_back(passed_over)
        return taken

    def first_above_share(
        self, now: float, allowed: Callable[[Entry], bool] | None = None, below: float = inf
    ) -> Entry | None:
        """Whom to give up first of the tenants above their share, whether or not there is overload. It stays filed.

        Args:
            below: only those whose value per work is below this.
        """
        passed_over: list[_Passed] = []
        found = self._first_above(len(self._order) - 1, now, allowed, below, passed_over)
        self._put_back(passed_over)
        return found

    def least_valuable(
        self, now: float, allowed: Callable[[Entry], bool] | None = None, below: float = inf
    ) -> Entry | None:
        """The same of all tenants alike."""
        passed_over: list[_Passed] = []
        found = self._first_allowed(len(self._order) - 1, now, allowed, below, passed_over)
        self._put_back(passed_over)
        return found

    def soonest(self, limit: int) -> list[Entry]:
        """So many of those who must start first, or a few less. They stay filed."""
        found: list[Entry] = []
        left = 4 * limit  # some that are looked at have gone
        for bucket in self._order:
            for size in bucket.sizes:
                if len(found) >= limit or left <= 0:
                    return found
                left -= 1
                if size[2].bucket is bucket:
                    found.append(size[2])
        return found

    def verify(self) -> None:
        """Check that the totals are the sums of their parts. Raises: InvariantError. For tests and dumps."""
        for bucket in self._order:
            bucket.verify()
            invariant(self._by_key[bucket.key] is bucket, f"bucket {bucket.key} is not found")
        invariant(self.count == sum(bucket.count for bucket in self._order), "waiters are missing")
        invariant(self.work_us == sum(bucket.work_us for bucket in self._order), "work is missing")
        invariant(len(self._order) == len(self._by_key) <= BUCKETS_MAX + 1, "too many buckets")
        places = [_place_of(bucket) for bucket in self._order]
        invariant(places == sorted(places), "buckets are out of order")
        self.shares.verify(self.work_us, self.count)

    def __len__(self) -> int:
        return self.count

    def _overload_from(self, floor: int, now: float, rate_us_per_s: float, ahead_us: int) -> int | None:
        """The first overloaded place from `floor` on."""
        if rate_us_per_s <= 0:
            return None
        work_us = ahead_us - ROUNDING_US
        room_us = 0.0
        place = 0
        for bucket in self._order:
            work_us += bucket.work_us
            reach_us = rate_us_per_s * (bucket.latest_s - now) + bucket.largest_us
            if reach_us > room_us:
                room_us = reach_us
            if work_us > room_us and place >= floor:
                return place
            place += 1  # noqa: SIM113 - enumerate costs more
        return None

    def _first_above(
        self,
        place: int,
        now: float,
        allowed: Callable[[Entry], bool] | None,
        below: float,
        passed_over: list[_Passed],
    ) -> Entry | None:
        """Whom to give up first up to a place, of tenants above their share."""
        if place < 0:
            return None
        last = self._order[place]
        found = self._piles_above(last, now)
        while found:
            first = found[0]
            for pile in found:
                if pile.victims[0] < first.victims[0]:
                    first = pile
            victim = first.victims[0]
            if below < inf and victim[0] >= below:
                return None
            if allowed is None or allowed(victim[3]):
                return victim[3]
            first.bucket.pass_over(first)
            passed_over.append((first.bucket, True, victim))
            if len(passed_over) > PASSED_OVER_MAX:
                return None
            found.remove(first)
            another = first.share.first_pile(now, last)
            if another is not None:
                found.append(another)
        return None

    def _piles_above(self, last: Bucket, now: float) -> list[Pile]:
        """Of each of the few tenants furthest above their share, the pile with its first to go up to a bucket."""
        is_whole = last is self._order[-1]
        found: list[Pile] = []
        barren: list[TenantShare] = []
        looked_at = 0
        for share in self.shares.above():
            pile = share.first_pile(now, last)
            if pile is not None:
                found.append(pile)
                looked_at += 1
            elif is_whole:
                barren.append(share)  # and is not looked at again: who is firm stays so
            else:
                looked_at += 1
            if looked_at == TENANTS_MAX:
                break
        for share in barren:
            self.shares.strike_off(share)
        return found

    def _first_allowed(
        self,
        place: int,
        now: float,
        allowed: Callable[[Entry], bool] | None,
        below: float,
        passed_over: list[_Passed],
    ) -> Entry | None:
        """Whom to give up first up to a place. Those turned down come out of their heaps, into `passed_over`."""
        order = self._order
        while True:
            best: Victim | None = None
            home: Bucket | None = None
            for index in range(place + 1):
                victim = order[index].first(now)
                if victim is not None and (best is None or victim < best):
                    best, home = victim, order[index]
            if best is None or home is None or (below < inf and best[0] >= below):
                return None
            if allowed is None or allowed(best[3]):
                return best[3]
            heappop(home.victims)
            passed_over.append((home, False, best))
            if len(passed_over) > PASSED_OVER_MAX:
                return None

    def _put_back(self, passed_over: list[_Passed]) -> None:
        """Those turned down now may be displaced another time."""
        for bucket, from_pile, victim in passed_over:
            if not from_pile:
                heappush(bucket.victims, victim)
                continue
            bucket.pile_up(victim)
            share = victim[3].share
            if share is not None:
                self.shares.list_again(share)

    def _open(self, key: int, end_s: float, now: float) -> Bucket:
        if len(self._order) >= BUCKETS_MAX:
            self._fold_overdue(now)
        bucket = Bucket(key, end_s)
        self._by_key[key] = bucket
        insort(self._order, bucket, key=_place_of)
        return bucket

    def _close(self, bucket: Bucket) -> None:
        bucket.close()
        del self._by_key[bucket.key]
        self._order.remove(bucket)

    def _fold_overdue(self, now: float) -> None:
        """Make one bucket of all whose time is over. Waiters are few there: their own alarm takes them out."""
        overdue = [bucket for bucket in self._order if bucket.end_s <= now]
        for bucket in overdue[1:]:
            for size in bucket.sizes:
                if size[2].bucket is bucket:
                    overdue[0].file(size[2])
            self._close(bucket)


def _place_of(bucket: Bucket) -> tuple[float, int]:
    return bucket.end_s, bucket.key
