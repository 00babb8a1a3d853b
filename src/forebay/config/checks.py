"""What a single key cannot know: whether the parts of a configuration fit together.

Pure. Each check returns paths and sentences; `loading` adds the places.
"""

from __future__ import annotations

from collections.abc import Iterator

from forebay.config.schema import Config
from forebay.config.yaml_text import KeyPath

__all__ = ["find_contradictions"]

DEFAULT_CLASS_NAMES = ("realtime", "standard", "batch")


def find_contradictions(config: Config) -> list[tuple[KeyPath, str]]:
    """Every contradiction, each with the path of the key to change."""
    return [*_pools(config), *_classes(config), *_listeners(config)]


def _pools(config: Config) -> Iterator[tuple[KeyPath, str]]:
    names: dict[str, int] = {}
    owners: dict[str, int] = {}
    for index, pool in enumerate(config.pools):
        if pool.name in names:
            yield (
                ("pools", index, "name"),
                f"the name {pool.name!r} is taken by pools[{names[pool.name]}]; give each pool a name of its own",
            )
        names.setdefault(pool.name, index)
        for position, endpoint in enumerate(pool.endpoints):
            path: KeyPath = ("pools", index, "endpoints", position)
            owner = owners.setdefault(str(endpoint), index)
            if owner != index:
                yield (
                    path,
                    f"{endpoint} is in pools[{owner}] already; an endpoint belongs to one pool",
                )
            elif endpoint in pool.endpoints[:position]:
                yield path, f"{endpoint} is listed twice; keep one"


def _classes(config: Config) -> Iterator[tuple[KeyPath, str]]:
    names = list(config.classes) if config.classes is not None else list(DEFAULT_CLASS_NAMES)
    for name, entry in (config.classes or {}).items():
        if entry.ttft is None and name not in DEFAULT_CLASS_NAMES:
            yield ("classes", name), f"needs a ttft, as in `{name}: {{ttft: 5s}}`"
    if config.default_class not in names:
        yield (
            ("default_class",),
            f"{config.default_class!r} is not a class; set default_class to one of {', '.join(names)}",
        )


def _listeners(config: Config) -> Iterator[tuple[KeyPath, str]]:
    if config.listen == config.admin and config.listen.port != 0:
        yield ("admin",), f"listen and admin are both {config.admin}; give the admin API a port of its own"
    if config.notice >= config.grace > 0:
        yield ("notice",), f"must be shorter than grace ({config.grace:g}s), which includes it"
