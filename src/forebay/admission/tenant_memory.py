"""Numbers remembered for tenants for some time, so that no tenant can make another's be forgotten.

There is room for so many in all. When it is full, the tenant that holds most loses its oldest one; of several that hold
equally many, the one that has put something in least recently. So with T tenants whoever holds no more than size ÷ T
loses nothing before its time, whatever the others do.

That is a promise to tenants and not to names: where callers can make up as many names as they like, T is theirs to
choose. With as many names as there is room for, each holds one, and the name that was used least recently goes.

Memory is bounded by the room, in the number of tenants too: one that holds nothing is not known. Each step is O(1), and
no order of iteration depends on a hash.
"""

from __future__ import annotations

from collections import OrderedDict


class TenantMemory:
    """Numbers by tenant and key, each kept for some time after it was last put in."""

    __slots__ = ("_by_count", "_items", "_keep_s", "_most", "_of_tenant", "_size_max")

    def __init__(self, keep_s: float, size_max: int) -> None:
        """Both above zero."""
        self._keep_s = keep_s
        self._size_max = size_max
        self._items: OrderedDict[tuple[str, str | int], tuple[int, float]] = OrderedDict()
        """Number and end, in the order of the ends."""
        self._of_tenant: dict[str, OrderedDict[str | int, None]] = {}
        """What each tenant holds, in the same order."""
        self._by_count: dict[int, OrderedDict[str, None]] = {}
        """Tenants by how many they hold, the least recently used first. No group is empty."""
        self._most = 0
        """The largest of these counts."""

    def put(self, tenant: str, key: str | int, number: int, now: float) -> None:
        """Remember a number from now on."""
        own = self._of_tenant.get(tenant)
        if own is None:
            own = self._of_tenant[tenant] = OrderedDict()
        if key in own:
            self._by_count[len(own)].move_to_end(tenant)
            own.move_to_end(key)
        else:
            own[key] = None
            self._recount(tenant, len(own) - 1, len(own))
        items = self._items
        items[tenant, key] = number, now + self._keep_s
        items.move_to_end((tenant, key))
        # Two at most: each put adds one, so what is over goes in the end, and no call pays for a long pause.
        for _ in range(2):
            oldest = next(iter(items))
            if items[oldest][1] <= now:
                self._drop(oldest)
            elif len(items) > self._size_max:
                most = next(iter(self._by_count[self._most]))
                self._drop((most, next(iter(self._of_tenant[most]))))

    def get(self, tenant: str, key: str | int, now: float) -> int | None:
        """The number; None if there is none, or its time is over."""
        item = self._items.get((tenant, key))
        return item[0] if item is not None and item[1] > now else None

    def forget(self, tenant: str, key: str | int) -> None:
        """Not needed any more."""
        if (tenant, key) in self._items:
            self._drop((tenant, key))

    def clear(self) -> None:
        """Forget all."""
        self._items.clear()
        self._of_tenant.clear()
        self._by_count.clear()
        self._most = 0

    def __len__(self) -> int:
        return len(self._items)

    def _drop(self, whose: tuple[str, str | int]) -> None:
        tenant, key = whose
        del self._items[whose]
        own = self._of_tenant[tenant]
        del own[key]
        self._recount(tenant, len(own) + 1, len(own))
        if not own:
            del self._of_tenant[tenant]

    def _recount(self, tenant: str, old: int, new: int) -> None:
        """A tenant holds one more, or one less."""
        by_count = self._by_count
        if old:
            group = by_count[old]
            del group[tenant]
            if not group:
                del by_count[old]
        if new:
            larger = by_count.get(new)
            if larger is None:
                larger = by_count[new] = OrderedDict()
            larger[tenant] = None
        if new > self._most or (old == self._most and old not in by_count):
            self._most = new
