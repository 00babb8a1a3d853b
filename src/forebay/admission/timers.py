"""The core's own alarm clock: what must be looked at when.

A heap of (due, sequence, action, subject). Entries are not removed when their subject is over: the action
checks, when it is due, that it still means something. `compact` keeps the heap in proportion to what is alive.
The sequence number makes equal times come in the order they were set, under any hash seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

Subject = TypeVar("Subject")
_Entry = tuple[float, int, Callable[[float], None], object]
COMPACT_ABOVE: Final = 1024


class Timers:
    """Deadlines in time order."""

    __slots__ = ("_compact_above", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._sequence = 0
        self._compact_above = COMPACT_ABOVE

    def at(self, due_s: float, action: Callable[[Subject, float], None], subject: Subject) -> None:
        """Call `action(subject, now)` at or after `due_s`."""
        self._sequence += 1
        entry: _Entry = (due_s, self._sequence, partial(action, subject), subject)
        heapq.heappush(self._heap, entry)

    def next_s(self) -> float | None:
        """The earliest time set, or None."""
        return self._heap[0][0] if self._heap else None

    def run_due(self, now: float) -> None:
        """Call everything that is due. What an action sets runs at the next call at the earliest.

        So a deadline that is wrongly set again and again makes the driver busy, and never hangs it here.
        """
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for action in due:
            action(now)

    def compact(self, live: int, is_live: Callable[[object], bool]) -> None:
        """Drop dead entries once they outnumber `live` ones four to one.

        After that only when they have doubled: where nothing can be dropped, no call may go through them all in vain.
        """
        if len(self._heap) > max(self._compact_above, 4 * live):
            self._heap = [entry for entry in self._heap if is_live(entry[3])]
            heapq.heapify(self._heap)
            self._compact_above = max(COMPACT_ABOVE, 2 * len(self._heap))

    def __len__(self) -> int:
        return len(self._heap)
