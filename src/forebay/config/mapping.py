"""What an operator wrote, as the core reads it. Pure: the memory limit and the profile reader are passed in.

Profile to step law: c0 = t0 + h0, c1 = s_hi, c2 = s_lo + g_seq + h1, c3 = c_kv, c4 = f_attn, milliseconds to
seconds. `tokens_per_gpu_second: N` on an endpoint of G GPUs is the law with c1 = c2 = 1 ÷ (N·G) and nothing else:
a request costs (prompt + output tokens) ÷ N GPU-seconds, and how many run together does not change that.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.admission.model import MICRO, EngineKind, Mode
from forebay.admission.settings import (
    OPTIMISTIC_LAW,
    ZERO_CONFIGURATION_CLASSES,
    ClassOrder,
    ClassSettings,
    Displace,
    OnStale,
    Order,
    PlanSettings,
    PoolSettings,
    Retries,
    Settings,
    SpeedLaw,
)
from forebay.admission.utilization import target_of
from forebay.config.checks import default_class_of
from forebay.config.errors import ConfigError, ConfigProblem
from forebay.config.loading import Loaded
from forebay.config.schema import ClassEntry, Config, Pool
from forebay.config.tenancy import PlanEntry

if TYPE_CHECKING:
    from forebay.admission.rule_book import RuleBook
    from forebay.enginemodel.profile import EngineProfile

__all__ = ["ProfileReader", "law_of", "to_settings"]

ProfileReader = Callable[[str], "EngineProfile"]
"""Takes a profile's name or path; raises `ValueError`, `LookupError` or `OSError` with a reason."""

_DEFAULT_TPOT_S = 0.12
_DEFAULT_CONFIDENCE = 0.5
_DEFAULT_MAX_STREAM_S = 300.0
_DEFAULT_BURST_S = 60.0


def to_settings(loaded: Loaded, *, memory_limit_bytes: int, read_profile: ProfileReader) -> Settings:
    """The core's settings.

    Args:
        loaded: a checked configuration.
        memory_limit_bytes: what `limits.memory: auto` is.
        read_profile: where profiles come from.

    Raises:
        ConfigError: a profile cannot be read.
    """
    config = loaded.config
    problems: list[ConfigProblem] = []
    pools = []
    for index, pool in enumerate(config.pools):
        try:
            law, gpus = _law_and_gpus(pool, loaded.base_directory, read_profile)
        except (ValueError, LookupError, OSError) as error:
            reason = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
            problems.append(loaded.document.problem(("pools", index, "profile"), reason))
            continue
        pools.append(_pool_settings(pool, law, gpus))
    if problems:
        raise ConfigError(problems)
    default_class = default_class_of(config)
    assert default_class is not None  # a checked configuration has one
    memory_bytes, waiting_bytes = config.limits.memory, config.limits.max_waiting_bytes
    if waiting_bytes is None:
        waiting_bytes = (memory_limit_bytes if memory_bytes is None else memory_bytes) // 4
    return Settings(
        pools=tuple(pools),
        classes=ZERO_CONFIGURATION_CLASSES
        if config.classes is None
        else tuple(_class_settings(name, entry) for name, entry in config.classes.items()),
        plans=tuple(_plan_settings(name, entry) for name, entry in (config.plans or {}).items()),
        default_class=default_class,
        mode=Mode(config.mode),
        class_order=ClassOrder(config.class_order),
        displace=Displace(config.displace),
        retries=Retries(config.retries),
        refuse_hopeless=config.refuse_hopeless,
        rules=_rules(config),
        connect_timeout_s=config.limits.connect_timeout,
        unstreamed_timeout_s=config.limits.answer_timeout,
        max_waiting_bytes=waiting_bytes,
    )


def _rules(config: Config) -> RuleBook | None:
    if not config.rules:
        return None
    from forebay.config.rules import rule_book  # only where there are rules: CEL takes time to load

    return rule_book(config)


def _pool_settings(pool: Pool, law: SpeedLaw | None, gpus: int) -> PoolSettings:
    return PoolSettings(
        name=pool.name,
        gpus=gpus,
        law=law,
        max_gpu_s=pool.max_gpu_seconds,
        headroom=pool.headroom,
        max_inflight_requests=pool.max_inflight_requests,
        max_inflight_tokens=pool.max_inflight_tokens,
        max_pool_requests=pool.max_pool_requests,
        max_output_tokens=pool.max_output_tokens,
        inject_limit=pool.inject_limit,
        max_queue=pool.max_queue,
        models=tuple(pool.models or ()),
        engine=None if pool.engine.family == "auto" else EngineKind(pool.engine.family),
        pass_priority=pool.pass_priority,
        fallback=pool.fallback,
        group=pool.group,
        share=pool.share,
        on_stale=OnStale(pool.on_stale),
        audio_gpu_s=pool.audio_gpu_seconds,
        image_gpu_s=pool.image_gpu_seconds,
        hold_without_endpoints_s=pool.hold_without_endpoints,
        wait_predictor=pool.wait_predictor,
        target_utilization=target_of(pool.queue_policy),
        mode=None if pool.mode is None else Mode(pool.mode),
    )


