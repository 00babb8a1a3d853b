"""Whether plans, tenants and keys fit together. For `checks`. Pure; never shows a key's digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay.admission.patterns import fits
from forebay.config.schema import Config
from forebay.config.secret_keys import quoted
from forebay.config.yaml_text import KeyPath

__all__ = ["doubts_of_tenants", "tenants_do_not_fit"]

_SMALL_BURST = 200
_ANONYMOUS = "anonymous"
"""The name of all who have none."""


def tenants_do_not_fit(config: Config, classes: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    """Contradictions, each with the path of the key to change."""
    yield from _plans(config, classes)
    yield from _tenants(config)
    if config.anonymous is not None and config.anonymous.plan is not None:
        yield from _unknown_plan(config, ("anonymous", "plan"), config.anonymous.plan)
    yield from _credentials(config)


def doubts_of_tenants(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """What is allowed but hardly meant."""
    used = {tenant.plan for tenant in config.tenants}
    if config.anonymous is not None:
        used.add(config.anonymous.plan)
    for name in config.plans or {}:
        if name not in used:
            yield ("plans", name), "no tenant has this plan, and anonymous has not either: it limits nobody"
    if not config.trusted_proxies:
        for index, tenant in enumerate(config.tenants):
            if not tenant.keys:
                yield (
                    ("tenants", index),
                    f"{tenant.name} has no keys, and no proxy is trusted to name it: it cannot come",
                )
    yield from _hardly_a_request(config)
    yield from _models_of_nobody(config)
    yield from _unbounded_caps(config)
    is_refused = config.anonymous is not None and config.anonymous.plan is None
    if is_refused and not config.trusted_proxies and not any(tenant.keys for tenant in config.tenants):
        yield ("anonymous",), "refuse, and no tenant has a key: nobody is let in"


def _hardly_a_request(config: Config) -> Iterator[tuple[KeyPath, str]]:
    for name, plan in (config.plans or {}).items():
        if plan.burst is not None and 0 < plan.burst < _SMALL_BURST and plan.tokens_per_second:
            yield (
                ("plans", name, "burst"),
                f"{plan.burst} tokens are less than most requests have, which then pass one at a time or not at all",
            )


def _models_of_nobody(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Models that a plan grants and no pool has. Only where all pools say what they serve."""
    served = [model for pool in config.pools for model in pool.models or ()]
    if not all(pool.models for pool in config.pools):
        return
    for name, plan in (config.plans or {}).items():
        for position, wanted in enumerate(plan.models or ()):
            if not any(_may_be_the_same(wanted, model) for model in served):
                yield (
                    ("plans", name, "models", position),
                    f"no pool serves {quoted(wanted)}; there are {', '.join(served[:20])}",
                )


def _may_be_the_same(wanted: str, model: str) -> bool:
    """Two patterns are not held against each other."""
    return fits(model, wanted) or fits(wanted, model) or ("*" in wanted and "*" in model)


def _unbounded_caps(config: Config) -> Iterator[tuple[KeyPath, str]]:
    if all(pool.max_output_tokens is not None for pool in config.pools):
        return
    for name, plan in (config.plans or {}).items():
        if plan.bill == "cap" and not plan.require_max_tokens and plan.tokens_per_second is not None:
            yield (
                ("plans", name, "bill"),
                "who states no limit pays for all the room there is; set require_max_tokens, or max_output_tokens",
            )


def _plans(config: Config, classes: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    for name, plan in (config.plans or {}).items():
        for position, wanted in enumerate(plan.classes or ()):
            path: KeyPath = ("plans", name, "classes", position)
            if wanted not in classes:
                yield path, f"{quoted(wanted)} is not a class; there are {', '.join(classes)}"
        for key, rate_key, rate, burst in (
            ("burst", "tokens_per_second", plan.tokens_per_second, plan.burst),
            ("requests_burst", "requests_per_second", plan.requests_per_second, plan.requests_burst),
        ):
            if burst is None:
                continue
            if rate is None:
                yield ("plans", name, key), f"does nothing without {rate_key}"
            elif burst == 0 and rate > 0:
                yield (
                    ("plans", name, key),
                    f"0 holds no request, so nothing would ever pass; set {rate_key} to 0 if that is meant",
                )
        if plan.bill == "cap" and plan.tokens_per_second is None:
            yield ("plans", name, "bill"), "does nothing without tokens_per_second"


def _tenants(config: Config) -> Iterator[tuple[KeyPath, str]]:
    names: dict[str, int] = {}
    owners: dict[str, int] = {}
    for index, tenant in enumerate(config.tenants):
        first = names.setdefault(tenant.name, index)
        if first != index:
            yield (
                ("tenants", index, "name"),
                f"the name {tenant.name!r} is taken by tenants[{first}]; give one of them all the keys",
            )
        if tenant.name == _ANONYMOUS:
            yield ("tenants", index, "name"), "anonymous are all who have no key; choose another name"
        if tenant.plan is not None:
            yield from _unknown_plan(config, ("tenants", index, "plan"), tenant.plan)
        for position, digest in enumerate(tenant.keys):
            path: KeyPath = ("tenants", index, "keys", position)
            owner = owners.setdefault(digest, index)
            if owner != index:
                yield path, f"this key is one of tenants[{owner}] already; a key belongs to one tenant"
            elif digest in tenant.keys[:position]:
                yield path, "this key is listed twice; keep one"


def _unknown_plan(config: Config, path: KeyPath, name: str) -> Iterator[tuple[KeyPath, str]]:
    plans = config.plans or {}
    if name not in plans:
        there = (
            f"there are {', '.join(list(plans)[:20])}" if plans else "there are none: add it under `plans`"
        )
        yield path, f"{quoted(name)} is not a plan; {there}"


def _credentials(config: Config) -> Iterator[tuple[KeyPath, str]]:
    has_keys = any(tenant.keys for tenant in config.tenants)
    for index, pool in enumerate(config.pools):
        if not pool.forward_authorization:
            continue
        path: KeyPath = ("pools", index, "forward_authorization")
        if pool.upstream_key is not None:
            yield path, "the pool has an upstream_key, which is sent in its place; keep one of the two"
        elif not has_keys:
            yield path, "no tenant has keys, so what clients send is passed on anyway; remove it"
