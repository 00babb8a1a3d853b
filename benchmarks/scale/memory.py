"""What memory a process has, and the most that it had while it was watched.

RSS is what a container's memory limit counts, but for what the kernel holds for the process, as socket buffers. PSS
counts pages that processes share only in part.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["MemoryWatch", "memory_bytes"]

EVERY_S: Final = 0.02


def memory_bytes(pid: int) -> tuple[int, int]:
    """RSS and PSS of a process."""
    found = {"Rss": 0, "Pss": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * 1024
    return found["Rss"], found["Pss"]


class MemoryWatch:
    """Looks at a process fifty times a second, in a thread, for the time of a `with` block."""

    def __init__(self, pid: int) -> None:
        self.peak_rss_bytes = self.peak_pss_bytes = 0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def look(self) -> None:
        """One look."""
        rss_bytes, pss_bytes = memory_bytes(self._pid)
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss_bytes)
        self.peak_pss_bytes = max(self.peak_pss_bytes, pss_bytes)

    def _watch(self) -> None:
        while not self._end.wait(EVERY_S):
            try:
                self.look()
            except OSError:
                return  # the process has ended
