"""Whether rules and fallbacks lead to what is there, each problem with the path of the key to change."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.config.schema import Config
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
            yield path, f"{pool.fallback!r} is not a pool; there are {', '.join(following)}"
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
    from forebay.config.rules import home_of, rule_fault  # only where there are rules: CEL takes time to load

    pools = [pool.name for pool in config.pools]
    names: dict[str, int] = {}
    for index, rule in enumerate(config.rules):
        path: KeyPath = ("rules", index)
        first = names.setdefault(rule.name, index)
        if first != index:
            yield (
                (*path, "name"),
                f"the name {rule.name!r} is taken by rules[{first}]; give each rule its own",
            )
        fault = rule_fault(rule)
        if fault is not None:
            yield (*path, "when"), f"rule {rule.name!r}: {fault}"
        then = rule.then
        if then.class_ is not None and then.class_ not in classes:
            yield (
                (*path, "then", "class"),
                f"rule {rule.name!r}: {then.class_!r} is not a class; there are {', '.join(classes)}",
            )
        if then.pool is not None and then.pool not in pools:
            yield (
                (*path, "then", "pool"),
                f"rule {rule.name!r}: {then.pool!r} is not a pool; there are {', '.join(pools)}",
            )
        lost = then.model is not None and then.pool is None and len(pools) > 1
        if lost and home_of(then.model or "", config.pools) is None:
            yield (
                (*path, "then", "model"),
                f"rule {rule.name!r}: no pool's `models` name {then.model!r}; say `pool` as well, or list it in one",
            )
