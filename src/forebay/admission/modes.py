"""Which mode is in force where: what the configuration says, and what was changed live since.

    enforce    decisions are carried out
    shadow     decisions are made and recorded, and every request starts at once
    bypass     nothing is decided: every request starts at once

Most specific first: a live change for one class of one pool; what class or pool say (live, else the configuration), and
where both say something the one that interferes less; what is said of everything (live, else the configuration). A live
change holds until the next one for the same scope, or until a reload that changes what the configuration says of it.

It only looks up; `controller` carries out, and keeps the mode in force with each class of each pool, so that a request
costs one look at an attribute.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from forebay.admission.model import Mode, ModeChange
from forebay.admission.settings import Settings

Scope: TypeAlias = tuple[str, str]
"""Pool and class; an empty name stands for all."""

EVERYTHING: Final[Scope] = ("", "")
_INTERFERENCE: Final = (Mode.BYPASS, Mode.SHADOW, Mode.ENFORCE)
"""From the least to the most."""


class Modes:
    """The modes of one controller."""

    def __init__(self, settings: Settings) -> None:
        self._live: dict[Scope, Mode] = {}
        self._pools: dict[str, Mode | None] = {}
        self._classes: dict[str, Mode | None] = {}
        self._general = settings.mode
        self._read(settings)

    def change(self, pool: str, class_name: str, mode: Mode | None) -> None:
        """A live change; None goes back to the configuration, and without a scope does so for every scope."""
        if mode is not None:
            self._live[pool, class_name] = mode
        elif (pool, class_name) == EVERYTHING:
            self._live.clear()
        else:
            self._live.pop((pool, class_name), None)

    def reconfigure(self, settings: Settings) -> None:
        """The configuration may say something else now: what it changes is no longer overruled."""
        said = {scope: self._configured(scope) for scope in self._live}
        self._read(settings)
        for scope, before in said.items():
            pool, class_name = scope
            gone = (pool and pool not in self._pools) or (class_name and class_name not in self._classes)
            if gone or self._configured(scope) is not before:
                del self._live[scope]

    @property
    def general(self) -> Mode:
        """What holds where nothing else is said."""
        return self._live.get(EVERYTHING, self._general)

    def live(self) -> tuple[ModeChange, ...]:
        """The live changes that hold, the oldest first."""
        return tuple(ModeChange(pool, class_name, mode) for (pool, class_name), mode in self._live.items())

    def of(self, pool: str, class_name: str) -> Mode:
        """What holds for one class of one pool."""
        return self._resolve(pool, class_name, self._live)

    def _configured(self, scope: Scope) -> Mode | None:
        """What the configuration says of a scope; of one class in one pool, what would hold."""
        pool, class_name = scope
        if pool and class_name:
            return self._resolve(pool, class_name, {})
        if class_name:
            return self._classes.get(class_name)
        return self._pools.get(pool) if pool else self._general

    def _resolve(self, pool: str, class_name: str, live: dict[Scope, Mode]) -> Mode:
        exactly = live.get((pool, class_name))
        if exactly is not None:
            return exactly
        said = (
            live.get((pool, ""), self._pools.get(pool)),
            live.get(("", class_name), self._classes.get(class_name)),
        )
        for mode in _INTERFERENCE:
            if mode in said:
                return mode
        return live.get(EVERYTHING, self._general)

    def _read(self, settings: Settings) -> None:
        self._general = settings.mode
        self._pools = {pool.name: pool.mode for pool in settings.pools}
        self._classes = {entry.name: entry.mode for entry in settings.classes}
