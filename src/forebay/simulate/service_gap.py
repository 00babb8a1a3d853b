"""How unevenly tenants are served that wait at the same time: the largest gap between two of them.

Two tenants of a class who both have requests waiting should get work in proportion to their weights. While both wait,
the difference of what they have been given (true work ÷ weight) is followed; the gap is the most by which it changed
within such a time. At most 64 tenants of a class are followed at once: a trace may name any number.
"""

from __future__ import annotations

from typing import Final

MOST_TENANTS: Final = 64


class _Pair:
    """What the first has been given more than the second while both wait: now, and its extremes."""

    __slots__ = ("high", "low", "now")

    def __init__(self) -> None:
        self.now = self.high = self.low = 0.0


class _Waiting:
    """Of one class."""

    __slots__ = ("pairs", "requests")

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        """By tenant; none with none."""
        self.pairs: dict[tuple[str, str], _Pair] = {}
        """Of those tenants, by their names in order."""


class ServiceGap:
    """Follows who is served while others wait. `gpu_s` is the largest gap so far; None if no two waited together."""

    def __init__(self) -> None:
        self.gpu_s: float | None = None
        self._classes: dict[str, _Waiting] = {}

    def waits(self, class_name: str, tenant: str) -> None:
        """One more request of the tenant waits."""
        waiting = self._classes.setdefault(class_name, _Waiting())
        requests = waiting.requests
        if tenant not in requests:
            if len(requests) >= MOST_TENANTS:
                return
            for other in requests:
                waiting.pairs[_ordered(tenant, other)] = _Pair()
                self.gpu_s = self.gpu_s or 0.0
        requests[tenant] = requests.get(tenant, 0) + 1

    def waits_no_more(self, class_name: str, tenant: str) -> None:
        """One of them waits no longer."""
        waiting = self._classes[class_name]
        requests = waiting.requests
        if tenant not in requests:
            return  # not followed
        requests[tenant] -= 1
        if not requests[tenant]:
            del requests[tenant]
            for other in requests:
                del waiting.pairs[_ordered(tenant, other)]

    def served(self, class_name: str, tenant: str, gpu_s: float, weight: float = 1.0) -> None:
        """A request of the tenant, which may be one that waits, is sent to an engine."""
        waiting = self._classes.get(class_name)
        if waiting is None or tenant not in waiting.requests:
            return
        for other in waiting.requests:
            if other == tenant:
                continue
            pair = waiting.pairs[_ordered(tenant, other)]
            pair.now += gpu_s / weight if tenant < other else -gpu_s / weight
            pair.high, pair.low = max(pair.high, pair.now), min(pair.low, pair.now)
            self.gpu_s = max(self.gpu_s or 0.0, pair.high - pair.low)


def _ordered(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
