"""A bounded list of waiting requests: first by a key, each until its time is up.

Owns order and expiry, and decides nothing. Requests may leave from the middle; what they leave behind in the heaps is
swept out before it outgrows those who still wait.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import Final

from forebay.admission.model import TicketId

__all__ = ["Key", "WaitingList"]

Key = tuple[float, ...]
"""Smaller goes first; equal keys go in the order in which they came."""

_SPARE: Final = 64
"""Stale entries that are not worth a sweep."""


class WaitingList:
    """Tickets that wait."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._keys: dict[TicketId, int] = {}
        """Who waits, with the number of the entry that is valid."""
        self._order: list[tuple[Key, int, TicketId]] = []
        self._expiry: list[tuple[float, int, TicketId]] = []
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, ticket: TicketId) -> bool:
        return ticket in self._keys

    @property
    def is_full(self) -> bool:
        """True if nobody more may wait."""
        return len(self._keys) >= self.most

    def add(self, ticket: TicketId, key: Key, expires_s: float = inf) -> None:
        """Let it wait until then at the latest."""
        number = self._next_number
        self._next_number += 1
        self._keys[ticket] = number
        heapq.heappush(self._order, (key, number, ticket))
        if expires_s < inf:
            heapq.heappush(self._expiry, (expires_s, number, ticket))

    def remove(self, ticket: TicketId) -> None:
        """It waits no more."""
        del self._keys[ticket]
        left = _SPARE + 2 * len(self._keys)
        if len(self._order) > left:
            self._order = [entry for entry in self._order if self._is_valid(entry[1], entry[2])]
            heapq.heapify(self._order)
        if len(self._expiry) > left:
            self._expiry = [entry for entry in self._expiry if self._is_valid(entry[1], entry[2])]
            heapq.heapify(self._expiry)

    def first(self) -> TicketId | None:
        """Who goes next; None if nobody waits."""
        while self._order:
            _, number, ticket = self._order[0]
            if self._is_valid(number, ticket):
                return ticket
            heapq.heappop(self._order)
        return None

    def next_expiry_s(self) -> float | None:
        """When somebody's time is up next."""
        while self._expiry:
            expires_s, number, ticket = self._expiry[0]
            if self._is_valid(number, ticket):
                return expires_s
            heapq.heappop(self._expiry)
        return None

    def expired(self, now: float) -> list[TicketId]:
        """Whose time is up; they are still in the list."""
        found = []
        while (due_s := self.next_expiry_s()) is not None and due_s <= now:
            found.append(heapq.heappop(self._expiry)[2])
        return found

    def _is_valid(self, number: int, ticket: TicketId) -> bool:
        return self._keys.get(ticket) == number
