"""The log: structured lines on stderr that never hold up the event loop and never carry prompts or keys.

Everything in the process logs through the standard `logging`; structlog renders the lines, as JSON or for people.
Lines go through a bounded queue to a thread of their own, because a stderr that nobody reads blocks its writer and
would block the gateway. What does not fit is dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

import structlog

__all__ = ["LogFormat", "LogWriter", "configure_log"]

LogFormat = Literal["console", "json"]

_CAPACITY: Final = 5000
"""Lines that may wait for the writer: under a second of the busiest log that the rate limits allow."""


class LogWriter(logging.Handler):
    """Queues records and writes them from a thread."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._queue: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= _CAPACITY:
            self.dropped += 1
        else:
            self._queue.put(record)

    def close(self) -> None:
        """Write what is queued, for at most a second, and stop."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout=1.0)
        super().close()

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                self._stream.write(self.format(record) + "\n")
                if self._queue.empty():
                    self._stream.flush()
            except Exception:  # noqa: BLE001 - a line that cannot be rendered or written must not end the log
                self.dropped += 1
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.dropped += 1


def configure_log(
    log_format: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None
) -> LogWriter:
    """Send the log of the whole process to `stream`, stderr by default. Close the writer before the process ends."""
    target = sys.stderr if stream is None else stream
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        _stamp,
    ]
    final: list[structlog.typing.Processor]
    if log_format == "json":
        final = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=True)]
    else:
        colors = hasattr(target, "isatty") and target.isatty()
        final = [
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        ]
    writer = LogWriter(target)
    writer.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [writer]
    root.setLevel(level)
    return writer


def _stamp(
    logger: logging.Logger, name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """The wall-clock time at which the line was logged, which may be well before it is written."""
    del logger, name
    record: logging.LogRecord = event["_record"]
    event["timestamp"] = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
    return event
