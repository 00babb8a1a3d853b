"""The recent decisions, newest last, and how requests ended: for the admin API.

A fixed number is kept; nothing is written anywhere.
"""

from __future__ import annotations

from collections import deque
from heapq import merge
from typing import Final

from forebay.admission.model import DecisionRecord, Settlement, TicketId

__all__ = ["RecentDecisions"]

PLAIN: Final = 200
"""Decisions to dispatch at once that are kept, and ends. There is little to explain about them, and of 2,000 the memory
is cold by the time it is used again, which costs every request a twentieth."""


class RecentDecisions:
    """Rings of decision records, and one of ends."""

    def __init__(self, capacity: int = 2000) -> None:
        self._plain: deque[tuple[int, DecisionRecord]] = deque(maxlen=min(capacity, PLAIN))
        """Who was dispatched without having waited."""
        self._others: deque[tuple[int, DecisionRecord]] = deque(maxlen=capacity)
        self._number = 0
        self._capacity = capacity
        self._ends: deque[Settlement] = deque(maxlen=min(capacity, PLAIN))
        self.add_end = self._ends.append
        """Called for the end of each request; bound to the ring itself, since it runs once per request."""

    def add(self, record: DecisionRecord) -> None:
        """One more decision."""
        self._number += 1
        plain = record.action == "dispatch" and not record.waited_s
        (self._plain if plain else self._others).append((self._number, record))

    def latest(self, limit: int) -> list[DecisionRecord]:
        """At most `limit` records, newest first."""
        newest: list[DecisionRecord] = []
        both = merge(reversed(self._plain), reversed(self._others), key=lambda kept: -kept[0])
        for _, record in both:
            if len(newest) >= min(limit, self._capacity):
                break
            newest.append(record)
        return newest

    def of_ticket(self, ticket: TicketId) -> list[DecisionRecord]:
        """What is still known about one request, oldest first. A scan: only people ask."""
        return [
            record
            for _, record in merge(self._plain, self._others, key=lambda kept: kept[0])
            if record.ticket == ticket
        ]

    def end_of(self, ticket: TicketId) -> Settlement | None:
        """How a request ended; None if it runs, waits, or ended too long ago."""
        return next((end for end in reversed(self._ends) if end.ticket == ticket), None)
