"""What may be believed of an engine's numbers: the border between "it says so" and "it says nonsense".

A missing or absurd number becomes None, never 0 and never full: an engine taken for empty would attract everything,
one taken for full would get nothing. What was there and could not be used is named in `doubtful`, and why in
`doubts`, so that a person can be told.

With several data-parallel ranks there is one series per rank. A sum needs every rank, so one bad rank makes it
unknown. A maximum is a fact as soon as one rank is known (the KV cache is at least that full), so bad ranks are left
out of it, and named.
"""

from __future__ import annotations

import math
from typing import Final

from forebay.engines.exposition import Page

__all__ = ["Numbers"]

LARGEST_GAUGE: Final = 1_000_000
"""More requests than this in one engine at one time is nonsense."""
LARGEST_COUNTER: Final = 2**53
"""Above it a float no longer counts by ones."""
ROUNDING: Final = 0.01
"""A ratio this little above 1 is rounding and means 1; more is another unit (45 for 45 %) and means nothing."""


class Numbers:
    """Takes plausible numbers out of one page and remembers which series were not plausible."""

    __slots__ = ("_doubtful", "_page")

    def __init__(self, page: Page) -> None:
        self._page = page
        self._doubtful: dict[str, str] = dict.fromkeys(page.broken, "has a line that cannot be read")

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Names of series that were present but unusable, in the order in which they were met."""
        return tuple(self._doubtful)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is wrong with each of them, for people."""
        return tuple(f"{name} {what}" for name, what in self._doubtful.items())

    def gauge(self, *generations: str) -> int | None:
        """How many there are now, summed over ranks."""
        return self._sum(generations, LARGEST_GAUGE)

    def counter(self, *generations: str) -> int | None:
        """How many there were since the start, summed over ranks."""
        return self._sum(generations, LARGEST_COUNTER)

    def ratio(self, *generations: str) -> float | None:
        """A share from 0 to 1; with several ranks that of the worst."""
        for name in generations:
            usable = [
                value for value in self._page.values(name) if self._is_within(name, value, 1 + ROUNDING)
            ]
            if usable:
                return min(1.0, max(usable))
        return None

    def _sum(self, generations: tuple[str, ...], largest: int) -> int | None:
        """The first generation of the name that can be used; newer names come first."""
        for name in generations:
            values = self._page.values(name)
            if not values or name in self._page.broken:
                continue
            plausible = [self._is_within(name, value, largest) for value in values]
            if all(plausible):
                return round(sum(values))
        return None

    def _is_within(self, name: str, value: float, largest: float) -> bool:
        if math.isfinite(value) and 0 <= value <= largest:
            return True
        self._doubtful.setdefault(name, f"is {value:.6g}, and 0 to {largest:.6g} is possible")
        return False
