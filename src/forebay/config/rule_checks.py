"""Whether rules and fallbacks lead to what is there, each problem with the path of the key to change."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.config.schema import Config
from forebay.config.secret_keys import quoted
from forebay.config.yaml_text import KeyPath

__all__ = ["fallbacks_do_not_fit", "rules_do_not_fit"]


def fallbacks_do_not_fit(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Pools that are not there, and circles."""
    following = {pool.name: pool.fallback for pool in config.pools}
    for index, pool in enumerate(config.pools):
        if pool.fallback is None:
            continue
        path: KeyPath = ("pools", index, "fallback")
        if pool.fallback not in following:
            yield path, f"{quoted(pool.fallback)} is not a pool; there are {', '.join(following)}"
            continue
        way = [pool.name]
        step: str | None = pool.fallback
        while step is not None and step not in way:
            way.append(step)
            step = following.get(step)
        if step == pool.name:
            yield path, f"a circle: {' → '.join([*way, step])}; leave out one `fallback`"


def rules_do_not_fit(config: Config, classes: list[str]) -> Iterator[tuple[KeyPath, str]]:
    """Names taken twice, conditions that cannot be meant, classes, pools and models that are not there."""
    if not config.rules:
        return
    from forebay.config.rules import (
        home_of,
        rule_faults,
    )  # only where there are rules: CEL takes time to load

    pools = [pool.name for pool in config.pools]
    names: dict[str, int] = {}
    faults = dict(rule_faults(config.rules))
    for index, rule in enumerate(config.rules):
        path: KeyPath = ("rules", index)
        first = names.setdefault(rule.name, index)
        if first != index:
            yield (
                (*path, "name"),
                f"the name {rule.name!r} is taken by rules[{first}]; give each rule its own",
            )
        if index in faults:
            yield (*path, "when"), f"rule {rule.name!r}: {faults[index]}"
        then = rule.then
        if then.class_ is not None and then.class_ not in classes:
            yield (
                (*path, "then", "class"),
                f"rule {rule.name!r}: {quoted(then.class_)} is not a class; there are {', '.join(classes)}",
            )
        if then.pool is not None and then.pool not in pools:
            yield (
                (*path, "then", "pool"),
                f"rule {rule.name!r}: {quoted(then.pool)} is not a pool; there are {', '.join(pools)}",
            )
        if then.model is None or then.pool is not None or len(pools) == 1:
            continue
        if home_of(then.model, config.pools) is None:
            nowhere = f"no pool's `models` name {quoted(then.model)}"
            yield (
                (*path, "then", "model"),
                f"rule {rule.name!r}: {nowhere}; say `pool` as well, or list it in one",
            )
