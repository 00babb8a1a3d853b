"""The engine model against a real vLLM: the same requests at the same times, side by side.

    .venv/bin/python -m benchmarks.engines.fidelity [--kv-tokens 16384,2048] [--loads 0.5,0.8] [--seconds 60] [--json]

vLLM runs on the CPU with a small random-weight model (`scripts/engines.sh`). First the step law of the model is fitted
to it from probes, requests of known lengths on an idle engine (`step_probes`). Then both get the same open-loop
workload at each load: vLLM over HTTP, the model in virtual time, with the fitted law and nothing else of what vLLM did.
Compared are time to first token, mean time per later token, whole answers and preemptions. With several sizes of the
KV cache, one vLLM is started after the other; the law is that of the first, which should be roomy.

How far two runs of vLLM itself are apart bounds what a model can reach: `--repeat` sends each workload twice, and
probes that were not used for the fit are sent before and after. On a machine that others use, `--nice -15` lets engine
and client go first (it needs root). What does not depend on anybody's speed is compared with bursts: all requests come
at once, and steps, preemptions and the order of first tokens are the scheduler's doing alone.

Prints a table; `--json` prints one document. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.engines.overload import MIX, read_sample, until_idle
from benchmarks.engines.step_probes import Fit, Observation, Probe, fit, observations, token_prompt
from forebay.admission.settings import SpeedLaw
from forebay.enginemodel.engine import Engine
from forebay.enginemodel.law import StepLaw
from forebay.enginemodel.profile import EngineConfig, EngineProfile
from forebay.enginemodel.sequence import Request
from forebay.load.felt import End, Felt, quantile
from forebay.load.generator import OpenLoop, Target
from forebay.load.workload import Arrival, Phase, arrivals, capacity_rps
from tests.engines.real import BLOCK_TOKENS, RealEngine, is_installed, running, start_vllm

MODEL: Final = "small"
MAX_REQUESTS: Final = 32
CONTEXT_TOKENS: Final = 1024
BATCH_TOKENS: Final = 512
FIRST_ID, LAST_ID = 300, 4000
"""Ids of ordinary tokens of the models that `scripts/engines.sh` makes."""
TAIL_S: Final = 120.0
BURST: Final = 40
REPEATS: Final = 3
"""Of each probe: whatever else runs on the machine gets in the way of some."""
FITTED: Final = (
    *(Probe(1, prompt, 24) for prompt in (16, 96, 256, 500, 900)),
    *(Probe(4, prompt, 40) for prompt in (32, 400)),
    *(Probe(12, prompt, 40) for prompt in (32, 200, 600)),
    *(Probe(24, prompt, 40) for prompt in (32, 300)),
    Probe(32, 64, 40),
)
HELD_OUT: Final = (
    Probe(1, 160, 24),
    Probe(1, 700, 24),
    Probe(8, 128, 40),
    Probe(18, 250, 40),
    Probe(28, 48, 40),
)
BASE: Final = EngineProfile(
    name="fitted",
    model=MODEL,
    gpu="cpu",
    gpus=1,
    weights="bf16",
    kv_dtype="bf16",
    law=StepLaw(t0=1, n0=1, s_lo=0, s_hi=0, c_kv=0, f_attn=0, g_seq=0, h0=0, h1=0),
    kv_tokens=16_384,
    block_size=BLOCK_TOKENS,
    max_num_seqs=MAX_REQUESTS,
    max_num_batched_tokens=BATCH_TOKENS,
    context_tokens=CONTEXT_TOKENS,
    source="fitted in this run",
)


@dataclass(frozen=True)
class Times:
    """What one request took."""

    ttft_s: float
    whole_s: float
    tpot_s: float | None


@dataclass(frozen=True)
class Outcome:
    """One workload on one engine."""

    times: dict[int, Times]
    preemptions: int
    steps: int = 0
    """That gave tokens; of vLLM not known."""

    def summary(self) -> dict[str, Any]:
        """Medians and tails."""
        ttft = [one.ttft_s for one in self.times.values()]
        tpot = [one.tpot_s for one in self.times.values() if one.tpot_s is not None]
        whole = [one.whole_s for one in self.times.values()]
        return {
            "answered": len(self.times),
            "ttft_p50_s": quantile(ttft, 0.5),
            "ttft_p90_s": quantile(ttft, 0.9),
            "tpot_p50_s": quantile(tpot, 0.5),
            "tpot_p90_s": quantile(tpot, 0.9),
            "whole_p50_s": quantile(whole, 0.5),
            "whole_p90_s": quantile(whole, 0.9),
            "preemptions": self.preemptions,
        }


def modelled(law: StepLaw, outside_s: float, config: EngineConfig, planned: Sequence[Arrival]) -> Outcome:
    """The model's run, in virtual time."""
    engine = Engine(replace(BASE, law=law), config)
    by_index = {one.index: one for one in planned}
    first: dict[int, float] = {}
    times: dict[int, Times] = {}
    now, coming = 0.0, 0
    while coming < len(planned) or engine.has_work:
        if not engine.has_work:
            now = max(now, planned[coming].at_s)
        while coming < len(planned) and planned[coming].at_s <= now:
            one = planned[coming]
            engine.submit(Request(one.index, one.prompt_tokens, one.output_tokens))
            coming += 1
        result = engine.step(now)
        if result is None:
            continue
        now = result.end_s
        for index in result.first_tokens:
            first[index] = now
        for index in result.finished:
            times[index] = _times(by_index[index], first[index], now, outside_s)
    statistics = engine.statistics()
    return Outcome(times, statistics.preemptions, statistics.iteration_tokens.count)


