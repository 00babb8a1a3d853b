"""The recent decisions, newest last, and how requests ended: for the admin API.

A fixed number is kept; nothing is written anywhere.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from forebay.admission.model import DecisionRecord, Settlement, TicketId

__all__ = ["RecentDecisions"]

ENDS: Final = 200
"""Ends that are kept. Of 2,000 the memory is cold by the time it is used again, which every request pays for."""


class RecentDecisions:
    """A ring of decision records, and one of ends."""

    def __init__(self, capacity: int = 2000) -> None:
        self._records: deque[DecisionRecord] = deque(maxlen=capacity)
        self.add = self._records.append
        """Called for each decision; bound to the ring itself, since it runs once or twice per request."""
        self._ends: deque[Settlement] = deque(maxlen=min(capacity, ENDS))
        self.add_end = self._ends.append
        """The same for the end of each request."""

    def latest(self, limit: int) -> list[DecisionRecord]:
        """At most `limit` records, newest first."""
        newest: list[DecisionRecord] = []
        for record in reversed(self._records):
            if len(newest) >= limit:
                break
            newest.append(record)
        return newest

    def of_ticket(self, ticket: TicketId) -> list[DecisionRecord]:
        """What is still known about one request, oldest first. A scan: only people ask."""
        return [record for record in self._records if record.ticket == ticket]

    def end_of(self, ticket: TicketId) -> Settlement | None:
        """How a request ended; None if it runs, waits, or ended too long ago."""
        return next((end for end in reversed(self._ends) if end.ticket == ticket), None)
