"""The log of the process: rendering, and that it never holds anybody up."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from forebay.observe.log import configure_log


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """Leave the process's logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_are_json_with_their_fields() -> None:
    """Each line is one JSON object with message, level, time and the extra fields."""
    stream = io.StringIO()
    writer = configure_log("json", stream=stream)
    logging.getLogger("forebay.x").warning("trouble with %s", "it", extra={"pool": "p", "waited_s": 1.5})
    writer.close()
    line = json.loads(stream.getvalue())
    assert ("trouble with it", "warning", "p", 1.5) == (
        line["event"],
        line["level"],
        line["pool"],
        line["waited_s"],
    )
    assert line["timestamp"].endswith("Z")


def test_json_lines_hold_no_raw_line_breaks() -> None:
    """A message or traceback of several lines is still one line."""
    stream = io.StringIO()
    writer = configure_log("json", stream=stream)
    error = RuntimeError("two\nlines")
    logging.getLogger("forebay.x").error("a\nb\u2028c", exc_info=error)
    writer.close()
    (text,) = stream.getvalue().splitlines()
    assert "RuntimeError: two" in json.loads(text)["exception"]


def test_console_lines_are_for_people() -> None:
    """On a console the message and fields are in plain text, without colours where there is no terminal."""
    stream = io.StringIO()
    writer = configure_log("console", stream=stream)
    logging.getLogger("forebay.x").info("ready", extra={"port": 8080})
    writer.close()
    assert "ready" in stream.getvalue()
    assert "port=8080" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_level_is_kept() -> None:
    """Lines below the level are not written."""
    stream = io.StringIO()
    writer = configure_log("json", level=logging.WARNING, stream=stream)
    logging.getLogger("forebay.x").info("chatter")
    writer.close()
    assert "" == stream.getvalue()


class Stuck(io.StringIO):
    """A stream whose reader has stopped reading."""

    def __init__(self) -> None:
        super().__init__()
        self.read_on = threading.Event()

    def write(self, text: str) -> int:
        self.read_on.wait(10.0)
        return super().write(text)


def test_blocked_stderr_does_not_block_the_gateway() -> None:
    """With a reader that does not read, logging returns at once, and what does not fit is counted."""
    stream = Stuck()
    writer = configure_log("json", stream=stream)
    log = logging.getLogger("forebay.x")
    for number in range(6000):
        log.info("line %d", number)
    assert writer.dropped >= 900
    stream.read_on.set()
    writer.close()
    assert "line 0" in stream.getvalue()


def test_line_that_cannot_be_rendered_does_not_end_the_log() -> None:
    """A message with the wrong arguments costs only itself."""
    stream = io.StringIO()
    writer = configure_log("json", stream=stream)
    logging.getLogger("forebay.x").info("%d", "no number")
    logging.getLogger("forebay.x").info("next")
    writer.close()
    assert 1 == writer.dropped
    assert "next" in stream.getvalue()


def test_a_line_has_the_time_at_which_it_was_logged() -> None:
    """A line that waits for its writer keeps its own time."""
    stream = io.StringIO()
    writer = configure_log("json", stream=stream)
    record = logging.LogRecord("forebay.x", logging.INFO, "", 0, "late", None, None)
    record.created = 1_700_000_000.5
    writer.emit(record)
    writer.close()
    assert json.loads(stream.getvalue())["timestamp"] == "2023-11-14T22:13:20.500000Z"
