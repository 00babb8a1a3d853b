"""What `forebay size` prints of a plan: lines for people, a document for machines. Printing only."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.sizing.plan import Plan

__all__ = ["document", "report"]


def report(plan: Plan) -> list[str]:
    """The figures, a line each, with the formula where there is room."""
    engine, load = plan.engine, plan.workload
    lines = [
        _row(
            "Engine",
            f"{engine.name}: {_plural(engine.gpus, 'GPU')}, {engine.kv_tokens:,} KV tokens,",
            f"step {engine.c0_s * 1000:.1f} ms at least",
        ),
        _row(
            "Requests",
            f"prompt {load.prompt_tokens:,.0f}, answer {load.output_tokens:,.0f} tokens on average;",
            f"cost {load.work_s * engine.gpus:.3f} GPU-seconds, C² {plan.variation:.2f}",
        ),
        _row(
            "Capacity",
            f"{load.capacity_rps:.2f} requests/s per engine (1 ÷ mean cost), {plan.capacity_rps:.2f} in all",
        ),
        _row(
            "Asked for" if plan.rate_given else "Planned",
            f"{plan.rate_rps:.2f} requests/s on {_plural(plan.endpoints, 'engine')}",
            f"({_plural(plan.gpus, 'GPU')}): {plan.load:.0%} of capacity, planned for {plan.policy}",
        ),
        "",
        _row("Utilisation", "engines   requests/s each   mean wait (P-K)   per token"),
    ]
    lines += [
        f"  {each.policy:10} {each.cap:.0%} {each.endpoints:9,} {each.rate_rps:17.2f} {_time(each.wait_s):>17} "
        f"{_time(each.step_s):>11}"
        for each in plan.utilizations
    ]
    return [*lines, "", *_at_rate(plan), *_bounds(plan)]


def _at_rate(plan: Plan) -> list[str]:
    """What goes on at the rate, as it is and as a queue of one server would have it."""
    batch, load = plan.batch, plan.workload
    return [
        _row(
            "At this rate",
            f"{_count(batch.running)} running per engine (Little), {_count(batch.kv_tokens)} KV tokens,",
            f"{_time(batch.step_s)} per token, mean wait {_time(plan.wait_s)} (M/G/1 on costs)",
        ),
        _row(
            "",
            f"one at a time (M/G/1 on idle service times, {_time(load.idle_s)}) would say {plan.idle_load:.0%} busy,",
            f"wait {_time(plan.idle_wait_s)}: an engine that batches is not like that",
        ),
    ]


def _bounds(plan: Plan) -> list[str]:
    """How much may run and wait."""
    depth = plan.depths[0]
    tokens = plan.tokens_bucket
    return [
        _row(
            "At most",
            f"{plan.limits.max_inflight} in flight per engine: {plan.limits.by_kv} by KV cache",
            f"({plan.workload.held_tokens:,.0f} tokens each, +2σ), {plan.limits.by_pace} by pace,",
            f"{plan.engine.max_requests} by the engine",
        ),
        _row(
            "Queue depth",
            f"{depth.name} ({_time(depth.wait_budget_s)}): {depth.by_drain:.1f} requests = drain rate × L;",
            f"L ÷ S × concurrency × 1.5 says {depth.by_service:.0f}",
        ),
        _row(
            "Bucket",
            f"alone at the edge: {tokens.refill_per_s:,.0f} tokens/s (sustained × GPUs × 0.7),",
            f"{tokens.capacity:,.0f} at once (4 s)",
        ),
        _row(
            "Pool bound",
            f"{plan.pool_gpu_s:.3g} GPU-seconds, what runs included (nine tenths of max_gpu_seconds below);",
            f"budget × GPUs ÷ 2 says {plan.pool_gpu_s_usual:.3g}",
        ),
        _row(
            "Scale up",
            f"above {plan.scale_target:.0%} of an engine, or {plan.scale_up_gpu_s:.2g} GPU-seconds waiting per engine",
        ),
    ]


def document(plan: Plan, texts: dict[str, str], notes: list[str]) -> dict[str, object]:
    """The plan as JSON; what is infinite becomes null."""
    body = {
        **dataclasses.asdict(plan),
        "batch": plan.batch._asdict(),
        "tokens_bucket": plan.tokens_bucket._asdict(),
        "edge_bucket": plan.edge_bucket._asdict(),
        "gpus": plan.gpus,
        "capacity_rps": plan.capacity_rps,
        "settings": texts,
        "notes": notes,
    }
    return {key: _finite(value) for key, value in body.items()}


def _row(title: str, *parts: str) -> str:
    return f"{title:16}{' '.join(parts)}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _time(seconds: float) -> str:
    if math.isinf(seconds):
        return "for ever"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _count(value: float) -> str:
    return "without end" if math.isinf(value) else f"{value:,.0f}"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
