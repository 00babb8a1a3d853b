"""Forebay's own commands as child processes that never outlive whoever started them.

Owns the processes: starting one and learning its addresses from what it prints, noticing that one died, and ending
all of them on every way out. On Linux the kernel ends them too if this process is killed. It never interprets
what a child does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Final, Self

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 3.0
_LINES_BEFORE_READY: Final = 50
_LOG_TAIL_BYTES: Final = 2_000
_ADDRESS: Final = re.compile(rb"https?://[^\s/:]+:(\d+)|\b127\.0\.0\.1:(\d+)")
_PR_SET_PDEATHSIG: Final = 1


class ChildFailed(Exception):
    """A child did not become ready, or ended by itself; the message has the end of what it said."""


@dataclass(slots=True)
class Child:
    """One running command."""

    name: str
    process: asyncio.subprocess.Process
    log: IO[bytes]
    ports: list[int] = field(default_factory=list)
    """Of the addresses that it announced, in the order announced."""
    drain: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The first address that it announced."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def said(self) -> str:
        """The end of its error output."""
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - _LOG_TAIL_BYTES))
        return self.log.read().decode(errors="replace").strip()


class Children:
    """A set of children; leaving its `async with` ends them all."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Shielded, so that a second cancellation cannot leave a process behind.
        await asyncio.shield(self._stop_all())

    async def start(self, name: str, arguments: Sequence[str], *, addresses: int = 1) -> Child:
        """Run `forebay` with these arguments until it has announced that many addresses on its standard output."""
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child is stopped
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "forebay", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(os.environ),
                # A terminal's Ctrl-C is for us; we end the children ourselves, in order.
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        except BaseException:
            log.close()
            raise
        child = Child(name, process, log)
        self._children.append(child)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await _read_addresses(child, addresses)
        except TimeoutError:
            raise ChildFailed(f"{name} was not ready after {READY_TIMEOUT_S:.0f} s\n{child.said()}") from None
        child.drain = asyncio.create_task(_drain(child))
        return child

    def check(self) -> None:
        """Raise `ChildFailed` if one has ended."""
        for child in self._children:
            if child.process.returncode is not None:
                raise _ended(child)

    async def _stop_all(self) -> None:
        await asyncio.gather(*(_stop(child) for child in self._children))
        self._children.clear()


async def _read_addresses(child: Child, addresses: int) -> None:
    assert child.process.stdout is not None
    for _ in range(_LINES_BEFORE_READY):
        line = await child.process.stdout.readline()
        if not line:
            await child.process.wait()
            raise _ended(child)
        for found in _ADDRESS.finditer(line):
            child.ports.append(int(found[1] or found[2]))
        if len(child.ports) >= addresses:
            return
    raise ChildFailed(f"{child.name} said much, but not where it listens\n{child.said()}")


async def _drain(child: Child) -> None:
    """Take what else it prints, so that it never waits for a reader."""
    assert child.process.stdout is not None
    while await child.process.stdout.read(65_536):
        pass


async def _stop(child: Child) -> None:
    if child.process.returncode is None:
        _signal(child, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await child.process.wait()
        except TimeoutError:
            _signal(child, signal.SIGKILL)
            await child.process.wait()
    if child.drain is not None:
        child.drain.cancel()
    child.log.close()


def _signal(child: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, number)  # it leads a group of its own


def _ended(child: Child) -> ChildFailed:
    return ChildFailed(f"{child.name} ended with status {child.process.returncode}\n{child.said()}")


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Ours without settings of Forebay: what is shown must not depend on them."""
    kept = {name: value for name, value in own.items() if not name.startswith("FOREBAY_")}
    return kept | {"PYTHONUNBUFFERED": "1"}


def _die_with_parent() -> Callable[[], None] | None:
    """What a child is to do before it runs, so that it ends if this process is killed; None off Linux."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
