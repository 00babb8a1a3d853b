"""Reads from DCGM exporters how busy GPUs are: one reader for each exporter, whichever pools want it.

Owns its readers and their connections from `start` to `stop`. What cannot be read is told once in the log, and is not
made up: the core believes a reading for a few seconds, and then goes by what it sees of the pool itself. Never on the
path of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from forebay.admission.events import Event, GpusSampled
from forebay.admission.patterns import fits
from forebay.engines.exposition import PageReader, PageTooLarge, labels_of
from forebay.engines.reading import Answer, ReadFailed

__all__ = ["SERIES", "GpuPolling", "GpuSource"]

_log = logging.getLogger(__name__)

SERIES: Final = "DCGM_FI_DEV_GPU_UTIL"
"""Of each GPU, in percent."""
INTERVAL_S: Final = 1.0
LONGEST_INTERVAL_S: Final = 10.0
"""While an exporter does not answer."""
FRESH_S: Final = 5.0
"""An exporter that has not answered for this long says nothing of its GPUs."""
_TIMEOUT_S: Final = 3.0
_PAGE_BYTES: Final = 1024 * 1024


class Client(Protocol):
    """Asks one exporter."""

    async def get(self, path: str, *, timeout_s: float, max_bytes: int) -> Answer:
        """The answer to a GET. Raises: ReadFailed."""

    def close(self) -> None:
        """Close idle connections."""


@dataclass(frozen=True, slots=True)
class GpuSource:
    """Whose GPUs, and where they tell."""

    pool: str
    exporters: tuple[tuple[str, int], ...]
    """Host and port of each."""
    labels: tuple[tuple[str, str], ...] = ()
    """Name and pattern of what labels of the pool's GPUs say."""

    def has(self, labels: dict[str, str]) -> bool:
        """Is the GPU with these labels one of the pool's?"""
        return all(fits(labels.get(name, ""), pattern) for name, pattern in self.labels)


class GpuPolling:
    """All readers."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        client_for: Callable[[str, int], Client],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See the class.

        Args:
            feed: told what is read.
            client_for: makes the client of an exporter.
            clock: the driver's.
        """
        self._feed = feed
        self._client_for = client_for
        self._clock = clock
        self._page = PageReader([SERIES])
        self._started = False
        self._sources: tuple[GpuSource, ...] = ()
        self._readers: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._read: dict[tuple[str, int], tuple[float, list[tuple[dict[str, str], float]]]] = {}
        """By exporter, when it answered last, and labels and value of each GPU."""
        self._silent: set[tuple[str, int]] = set()
        self._without: set[str] = set()
        """Pools of which the log says that they have no GPU there."""

    def follow(self, sources: Sequence[GpuSource]) -> None:
        """Read for these pools from now on, and for no others."""
        self._sources = tuple(sources)
        self._without &= {source.pool for source in sources}
        if not self._started:
            return
        wanted = {exporter for source in sources for exporter in source.exporters}
        for exporter in [known for known in self._readers if known not in wanted]:
            self._readers.pop(exporter).cancel()
            self._read.pop(exporter, None)
            self._silent.discard(exporter)
        for exporter in sorted(wanted):
            if exporter not in self._readers:
                self._readers[exporter] = asyncio.get_running_loop().create_task(self._run(exporter))

    def start(self) -> None:
        """Begin to read."""
        self._started = True
        self.follow(self._sources)

    async def stop(self) -> None:
        """Give up what is under way."""
        readers = list(self._readers.values())
        self.follow(())
        for reader in readers:
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _run(self, exporter: tuple[str, int]) -> None:
        client = self._client_for(*exporter)
        pause_s = INTERVAL_S
        try:
            while True:
                found = await self._look(exporter, client)
                pause_s = INTERVAL_S if found else min(2 * pause_s, LONGEST_INTERVAL_S)
                await asyncio.sleep(pause_s)
        finally:
            client.close()

    async def _look(self, exporter: tuple[str, int], client: Client) -> bool:
        """One reading; False if there was none."""
        where = f"http://{exporter[0]}:{exporter[1]}/metrics"
        try:
            answer = await client.get("/metrics", timeout_s=_TIMEOUT_S, max_bytes=_PAGE_BYTES)
            page = self._page.read(_whole(answer))
        except (ReadFailed, PageTooLarge) as failure:
            if exporter not in self._silent:
                self._silent.add(exporter)
                _log.warning("GPU metrics of %s cannot be read: %s", where, failure)
            return False
        if exporter in self._silent:
            self._silent.discard(exporter)
            _log.info("GPU metrics of %s are read again", where)
        gpus = [
            (labels_of(labels), value)
            for labels, value in page.series.get(SERIES, {}).items()
            if 0.0 <= value <= 100.0
        ]
        self._read[exporter] = (answer.at_s, gpus)
        for source in self._sources:
            if exporter in source.exporters:
                self._tell(source)
        return True

    def _tell(self, source: GpuSource) -> None:
        """The mean over the pool's GPUs, of the exporters that have answered lately."""
        now = self._clock()
        total, count = 0.0, 0
        for exporter in source.exporters:
            at_s, gpus = self._read.get(exporter, (now, []))
            if now - at_s <= FRESH_S:
                own = [value for labels, value in gpus if source.has(labels)]
                total, count = total + sum(own), count + len(own)
        if count:
            self._without.discard(source.pool)
            self._feed(GpusSampled(source.pool, total / count / 100.0, now))
        elif source.pool not in self._without:
            self._without.add(source.pool)
            _log.warning("pool %s: no %s with its labels is in what its exporters tell", source.pool, SERIES)


def _whole(answer: Answer) -> bytes:
    """Raises: ReadFailed, if it is no page."""
    body = answer.plain_body()
    if answer.status != 200 or body is None:
        raise ReadFailed(f"it answers {answer.status}", unreachable=False)
    return body
