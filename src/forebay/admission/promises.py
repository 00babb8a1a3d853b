"""A place kept in a bucket for a request that was refused for want of tokens, and told when to come back.

Without it a large request could be put off for ever: by the time that it comes back, small ones of the same tenant have
used up what it was to get. So until it is back, others must leave what it still needs beyond what will have been
refilled by the time that it was told:

    others leave   cost − rate × (its time − now)      and its whole cost once its time has come

One request at a time has such a promise: the first that is refused. It is known again by its sizes. It loses it when it
does not come back in time, so nobody waits long for one who stays away.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import MICRO

LATE_S: Final = 2.0
"""So long after its time it is waited for: the way there and back, and whole seconds in `Retry-After`."""


class Promise:
    """That of one bucket."""

    __slots__ = ("_by_s", "_cost", "_key", "_until_s")

    def __init__(self) -> None:
        self._key = 0
        self._cost = 0
        self._by_s = 0.0
        self._until_s = 0.0

    @property
    def holder(self) -> int:
        """Who has it, or had it last."""
        return self._key

    def left_for_it(self, key: int, per_s: float, now: float) -> int:
        """What a request must leave, in millionths; nothing if the promise is its own, or there is none."""
        if now >= self._until_s or key == self._key:
            return 0
        if now >= self._by_s:
            return self._cost
        left = self._cost - int((self._by_s - now) * per_s * MICRO)
        return left if left > 0 else 0

    def wait_s(self, now: float) -> float:
        """Until its time."""
        return self._by_s - now if self._by_s > now else 0.0

    def give(self, key: int, cost: int, by_s: float, told_s: float, now: float) -> bool:
        """Promise it to a request that was refused. False if another one has it.

        Args:
            cost: in millionths.
            by_s: when there will be room for it.
            told_s: in how many seconds it was told to come back: before that, if it is long.
        """
        if now < self._until_s:
            if key != self._key:
                return False
            by_s = min(by_s, self._by_s)  # who comes early is told the same time again
        self._key, self._cost, self._by_s = key, cost, by_s
        self._until_s = now + told_s + LATE_S
        return True

    def keep(self, key: int) -> None:
        """A request was let in: if it was this one, the promise is kept."""
        if key == self._key:
            self._until_s = 0.0
