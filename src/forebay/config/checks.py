"""What a single key cannot know: whether the parts of a configuration fit together, and make sense.

Contradictions make it unusable; doubts are told and left to the operator. Pure. Each check returns paths and
sentences; `loading` adds the places.
"""

from __future__ import annotations

from collections.abc import Iterator

from forebay.config.group_checks import doubts_of_groups, groups_do_not_fit
from forebay.config.rule_checks import doubts_of_rules, fallbacks_do_not_fit, rules_do_not_fit
from forebay.config.schema import Config
from forebay.config.secret_keys import quoted
from forebay.config.tenancy_checks import doubts_of_tenants, tenants_do_not_fit
from forebay.config.yaml_text import KeyPath

__all__ = ["default_class_of", "find_contradictions", "find_doubts"]

DEFAULT_CLASS_NAMES = ("realtime", "standard", "batch")
STANDARD = "standard"
"""The default class where there is one of this name."""


def find_contradictions(config: Config) -> list[tuple[KeyPath, str]]:
    """Every contradiction, each with the path of the key to change."""
    return [
        *_pools(config),
        *_circles(config),
        *_classes(config),
        *tenants_do_not_fit(config, _class_names(config)),
        *_priorities(config),
        *fallbacks_do_not_fit(config),
        *groups_do_not_fit(config),
        *rules_do_not_fit(config, _class_names(config)),
        *_listeners(config),
        *_tls(config),
    ]


def find_doubts(config: Config) -> list[tuple[KeyPath, str]]:
    """What is allowed but hardly meant, each with the path of the key to look at."""
    return [
        *_closed_doors(config),
        *_idle_class_keys(config),
        *_models_twice(config),
        *_open_admin(config),
        *_nobody_makes_room(config),
        *_one_tenant_fills_it(config),
        *doubts_of_tenants(config),
        *doubts_of_rules(config, _class_names(config)),
        *doubts_of_groups(config),
    ]


def _tls(config: Config) -> Iterator[tuple[KeyPath, str]]:
    if config.ssl_keyfile is not None and config.ssl_certfile is None:
        yield ("ssl_keyfile",), "a key without its certificate; set ssl_certfile as well"
    for index, pool in enumerate(config.pools):
        if pool.ca_file is not None and not any(endpoint.tls for endpoint in pool.endpoints):
            yield (
                ("pools", index, "ca_file"),
                "no endpoint of this pool is https://, so it would never be used",
            )


def default_class_of(config: Config) -> str | None:
    """The class of requests that name none; None if it cannot be told and has to be set."""
    if config.default_class is not None:
        return config.default_class
    names = _class_names(config)
    if STANDARD in names:
        return STANDARD
    return names[0] if len(names) == 1 else None


def _class_names(config: Config) -> list[str]:
    return list(config.classes) if config.classes is not None else list(DEFAULT_CLASS_NAMES)


def _closed_doors(config: Config) -> Iterator[tuple[KeyPath, str]]:
    for index, pool in enumerate(config.pools):
        if pool.max_gpu_seconds == 0:
            yield (
                ("pools", index, "max_gpu_seconds"),
                "0 refuses every request; leave it out for no bound",
            )
    if config.limits.max_waiting_bytes == 0:
        yield (
            ("limits", "max_waiting_bytes"),
            "0 refuses every request that has a body; leave it out for a quarter of the memory limit",
        )


