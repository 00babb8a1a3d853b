"""`forebay check FILE`: says whether a configuration can be used, and what it comes to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from forebay.admission.settings import ClassSettings, PoolSettings, Settings
    from forebay.config import Config
    from forebay.config.schema import Pool

__all__ = ["command"]


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Validate a configuration file and say what it means.

    `-` reads standard input. FOREBAY_… variables of the environment are taken into account, as `forebay serve -c
    FILE` would. Exits with 0 if it can be used, warnings or not, and with 2 if not.
    """
    from forebay.config import ConfigError, load
    from forebay.runtime.prepared import prepare

    warnings: tuple[str, ...] = ()
    try:
        loaded = load(file)
        warnings = loaded.warnings
        settings = prepare(loaded).settings
    except ConfigError as error:
        _print_warnings(warnings or error.warnings)
        click.echo(str(error), err=True)
        count = len(error.problems)
        click.echo(f"{count} problem{'s' if count != 1 else ''}", err=True)
        raise SystemExit(2) from None
    _print_warnings(warnings)
    click.echo(f"OK: {loaded.document.source}")
    for line in _summary(loaded.config, settings):
        click.echo(line)


def _print_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _summary(config: Config, settings: Settings) -> list[str]:
    """What the file comes to, defaults filled in: a few lines that a person can hold against what was meant."""
    from forebay.admission.model import Mode

    scheme = " (TLS)" if config.ssl_certfile is not None else ""
    lines = [f"listen {config.listen}{scheme}, admin {config.admin}"]
    lines += [_pool(*pair) for pair in zip(config.pools, settings.pools, strict=True)]
    lines += [_class(rank, entry, settings) for rank, entry in enumerate(settings.classes, start=1)]
    lines += _tenants(config, settings)
    if settings.mode is not Mode.ENFORCE:
        lines.append(f"mode {settings.mode.value}: nothing is enforced where nothing else is said")
    if settings.rules is not None:
        rules = settings.rules.rules
        each = sum(rule.of_request for rule in rules)
        lines.append(f"rules: {len(rules)}, {each} of them asked for each request")
    if config.record is not None:
        kept = f"{config.record.files} files of {config.record.max_size / 2**20:g} MiB"
        lines.append(f"record {config.record.path}: at most {kept}")
    lines.append(f"class_order {settings.class_order.value}, displace {settings.displace.value}")
    lines.append(f"bodies of waiting requests: at most {settings.max_waiting_bytes / 2**20:.0f} MiB")
    return lines


def _pool(pool: Pool, pool_settings: PoolSettings) -> str:
    """One pool."""
    bounds = [
        f"at most {value if isinstance(value, int) else format(value, 'g')} {words}"
        for words, value in (
            (f"GPU-seconds × headroom {pool_settings.headroom:g}", pool_settings.max_gpu_s),
            ("requests in flight per endpoint", pool_settings.max_inflight_requests),
            ("KV tokens in flight per endpoint", pool_settings.max_inflight_tokens),
            ("requests in flight", pool_settings.max_pool_requests),
            ("requests waiting", pool_settings.max_queue),
            ("output tokens", pool_settings.max_output_tokens),
        )
        if value is not None
    ]
    if pool.queue_policy is not None:
        bounds.append(f"queue_policy {pool.queue_policy}")
    speed = "learned" if pool_settings.law is None else "from its profile"
    if pool.fallback is not None:
        bounds.append(f"falls back to {pool.fallback}")
    count = len(pool.endpoints)
    parts = [
        f"{count} endpoint{'s' if count != 1 else ''}",
        f"{pool_settings.gpus} GPU{'s' if pool_settings.gpus != 1 else ''}{' each' if count != 1 else ''}",
        f"speed {speed}",
    ]
    if pool.gpu_metrics is not None:
        told = len(pool.gpu_metrics.exporters)
        bounds.append(f"its GPUs told by {told} exporter{'s' if told != 1 else ''}")
    if pool.tokenizer is not None:
        bounds.append("prompts are counted exactly")
    if pool.passthrough:
        bounds.append(f"without admission {', '.join(pool.passthrough)}")
    if pool_settings.mode is not None:
        bounds.append(f"mode {pool_settings.mode.value}")
    return f"pool {pool.name}: {', '.join(parts + bounds)}"


def _class(rank: int, entry: ClassSettings, settings: Settings) -> str:
    """One class."""
    parts = [
        f"first token in {entry.ttft_s:g}s",
        f"then {entry.tpot_s * 1000:g}ms per token",
        "waits as long as it takes" if entry.never_refuse else f"waits at most {entry.wait_budget_s:g}s",
        f"weight {entry.weight:g}",
        f"value {entry.value:g}",
        entry.order.value,
    ]
    if entry.whole_answer_s is not None:
        parts.insert(2, f"whole answers in {entry.whole_answer_s:g}s")
    if entry.max_queue is not None:
        parts.append(f"at most {entry.max_queue} waiting")
    if entry.admit_below_utilization is not None:
        parts.append(f"starts while the pool is used less than {entry.admit_below_utilization:.0%}")
    if entry.max_share < 1:
        parts.append(f"at most {entry.max_share:.0%} while others wait")
    if entry.mode is not None:
        parts.append(f"mode {entry.mode.value}")
    if entry.name == settings.default_class:
        parts.append("default")
    return f"class {rank} {entry.name}: {', '.join(parts)}"


def _tenants(config: Config, settings: Settings) -> list[str]:
    """Plans with what they allow, and who has them."""
    lines = []
    anonymous = config.anonymous
    for plan in settings.plans:
        entry = (config.plans or {})[plan.name]
        allowed = [
            words.format(value)
            for words, value in (
                ("{:g} tokens/s", plan.tokens_per_s),
                ("{} at once", plan.tokens_capacity),
                ("{:g} requests/s", plan.requests_per_s),
                ("{} at once", plan.requests_capacity),
                ("{} in flight", plan.max_inflight),
                ("{:g} GPU-seconds in flight", entry.max_inflight_gpu_seconds),
            )
            if value is not None
        ]
        tenants = sum(tenant.plan == plan.name for tenant in config.tenants)
        who = f"{tenants} tenant{'s' if tenants != 1 else ''}"
        if anonymous is not None and anonymous.plan == plan.name:
            who += " and all without a key"
        parts = [
            f"weight {plan.weight:g}",
            *(["never refused"] if plan.never_refuse else []),
            f"classes {', '.join(entry.classes)}" if entry.classes else "all classes",
            *([f"models {', '.join(entry.models)}"] if entry.models else []),
            ", ".join(allowed) or "no limits",
            f"for {who}",
        ]
        lines.append(f"plan {plan.name}: {', '.join(parts)}")
    if any(tenant.keys for tenant in config.tenants) and (anonymous is None or anonymous.plan is None):
        lines.append("requests without a known key are refused")
    return lines
