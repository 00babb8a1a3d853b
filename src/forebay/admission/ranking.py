"""Waiters sorted by a number, with the work that stands before any place.

With zero configuration everybody is one tenant, so this must be as fast with 50,000 waiters as with ten. They lie in
sorted blocks of at most `BLOCK`, with the totals of each block beside them. Finding a place takes O(log n)
comparisons; what is moved or added up besides, at most `BLOCK` entries and one number per block, is done by list
operations of the interpreter at a few nanoseconds each. The other end is as common: of a thousand tenants most have one
waiter each, which needs no blocks at all. Unlike a heap with dead entries this is exact about the work
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

_SCALE: Final = 1048576.0
"""Numbers that are less than a millionth apart are the same here."""
_FARTHEST: Final = 1e15
"""Larger ones are all the same, infinite ones included."""
_SEQUENCE_BITS: Final = 48


def _place(number: float, sequence: int) -> int:
    """Number and sequence in one: whole numbers are compared four times as fast as pairs."""
    if number > _FARTHEST:
        number = _FARTHEST
    elif number < -_FARTHEST:
        number = -_FARTHEST
    return (int(number * _SCALE) << _SEQUENCE_BITS) + sequence


class _Block:
    """Some consecutive waiters: three lists of one length."""

    __slots__ = ("places", "waiters", "works")

    def __init__(self, places: list[int], waiters: list[Waiter], works: list[int]) -> None:
        self.places = places
        self.waiters = waiters
        self.works = works
        """The cost of each, so that a part of a block can be added up in one go."""


_NO_BLOCKS: Final[list[_Block]] = []
_NO_NUMBERS: Final[list[int]] = []
"""Nobody writes into these: lists of their own are made for the second waiter."""


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
        "_only",
        "_only_place",
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
        self._only: Waiter | None = None
        """The one that is here, if there has not been another beside it since the last was gone: then there are no
        blocks."""
        self._only_place = 0
        """Its place."""
        self._blocks = _NO_BLOCKS
        self._lasts = _NO_NUMBERS
        """The last place in each block; likewise the sums of its work, and how many it has."""
        self._totals = _NO_NUMBERS
        self._counts = _NO_NUMBERS
        self._block = 0
        """Where the head is: block, and place in it."""
        self._at = 0

    def add(self, number: float, waiter: Waiter) -> None:
        """File a waiter. Not during a walk."""
        place = _place(number, waiter.sequence)
        work_us = waiter.work_us
        if not self.count:
            self.count = 1
            self.work_us = work_us
            self._only = self.head = waiter
            self._only_place = place
            return
        if self._only is not None:
            self._make_block(self._only)
        self.count += 1
        self.work_us += work_us
        lasts = self._lasts
        of = bisect_left(lasts, place)
        if of == len(lasts):
            of -= 1
            lasts[of] = place
        block = self._blocks[of]
        at = bisect_left(block.places, place)
        block.places.insert(at, place)
        block.waiters.insert(at, waiter)
        block.works.insert(at, work_us)
        self._totals[of] += work_us
        self._counts[of] += 1
        if at == 0 and of == 0:
            self.head = waiter
        if self._counts[of] > BLOCK:
            self._split(of)

    def remove(self, number: float, waiter: Waiter) -> None:
        """Take a waiter out, from wherever it stands. Raises: InvariantError if it is not here under this number."""
        place = _place(number, waiter.sequence)
        if self._only is not None:
            if self._only is not waiter or place != self._only_place:
                raise InvariantError(f"waiter {waiter.sequence} is not filed under {number}")
            self._clear()
            return
        of = bisect_left(self._lasts, place)
        if of == len(self._lasts):
            raise InvariantError(f"waiter {waiter.sequence} is not filed under {number}")
        block = self._blocks[of]
        at = bisect_left(block.places, place)
        if block.waiters[at] is not waiter:
            raise InvariantError(f"waiter {waiter.sequence} is not filed under {number}")
        if self.count == 1:
            self._clear()
            return
        in_walk = self.passed > 0
        if in_walk and sum(self._counts[:of]) + at < self.passed:
            self.passed -= 1
        work_us = block.works[at]
        del block.places[at], block.waiters[at], block.works[at]
        self.count -= 1
        self.work_us -= work_us
        self._totals[of] -= work_us
        self._counts[of] -= 1
        left = self._counts[of]
        if at == left and left:
            self._lasts[of] = block.places[-1]
        if left < _MERGE_BELOW and (not left or len(self._counts) > 1):
            self._shrink(of)
        if in_walk:
            self._seek()
        elif waiter is self.head:
            self.head = self.first()

    def pass_over(self, walk: int) -> None:
        """Go on from the head to the next waiter that was not passed over in this walk."""
        waiter: Waiter | None = self.head
        if self._only is not None:
            if waiter is not None and waiter.walk == walk:
                self.passed = 1
                self.head = None
            return
        while waiter is not None and waiter.walk == walk:
            self.passed += 1
            self._at += 1
            if self._at == self._counts[self._block]:
                self._block += 1
                self._at = 0
            waiter = None
            if self._block < len(self._blocks):
                waiter = self._blocks[self._block].waiters[self._at]
        self.head = waiter

    def restore(self) -> None:
        """The walk is over: those passed over count again."""
        self.passed = self._block = self._at = 0
        self.head = self.first()

    def first(self) -> Waiter | None:
        """The first one of all, also if it was passed over."""
        if self._only is not None:
            return self._only
        return self._blocks[0].waiters[0] if self.count else None

    def before(self, number: float, waiter: Waiter) -> tuple[int, int]:
        """Work in µs and requests before the place of this waiter, whether it is filed or not."""
        place = _place(number, waiter.sequence)
        if self._only is not None:
            return (self.work_us, 1) if self._only_place < place else (0, 0)
        of = bisect_left(self._lasts, place)
        if of == len(self._lasts):
            return self.work_us, self.count
        block = self._blocks[of]
        at = bisect_left(block.places, place)
        return sum(self._totals[:of]) + sum(block.works[:at]), sum(self._counts[:of]) + at

    def __iter__(self) -> Iterator[Waiter]:
        """All, in their order."""
        if self._only is not None:
            yield self._only
        for block in self._blocks:
            yield from block.waiters

    def _make_block(self, only: Waiter) -> None:
        """It is not to be the only one any more."""
        self._only = None
        self._blocks = [_Block([self._only_place], [only], [self.work_us])]
        self._lasts = [self._only_place]
        self._totals = [self.work_us]
        self._counts = [1]

    def _clear(self) -> None:
        """The last one has left."""
        self.head = self._only = None
        self.count = self.work_us = 0
        self.passed = self._block = self._at = 0
        self._blocks = _NO_BLOCKS
        self._lasts = self._totals = self._counts = _NO_NUMBERS

    def _split(self, of: int) -> None:
        """Make two blocks of a full one."""
        block = self._blocks[of]
        half = len(block.places) // 2
        upper = _Block(block.places[half:], block.waiters[half:], block.works[half:])
        del block.places[half:], block.waiters[half:], block.works[half:]
        self._blocks.insert(of + 1, upper)
        self._lasts.insert(of, block.places[-1])
        moved_us = sum(upper.works)
        self._totals[of] -= moved_us
        self._totals.insert(of + 1, moved_us)
        self._counts[of] = half
        self._counts.insert(of + 1, len(upper.places))

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
        self._blocks[lower].places.extend(upper.places)
        self._blocks[lower].waiters.extend(upper.waiters)
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
                self.head = self._blocks[self._block].waiters[self._at]
                return
            self._at -= count
            self._block += 1
        self.head = None
