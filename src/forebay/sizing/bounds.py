"""Bounds on queues and rates, as published, and the same where an engine batches.

The published forms are here because people know them and ask for them. Where they are off for an engine that batches,
the docstring says how, and a second function gives the figure that `forebay size` puts into settings.
"""

from __future__ import annotations

from typing import NamedTuple

from forebay.sizing.errors import SizingError

__all__ = [
    "Bucket",
    "bucket",
    "depth_by_drain",
    "depth_by_service",
    "pool_gpu_seconds",
    "pool_gpu_seconds_by_drain",
    "scale_up_gpu_seconds",
]


class Bucket(NamedTuple):
    """A token bucket."""

    refill_per_s: float
    capacity: float


def depth_by_service(budget_s: float, service_s: float, concurrency: float) -> float:
    """Waiting requests that a queue may hold, as usually given: L ÷ S × concurrency × 1.5.

    L is the wait that can be afforded, S the service time of a request: each of `concurrency` workers gets through
    L ÷ S requests in that time. The 1.5 counts on some of them leaving.

    With an engine that batches, S is not a constant. Measured on an idle engine, and multiplied by the concurrency of a
    full one, it promises what no engine does: the workers slow each other down. Measured at full concurrency,
    concurrency ÷ S is the true throughput (Little), and only the 1.5 is too much: the last third of a full queue waits
    up to 1.5 times the budget.
    """
    if service_s <= 0:
        raise SizingError("a service time must be above 0")
    return budget_s / service_s * concurrency * 1.5


def depth_by_drain(budget_s: float, drain_rps: float) -> float:
    """Waiting requests that an engine gets through within the budget: drain rate × L.

    The drain rate is what a full batch finishes per second, 1 ÷ E[cost]. Counting requests still takes all for equal;
    in GPU-seconds (`max_queue_gpu_seconds`) a queue of long ones is as long as it will take.
    """
    return budget_s * drain_rps


def bucket(sustained_per_gpu_s: float, gpus: int, *, factor: float = 0.7, seconds: float = 4.0) -> Bucket:
    """A token bucket in front of GPUs: refill = sustained × GPUs × 0.7, capacity = 4 s of refill.

    `sustained` is what one GPU does for good in whatever the bucket counts. The factor is a margin, since a bucket sees
    neither lengths nor what is running; it is also the most that is ever used. The capacity is the burst that passes at
    once, and the longest that it takes the engines to work it off is capacity ÷ (sustained × GPUs), 2.8 s with these.

    Args:
        factor: part of what the GPUs do. Above 1 the bucket only stops floods, and what is behind it decides.
    """
    refill = sustained_per_gpu_s * gpus * factor
    return Bucket(refill, refill * seconds)


def pool_gpu_seconds(budget_s: float, gpus: int) -> float:
    """Work that a pool may hold, as usually given: wait budget × GPUs, halved.

    Of GPU-seconds *ahead* that is right, and the half is a margin for estimates. But a bound on all work of the pool
    also counts what runs, and a full batch alone is more than that: 50 answers of 0.2 GPU-seconds each are 10, while
    1.5 s × 1 GPU ÷ 2 is 0.75. It would refuse while most of the engine is free.
    """
    return budget_s * gpus / 2


def pool_gpu_seconds_by_drain(budget_s: float, gpus: int, *, running: float, cost_gpu_s: float) -> float:
    """Work that a pool may hold: what runs in full batches, and what drains within the budget.

    With the longest wait budget of any class it refuses nothing that could still be in time, and bounds what piles up.

    Args:
        gpus: all GPUs of the pool: GPU-seconds that it gets through per second.
        running: requests that run at once, over all engines.
    """
    return budget_s * gpus + running * cost_gpu_s


def scale_up_gpu_seconds(budget_s: float, gpus: int, *, part: float = 0.5) -> float:
    """Backlog at which another engine should be on its way: a part of what would be refused for its wait.

    Refusals begin where the wait reaches the budget, at budget × GPUs of work ahead. A new engine takes minutes, so the
    threshold has to lie well below, or autoscaling only ever sees a queue that is already full.
    """
    if not 0 < part < 1:
        raise SizingError("scaling up must begin below the bound at which requests are refused")
    return budget_s * gpus * part