def _idle_class_keys(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Settings of classes that do nothing beside the others."""
    for name, entry in (config.classes or {}).items():
        path: KeyPath = ("classes", name)
        if entry.order != "sjf":
            for key, is_set in (
                ("aging", entry.aging is not None),
                ("short_tokens", entry.short_tokens > 0),
                ("short_weight", entry.short_weight != 1),
            ):
                if is_set:
                    yield (*path, key), f"does nothing with `order: {entry.order}`; it is for sjf"
        elif entry.short_tokens > 0 and entry.short_weight == 1:
            yield (*path, "short_tokens"), "does nothing without short_weight, as in `short_weight: 4`"
        elif entry.short_weight != 1 and not entry.short_tokens:
            yield (*path, "short_weight"), "does nothing without short_tokens: no request is short"
        if entry.never_refuse:
            for key, is_set in (
                ("wait_budget", entry.wait_budget is not None),
                ("max_queue", entry.max_queue is not None),
                ("max_queue_gpu_seconds", entry.max_queue_gpu_seconds is not None),
            ):
                if is_set:
                    yield (
                        (*path, key),
                        "refuses nobody in a class with never_refuse; leave one of the two out",
                    )


def _models_twice(config: Config) -> Iterator[tuple[KeyPath, str]]:
    owners: dict[str, str] = {}
    for index, pool in enumerate(config.pools):
        for position, model in enumerate(pool.models or ()):
            owner = owners.setdefault(model, pool.name)
            if owner != pool.name:
                yield (
                    ("pools", index, "models", position),
                    f"{model!r} is served by pool {owner} already, which comes first: this pool gets no request for it",
                )


def _nobody_makes_room(config: Config) -> Iterator[tuple[KeyPath, str]]:
    names = _class_names(config)
    bounded = next((pool.name for pool in config.pools if pool.max_queue), None)
    if bounded is None or len(names) == 1:
        return
    least = names[-1]
    found: list[KeyPath] = []
    if config.classes is not None and config.classes[least].never_refuse:
        found.append(("classes", least, "never_refuse"))
    for name, plan in (config.plans or {}).items():
        if plan.never_refuse and plan.classes is not None and set(plan.classes) == {least}:
            found.append(("plans", name, "never_refuse"))
    for path in found:
        yield (
            path,
            f"nobody displaces what waits of {least}, the last class: it can keep all others out of pool {bounded}",
        )


def _one_tenant_fills_it(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Bounds on what waits that are no part of the learned ones, which tenants share."""
    if len(config.tenants or ()) < 2 or config.displace == "same":
        return
    paths: list[KeyPath] = [
        ("pools", index, "max_queue") for index, pool in enumerate(config.pools) if pool.max_queue
    ]
    for name, entry in (config.classes or {}).items():
        if entry.max_queue:
            paths.append(("classes", name, "max_queue"))
        if isinstance(entry.max_queue_gpu_seconds, float) and entry.max_queue_gpu_seconds:
            paths.append(("classes", name, "max_queue_gpu_seconds"))
    for path in paths:
        yield (
            path,
            "one tenant can fill it and keep the others of its class out; `displace: same` lets them in",
        )


def _open_admin(config: Config) -> Iterator[tuple[KeyPath, str]]:
    if not config.admin.is_loopback and config.admin_token is None:
        yield (
            ("admin",),
            f"other machines reach {config.admin}: all see /metrics there; /api/ is closed without admin_token",
        )


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
        if pool.inject_limit and pool.max_output_tokens is None:
            yield ("pools", index, "inject_limit"), "there is no limit to put in: set max_output_tokens"
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


def _priorities(config: Config) -> Iterator[tuple[KeyPath, str]]:
    for index, pool in enumerate(config.pools):
        if pool.pass_priority and pool.engine.family not in ("auto", "vllm", "sglang"):
            yield (
                ("pools", index, "pass_priority"),
                f"{pool.engine.family} knows no priorities; only vllm and sglang do",
            )


def _circles(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Endpoints that are this very gateway: each request would come back as another one."""
    for index, pool in enumerate(config.pools):
        for position, endpoint in enumerate(pool.endpoints):
            for key, own in (("listen", config.listen), ("admin", config.admin)):
                if own.is_reached_at(endpoint.host, endpoint.port):
                    path: KeyPath = ("pools", index, "endpoints", position)
                    whose = f"{endpoint} is this gateway's own {key} address ({own})"
                    yield path, f"{whose}; give the engine's address, or choose another {key}"


def _classes(config: Config) -> Iterator[tuple[KeyPath, str]]:
    names = _class_names(config)
    for name, entry in (config.classes or {}).items():
        if entry.ttft is None and name not in DEFAULT_CLASS_NAMES:
            yield ("classes", name), f"needs a ttft, as in `{name}: {{ttft: 5s}}`"
    if config.default_class is None:
        if default_class_of(config) is None:
            yield (
                ("classes",),
                f"requests may name no class: set default_class to one of {', '.join(names)}",
            )
    elif config.default_class not in names:
        yield (
            ("default_class",),
            f"{quoted(config.default_class)} is not a class; set default_class to one of {', '.join(names)}",
        )


def _listeners(config: Config) -> Iterator[tuple[KeyPath, str]]:
    if config.listen == config.admin and config.listen.port != 0:
        yield ("admin",), f"listen and admin are both {config.admin}; give the admin API a port of its own"
    if config.notice >= config.grace > 0:
        yield ("notice",), f"must be shorter than grace ({config.grace:g}s), which includes it"
