"""Where the closed forms of `forebay size` hold: M/G/1 and the batch, against simulation. Prints tables.

    .venv/bin/python -m benchmarks.sizing.closed_forms [--requests N] [--seed N]

Three questions. Does Pollaczek–Khinchine give the mean wait of a queue with one server and log-normal service? (It
does, until the tail is heavier than the sample is long.) Is an engine that batches such a queue? (No: what a request
loses to others is the pace of its answer, not a wait.) Does c0 ÷ (1 − x) give the step time of an engine that plays
every step? (Up to the point where few steps are without a prompt.) The tables are in docs/explanation/sizing.md.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from statistics import fmean

from forebay.enginemodel import Engine, EngineConfig, Request
from forebay.profiles import load_profile
from forebay.runtime.sizing import engine_of_profile, given_workload
from forebay.sizing.batching import batch_at
from forebay.sizing.queueing import mean_wait_s

LOADS = (0.5, 0.7, 0.85, 0.95)
MIXES = (("chat", 1000.0, 250.0, 0.8), ("prompts", 4000.0, 40.0, 0.8), ("answers", 300.0, 800.0, 1.0))
PROFILE = "llama3-8b-h100x1-bf16"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("## One server, log-normal service of mean 1: mean wait ÷ Pollaczek–Khinchine")
    print(
        "| ρ | " + " | ".join(f"σ {sigma:g} (C² {_c2(sigma):.2f})" for sigma in (0.5, 1.0, 1.5, 2.0)) + " |"
    )
    for load in LOADS:
        cells = [
            _one_server(load, sigma, arguments.seed, arguments.requests * 20) for sigma in (0.5, 1, 1.5, 2)
        ]
        print(f"| {load} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    print(f"\n## {PROFILE}: wait before the prompt begins, and time per token; formula / played")
    print(
        "| mix | ρ | M/G/1 idle | M/G/1 costs | wait | step by formula | per token | running by formula / played |"
    )
    for name, prompt, output, sigma in MIXES:
        for load in LOADS:
            print(
                f"| {name} | {load} | " + " | ".join(_batching(prompt, output, sigma, load, arguments)) + " |"
            )


def _c2(sigma: float) -> float:
    return math.exp(sigma * sigma) - 1


def _one_server(load: float, sigma: float, seed: int, count: int) -> float:
    """Mean wait of a first-come-first-served server over the formula with the true second moment."""
    stream = random.Random(f"{seed}/{load}/{sigma}")
    wait_s = total_s = 0.0
    for _ in range(count):
        total_s += wait_s
        service_s = stream.lognormvariate(-sigma * sigma / 2, sigma)
        wait_s = max(0.0, wait_s + service_s - stream.expovariate(load))
    return total_s / count / mean_wait_s(load, 1.0, _c2(sigma) + 1)


def _batching(
    prompt: float, output: float, sigma: float, load: float, arguments: argparse.Namespace
) -> list[str]:
    """One row: an engine that plays every step, beside the forms."""
    engine, law = engine_of_profile(PROFILE)
    workload = given_workload(engine, law, prompt_tokens=prompt, output_tokens=output, spread=sigma)
    rate = load * workload.capacity_rps
    batch = batch_at(engine, workload, rate)
    wait_s, tpot_s, running = _play(
        prompt, output, sigma, rate, count=arguments.requests, seed=arguments.seed
    )
    idle = mean_wait_s(rate, workload.idle_s, workload.idle_square)
    costs = mean_wait_s(rate, workload.work_s, workload.work_square)
    return [
        "for ever" if math.isinf(idle) else f"{idle:.2f} s",
        f"{costs * 1000:.0f} ms",
        f"{wait_s * 1000:.0f} ms",
        f"{batch.step_s * 1000:.1f} ms",
        f"{tpot_s * 1000:.1f} ms",
        f"{batch.running:.0f} / {running:.0f}",
    ]


def _play(
    prompt: float, output: float, sigma: float, rate: float, *, count: int, seed: int
) -> tuple[float, float, float]:
    """Mean wait until the prompt begins, mean time per token after the first, and mean running, of Poisson arrivals."""
    stream = random.Random(f"{seed}/{prompt}/{rate}")
    profile = load_profile(PROFILE)
    engine = Engine(profile, EngineConfig.from_profile(profile, prefix_caching=False))

    def length(mean: float) -> int:
        return max(1, round(mean * stream.lognormvariate(-sigma * sigma / 2, sigma)))

    due = []
    at_s = 0.0
    for number in range(count):
        at_s += stream.expovariate(rate)
        due.append((at_s, number, length(prompt), length(output)))
    heapq.heapify(due)
    arrived: dict[int, float] = {}
    first: dict[int, float] = {}
    lengths: dict[int, int] = {}
    waits, paces = [], []
    now = area = measured_s = 0.0
    warm_s = 0.2 * count / rate
    while due or engine.has_work:
        if not engine.has_work:
            now = max(now, due[0][0])
        while due and due[0][0] <= now:
            at_s, number, own_prompt, own_output = heapq.heappop(due)
            engine.submit(Request(number, own_prompt, own_output))
            arrived[number], lengths[number] = at_s, own_output
        result = engine.step(now)
        assert result is not None
        end_s = result.start_s + result.duration_s
        if due and now > warm_s:  # the tail, when nobody comes any more, is not the steady state
            area += result.duration_s * len(arrived)
            measured_s += end_s - now
            waits += [now - arrived[number] for number in result.admitted]
            paces += [
                (end_s - first[number]) / (lengths[number] - 1)
                for number in result.finished
                if lengths[number] > 1 and number in first
            ]
        for number in result.first_tokens:
            first[number] = end_s
        for number in result.finished:
            del arrived[number]
        now = end_s
    return fmean(waits), fmean(paces), area / measured_s


if __name__ == "__main__":
    main()
