"""All waiters of a pool are estimated and booked anew, some at a time.

When the law of speed, or what engines can hold, has changed. With a long queue that is the longest work there is here:
10,000 waiters at once would keep everybody else waiting for a third of a second (compiled). So each call takes
`SLICE` of them, and the rest come at the next wakes; until its turn a waiter stays booked as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from forebay.admission.lifecycle import Lifecycle
from forebay.admission.model import TicketId
from forebay.admission.pools import Pool
from forebay.admission.tickets import WAITING
from forebay.admission.timers import Timers

SLICE: Final = 200
"""Waiters in one call: some 6 ms compiled, and 30 ms pure."""


class Repricing:
    """The pools whose waiters are being priced anew."""

    def __init__(self, life: Lifecycle, timers: Timers, fill: Callable[[Pool, float], None]) -> None:
        """See the module.

        Args:
            fill: look for waiters that can start now: with other sizes, others may.
        """
        self._life = life
        self._timers = timers
        self._fill = fill
        self._left: dict[str, tuple[Pool, list[TicketId]]] = {}
        """Waiters whose turn is to come, the next one last, by pool."""

    def begin(self, pool: Pool, now: float) -> None:
        """Price them all anew. What an earlier change has left is done with these."""
        before = self._left.get(pool.settings.name)
        left = [TicketId(waiter.sequence) for waiter in pool.queue]
        left.reverse()
        self._left[pool.settings.name] = pool, left
        if before is None or before[0] is not pool:  # else its timer is set
            self._slice(pool, now)

    def _go_on(self, pool: Pool, now: float) -> None:
        self._slice(pool, now)
        self._fill(pool, now)

    def _slice(self, pool: Pool, now: float) -> None:
        owner, left = self._left.get(pool.settings.name, (None, []))
        if owner is not pool:
            return  # another pool has taken the name
        for _ in range(min(SLICE, len(left))):
            ticket = self._life.tickets.get(left.pop())
            if ticket is not None and ticket.phase is WAITING:
                self._life.price_again(ticket, now)
        if left:
            self._timers.at(now, self._go_on, pool)
        else:
            del self._left[pool.settings.name]
