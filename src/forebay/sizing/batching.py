"""Closed forms of an engine that batches: what a request costs, what a step takes, how many run.

A step takes c0 + c1·P + c2·n + c3·K (+ attention within prefill). Of a request's *cost*, its linear part `lin` is what
its own tokens add to steps, and the rest is its dominant share of the fixed c0 (`admission.cost`). With λ requests a
second that are all served, and x = λ·E[lin] of each second spent on tokens, c0 is paid in what is left, so

    step = c0 ÷ (1 − x)        running = λ·E[o]·step        KV tokens held = λ·E[w]·step

(Little's law on steps; o output tokens, w KV-time in token·steps). The step time is the time per output token. Held
against a model that plays every step, the step time is within 10 % up to 0.8 of capacity, and lower than what streams
see by up to a third where prompts are long, since those meet more of the long steps than the mean does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from forebay.sizing.errors import SizingError

__all__ = ["Engine", "Request", "Workload", "batch_at", "most_running", "workload_of"]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, in the numbers of the cost law (seconds)."""

    name: str
    c0_s: float
    c1_s: float
    c2_s: float
    c3_s: float
    kv_tokens: int
    max_requests: int
    """Sequences that it can run at once."""
    chunk_tokens: int
    """Prompt tokens that one step computes at most."""
    context_tokens: int
    gpus: int = 1


class Request(NamedTuple):
    """A request that stands for others like it."""

    prompt_tokens: int
    output_tokens: int
    work_s: float
    """Its cost in endpoint-seconds of a full engine."""
    linear_s: float
    """The part of it that its own tokens take, without its share of the fixed step."""
    idle_s: float
    """What it takes on an engine where nothing else runs."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Means over requests. `…_square` is a mean of squares, not the square of a mean."""

    requests: int
    prompt_tokens: float
    output_tokens: float
    work_s: float
    work_square: float
    linear_s: float
    idle_s: float
    idle_square: float
    kv_time: float
    """Token·steps: KV tokens held, added up over the steps of an answer."""
    held_tokens: float
    """KV tokens that a request holds while it runs: mean over time, not over requests. Long answers count for more."""
    held_square: float
    longest_tokens: int
    """Prompt plus answer that 1 request of 1,000 exceeds."""

    @property
    def capacity_rps(self) -> float:
        """Requests per second of this mix that one full engine can serve: 1 ÷ E[cost]."""
        return 1 / self.work_s


class Batch(NamedTuple):
    """An engine at some rate, in the mean."""

    load: float
    """Offered work over capacity, ρ = λ·E[cost]."""
    step_s: float
    """Time of a step, which is the time per output token. Infinite where the rate is above what tokens alone allow."""
    running: float
    kv_tokens: float


def workload_of(requests: Iterable[Request]) -> Workload:
    """Means and second moments over a sample of requests. Raises `SizingError` if there are none that give tokens."""
    count = 0
    sums = [0.0] * 10
    totals: list[int] = []
    for prompt, output, work_s, linear_s, idle_s in requests:
        count += 1
        # While it runs it holds prompt + 1, … prompt + output: the mean and the mean square over its steps.
        held = prompt + output / 2
        held_square = prompt * prompt + prompt * output + output * output / 3
        values = (
            prompt, output, work_s, work_s * work_s, linear_s, idle_s, idle_s * idle_s,
            held * output, output, held_square * output,
        )  # fmt: skip
        for index, value in enumerate(values):
            sums[index] += value
        totals.append(prompt + output)
    if not count or sums[1] <= 0:
        raise SizingError("there are no requests with an answer to take lengths from")
    totals.sort()
    return Workload(
        requests=count,
        prompt_tokens=sums[0] / count,
        output_tokens=sums[1] / count,
        work_s=sums[2] / count,
        work_square=sums[3] / count,
        linear_s=sums[4] / count,
        idle_s=sums[5] / count,
        idle_square=sums[6] / count,
        kv_time=sums[7] / count,
        held_tokens=sums[7] / sums[8],
        held_square=sums[9] / sums[8],
        longest_tokens=totals[min(count - 1, math.ceil(0.999 * count) - 1)],
    )


def batch_at(engine: Engine, workload: Workload, rate_rps: float) -> Batch:
    """One engine that gets this rate and serves all of it. See the module's text for the form and its limits."""
    load = rate_rps * workload.work_s
    busy = rate_rps * workload.linear_s
    step_s = engine.c0_s / (1 - busy) if busy < 1 else math.inf
    return Batch(
        load, step_s, rate_rps * workload.output_tokens * step_s, rate_rps * workload.kv_time * step_s
    )


def most_running(engine: Engine, workload: Workload, *, tpot_s: float, fill: float) -> tuple[int, int, int]:
    """How many requests an engine should run at most: by its KV cache, by the pace of answers, by its own limit.

    By KV: the largest n for which n·m + 2·√(n·v) ≤ fill · M, with m and v the mean and variance over time of what a
    running request holds: two standard deviations of room for answers that are all long at once (the test that Forebay
    makes for each request with its own lengths). By pace: c0 + c2·n + c3·n·m ≤ tpot, the step without prompts in it.

    Args:
        fill: part of the KV cache to use, 0.9 where `headroom` is 0.9.
    """
    if not 0 < fill <= 1:
        raise SizingError(f"the part of the KV cache to use must be above 0 and at most 1, got {fill:g}")
    mean = workload.held_tokens
    spread = math.sqrt(max(0.0, workload.held_square - mean * mean))
    room = fill * engine.kv_tokens
    # mean·x² + 2·spread·x = room, for x = √n.
    root = (-spread + math.sqrt(spread * spread + mean * room)) / mean
    by_kv = int(root * root)
    per_request_s = engine.c2_s + engine.c3_s * mean
    by_pace = (
        int(max(0.0, tpot_s - engine.c0_s) / per_request_s) if per_request_s > 0 else engine.max_requests
    )
    return max(1, by_kv), max(1, by_pace), engine.max_requests
