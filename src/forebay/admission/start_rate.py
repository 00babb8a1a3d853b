"""How fast waiters start, as it is seen: what can be said of a wait before an engine's speed is known.

While a pool is learning, predicted waits rest on a guess of what its engines get through, and may be far off. Then a
client is told by this instead, as soon as some waiters have started:

    wait = (requests ahead + 1) × time ÷ starts

It is counted from the first start on that leaves others waiting, for as long as somebody waits, and what is more than
`MEMORY_S` ago counts half. It refuses nobody: `learning` says when predictions may.
"""

from __future__ import annotations

from typing import Final

MEMORY_S: Final = 8.0
LEAST_STARTS: Final = 4
LEAST_S: Final = 0.25
"""Several that start in one moment are no rate."""


class StartRate:
    """The starts of one pool's waiters."""

    __slots__ = ("_since_s", "_starts")

    def __init__(self) -> None:
        self._since_s: float | None = None
        """When counting began; None while nobody waits."""
        self._starts = 0.0

    def started(self, now: float, *, others_wait: bool) -> None:
        """A waiter starts."""
        if not others_wait:
            self._since_s = None
        elif self._since_s is None:
            self._since_s, self._starts = now, 0.0
        else:
            self._starts += 1.0
            elapsed_s = now - self._since_s
            if elapsed_s > 2 * MEMORY_S:
                self._since_s, self._starts = now - elapsed_s / 2, self._starts / 2

    def wait_s(self, ahead: int, now: float) -> float | None:
        """The wait of one with so many ahead of it; None if too little was seen."""
        if self._since_s is None or self._starts < LEAST_STARTS or now - self._since_s < LEAST_S:
            return None
        return (ahead + 1) * (now - self._since_s) / self._starts
