"""Whether requests are recorded, and where: follows the configuration.

Owns the recorder in force. Without `record` nobody is told of anything, so that it costs nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from forebay.admission.model import TicketId
from forebay.config.record_entry import RecordEntry
from forebay.observe.record_files import RecordFiles
from forebay.observe.recorder import RecordCounts, Recorder
from forebay.runtime.driver import Driver

__all__ = ["Recording"]


class Recording:
    """The recorder in force, if any."""

    def __init__(
        self, driver: Driver, ids_of: Callable[[TicketId], Mapping[str, str]], counts: RecordCounts
    ) -> None:
        self._driver = driver
        self._ids_of = ids_of
        self._counts = counts
        self._entry: RecordEntry | None = None
        self._recorder: Recorder | None = None
        self._unwatch: Callable[[], None] = lambda: None

    def follow(self, entry: RecordEntry | None) -> None:
        """Record as this says from now on. Requests that are open are written where they end."""
        if entry == self._entry:
            return
        self._end()
        self._entry = entry
        if entry is not None:
            path = os.path.expanduser(entry.path)  # noqa: PTH111 - Path's own fails for a home that nobody has
            files = RecordFiles(Path(path), max_bytes=entry.max_size, files=entry.files)
            recorder = Recorder(
                files, asyncio.get_running_loop(), self._driver.now, self._ids_of, self._counts
            )
            self._unwatch = self._driver.delivery.watch(recorder.on_record, recorder.on_settlement)
            self._recorder = recorder

    async def stop(self) -> None:
        """Write what is there, and record no more."""
        recorder = self._end()
        if recorder is not None:
            await asyncio.to_thread(recorder.join)

    def _end(self) -> Recorder | None:
        recorder, self._recorder = self._recorder, None
        self._unwatch()
        if recorder is not None:
            recorder.close()
        self._entry = None
        return recorder
