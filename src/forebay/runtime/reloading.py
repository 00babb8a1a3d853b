"""A new configuration for a running gateway: read and checked whole, then applied at once, or not at all.

It is read anew on SIGHUP, when the file has changed, and when the admin API is asked. Whatever is wrong with it leaves
everything as it was, with a line in the log and a metric. What is applied changes no request that is there: streams go
on, waiters keep their places and their budgets, what was learned stays.

- A pool or a class that is gone gets no new requests, and stays in the core until those it has are over; a class at the
  rank that it had, a pool with those of its endpoints that no other one has now.
- An endpoint that moves to another pool is taken out of the old one first, and joins the new one when its last request
  there has ended.
- Some keys are read only at the start (`RESTART_KEYS`); a change of those is told, and waits for a restart.

All that takes time with many tenants is done in a thread, so that requests go on meanwhile: reading, checking, building
what the other parts go by, and finding out what has changed. What is left for the event loop is to put it in force.

Owns the file's fingerprint and the settings in force. Decides nothing about requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from forebay.admission.errors import ConfigRefused
from forebay.admission.events import EndpointsChanged, Event
from forebay.admission.model import EndpointId, EndpointState
from forebay.admission.settings import ClassSettings, PoolSettings, Settings
from forebay.admission.snapshot import Snapshot
from forebay.config import Config, ConfigError
from forebay.config.tls import tls_files
from forebay.runtime.prepared import Prepared

__all__ = ["RESTART_KEYS", "ReloadResult", "Reloading"]

_log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Between two looks at the file. It is read when it was the same twice: one look may catch it half written."""
RESTART_KEYS: Final = (
    "listen",
    "admin",
    "admin_token",
    "metrics_tenants",
    "state_file",
    "limits.head_timeout",
    "limits.max_connections",
)
TLS_KEYS: Final = ("ssl_certfile", "ssl_keyfile")
"""Another certificate is taken up; whether there is one, and so whether clients connect by https, is not."""
SWITCH_S: Final = 0.0005
"""For how long the thread that reads keeps the event loop from running, instead of Python's 5 ms."""
_SHOWN: Final = 20
"""Changed keys that are named in the log."""


Fingerprint: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """What came of one reload."""

    applied: bool
    problems: tuple[str, ...] = ()
    """Why it was not, each with its place."""
    warnings: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Keys that are in force with other values now."""
    needs_restart: tuple[str, ...] = ()
    """Keys that have other values in the file and are not in force."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A configuration that was read anew."""

    prepared: Prepared
    differing: list[str]
    """Keys that are other than in force."""
    pending: list[str]
    """Keys that are other than at the start."""


class Core(Protocol):
    """What is asked of the driver."""

    def reconfigure(self, settings: Settings, then: Callable[[], None]) -> None:
        """Replace the core's settings, call `then`, and only then carry out what the core decided.

        Raises: ConfigRefused, before anything was changed.
        """

    def feed(self, event: Event) -> None:
        """Something happened."""

    def snapshot(self) -> Snapshot | None:
        """The core as it is; None once it has failed."""

    def classes_in_use(self) -> tuple[str, ...]:
        """Classes that have requests."""


