"""When a refused client should come back: a slot of its own, as far as can be known.

Clients refused in one burst must not come back in one burst. Each class keeps a virtual retry queue V: the work of
those who were told to come back and are expected to. It drains at μ, the work per second that the class has been
getting, whether they come or not: a slot that nobody uses is over by itself.

    slot = T0 + V ÷ μ      then V += cost × P(return)

T0 is the time until the class could start such a request: its predicted wait less its budget. P(return) is the share
of refusals that came back once their time had come. The promise is slot × 1.0 to 1.3, spread upwards only by a
golden-ratio sequence: nobody is told to come before there is a chance.

SDKs ignore more than a minute, so slots beyond are told as 46 to 60 s. Those clients come before their slot, are
refused again and are booked again. So V is never more than what is promised for times still ahead: work whose
time has come was served, was promised anew, or stays away.

No randomness and no clock: the core is deterministic. Refusals for quota are not made here: they know their time.
"""

from __future__ import annotations

from math import inf
from typing import Final

SHORTEST_S: Final = 1.0
LONGEST_S: Final = 60.0
"""SDKs ignore longer waits and use their own short back-off instead."""
SPREAD: Final = 0.3
CAP_S: Final = LONGEST_S / (1.0 + SPREAD)
"""A slot beyond is drawn down to it, so that the longest wait does not gather everybody in its last second."""
_GOLDEN: Final = 0.6180339887498949

PRIOR_RETURN: Final = 0.8
"""P(return) before anything was seen: SDKs retry by themselves, twice by default."""
PRIOR_WEIGHT: Final = 20.0
"""Refusals that the prior counts for."""
LEAST_RETURN: Final = 0.1
"""P(return) is taken for no less: a burst of a new sort of client must not be sent back in one instant."""
RETURN_DECAY: Final = 0.95
"""Per slice of time for which somebody was told to come: the memory is about 80 s of refusals."""

SLICE_S: Final = 4.0
SLICES: Final = 16
"""64 s ahead: a promise is at most 60 s away."""


class RetryAfter:
    """Hands out return times for the classes of one pool."""

    __slots__ = ("_absent", "_queues")

    def __init__(self, classes: int) -> None:
        self._queues = [_RetryQueue() for _ in range(classes)]
        self._absent = 0

    def reclass(self, sources: list[int]) -> None:
        """Other classes: for each the place it had, or -1 for a new one."""
        self._queues = [self._queues[source] if source >= 0 else _RetryQueue() for source in sources]

    def promise_s(
        self, class_index: int, base_s: float, cost_us: int, rate_us_per_s: float, now: float
    ) -> float:
        """Seconds to wait for a request refused now, before rounding up; at least 1 and at most 60.

        Args:
            base_s: T0. Infinite if nobody can say; below 0 counts as 0.
            cost_us: its work.
            rate_us_per_s: μ; not positive if nothing drains.
        """
        queue = self._queues[class_index]
        slot_s = queue.slot_s(base_s, rate_us_per_s, now)
        promise_s = spread_s(slot_s, queue.refusals)
        queue.book(cost_us, promise_s, now)
        return promise_s

    def returned(self, class_index: int) -> None:
        """A client that was refused came back, whatever becomes of it."""
        self._queues[class_index].came_back += 1.0

    def absent(self, base_s: float) -> float:
        """Seconds to wait where there is no engine to queue for (503): spread, and nothing promised."""
        self._absent += 1
        return spread_s(base_s, self._absent)

    def ruled_s(self, base_s: float) -> float:
        """Seconds to wait where an operator's rule says how many: spread upwards, so that not all come back at once."""
        self._absent += 1
        return base_s * (1.0 + SPREAD * (self._absent * _GOLDEN % 1.0))

    def promised_us(self, class_index: int) -> float:
        """Work in the virtual retry queue, as of the last refusal."""
        return self._queues[class_index].promised_us

    def return_share(self, class_index: int) -> float:
        """P(return), as of the last refusal."""
        return self._queues[class_index].return_share


class _RetryQueue:
    """What one class has promised."""

    __slots__ = (
        "_counts",
        "_slice",
        "_works",
        "came_back",
        "due",
        "promised_us",
        "refusals",
        "return_share",
        "updated_s",
    )

    def __init__(self) -> None:
        self.promised_us = 0.0
        """V."""
        self.updated_s = -inf
        self.refusals = 0
        self.due = PRIOR_WEIGHT
        """Refusals whose promised time has come, decayed. Those still ahead say nothing about P(return) yet."""
        self.came_back = PRIOR_RETURN * PRIOR_WEIGHT
        self.return_share = PRIOR_RETURN
        self._slice = 0
        """Number of the present slice of time."""
        self._works = [0.0] * SLICES
        """Work promised for each slice ahead, in a ring."""
        self._counts = [0] * SLICES

    def slot_s(self, base_s: float, rate_us_per_s: float, now: float) -> float:
        """Bring V up to now, and say when it would be the turn of one more."""
        self.refusals += 1
        self._advance(now)
        if now > self.updated_s:
            if rate_us_per_s > 0 and self.promised_us > 0:
                self.promised_us -= rate_us_per_s * (now - self.updated_s)
            self.updated_s = now
        ahead_us = sum(self._works)
        if self.promised_us > ahead_us:
            self.promised_us = ahead_us
        if self.promised_us < 0:
            self.promised_us = 0.0
        if rate_us_per_s <= 0:
            return inf
        return (base_s if base_s > 0 else 0.0) + self.promised_us / rate_us_per_s

    def book(self, cost_us: int, promise_s: float, now: float) -> None:
        """One more was told to come back."""
        work = cost_us * self.return_share
        self.promised_us += work
        place = int((now + promise_s) // SLICE_S) % SLICES
        self._works[place] += work
        self._counts[place] += 1

    def _advance(self, now: float) -> None:
        """The time of some promises has come."""
        present = int(now // SLICE_S)
        passed = present - self._slice
        if passed <= 0:
            return
        refused = self.due + sum(self._counts)
        if self.came_back > refused:
            self.came_back = refused  # clients also retry what others refused them
        for slice_number in range(self._slice, self._slice + (passed if passed < SLICES else SLICES)):
            place = slice_number % SLICES
            count = self._counts[place]
            if count:
                self.due = (self.due + count) * RETURN_DECAY
                self.came_back *= RETURN_DECAY
                self._counts[place] = 0
            self._works[place] = 0.0
        self._slice = present
        share = self.came_back / self.due
        self.return_share = LEAST_RETURN if share < LEAST_RETURN else share if share < 1.0 else 1.0


def spread_s(base_s: float, refusals: int, *, least_s: float = SHORTEST_S) -> float:
    """`base_s` × 1.0 to 1.3, within what clients heed.

    Args:
        refusals: how many there have been: the next number is spread otherwise.
        least_s: what is told at least. Where nobody knows when there is room again, less than a second is a guess.
    """
    spread = 1.0 + SPREAD * (refusals * _GOLDEN % 1.0)
    base_s = base_s if base_s < CAP_S else CAP_S
    return (base_s if base_s > least_s else least_s) * spread


def known_s(wait_s: float, turn_s: float, refusals: int) -> float:
    """As `spread_s`, for a turn that is known and not predicted: however short it is, and never before there is room.

    Args:
        wait_s: until there is room.
        turn_s: the same or later: until it is this one's turn.
        refusals: as there.
    """
    told_s = spread_s(turn_s, refusals, least_s=0.0)
    return wait_s if told_s < wait_s <= LONGEST_S else told_s
