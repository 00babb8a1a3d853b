"""How much of the KV cache the forecast may fill: found at the cliff, the only place where it shows.

A KV cache that runs over makes the engine throw work away and do it again: throughput falls off a cliff
there, and nothing is to be felt before. So the factor is raised slowly while nothing happens and lowered
at each sign of the cliff (the counter of preemptions moved, or a stream stood still for more than ten
steps; the caller sees these):

    lowered by 3 % at an event, raised by 0.002 for each whole second without one, from 0.7 to 0.95

The most important class may fill a little more, 0.99 for 0.95, so that the last room is its own. Events
less than a second after one that lowered it belong to that one: what is running takes a while to end, and
the engine reports its preemptions several times meanwhile.
"""

from __future__ import annotations

from typing import Final

HIGHEST: Final = 0.95
HIGHEST_FIRST: Final = 0.99
LOWEST: Final = 0.7
DECREASE: Final = 0.97
INCREASE_PER_S: Final = 0.002
QUIET_S: Final = 1.0
"""Raised for each such time without an event; and events so close together are one."""


class FillFactor:
    """The factor of one endpoint."""

    __slots__ = ("_first_share", "_highest", "_lowered_s", "_quiet_from_s", "factor")

    def __init__(self, highest: float = HIGHEST, highest_first: float = HIGHEST_FIRST) -> None:
        self.factor = highest
        """Part of the KV capacity that any class but the first may fill."""
        self._highest = highest
        self._first_share = highest_first / highest
        self._quiet_from_s: float | None = None
        """Whole quiet seconds are counted from here."""
        self._lowered_s: float | None = None

    def limit_for(self, rank_is_first: bool) -> float:
        """Part of the KV capacity that a class may fill: that of the first rank, or any other."""
        return self.factor * self._first_share if rank_is_first else self.factor

    def tick(self, now: float) -> None:
        """Time has passed. Raises the factor if it was quiet."""
        since = self._quiet_from_s
        if since is None:
            self._quiet_from_s = now
            return
        seconds = int((now - since) / QUIET_S)
        if seconds > 0:
            self._quiet_from_s = since + seconds * QUIET_S
            self.factor = min(self.factor + INCREASE_PER_S * seconds, self._highest)

    def preempted(self, now: float) -> None:
        """The engine preempted a request, or a stream stood still as if it had."""
        self.tick(now)
        self._quiet_from_s = now
        lowered = self._lowered_s
        if lowered is not None and now - lowered < QUIET_S:
            return
        self._lowered_s = now
        self.factor = max(self.factor * DECREASE, min(LOWEST, self._highest))
