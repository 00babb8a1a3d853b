"""What was learned of the engines, kept over restarts: one small JSON file.

It is read once at the start and replaced as a whole every `SAVED_EVERY_S` and at the end, so it is whole at any
moment, whatever kills the process. A file that cannot be read, understood or written costs what was learned and a
line in the log, never a start or a request. What is inside is the core's business (`Controller.export_learned`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from forebay.config.units import Address

__all__ = ["StateFile", "state_path"]

_log = logging.getLogger(__name__)

SAVED_EVERY_S: Final = 60.0
LARGEST_BYTES: Final = 64 * 1024 * 1024
"""A larger file is none of ours."""
OLDEST_S: Final = 30 * 86_400.0
"""Engines and traffic are others by then."""
_VERSION: Final = 1


def state_path(setting: str, listen: Address, environment: Mapping[str, str]) -> Path | None:
    """Where the file is; None if nothing is kept.

    Args:
        setting: `none`, `auto`, or a path.
        listen: the main listener, by which gateways of one machine are told apart.
        environment: `XDG_STATE_HOME` and `HOME` are looked up; with neither `auto` keeps nothing.
    """
    if setting == "none":
        return None
    if setting != "auto":
        return Path(setting).expanduser()
    home = environment.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else None
    if base is None and environment.get("HOME", "").startswith("/"):
        base = Path(environment["HOME"]) / ".local" / "state"
    if base is None or not listen.port:
        return None  # a port that is another at each start finds nothing again
    host = "".join(c if c.isalnum() else "-" for c in listen.host)
    return base / "forebay" / f"learned-{host}-{listen.port}.json"


class StateFile:
    """Reads what an earlier process learned, and keeps what this one learns."""

    def __init__(self, path: Path, export: Callable[[], dict[str, Any]]) -> None:
        """See the class.

        Args:
            path: the file; its folder is made when it is first written.
            export: what is to be kept, as plain JSON-able data.
        """
        self._path = path
        self._export = export
        self._task: asyncio.Task[None] | None = None
        self._told = False

    def read(self) -> dict[str, Any]:
        """What is in the file; empty if there is none, or none that can be used."""
        try:
            saved_at_s, learned = _parse(self._path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            _log.warning("state file %s is not used (%s): learning starts anew", self._path, error)
            return {}
        if time.time() - saved_at_s > OLDEST_S:
            _log.info("state file %s is over 30 days old and not used: learning starts anew", self._path)
            return {}
        _log.info("takes up what was learned before, from %s (remove the file to learn anew)", self._path)
        return learned

    def start(self) -> None:
        """Save from time to time, from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Save for the last time."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._save()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAVED_EVERY_S)
            await self._save()

    async def _save(self) -> None:
        document = {"version": _VERSION, "saved_at_s": time.time(), "learned": self._export()}
        try:
            await asyncio.to_thread(_replace, self._path, document)
        except (OSError, ValueError) as error:
            if not self._told:
                self._told = True
                _log.warning(
                    "state file %s cannot be written (%s): a restart will learn anew", self._path, error
                )
        else:
            self._told = False


def _parse(path: Path) -> tuple[float, dict[str, Any]]:
    """When a file was saved, and what. Raises: ValueError, OSError, OverflowError, RecursionError."""
    if path.stat().st_size > LARGEST_BYTES:
        raise ValueError("it is too large to be one")
    found = json.loads(path.read_bytes())
    if isinstance(found, dict) and found.get("version") == _VERSION:
        saved_at_s, learned = found.get("saved_at_s"), found.get("learned")
        if isinstance(saved_at_s, int | float) and isinstance(learned, dict):
            return float(saved_at_s), learned
    raise ValueError("it is no state file of this version")


def _replace(path: Path, document: dict[str, Any]) -> None:
    """Write a new file beside the old one and put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    number, name = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(document, file, allow_nan=False, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
