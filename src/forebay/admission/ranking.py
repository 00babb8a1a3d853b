"""Waiters sorted by a number, with the work that stands before any place.

With zero configuration everybody is one tenant, so this must be as fast with 50,000 waiters as with ten. They lie in
sorted blocks of at most `BLOCK`, with the totals of each block beside them. Finding a place takes O(log n)
comparisons; what is moved or added up besides, at most `BLOCK` entries and one number per block, is done by list
operations of the interpreter at a few nanoseconds each. Unlike a heap with dead entries this is exact about the work
before a place, never has to be cleaned up, and shows the next waiters without taking the first one out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from forebay.admission.errors import InvariantError
from forebay.admission.waiter import Waiter

BLOCK: Final = 256
_MERGE_BELOW: Final = BLOCK // 4
_MERGED_MAX: Final = BLOCK // 2

_Entry = tuple[float, int, Waiter]


class _Block:
    """Some consecutive waiters."""

    __slots__ = ("entries", "works")

    def __init__(self, entries: list[_Entry], works: list[int]) -> None:
        self.entries = entries
        self.works = works
        """The cost of each entry, so that a part of a block can be added up in one go."""


class Ranking:
    """Waiters by a number given with each, smallest first, ties by arrival.

    `head` is the first one that was not passed over in the present walk. Those passed over are always the first ones in
    the order, so that they need no marks here but one position.
    """

    __slots__ = (
        "_at",
        "_block",
        "_blocks",
        "_counts",
        "_lasts",
        "_totals",
        "count",
        "head",
        "passed",
        "work_us",
    )

    def __init__(self) -> None:
        self.head: Waiter | None = None
        self.count = 0
        self.work_us = 0
        self.passed = 0
        """Waiters passed over in this walk."""
        self._blocks: list[_Block] = []
        self._lasts: list[_Entry] = []
        """The last entry of each block; likewise the sums of its work, and how many it has."""
        self._totals: list[int] = []
        self._counts: list[int] = []
        self._block = 0
        """Where the head is: block, and place in it."""
        self._at = 0

    def add(self, number: float, waiter: Waiter) -> None:
        """File a waiter. Not during a walk."""
        entry = (number, waiter.sequence, waiter)
        work_us = waiter.work_us
        self.count += 1
        self.work_us += work_us
        lasts = self._lasts
        if not lasts:
            self._blocks.append(_Block([entry], [work_us]))
            lasts.append(entry)
            self._totals.append(work_us)
            self._counts.append(1)
            self.head = waiter
            return
        of = bisect_left(lasts, entry)
        if of == len(lasts):
            of -= 1
            lasts[of] = entry
        block = self._blocks[of]
        at = bisect_left(block.entries, entry)
        block.entries.insert(at, entry)
        block.works.insert(at, work_us)
        self._totals[of] += work_us
        self._counts[of] += 1
        if at == 0 and of == 0:
            self.head = waiter
        if self._counts[of] > BLOCK:
            self._split(of)

    def remove(self, number: float, waiter: Waiter) -> None:
        """Take a waiter out, from wherever it stands. Raises: InvariantError if it is not here under this number."""
        entry = (number, waiter.sequence, waiter)
        of = bisect_left(self._lasts, entry)
        if of == len(self._lasts):
            raise InvariantError(f"waiter {waiter.sequence} is not filed under {number}")
        block = self._blocks[of]
        at = bisect_left(block.entries, entry)
        if block.entries[at][2] is not waiter:
            raise InvariantError(f"waiter {waiter.sequence} is not filed under {number}")
        in_walk = self.passed > 0
        if in_walk and sum(self._counts[:of]) + at < self.passed:
            self.passed -= 1
        work_us = block.works[at]
        del block.entries[at], block.works[at]
        self.count -= 1
        self.work_us -= work_us
        self._totals[of] -= work_us
        self._counts[of] -= 1
        left = self._counts[of]
        if at == left and left:
            self._lasts[of] = block.entries[-1]
        if left < _MERGE_BELOW and (not left or len(self._counts) > 1):
            self._shrink(of)
        if in_walk:
            self._seek()
        elif waiter is self.head:
            self.head = self._blocks[0].entries[0][2] if self.count else None

    def pass_over(self, walk: int) -> None:
        """Go on from the head to the next waiter that was not passed over in this walk."""
        waiter: Waiter | None = self.head
        while waiter is not None and waiter.walk == walk:
            self.passed += 1
            self._at += 1
            if self._at == self._counts[self._block]:
                self._block += 1
                self._at = 0
            waiter = None
            if self._block < len(self._blocks):
                waiter = self._blocks[self._block].entries[self._at][2]
        self.head = waiter

    def restore(self) -> None:
        """The walk is over: those passed over count again."""
        self.passed = self._block = self._at = 0
        self.head = self._blocks[0].entries[0][2] if self.count else None

    def before(self, number: float, waiter: Waiter) -> tuple[int, int]:
        """Work in µs and requests before the place of this waiter, whether it is filed or not."""
        entry = (number, waiter.sequence, waiter)
        of = bisect_left(self._lasts, entry)
        if of == len(self._lasts):
            return self.work_us, self.count
        block = self._blocks[of]
        at = bisect_left(block.entries, entry)
        return sum(self._totals[:of]) + sum(block.works[:at]), sum(self._counts[:of]) + at

    def __iter__(self) -> Iterator[Waiter]:
        """All, in their order."""
        for block in self._blocks:
            for entry in block.entries:
                yield entry[2]

    def _split(self, of: int) -> None:
        """Make two blocks of a full one."""
        block = self._blocks[of]
        half = len(block.entries) // 2
        upper = _Block(block.entries[half:], block.works[half:])
        del block.entries[half:], block.works[half:]
        self._blocks.insert(of + 1, upper)
        self._lasts.insert(of, block.entries[-1])
        moved_us = sum(upper.works)
        self._totals[of] -= moved_us
        self._totals.insert(of + 1, moved_us)
        self._counts[of] = half
        self._counts.insert(of + 1, len(upper.entries))

    def _shrink(self, of: int) -> None:
        """Drop an empty block, or merge a small one with a neighbour if both together are not large."""
        counts = self._counts
        if not counts[of]:
            del self._blocks[of], self._lasts[of], self._totals[of], counts[of]
            return
        lower = of - 1
        if not (of and counts[lower] + counts[of] <= _MERGED_MAX):
            lower = of
            if of + 1 == len(counts) or counts[of] + counts[of + 1] > _MERGED_MAX:
                return
        upper = self._blocks[lower + 1]
        self._blocks[lower].entries.extend(upper.entries)
        self._blocks[lower].works.extend(upper.works)
        self._lasts[lower] = self._lasts[lower + 1]
        self._totals[lower] += self._totals[lower + 1]
        counts[lower] += counts[lower + 1]
        del self._blocks[lower + 1], self._lasts[lower + 1], self._totals[lower + 1], counts[lower + 1]

    def _seek(self) -> None:
        """Find the head anew: blocks may have moved during a walk."""
        self._block, self._at = 0, self.passed
        for count in self._counts:
            if self._at < count:
                self.head = self._blocks[self._block].entries[self._at][2]
                return
            self._at -= count
            self._block += 1
        self.head = None
