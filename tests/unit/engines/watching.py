"""Waiting for what a poller tells, instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from forebay.admission.events import Event

E = TypeVar("E", bound=Event)


class EventLog:
    """Takes a poller's events and hands them out in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()

    def took(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    async def next(
        self, kind: type[E], accept: Callable[[E], bool] = lambda _: True, timeout_s: float = 20.0
    ) -> E:
        """Waits for a new event of this kind that is accepted; what came before it is forgotten."""
        async with asyncio.timeout(timeout_s):
            while True:
                while self.events:
                    event = self.events.pop(0)
                    if isinstance(event, kind) and accept(event):
                        return event
                self._news.clear()
                await self._news.wait()
