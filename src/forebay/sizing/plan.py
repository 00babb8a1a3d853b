"""From an engine, a workload and targets to every figure that `forebay size` shows.

The order of reasoning: what one engine can do (capacity), how much of that may be planned for (policy), how many
engines that takes, what then runs at once and how long one waits, and the bounds that follow. Each figure comes from a
function that names its source; here they are only put together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forebay.sizing.batching import Batch, Engine, Workload, batch_at, most_running
from forebay.sizing.bounds import (
    Bucket,
    bucket,
    depth_by_drain,
    depth_by_service,
    pool_gpu_seconds,
    pool_gpu_seconds_by_drain,
    scale_up_gpu_seconds,
)
from forebay.sizing.errors import SizingError
from forebay.sizing.queueing import POLICY_CAPS, mean_wait_s, squared_variation

__all__ = ["ClassTarget", "Depth", "Limits", "Plan", "Utilization", "make_plan"]

HEADROOM: Final = 0.9
"""Forebay's default part of each capacity that is used."""
EDGE_FACTOR: Final = 1.2
"""Refill of the bucket at the edge over capacity, where Forebay stands behind it: the edge stops floods, and who is
refused in an ordinary overload is decided where class, tenant and cost are known."""
_ENGINE_MARGIN: Final = 1.1
"""Sequences that the engine may run over what it is sent: so that it never queues by itself."""
_CHUNK_STEP: Final = 256
_SCALE_TARGET_MOST: Final = 0.85
_ENDPOINTS_MOST: Final = 100_000


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """What is promised to a class."""

    name: str
    ttft_s: float
    tpot_s: float
    wait_budget_s: float
    weight: float = 1.0
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class Utilization:
    """A pool planned at some utilisation."""

    policy: str
    cap: float
    endpoints: int
    """Needed for the rate."""
    rate_rps: float
    """That one endpoint takes at this utilisation."""
    wait_s: float
    """Mean wait by Pollaczek–Khinchine with the cost of requests as service time."""
    step_s: float
    """Time per output token."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How many requests of a class may wait, over the pool."""

    name: str
    wait_budget_s: float
    by_service: float
    """As usually given, with the service time of an idle engine."""
    by_drain: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What one endpoint may hold, and what its engine should be started with."""

    by_kv: int
    by_pace: int
    max_inflight: int
    """The smallest of what the KV cache, the pace and the engine's own limit allow."""
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was worked out."""

    engine: Engine
    workload: Workload
    classes: tuple[ClassTarget, ...]
    policy: str
    rate_rps: float
    rate_given: bool
    endpoints: int
    load: float
    """Utilisation at this rate with these endpoints."""
    batch: Batch
    """One of them at its part of the rate."""
    wait_s: float
    """Pollaczek–Khinchine with costs as service times."""
    idle_load: float
    """ρ by the service time of an idle engine: what is found if an engine is taken to serve one at a time."""
    idle_wait_s: float
    variation: float
    """Squared coefficient of variation of the cost."""
    limits: Limits
    utilizations: tuple[Utilization, ...]
    depths: tuple[Depth, ...]
    tokens_bucket: Bucket
    """Of tokens, alone in front of the GPUs: the published form."""
    edge_bucket: Bucket
    """Of requests, with Forebay behind it."""
    pool_gpu_s_usual: float
    pool_gpu_s: float
    scale_target: float
    """Utilisation of one endpoint that autoscaling keeps to."""
    scale_up_gpu_s: float
    """Backlog per endpoint that by itself asks for another one; refusals begin above it."""

    @property
    def gpus(self) -> int:
        """Over all endpoints."""
        return self.engine.gpus * self.endpoints

    @property
    def capacity_rps(self) -> float:
        """Over all endpoints, at a utilisation of 1."""
        return self.endpoints * self.workload.capacity_rps


def make_plan(
    engine: Engine,
    workload: Workload,
    classes: Sequence[ClassTarget],
    *,
    rate_rps: float | None,
    endpoints: int | None,
    policy: str = "balanced",
    edge_factor: float = EDGE_FACTOR,
) -> Plan:
    """Work everything out. Raises `SizingError` where the numbers cannot be met or make no sense.

    Without a rate the one is taken that the endpoints can be planned for; without endpoints as many as the rate takes,
    and one without either.
    """
    cap = _cap(policy)
    if engine.context_tokens < workload.longest_tokens:
        raise SizingError(
            f"1 request of 1,000 is longer than {workload.longest_tokens:,} tokens, and {engine.name} takes "
            f"{engine.context_tokens:,} at most"
        )
    rate_given = rate_rps is not None
    endpoints = endpoints or (1 if rate_rps is None else _endpoints(rate_rps, workload, cap))
    rate_rps = rate_rps or cap * endpoints * workload.capacity_rps
    per_endpoint_rps = rate_rps / endpoints
    limits = _limits(engine, workload, min(target.tpot_s for target in classes))
    most = limits.max_inflight
    longest_s = max(target.wait_budget_s for target in classes)
    gpus = engine.gpus * endpoints
    cost_gpu_s = workload.work_s * engine.gpus
    tokens_per_gpu_s = (workload.prompt_tokens + workload.output_tokens) / cost_gpu_s
    return Plan(
        engine=engine,
        workload=workload,
        classes=tuple(classes),
        policy=policy,
        rate_rps=rate_rps,
        rate_given=rate_given,
        endpoints=endpoints,
        load=per_endpoint_rps * workload.work_s,
        batch=batch_at(engine, workload, per_endpoint_rps),
        wait_s=mean_wait_s(per_endpoint_rps, workload.work_s, workload.work_square),
        idle_load=per_endpoint_rps * workload.idle_s,
        idle_wait_s=mean_wait_s(per_endpoint_rps, workload.idle_s, workload.idle_square),
        variation=squared_variation(workload.work_s, workload.work_square),
        limits=limits,
        utilizations=tuple(_utilization(name, engine, workload, rate_rps) for name in POLICY_CAPS),
        depths=tuple(_depth(target, workload, endpoints, most) for target in classes),
        tokens_bucket=bucket(tokens_per_gpu_s, gpus),
        edge_bucket=bucket(1 / cost_gpu_s, gpus, factor=edge_factor),
        pool_gpu_s_usual=pool_gpu_seconds(classes[0].wait_budget_s, gpus),
        pool_gpu_s=pool_gpu_seconds_by_drain(
            longest_s, gpus, running=endpoints * most, cost_gpu_s=cost_gpu_s
        ),
        scale_target=min(cap, _SCALE_TARGET_MOST),
        scale_up_gpu_s=scale_up_gpu_seconds(
            classes[0].wait_budget_s, engine.gpus, part=min(cap, _SCALE_TARGET_MOST)
        ),
    )


def _cap(policy: str) -> float:
    cap = POLICY_CAPS.get(policy)
    if cap is None:
        raise SizingError(f"there is no policy {policy!r}. Known: {', '.join(POLICY_CAPS)}")
    return cap


def _endpoints(rate_rps: float, workload: Workload, cap: float) -> int:
    needed = max(1, math.ceil(rate_rps * workload.work_s / cap - 1e-9))
    if needed > _ENDPOINTS_MOST:
        raise SizingError(f"{rate_rps:g} requests/s would take {needed:,} engines: is the rate per second?")
    return needed


def _utilization(policy: str, engine: Engine, workload: Workload, rate_rps: float) -> Utilization:
    cap = POLICY_CAPS[policy]
    each_rps = cap * workload.capacity_rps
    return Utilization(
        policy=policy,
        cap=cap,
        endpoints=_endpoints(rate_rps, workload, cap),
        rate_rps=each_rps,
        wait_s=mean_wait_s(each_rps, workload.work_s, workload.work_square),
        step_s=batch_at(engine, workload, each_rps).step_s,
    )


def _limits(engine: Engine, workload: Workload, tpot_s: float) -> Limits:
    by_kv, by_pace, own = most_running(engine, workload, tpot_s=tpot_s, fill=HEADROOM)
    most = min(by_kv, by_pace, own)
    seqs = min(own, _up_to(most * _ENGINE_MARGIN, 8))
    chunk = _chunk(engine, workload, tpot_s=tpot_s, running=most, seqs=seqs)
    return Limits(by_kv, by_pace, most, seqs, chunk)


def _depth(target: ClassTarget, workload: Workload, endpoints: int, most: int) -> Depth:
    budget_s = target.wait_budget_s
    return Depth(
        name=target.name,
        wait_budget_s=budget_s,
        by_service=depth_by_service(budget_s, workload.idle_s, most * endpoints),
        by_drain=depth_by_drain(budget_s, endpoints * workload.capacity_rps),
    )


def _chunk(engine: Engine, workload: Workload, *, tpot_s: float, running: int, seqs: int) -> int:
    """Tokens of a step that keep it within the pace promised, with a usual batch decoding; between 512 and 8,192.

    A step as long as the whole target would make a stream late at every prompt that comes in, so what it may take is
    the target itself with three quarters of the most running: prompts are not in every step.
    """
    decode_s = engine.c0_s + 0.75 * running * (engine.c2_s + engine.c3_s * workload.held_tokens)
    tokens = (tpot_s - decode_s) / engine.c1_s if engine.c1_s > 0 else engine.chunk_tokens
    fitting = int(max(0.0, tokens)) // _CHUNK_STEP * _CHUNK_STEP
    return max(_up_to(seqs, _CHUNK_STEP), 512, min(8192, fitting))


def _up_to(value: float, step: int) -> int:
    """The next multiple of `step`."""
    return max(step, math.ceil(value / step) * step)