class Reloading:
    """The configuration in force, and the way to another one."""

    def __init__(
        self,
        prepared: Prepared,
        read: Callable[[], Prepared],
        core: Core,
        take_over: Callable[[Prepared], None],
        look_again: Callable[[EndpointId], None],
    ) -> None:
        """See the module.

        Args:
            prepared: what the process was started with.
            read: reads the configuration anew, from the same file and options. Raises: ConfigError.
            take_over: the other parts of the process go by this configuration from now on; cannot fail.
            look_again: find out anew what an engine is, of which the core was told before it had the endpoint.
        """
        self.prepared = prepared
        self.failed = False
        """The last reload was not applied."""
        self.reloads = 0
        """Configurations applied since the start."""
        self.loaded_at_s = time.time()
        """When the configuration in force was read, in seconds since the epoch."""
        self._started_with = prepared.config
        self._read = read
        self._core = core
        self._take_over = take_over
        self._look_again = look_again
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._taken: Fingerprint | None = None
        """Of the files, when they were last read."""
        self._kept_pools: tuple[PoolSettings, ...] = ()
        self._classes = prepared.settings.classes
        """Those that the core has."""

    @property
    def kept_pools(self) -> tuple[str, ...]:
        """Those that are configured no more and have requests still."""
        return tuple(pool.name for pool in self._kept_pools)

    def start(self) -> None:
        """Begin to look at the file."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def ask(self) -> None:
        """Reload soon: for a signal handler."""
        self._asked.set()

    async def reload(self, reason: str) -> ReloadResult:
        """Read the configuration and apply it."""
        async with self._lock:
            try:
                result = self._apply(await asyncio.to_thread(self._read_aside))
            except ConfigError as error:
                result = ReloadResult(
                    applied=False,
                    problems=tuple(str(problem) for problem in error.problems),
                    warnings=tuple(error.warnings),
                )
            except ConfigRefused as error:
                result = ReloadResult(applied=False, problems=(f"{error}; restart to change that",))
            self.failed = not result.applied
            _tell(result, reason)
            return result

    # Applying

    def _read_aside(self) -> _Read:
        """In a thread: everything but putting it in force. Raises: ConfigError."""
        self._taken = _fingerprint(self._files())
        with _undisturbed():
            return self._compared(self._read())

    def _compared(self, prepared: Prepared) -> _Read:
        after = prepared.config
        return _Read(
            prepared,
            differing=_differing(self.prepared.config, after),
            pending=_differing(self._started_with, after),
        )

    def _apply(self, read: _Read) -> ReloadResult:
        """Raises: ConfigRefused, with nothing changed."""
        prepared, after = read.prepared, read.prepared.config

        def go_by_it() -> None:
            self.prepared = prepared
            self._take_over(prepared)
            self._place_endpoints()  # a pool that is new has its engines before its first request

        self._set(prepared.settings, go_by_it)
        self.reloads += 1
        self.loaded_at_s = time.time()
        self._place_endpoints()
        has_tls = self._started_with.ssl_certfile is not None
        waiting = RESTART_KEYS + (() if has_tls is (after.ssl_certfile is not None) else TLS_KEYS)
        return ReloadResult(
            applied=True,
            warnings=prepared.loaded.warnings,
            changed=tuple(key for key in read.differing if key not in waiting),
            needs_restart=tuple(key for key in read.pending if key in waiting),
        )

    def _set(self, settings: Settings, then: Callable[[], None]) -> None:
        """Give the core these settings, and pools and classes that are gone for as long as they have requests."""
        names = {pool.name for pool in settings.pools}
        busy = self._busy_pools()
        known = {pool.name: pool for pool in self.prepared.settings.pools}
        known.update((pool.name, pool) for pool in self._kept_pools)
        kept = tuple(pool for name, pool in known.items() if name not in names and name in busy)
        classes = with_kept(settings.classes, self._classes, self._core.classes_in_use())

        def in_force() -> None:
            self._kept_pools, self._classes = kept, classes
            then()

        self._core.reconfigure(replace(settings, pools=settings.pools + kept, classes=classes), in_force)

    def _busy_pools(self) -> set[str]:
        snapshot = self._core.snapshot()
        pools = snapshot.pools if snapshot is not None else ()
        return {
            pool.name
            for pool in pools
            if pool.waiting_requests or any(e.running_requests or e.draining_requests for e in pool.endpoints)
        }

    def _place_endpoints(self) -> list[EndpointId]:
        """Tell the core which endpoints each pool has, as far as they have left their old ones. Those that joined."""
        wanted = {
            pool.name: [EndpointId(str(endpoint)) for endpoint in pool.endpoints]
            for pool in self.prepared.config.pools
        }
        taken = {endpoint for endpoints in wanted.values() for endpoint in endpoints}
        joined: list[EndpointId] = []
        for _ in range(2):  # what leaves one pool the first time may join another the second time
            snapshot = self._core.snapshot()
            if snapshot is None:
                break  # the core has failed: there is nobody to tell
            homes = {view.id: pool.name for pool in snapshot.pools for view in pool.endpoints}
            for pool_view in snapshot.pools:
                name = pool_view.name
                there = [view.id for view in pool_view.endpoints if view.state is not EndpointState.REMOVED]
                own = wanted.get(name)
                if own is None:  # it is gone, and serves those who wait in it
                    free = [endpoint for endpoint in there if endpoint not in taken]
                else:
                    free = [endpoint for endpoint in own if homes.get(endpoint, name) == name]
                if set(free) != set(there):
                    self._core.feed(EndpointsChanged(name, tuple(free)))
                    joined += [e for e in free if e not in there]
        return joined

    def _is_something_over(self) -> bool:
        """True if a pool or class that is kept for its requests has none any more."""
        if self._kept_pools and not {pool.name for pool in self._kept_pools} <= self._busy_pools():
            return True
        wanted = {c.name for c in self.prepared.settings.classes}
        kept = {c.name for c in self._classes} - wanted
        return bool(kept) and not kept <= set(self._core.classes_in_use())

    # Watching

    async def _watch(self) -> None:
        known = seen = await asyncio.to_thread(_fingerprint, self._files())
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), LOOK_S)
            last, seen = seen, await asyncio.to_thread(_fingerprint, self._files())
            try:
                if self._asked.is_set():
                    self._asked.clear()
                    await self.reload("SIGHUP")
                if seen is not None and seen == last and seen != known:
                    known = seen
                    if seen != self._taken:  # else somebody asked for it meanwhile
                        await self.reload("a file has changed")
                self._finish_moves()
            except Exception:  # noqa: BLE001 - a bug of ours must not end the watching
                self.failed = True
                _log.exception("the configuration could not be reloaded")

    def _files(self) -> list[Path]:
        loaded = self.prepared.loaded
        files = [] if loaded.path is None else [loaded.path]
        return files + tls_files(loaded.config, loaded.base_directory)

    def _finish_moves(self) -> None:
        """Pools and classes that are gone may have ended by now, and endpoints have left their old ones."""
        if self._is_something_over():
            self._set(self.prepared.settings, lambda: self._take_over(self.prepared))
        for endpoint in self._place_endpoints():
            self._look_again(endpoint)


def with_kept(
    classes: tuple[ClassSettings, ...], before: tuple[ClassSettings, ...], in_use: tuple[str, ...]
) -> tuple[ClassSettings, ...]:
    """These classes, and those that were there before and are in use, each behind those that stood before it."""
    merged = list(classes)
    for position, kept in enumerate(before):
        names = [c.name for c in merged]
        if kept.name in in_use and kept.name not in names:
            ahead = [names.index(c.name) for c in before[:position] if c.name in names]
            merged.insert(max(ahead, default=-1) + 1, kept)
    return tuple(merged)


def _tell(result: ReloadResult, reason: str) -> None:
    for warning in result.warnings:
        _log.warning("%s", warning)
    if not result.applied:
        for problem in result.problems:
            _log.error("%s", problem)
        _log.error("configuration not reloaded (%s): everything stays as it was", reason)
        return
    shown = ", ".join(result.changed[:_SHOWN]) + (", …" if len(result.changed) > _SHOWN else "")
    _log.info("configuration reloaded (%s); changed: %s", reason, shown or "nothing")
    if result.needs_restart:
        _log.warning("changed, and in force only after a restart: %s", ", ".join(result.needs_restart))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """In a thread: work that takes long leaves the event loop its turns.

    The parser makes hundreds of thousands of objects that end by themselves; looking through them while they are there
    stopped the loop for 200 ms.
    """
    collects, switch_s = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(switch_s)
        if collects:
            gc.enable()


def _fingerprint(files: list[Path]) -> Fingerprint | None:
    """Changes with any of the files, also when another is put in its place; None while one of them is missing."""
    try:
        found = [path.stat() for path in files]
    except OSError:
        return None
    return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)


def _differing(before: Config, after: Config) -> list[str]:
    """Keys with other values, as paths; values are not shown, since one of them is a credential."""
    return list(_paths(before.model_dump(by_alias=True), after.model_dump(by_alias=True), ""))


def _paths(old: Any, new: Any, path: str) -> Iterator[str]:
    """Where two values differ, each as deep as both are there."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            below = f"{path}.{key}" if path else str(key)
            if key in old and key in new:
                yield from _paths(old[key], new[key], below)
            else:
                yield below
    elif isinstance(old, list) and isinstance(new, list) and any(isinstance(e, dict) for e in (*old, *new)):
        for index in range(max(len(old), len(new))):
            if index < min(len(old), len(new)):
                yield from _paths(old[index], new[index], f"{path}[{index}]")
            else:
                yield f"{path}[{index}]"
    elif old != new:
        yield path
