"""The record's files: whole lines, bounded, and a disk that fails."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from forebay.observe import record_files
from forebay.observe.record_files import RecordFiles

LINE = b'{"forebay":1,"timestamp":5000,"time":1005.0}\n'


def files(path: Path, *, max_bytes: int = 100, count: int = 3) -> RecordFiles:
    """Small files."""
    return RecordFiles(path, max_bytes=max_bytes, files=count)


def test_lines_are_appended_and_folders_made(tmp_path: Path) -> None:
    """What an earlier process wrote stays, and what is missing of the path is made."""
    path = tmp_path / "a" / "b" / "requests.jsonl"
    for _ in range(2):
        written = files(path)
        written.append(LINE)
        written.close()
    assert LINE * 2 == path.read_bytes()
    assert 0 == path.stat().st_mode & 0o007


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_disk_holds_no_more_than_so_many_files(tmp_path: Path, count: int) -> None:
    """A full file makes way for the next; the latest of the old ones is `.1`; what is beside them is not touched."""
    path = tmp_path / "r"
    (tmp_path / "r.9").write_text("mine")
    written = files(path, count=count)
    for number in range(20):
        written.append(b"%040d\n" % number)
    written.close()
    kept = [path, *(tmp_path / f"r.{number}" for number in range(1, count))]
    assert {*kept, tmp_path / "r.9"} == set(tmp_path.iterdir())
    assert all(file.stat().st_size <= 100 for file in kept)
    numbers = [int(line) for file in reversed(kept) for line in file.read_text().split()]
    assert list(range(20))[-len(numbers) :] == numbers


def test_half_a_line_of_a_crash_is_cut_off(tmp_path: Path) -> None:
    """A file can be read to its end whatever happened to its writer."""
    path = tmp_path / "r"
    path.write_bytes(LINE + b'{"forebay":')
    written = files(path, max_bytes=1000)
    written.append(LINE)
    written.close()
    assert LINE * 2 == path.read_bytes()


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    """As logrotate does it, or somebody with `rm`."""
    path = tmp_path / "r"
    written = files(path, max_bytes=1000)
    written.append(LINE)
    path.rename(tmp_path / "elsewhere")
    written.append(LINE)
    path.unlink()
    written.append(LINE)
    written.close()
    assert LINE == (tmp_path / "elsewhere").read_bytes() == path.read_bytes()


def test_the_start_of_the_recording_is_kept(tmp_path: Path) -> None:
    """Lines of all files count from the first line that is still there, or from now."""
    path = tmp_path / "r"
    fresh = files(path)
    assert fresh.start_s() == pytest.approx(time.time(), abs=5)
    fresh.close()
    (tmp_path / "r.2").write_text("no line of ours\n")
    path.write_bytes(LINE)
    later = files(path)
    assert 1000.0 == later.start_s()
    later.close()
    (tmp_path / "r.1").write_text(json.dumps({"forebay": 1, "timestamp": 0, "time": 900.0}) + "\n")
    assert 900.0 == files(path).start_s()


def test_a_file_has_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process is told so, and can write when the first has let go."""
    monkeypatch.setattr(record_files, "_LOCK_PAUSE_S", 0.001)
    first, second = files(tmp_path / "r"), files(tmp_path / "r")
    first.append(LINE)
    with pytest.raises(OSError, match="another process writes this file"):
        second.append(LINE)
    first.close()
    second.append(LINE)
    second.close()


def test_the_last_of_the_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written when little is free, and it goes on when there is room again."""
    free = 49
    disk = os.statvfs(tmp_path)

    class Disk:
        f_frsize, f_blocks = 1 << 20, 1000

        @property
        def f_bavail(self) -> int:
            return free

    monkeypatch.setattr(os, "fstatvfs", lambda _: Disk())
    written = files(tmp_path / "r")
    with pytest.raises(OSError, match="less than 50 MiB of the disk would be free") as failed:
        written.append(LINE)
    assert errno.ENOSPC == failed.value.errno
    free = 51
    written.append(LINE)
    written.close()
    assert LINE == (tmp_path / "r").read_bytes()
    assert disk.f_frsize


def test_a_write_that_fails_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes a part of the lines: it is taken back."""
    path = tmp_path / "r"
    written = files(path, max_bytes=1000)
    written.append(LINE)
    write = os.write

    def half(file: int, data: bytes) -> int:
        if len(data) < len(LINE):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        written.append(LINE)
    monkeypatch.undo()
    assert LINE == path.read_bytes()
    written.append(LINE)
    written.close()
    assert LINE * 2 == path.read_bytes()


def test_what_cannot_be_a_file_is_an_os_error(tmp_path: Path) -> None:
    """A folder, and a path below a file."""
    with pytest.raises(OSError, match="Is a directory"):
        files(tmp_path).append(LINE)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        files(tmp_path / "file" / "r").start_s()
