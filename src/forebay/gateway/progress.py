"""Tells the core, in batches, which streams moved; and lets go of answers that were held long enough.

One timer for the whole gateway, armed only while something is to be reported: a stream that relays a token costs an
addition and, once per interval, an entry in a batch.

Bytes that a slow reader keeps us from reading are not the engine's silence: a paused stream is reported as moving,
with no new events. How long a reader may take nothing is bounded elsewhere (`slow_reader`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from forebay.admission.events import Event, Progressed
from forebay.admission.model import EndpointId, TicketId

__all__ = ["HELD_HEAD_S", "Mover", "Progress"]

HELD_HEAD_S: Final = 15.0
"""Comments before the first event are held with the head for this long; then both go out. An error answer has the
same time for its body."""

PAUSED_REPORT_S: Final = 2.0


class Mover(Protocol):
    """A relayed answer, as the reporter sees it."""

    ticket: TicketId
    endpoint: EndpointId
    new_events: int
    """Data events since the last report."""
    moved: bool
    """True while an entry for it waits in the next batch."""
    last_event_s: float
    """When the last event came; 0 before the first."""
    reported_event_s: float
    """`last_event_s` at the last report; 0 if the gap to it would say nothing of the engine."""
    over: bool

    def release_head(self) -> None:
        """It was held long enough: send it, or do without the rest of it."""


class Progress:
    """The batches of one gateway."""

    def __init__(self, feed: Callable[[Event], None], now: Callable[[], float], interval_s: float) -> None:
        self._feed = feed
        self.now = now
        self.interval_s = interval_s
        self._moved: list[Mover] = []
        self._paused: dict[Mover, None] = {}
        self._held: deque[tuple[float, Mover]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._paused_due_s = 0.0

    def note(self, mover: Mover) -> None:
        """An answer moved for the first time since the last report."""
        mover.moved = True
        self._moved.append(mover)
        if self._timer is None:
            self._arm()

    def pause(self, mover: Mover) -> None:
        """The client does not read; the engine's socket is not read either."""
        self._paused[mover] = None
        mover.reported_event_s = 0.0
        self._arm()

    def resume(self, mover: Mover) -> None:
        """It reads again, or it is over."""
        if mover in self._paused:
            del self._paused[mover]
            # The time in which nothing was read is no gap between tokens.
            mover.reported_event_s = 0.0

    def hold(self, mover: Mover) -> None:
        """A head is held from now on, until the first event or the whole error is there."""
        self._held.append((self.now() + HELD_HEAD_S, mover))
        self._arm()

    def flush(self) -> None:
        """Reports everything that moved since the last time, and releases what was held too long."""
        now_s = self.now()
        moved, self._moved = self._moved, []
        batches: dict[EndpointId, _Batch] = {}
        for mover in moved:
            mover.moved = False
            if not mover.over:
                batch = batches.get(mover.endpoint)
                if batch is None:
                    batch = batches[mover.endpoint] = _Batch()
                batch.add(mover)
        for endpoint, batch in batches.items():
            self._feed(Progressed(endpoint, batch.tokens, batch.mean_gap_s()))
        if self._paused and now_s >= self._paused_due_s:
            self._paused_due_s = now_s + PAUSED_REPORT_S
            self._report_paused()
        while self._held and (self._held[0][1].over or self._held[0][0] <= now_s):
            _, held = self._held.popleft()
            if not held.over:
                held.release_head()

    def _report_paused(self) -> None:
        """Those that are not read are not at fault for being silent; nor do they show that their engine works."""
        tickets: dict[EndpointId, list[tuple[TicketId, int]]] = {}
        for mover in self._paused:
            if not mover.over:
                tickets.setdefault(mover.endpoint, []).append((mover.ticket, 0))
        for endpoint, paused in tickets.items():
            self._feed(Progressed(endpoint, paused, alive=False))

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.interval_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.flush()
        if self._moved or self._paused or self._held:
            self._arm()


class _Batch:
    """What moved at one endpoint."""

    __slots__ = ("gap_events", "gaps_s", "tokens")

    def __init__(self) -> None:
        self.tokens: list[tuple[TicketId, int]] = []
        self.gaps_s = 0.0
        self.gap_events = 0

    def add(self, mover: Mover) -> None:
        events = mover.new_events
        mover.new_events = 0
        self.tokens.append((mover.ticket, events))
        if events:
            if mover.reported_event_s:
                self.gaps_s += mover.last_event_s - mover.reported_event_s
                self.gap_events += events
            mover.reported_event_s = mover.last_event_s

    def mean_gap_s(self) -> float | None:
        return self.gaps_s / self.gap_events if self.gap_events else None
