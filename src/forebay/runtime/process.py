"""The process around an `App`: event loop, signals, file limit, log, exit code."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
from collections.abc import Callable

import uvloop

from forebay.observe.log import configure_log
from forebay.runtime.app import App, StartFailed
from forebay.runtime.prepared import Prepared, prepare

__all__ = ["Prepared", "StartFailed", "prepare", "run"]

_log = logging.getLogger(__name__)


def run(
    prepared: Prepared,
    *,
    announce: Callable[[str], None],
    read_again: Callable[[], Prepared] | None = None,
    log_format: str = "auto",
    log_level: str = "info",
) -> int:
    """Serve until told to stop; returns the exit code.

    Args:
        prepared: the configuration.
        announce: told one line per listener when ready.
        read_again: reads the configuration anew, for a reload.
        log_format: `console`, `json`, or `auto`, which is `console` on a terminal.
        log_level: least important lines written.

    Raises:
        StartFailed: see `App.start`.
    """
    if log_format == "auto":
        log_format = "console" if sys.stderr.isatty() else "json"
    writer = configure_log(
        "json" if log_format == "json" else "console", level=logging.getLevelNamesMapping()[log_level.upper()]
    )
    for warning in prepared.loaded.warnings:
        _log.warning("%s", warning)
    _raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            app = (prepared, read_again, lambda: writer.dropped)
            return runner.run(_serve(*app, announce))
    finally:
        writer.close()


async def _serve(
    prepared: Prepared,
    read_again: Callable[[], Prepared] | None,
    lines_dropped: Callable[[], int],
    announce: Callable[[str], None],
) -> int:
    app = App(prepared, read_again=read_again, lines_dropped=lines_dropped)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, app.reloading.ask)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.on_signal, number)
    lines = await app.start()
    for line in lines:
        announce(line)
    await app.wait()
    return await app.stop()


def _raise_file_limit() -> None:
    """Two sockets per stream: the usual soft limit of 1024 would end at 500 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        _log.warning("the limit of open files stays at %s", soft)