def _plan_settings(name: str, entry: PlanEntry) -> PlanSettings:
    tokens_capacity = entry.burst
    if tokens_capacity is None and entry.tokens_per_second is not None:
        tokens_capacity = ceil(_DEFAULT_BURST_S * entry.tokens_per_second)
    requests_capacity = entry.requests_burst
    if requests_capacity is None and entry.requests_per_second is not None:
        requests_capacity = ceil(entry.requests_per_second)
    work = entry.max_inflight_gpu_seconds
    return PlanSettings(
        name,
        weight=entry.weight,
        never_refuse=entry.never_refuse,
        tokens_per_s=entry.tokens_per_second,
        # Nothing that ever comes in is nothing, whatever the bucket could hold.
        tokens_capacity=0 if entry.tokens_per_second == 0 else tokens_capacity,
        requests_per_s=entry.requests_per_second,
        requests_capacity=0 if entry.requests_per_second == 0 else requests_capacity,
        max_inflight=entry.max_inflight,
        max_inflight_gpu_us=None if work is None else round(work * MICRO),
        bills_cap=entry.bill == "cap",
        models=None if entry.models is None else tuple(entry.models),
        classes=None if entry.classes is None else tuple(entry.classes),
    )


def _class_settings(name: str, entry: ClassEntry) -> ClassSettings:
    """The entry, with what it leaves out from the default class of that name, else from general defaults."""
    known = next((default for default in ZERO_CONFIGURATION_CLASSES if default.name == name), None)
    ttft_s = entry.ttft if entry.ttft is not None else (known.ttft_s if known else 0.0)
    default_tpot_s, default_weight, default_value = (
        (known.tpot_s, known.weight, known.value) if known else (_DEFAULT_TPOT_S, 1.0, 1.0)
    )
    return ClassSettings(
        name=name,
        ttft_s=ttft_s,
        tpot_s=entry.tpot if entry.tpot is not None else default_tpot_s,
        wait_budget_s=entry.wait_budget if entry.wait_budget is not None else ttft_s,
        weight=entry.weight if entry.weight is not None else default_weight,
        value=entry.value if entry.value is not None else default_value,
        max_queue=entry.max_queue,
        max_queue_gpu_s=entry.max_queue_gpu_seconds,
        idle_stream_s=entry.idle_stream,
        on_stale=None if entry.on_stale is None else OnStale(entry.on_stale),
        order=Order(entry.order),
        aging_s=entry.aging,
        short_tokens=entry.short_tokens,
        short_weight=entry.short_weight,
        max_share=entry.max_share,
        never_refuse=entry.never_refuse,
        admit_below_utilization=entry.admit_below_utilization,
        max_stream_s=_max_stream_s(entry, known),
        whole_answer_s=entry.whole_answer,
        confidence=entry.confidence
        if entry.confidence is not None
        else (known.confidence if known else _DEFAULT_CONFIDENCE),
        mode=None if entry.mode is None else Mode(entry.mode),
    )


def _max_stream_s(entry: ClassEntry, known: ClassSettings | None) -> float | None:
    if entry.max_stream is None:
        return known.max_stream_s if known else _DEFAULT_MAX_STREAM_S
    return entry.max_stream if isfinite(entry.max_stream) else None


def _law_and_gpus(
    pool: Pool, base_directory: Path, read_profile: ProfileReader
) -> tuple[SpeedLaw | None, int]:
    """The pool's law, None to learn it, and the GPUs of one endpoint: as written, else the profile's, else 1."""
    gpus = pool.gpus or 1
    if pool.profile.tokens_per_gpu_second is not None:
        seconds = 1.0 / (pool.profile.tokens_per_gpu_second * gpus)
        law = SpeedLaw(
            c0_s=0.0,
            c1_s=seconds,
            c2_s=seconds,
            c3_s=0.0,
            c4_s=0.0,
            kv_tokens=OPTIMISTIC_LAW.kv_tokens,
            max_requests=OPTIMISTIC_LAW.max_requests,
        )
        return law, gpus
    if pool.profile.name is None:
        return None, gpus
    profile = read_profile(_resolve(pool.profile.name, base_directory))
    return law_of(profile), pool.gpus or profile.gpus


def _resolve(name: str, base_directory: Path) -> str:
    """A name that looks like a file is one, relative to the configuration; anything else is a profile's name."""
    return str(base_directory / name) if "/" in name or ".json" in name else name


def law_of(profile: EngineProfile) -> SpeedLaw:
    """The cost law of an engine with this profile, started with the profile's own KV cache and limits."""
    step = profile.law
    return SpeedLaw(
        c0_s=(step.t0 + step.h0) / 1000,
        c1_s=step.s_hi / 1000,
        c2_s=(step.s_lo + step.g_seq + step.h1) / 1000,
        c3_s=step.c_kv / 1000,
        c4_s=step.f_attn / 1000,
        kv_tokens=profile.kv_tokens,
        max_requests=profile.max_num_seqs,
    )
