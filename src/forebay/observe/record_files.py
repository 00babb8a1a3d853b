"""The files of the record: appended to, turned over when full, and never more than a bounded part of the disk.

Owns one path and what is beside it (`PATH.1` is the latest that is full). It blocks, so it lives in a thread of its
own, and raises `OSError` for whatever the disk says; then nothing of what was to be written is in the file.

- The file is locked while it is open: two processes would turn it over under each other's hands.
- It is opened anew when somebody else has moved it away, as logrotate does.
- A line that a crash left half written is cut off, so that the file can always be read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from forebay.load.record_line import LINE_VERSION

__all__ = ["RecordFiles"]

_MODE: Final = 0o640
"""The operator's other tools may read it through their group; tenants' names are nobody else's business."""
_LONGEST_LINE: Final = 1 << 16
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_S: Final = 0.1
"""The process before, or the recorder before a reload, lets go of the file soon."""
FREE_PART: Final = 20
FREE_BYTES: Final = 1 << 30


class _Start(msgspec.Struct):
    forebay: int
    timestamp: int
    time: float


class RecordFiles:
    """A file that is written to its end, and its predecessors."""

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._file: int | None = None
        self._size = 0
        self._at_s: float | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def start_s(self) -> float:
        """When the recording began, in seconds since 1970: what lines count their `timestamp` from."""
        if self._at_s is None:
            self._open()
            oldest = [self._beside(number) for number in range(self._files - 1, 0, -1)]
            starts = (_start_of(path) for path in [*oldest, self._path])
            self._at_s = next((start for start in starts if start is not None), time.time())
        return self._at_s

    def append(self, data: bytes) -> None:
        """Write whole lines. Raises: OSError, with none of them written."""
        file = self._open()
        if self._size and self._size + len(data) > self._max_bytes:
            self.close()
            self._turn_over()
            file = self._open()
        self._check_room(file, len(data))
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._size)
            self.close()
            raise
        self._size += len(data)

    def close(self) -> None:
        """Let go of the file; it is opened again when there is something to write."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is not None and not self._is_there(self._file):
            self.close()
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
            try:
                _lock(file)
                self._size = _without_half_line(file)
            except BaseException:
                os.close(file)
                raise
            self._file = file
        return self._file

    def _is_there(self, file: int) -> bool:
        try:
            there, ours = self._path.stat(), os.fstat(file)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def _beside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _turn_over(self) -> None:
        """The file becomes `.1`, that one `.2`, and so on; the last is gone."""
        for number in range(self._files - 1, 0, -1):
            source = self._path if number == 1 else self._beside(number - 1)
            with contextlib.suppress(FileNotFoundError):
                source.replace(self._beside(number))
        self._path.unlink(missing_ok=True)

    @staticmethod
    def _check_room(file: int, wanted: int) -> None:
        disk = os.fstatvfs(file)
        kept = min(disk.f_blocks * disk.f_frsize // FREE_PART, FREE_BYTES)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize - wanted < kept:
            raise OSError(errno.ENOSPC, f"less than {kept >> 20} MiB of the disk would be free")


def _lock(file: int) -> None:
    for last in range(_LOCK_TRIES - 1, -1, -1):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not last:
                raise OSError(errno.EBUSY, "another process writes this file") from None
            time.sleep(_LOCK_PAUSE_S)
        else:
            return


def _without_half_line(file: int) -> int:
    """Cut off what follows the last whole line; the size that is left."""
    size = os.fstat(file).st_size
    start = max(0, size - _LONGEST_LINE)
    end = os.pread(file, size - start, start)
    if end and not end.endswith(b"\n"):
        size = start + end.rfind(b"\n") + 1
        os.ftruncate(file, size)
    return size


def _start_of(path: Path) -> float | None:
    """When the recording began of which this file is a part; None if it does not say."""
    try:
        with path.open("rb") as file:
            first = msgspec.json.decode(file.readline(_LONGEST_LINE), type=_Start)
    except (OSError, msgspec.MsgspecError):
        return None
    return first.time - first.timestamp / 1000 if first.forebay == LINE_VERSION else None