def _times(arrival: Arrival, first_s: float, last_s: float, outside_s: float) -> Times:
    later = arrival.output_tokens - 1
    tpot_s = (last_s - first_s) / later if later else None
    return Times(first_s - arrival.at_s + outside_s, last_s - arrival.at_s + outside_s, tpot_s)


async def real(engine: RealEngine, planned: Sequence[Arrival], label: str) -> tuple[Outcome, list[Felt]]:
    """vLLM's run; the n-th record is that of the n-th request."""
    await until_idle(engine)
    before = (await read_sample(engine)).preemptions_total or 0

    def compose(arrival: Arrival) -> bytes:
        return msgspec.json.encode(
            {
                "model": MODEL,
                "prompt": token_prompt(arrival, label, FIRST_ID, LAST_ID),
                "max_tokens": arrival.output_tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    client = OpenLoop([Target.parse(engine.url)], compose, path="/v1/completions")
    felt = await client.run(planned, tail_s=TAIL_S)
    after = (await read_sample(engine)).preemptions_total or 0
    times: dict[int, Times] = {}
    ordered = sorted(felt, key=lambda one: one.at_s)
    for arrival, one in zip(planned, ordered, strict=True):
        if one.end is not End.COMPLETED or one.first_token_s is None or one.last_token_s is None:
            continue
        later = arrival.output_tokens - 1
        tpot_s = (one.last_token_s - one.first_token_s) / later if later else None
        times[arrival.index] = Times(one.first_token_s, one.last_token_s, tpot_s)
    return Outcome(times, after - before), felt


async def probe(
    engine: RealEngine, probes: Sequence[Probe], config: EngineConfig, label: str, *, times: int = REPEATS
) -> list[Observation]:
    """Sends one probe after the other, all of them several times; of each time the median."""
    rounds: list[list[Observation]] = []
    for turn in range(times):
        found: list[Observation] = []
        for number, one in enumerate(probes):
            _, felt = await real(engine, one.arrivals(), f"{label}/{turn}/{number}")
            found += observations(one, felt, BASE, config)
        rounds.append(found)
    return [
        replace(same[0], seconds=median(one.seconds for one in same)) for same in zip(*rounds, strict=True)
    ]


async def calibrate(engine: RealEngine, config: EngineConfig) -> tuple[Fit, float]:
    """Fits the law, and says how far it is off the probes that it was fitted to."""
    say(f"probes: once unscored, then {REPEATS} times for the fit")
    await probe(engine, fitting(FITTED, config), config, "warm-up", times=1)
    seen = await probe(engine, fitting(FITTED, config), config, "fit")
    found = fit(seen)
    say(f"law {found.law}, outside of steps {found.outside_s * 1e3:.1f} ms")
    return found, found.error(seen)


async def burst(engine: RealEngine, config: EngineConfig, seed: int) -> dict[str, Any]:
    """Requests of the mix, all at once: what the scheduler does with them, here and in the model."""
    drawn = arrivals(MIX, [Phase(30.0, 1.0)], 2.0, seed)[:BURST]
    planned = [replace(one, at_s=0.0, index=n) for n, one in enumerate(drawn)]
    on_model = modelled(BASE.law, 0.0, config, planned)
    await until_idle(engine)
    before = await read_sample(engine)
    outcome, _ = await real(engine, planned, f"{seed}/burst")
    after = await read_sample(engine)
    steps = (after.steps_total or 0) - (before.steps_total or 0)
    return {
        "requests": len(planned),
        "answered": len(outcome.times),
        "vllm_steps": steps,
        "model_steps": on_model.steps,
        "vllm_preemptions": outcome.preemptions,
        "model_preemptions": on_model.preemptions,
    }


async def compare(
    engine: RealEngine, found: Fit, options: argparse.Namespace, config: EngineConfig
) -> dict[str, Any]:
    """The workloads, and held-out probes before and after, on a running engine."""
    held_out = await probe(engine, fitting(HELD_OUT, config), config, "before")
    bursts = [await burst(engine, config, options.seed + n) for n in range(3)]
    runs = []
    rate = capacity_rps(MIX, speed_law(found.law, config), 1)
    for load in options.loads:
        planned = arrivals(MIX, [Phase(options.seconds, load, swing=0.3)], rate, options.seed)
        planned = [one for one in planned if one.prompt_tokens + one.output_tokens <= CONTEXT_TOKENS]
        say(
            f"KV cache {config.kv_tokens}, load {load:g}: {len(planned)} requests, {load * rate:.2f} a second"
        )
        on_model = modelled(found.law, found.outside_s, config, planned)
        first, _ = await real(engine, planned, f"{options.seed}/{load}/1")
        run = {
            "load": load,
            "requests": len(planned),
            "model": on_model.summary(),
            "vllm": first.summary(),
            "model_errors": errors(first, on_model),
        }
        if options.repeat:
            second, _ = await real(engine, planned, f"{options.seed}/{load}/2")
            run |= {"vllm_again": second.summary(), "vllm_against_itself": errors(first, second)}
        runs.append(run)
    later = await probe(engine, fitting(HELD_OUT, config), config, "after")
    return {
        "kv_tokens": config.kv_tokens,
        "held_out_error": found.error(held_out),
        "held_out_error_after": found.error(later),
        "drift": drift(held_out, later),
        "bursts": bursts,
        "load_average": os.getloadavg()[1],
        "runs": runs,
    }


def fitting(probes: Sequence[Probe], config: EngineConfig) -> list[Probe]:
    """Those that the KV cache holds at once: a probe must not be preempted."""
    return [
        one
        for one in probes
        if one.requests * (one.prompt_tokens + one.output_tokens + BLOCK_TOKENS) <= config.kv_tokens
    ]


def speed_law(law: StepLaw, config: EngineConfig) -> SpeedLaw:
    """In the terms in which capacity is counted: c0 … c4."""
    each_ms = law.s_lo + law.g_seq
    return SpeedLaw(
        c0_s=law.t0 / 1e3,
        c1_s=law.s_hi / 1e3,
        c2_s=each_ms / 1e3,
        c3_s=law.c_kv / 1e3,
        c4_s=law.f_attn / 1e3,
        kv_tokens=config.kv_tokens,
        max_requests=config.max_num_seqs,
    )


def errors(one: Outcome, other: Outcome) -> dict[str, float | None]:
    """Of the same requests, relative to the first: the median of what each is off, without its sign."""
    both = [(one.times[index], other.times[index]) for index in one.times if index in other.times]
    return {
        "ttft": quantile([abs(b.ttft_s / a.ttft_s - 1) for a, b in both], 0.5),
        "tpot": quantile([abs(b.tpot_s / a.tpot_s - 1) for a, b in both if a.tpot_s and b.tpot_s], 0.5),
        "whole": quantile([abs(b.whole_s / a.whole_s - 1) for a, b in both], 0.5),
    }


def drift(before: Sequence[Observation], after: Sequence[Observation]) -> float | None:
    """How far the same probes were apart before and after: no model can do better than that."""
    pairs = zip(before, after, strict=True)
    return quantile(
        [abs(b.seconds / a.seconds - 1) for a, b in pairs if a.seconds > 0 and b.seconds > 0], 0.5
    )


def table(results: dict[str, Any]) -> Iterator[str]:
    """For people."""
    yield f"law {results['law_ms']}; it fits its probes within {results['fit_error']:.1%}"
    for part in results["engines"]:
        yield ""
        yield (
            f"KV cache {part['kv_tokens']} tokens; held-out probes within {part['held_out_error']:.1%} before and "
            f"{part['held_out_error_after']:.1%} after; the same probes were {part['drift']:.1%} apart"
        )
        for one in part["bursts"]:
            yield (
                f"burst of {one['requests']}: steps {one['vllm_steps']} in vLLM, {one['model_steps']} in the model; "
                f"preemptions {one['vllm_preemptions']} and {one['model_preemptions']}"
            )
        for run in part["runs"]:
            yield from rows(run)


def rows(run: dict[str, Any]) -> Iterator[str]:
    """One workload."""
    columns = [name for name in ("vllm", "vllm_again", "model") if name in run]
    yield ""
    yield f"load {run['load']:g}, {run['requests']} requests"
    yield "".join((f"{'':<16}", *(f"{name:>12}" for name in columns)))
    for key in run["vllm"]:
        shown = (f"{run[name][key]:.3f}" if "_s" in key else str(run[name][key]) for name in columns)
        yield "".join((f"{key:<16}", *(f"{text:>12}" for text in shown)))
    for name, label in (("vllm_against_itself", "two runs of vLLM"), ("model_errors", "the model")):
        if name in run:
            parts = ", ".join(f"{key} {value:.1%}" for key, value in run[name].items())
            yield f"the same request, median difference, {label}: {parts}"


def say(text: str) -> None:
    print(f"fidelity: {text}", file=sys.stderr, flush=True)


def go_first(engine: RealEngine, nice: int) -> None:
    """Gives every thread of the engine, and this process, that priority: it belongs to threads, not to processes."""
    group = engine.process.pid
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # processes end while we look
                if os.getpgid(int(folder.name)) == group:
                    for task in (folder / "task").iterdir():
                        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
    os.setpriority(os.PRIO_PROCESS, 0, nice)


def loads(text: str) -> list[float]:
    """Reads `0.5,0.8`."""
    found = [float(part) for part in text.split(",")]
    if not all(0 < load <= 5 for load in found):
        raise argparse.ArgumentTypeError("loads are above 0 and at most 5")
    return found


def sizes(text: str) -> list[int]:
    """Reads `16384,2048`."""
    found = [int(part) for part in text.split(",")]
    if min(found) < CONTEXT_TOKENS + BLOCK_TOKENS:
        raise argparse.ArgumentTypeError(f"a KV cache holds at least {CONTEXT_TOKENS + BLOCK_TOKENS} tokens")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The engine model against a real vLLM.")
    parser.add_argument(
        "--kv-tokens", type=sizes, default=[16_384, 2048], help="sizes of the KV cache (default 16384,2048)"
    )
    parser.add_argument(
        "--loads", type=loads, default=[0.5, 0.8], help="offered work over capacity (default 0.5,0.8)"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each workload (default 60)")
    parser.add_argument("--repeat", action="store_true", help="send each workload twice to vLLM")
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of engine and client (default: as it is)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    options = parser.parse_args(arguments)
    if options.seconds < 5:
        parser.error("--seconds must be at least 5")
    if not is_installed("vllm"):
        print("vllm is not installed: run scripts/engines.sh", file=sys.stderr)
        return 1
    found: Fit | None = None
    results: dict[str, Any] = {"engines": []}
    for kv_tokens in options.kv_tokens:
        config = EngineConfig.from_profile(BASE, kv_tokens=kv_tokens)
        say(f"starting vLLM with a KV cache of {config.kv_tokens} tokens")
        more = ("--max-num-batched-tokens", str(BATCH_TOKENS))
        engine = start_vllm(model=MODEL, kv_tokens=config.kv_tokens, max_requests=MAX_REQUESTS, more=more)
        with running(engine):
            if options.nice:
                go_first(engine, options.nice)
            if found is None:
                found, fit_error = asyncio.run(calibrate(engine, config))
                law_ms = {one.name: getattr(found.law, one.name) for one in fields(found.law)}
                results |= {"law_ms": law_ms, "outside_of_steps_s": found.outside_s, "fit_error": fit_error}
            results["engines"].append(asyncio.run(compare(engine, found, options, config)))
    print(json.dumps(results, indent=2) if options.json else "\n".join(table(results)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
