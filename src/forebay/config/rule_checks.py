"""Whether rules and fallbacks lead to what is there, each problem with the path of the key to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from forebay.config.schema import Config
from forebay.config.secret_keys import quoted
from forebay.config.yaml_text import KeyPath

__all__ = ["doubts_of_rules", "fallbacks_do_not_fit", "rules_do_not_fit"]

_TEXT: Final = r"""(?:'[^'\\]*'|"[^"\\]*")"""
_NAME: Final = r"(?<![\w.])(?P<name>class|tenant\.plan|pool\.name)(?![\w.(])"
_COMPARED: Final = (
    re.compile(rf"{_NAME}\s*[=!]=\s*(?P<texts>{_TEXT})"),
    re.compile(rf"(?P<texts>{_TEXT})\s*[=!]=\s*{_NAME}"),
    re.compile(rf"{_NAME}\s+in\s*\[(?P<texts>\s*{_TEXT}(?:\s*,\s*{_TEXT})*\s*)\]"),
)
"""Where a condition compares one of these names with texts that are written out."""


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


def doubts_of_rules(config: Config, classes: list[str]) -> Iterator[tuple[KeyPath, str]]:
    """Conditions that compare a class, a plan or a pool with a name that none has: they never hold, or always."""
    there = {
        "class": classes,
        "tenant.plan": list(config.plans or {}),
        "pool.name": [pool.name for pool in config.pools],
    }
    for index, rule in enumerate(config.rules):
        for name, wanted in dict.fromkeys(_compared(rule.when)):
            names = there[name]
            if wanted in names or (name == "tenant.plan" and not wanted):
                continue
            known = f"there are {', '.join(names[:20])}" if names else "there are none"
            what = name.removeprefix("tenant.").removesuffix(".name")
            yield ("rules", index, "when"), f"rule {rule.name!r}: {quoted(wanted)} is not a {what}; {known}"


def _compared(condition: str) -> Iterator[tuple[str, str]]:
    for pattern in _COMPARED:
        for found in pattern.finditer(condition):
            for text in re.findall(_TEXT, found["texts"]):
                yield found["name"], text[1:-1]
