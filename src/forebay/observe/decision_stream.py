"""Decisions as they are made, for whoever watches: server-sent events over the admin API.

Owns one bounded buffer for each reader. Who reads too slowly skips the oldest and is told how many; nobody waits.
It listens only while somebody reads, so that requests pay nothing for it otherwise.

    event: decision      data: a decision record, as `/api/decisions` shows it
    event: skipped       data: {"skipped": 17}
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from forebay.admission.model import DecisionRecord

__all__ = ["DecisionStream", "TooManyReaders"]

READERS: Final = 16
BUFFER: Final = 1000
"""Decisions that a reader may be behind."""
BATCH: Final = 200
PAUSE_S: Final = 0.1
"""Between two batches: a reader gets 2,000 decisions a second at the most: the gateway has other work."""
QUIET_S: Final = 15.0
"""After so long without a decision a comment is sent, which keeps proxies from closing the connection."""

Watch = Callable[[Callable[[DecisionRecord], None]], Callable[[], None]]
Show = Callable[[DecisionRecord], dict[str, Any]]


class TooManyReaders(Exception):
    """No more can be served at once."""


class _Reader:
    __slots__ = ("news", "records", "skipped")

    def __init__(self) -> None:
        self.records: deque[DecisionRecord] = deque(maxlen=BUFFER)
        self.skipped = 0
        self.news = asyncio.Event()

    def add(self, record: DecisionRecord) -> None:
        if len(self.records) == BUFFER:
            self.skipped += 1
        self.records.append(record)
        self.news.set()


class DecisionStream:
    """All readers of one process."""

    def __init__(self, watch: Watch, *, quiet_s: float = QUIET_S) -> None:
        """See the class.

        Args:
            watch: has a function told about every decision; returns what ends that.
        """
        self._watch = watch
        self._quiet_s = quiet_s
        self._readers: dict[int, _Reader] = {}
        self._stop: Callable[[], None] | None = None
        self._closed = False

    @property
    def readers(self) -> int:
        """How many read."""
        return len(self._readers)

    def open(self, show: Show) -> AsyncIterator[bytes]:
        """Events for one more reader, from now on. Raises: TooManyReaders, before anything is read."""
        if self._closed or len(self._readers) >= READERS:
            raise TooManyReaders
        return self._events(show)

    def close(self) -> None:
        """The process ends: so do all streams, once they have sent what they hold."""
        self._closed = True
        for reader in self._readers.values():
            reader.news.set()

    def _on_record(self, record: DecisionRecord) -> None:
        for reader in self._readers.values():
            reader.add(record)

    async def _events(self, show: Show) -> AsyncIterator[bytes]:
        reader = self._enter()  # not before somebody takes events: one who never does would stay for ever
        try:
            yield b": decisions as they are made\n\n"
            while True:
                if await self._is_quiet(reader):
                    yield b": nothing new\n\n"
                elif reader.records or reader.skipped:
                    yield self._batch(reader, show)
                if self._closed and not reader.records:
                    return
                if not self._closed:
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._leave(reader)

    async def _is_quiet(self, reader: _Reader) -> bool:
        if self._closed:
            return False
        try:
            await asyncio.wait_for(reader.news.wait(), self._quiet_s)
        except TimeoutError:
            return True
        return False

    @staticmethod
    def _batch(reader: _Reader, show: Show) -> bytes:
        lines: list[bytes] = []
        skipped, reader.skipped = reader.skipped, 0
        if skipped:
            lines.append(b'event: skipped\ndata: {"skipped": %d}\n\n' % skipped)
        for _ in range(min(BATCH, len(reader.records))):
            shown = msgspec.json.encode(show(reader.records.popleft()))
            lines.append(b"event: decision\ndata: %b\n\n" % shown)
        if not reader.records:
            reader.news.clear()
        return b"".join(lines)

    def _enter(self) -> _Reader:
        reader = _Reader()
        self._readers[id(reader)] = reader
        if self._stop is None:
            self._stop = self._watch(self._on_record)
        return reader

    def _leave(self, reader: _Reader) -> None:
        self._readers.pop(id(reader), None)
        if not self._readers and self._stop is not None:
            self._stop()
            self._stop = None
