"""Whether pools that share GPUs are grouped so that their shares can be kept, each problem with the path of its key."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.config.schema import Config
from forebay.config.yaml_text import KeyPath

__all__ = ["doubts_of_groups", "groups_do_not_fit"]

_ROUNDING = 1e-9


def groups_do_not_fit(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Shares of nothing, and more of them than there is."""
    for index, pool in enumerate(config.pools):
        if pool.share is not None and pool.group is None:
            yield ("pools", index, "share"), "of which GPUs? Set `group`, as in every pool that shares them"
    for group, members in _groups(config).items():
        total = 0.0
        for index in members:
            share = config.pools[index].share or 0.0
            total += share
            if share and total > 1.0 + _ROUNDING:
                yield (
                    ("pools", index, "share"),
                    f"with it the shares of group {group!r} are {total:.3g}; together they are 1 at most",
                )
                break


def doubts_of_groups(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Groups that share nothing, and pools to which the others leave nothing."""
    for group, members in _groups(config).items():
        if len(members) == 1:
            yield (
                ("pools", members[0], "group"),
                f"no other pool is in group {group!r}, so nothing is shared; name it in all pools on these GPUs",
            )
            continue
        total = sum(config.pools[index].share or 0.0 for index in members)
        for index in members:
            pool = config.pools[index]
            if not pool.share and (pool.share == 0 or total > 1.0 - _ROUNDING):
                yield (
                    ("pools", index, "share" if pool.share == 0 else "group"),
                    f"pool {pool.name!r} has no part of group {group!r}: it starts next to nothing while others wait",
                )


def _groups(config: Config) -> dict[str, list[int]]:
    """Places of the pools of each group."""
    groups: dict[str, list[int]] = {}
    for index, pool in enumerate(config.pools):
        if pool.group is not None:
            groups.setdefault(pool.group, []).append(index)
    return groups
