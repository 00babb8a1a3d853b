from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from forebay.config.units import Address
from forebay.runtime.state_file import LARGEST_BYTES, OLDEST_S, StateFile, state_path

LISTEN = Address("127.0.0.1", 8080)


def files_beside(path: Path) -> list[Path]:
    """What is in the folder of the state file."""
    return list(path.parent.iterdir())


def a_file(folder: Path) -> Path:
    """Where a folder is wanted."""
    path = folder / "file"
    path.write_text("")
    return path


def test_path_follows_the_setting_and_the_listener(tmp_path: Path) -> None:
    """`none` keeps nothing, a path is taken, `auto` tells gateways of one user apart by their address."""
    home = {"HOME": "/home/u"}
    assert state_path("none", LISTEN, home) is None
    assert state_path(str(tmp_path / "s.json"), LISTEN, home) == tmp_path / "s.json"
    assert state_path("auto", LISTEN, home) == Path(
        "/home/u/.local/state/forebay/learned-127-0-0-1-8080.json"
    )
    assert state_path("auto", LISTEN, {"XDG_STATE_HOME": "/var/s", **home}) == Path(
        "/var/s/forebay/learned-127-0-0-1-8080.json"
    )


def test_without_a_home_or_a_fixed_port_nothing_is_kept() -> None:
    """A relative or missing home, or a port that changes at each start, gives no path."""
    assert state_path("auto", LISTEN, {}) is None
    assert state_path("auto", LISTEN, {"XDG_STATE_HOME": "relative", "HOME": ""}) is None
    assert state_path("auto", Address("127.0.0.1", 0), {"HOME": "/home/u"}) is None


async def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    """A process that ends leaves what it learned to the next one, in a folder that is made if need be."""
    path = tmp_path / "deep" / "state.json"
    learned: dict[str, Any] = {"pools": {"p": {"ratio": 3.5}}}
    first = StateFile(path, lambda: learned)
    assert first.read() == {}
    first.start()
    await first.stop()
    assert StateFile(path, dict).read() == learned
    assert [path] == files_beside(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version": 2, "saved_at_s": 1, "learned": {}}',
        b'{"version": 1, "saved_at_s": "x", "learned": {}}',
        b'{"version": 1, "saved_at_s": 1e12, "learned": []}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_makes_no_sense_is_told_and_not_used(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is in the file, the process starts and says that it learns anew."""
    path = tmp_path / "state.json"
    path.write_bytes(content)
    assert StateFile(path, dict).read() == {}
    assert "learning starts anew" in caplog.text


def test_an_old_or_huge_file_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was learned a month ago says little, and a huge file is none of ours."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": 1, "saved_at_s": time.time() - OLDEST_S - 1, "learned": {"a": 1}}))
    assert StateFile(path, dict).read() == {}
    with path.open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    assert StateFile(path, dict).read() == {}
    assert 2 == caplog.text.count("learning starts anew")


async def test_a_place_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No write permission, no disk: the gateway goes on, and the log says so one time."""
    state = StateFile(a_file(tmp_path) / "state.json", dict)
    await state.stop()
    await state.stop()
    assert 1 == caplog.text.count("cannot be written")


async def test_a_value_that_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    """A number that JSON does not have stops the writing, not the process, and the old file stays."""
    path = tmp_path / "state.json"
    await StateFile(path, lambda: {"a": 1}).stop()
    await StateFile(path, lambda: {"a": float("nan")}).stop()
    assert StateFile(path, dict).read() == {"a": 1}
    assert [path] == files_beside(path)
