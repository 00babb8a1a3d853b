"""A real engine, offered more than it can serve: straight, and through `forebay serve`.

    .venv/bin/python -m benchmarks.engines.overload [--engine vllm|llamacpp] [--load 2] [--seconds 90] [--json]

The engine runs on the CPU with a small random-weight model and a small KV cache, so that memory is what runs out
first (`scripts/engines.sh` installs both). Its capacity is measured first, with as many requests at a time as fit
into the cache. Then each arm gets the very same requests at the very same times: a warm-up at half load, which is
not scored, then bursts around `--load` times the capacity. The gateway is told the engine's address and no more.

The clients say how long an answer may become, not how long it will be: answers end of their own accord, at lengths
that nobody was told (on llama.cpp, which cannot be made to do that with random weights, the limit is the length).

Prints a table; `--json` prints one document. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from benchmarks.engines.closed_loop import sustained_rps
from forebay.admission.model import EngineSample
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES as CLASSES
from forebay.engines import find_out
from forebay.load.chat import BYTES_PER_TOKEN, prompt_text
from forebay.load.felt import End, Felt, Report, quantile, summarise
from forebay.load.generator import OpenLoop, Target
from forebay.load.workload import Arrival, Lengths, Mix, Part, Phase, arrivals
from forebay.runtime.children import Children
from forebay.runtime.polling import EngineClient
from tests.engines.real import RealEngine, is_installed, running, start_llamacpp, start_vllm

MODEL = "small"
MIX: Mix = (
    Part("realtime", 0.60, Lengths(60, 0.5, 20, 200), Lengths(40, 0.5, 8, 100)),
    Part("standard", 0.25, Lengths(120, 0.5, 40, 300), Lengths(100, 0.5, 16, 250)),
    Part("batch", 0.15, Lengths(300, 0.3, 150, 450), Lengths(250, 0.4, 80, 450)),
)
"""Short chats, ordinary requests and long ones; the longest just fits the context of 1,024 tokens."""
MEAN_TOKENS = 220
"""Prompt and answer of a request of the mix, on average."""
WARM_UP_S = 20.0
TAIL_S = 30.0
"""How long the clients wait for answers after the last request was sent."""
CALIBRATION_S = 40.0
LLAMACPP_SLOTS = 4
LLAMACPP_TOKENS = 8192
ENDINGS = ("e", "a", "t", "s")
"""One of these is in nearly every token of noise: forbidden until the wished length, they end an answer soon after."""


@dataclass(frozen=True)
class Plan:
    """What is offered."""

    engine: str
    kv_tokens: int
    load: float
    seconds: float
    seed: int
    arms: Sequence[str]

    @property
    def concurrency(self) -> int:
        """Requests that the engine can have in work at a time: what fits into the KV cache on average, or its slots."""
        return max(1, self.kv_tokens // MEAN_TOKENS) if self.engine == "vllm" else LLAMACPP_SLOTS


class Bodies:
    """Composes chat requests with prompts of the wished length in this model's tokens."""

    def __init__(self, label: str, bytes_per_token: float, *, can_end: bool) -> None:
        self._label = label
        self._scale = bytes_per_token / BYTES_PER_TOKEN
        self._can_end = can_end

    def __call__(self, arrival: Arrival) -> bytes:
        text = prompt_text(f"{self._label} {arrival.index}. ", round(arrival.prompt_tokens * self._scale))
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "stream": arrival.stream,
            "ignore_eos": True,
        }
        if arrival.stream:
            body["stream_options"] = {"include_usage": True}
        if self._can_end:
            body |= {"max_tokens": arrival.limit_tokens, "min_tokens": arrival.output_tokens, "stop": ENDINGS}
        else:
            body["max_tokens"] = arrival.output_tokens
        return msgspec.json.encode(body)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A real engine under overload, with and without Forebay.")
    parser.add_argument("--engine", choices=("vllm", "llamacpp"), default="vllm")
    parser.add_argument("--kv-tokens", type=int, default=2048, help="KV cache of vLLM (default 2048)")
    parser.add_argument("--load", type=float, default=2.0, help="offered work over capacity (default 2)")
    parser.add_argument("--seconds", type=float, default=90.0, help="scored seconds of each arm (default 90)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("direct", "forebay"), help="one arm")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    options = parser.parse_args(arguments)
    if options.seconds < 5 or options.load <= 0 or options.kv_tokens < 1056:
        parser.error("--seconds must be at least 5, --load above 0 and --kv-tokens at least 1056")
    if not is_installed(options.engine):
        print(f"{options.engine} is not installed: run scripts/engines.sh", file=sys.stderr)
        return 1
    arms = (options.only,) if options.only else ("direct", "forebay")
    kv_tokens = options.kv_tokens if options.engine == "vllm" else LLAMACPP_TOKENS
    plan = Plan(options.engine, kv_tokens, options.load, options.seconds, options.seed, arms)
    results = run(plan)
    print(json.dumps(results, indent=2) if options.json else "\n".join(table(results)))
    return 0


def run(plan: Plan) -> dict[str, Any]:
    say(f"starting {plan.engine}")
    if plan.engine == "vllm":
        engine = start_vllm(model=MODEL, kv_tokens=plan.kv_tokens)
    else:
        engine = start_llamacpp(model=MODEL, slots=LLAMACPP_SLOTS, context_tokens=LLAMACPP_TOKENS)
    with running(engine):
        return asyncio.run(measure(engine, plan))


async def measure(engine: RealEngine, plan: Plan) -> dict[str, Any]:
    can_end = plan.engine == "vllm"
    bytes_per_token = await asyncio.to_thread(measured_bytes_per_token, engine)
    say(f"measuring capacity with {plan.concurrency} requests at a time")
    draws = arrivals(MIX, [Phase(CALIBRATION_S, 1.0)], 20.0, plan.seed + 1)
    bodies = Bodies(f"{plan.seed}/capacity", bytes_per_token, can_end=can_end)
    capacity_rps = await sustained_rps(
        Target.parse(engine.url), [bodies(arrival) for arrival in draws], plan.concurrency, CALIBRATION_S
    )
    say(f"capacity {capacity_rps:.2f} requests/s")
    phases = (Phase(WARM_UP_S, 0.5), Phase(plan.seconds, plan.load, swing=0.5))
    planned = arrivals(MIX, phases, capacity_rps, plan.seed)
    results: dict[str, Any] = {
        "engine": plan.engine,
        "model": MODEL,
        "kv_tokens": plan.kv_tokens,
        "load": plan.load,
        "seconds_s": plan.seconds,
        "seed": plan.seed,
        "capacity_rps": round(capacity_rps, 3),
        "bytes_per_token": round(bytes_per_token, 2),
    }
    for arm in plan.arms:
        await until_idle(engine)
        bodies = Bodies(f"{plan.seed}/{arm}", bytes_per_token, can_end=can_end)
        results[arm] = await run_arm(arm, engine, plan, planned, bodies)
    return results


async def run_arm(
    arm: str, engine: RealEngine, plan: Plan, planned: Sequence[Arrival], bodies: Bodies
) -> dict[str, Any]:
    """Offers the requests, and sums up what the clients felt after the warm-up."""
    async with Children() as children:
        url = engine.url
        if arm == "forebay":
            listeners = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
            url = (await children.start("gateway", ("serve", *listeners, "--upstream", url), addresses=2)).url
        client = OpenLoop([Target.parse(url)], bodies)
        samples: list[EngineSample] = []
        watching = asyncio.create_task(watch(arm, engine, client, samples))
        felt = await client.run(planned, tail_s=TAIL_S)
        watching.cancel()
        await asyncio.wait([watching])
    samples.append(await read_sample(engine))
    first, last = samples[0].preemptions_total, samples[-1].preemptions_total
    preemptions = None if first is None or last is None else last - first
    scored = [replace(one, at_s=one.at_s - WARM_UP_S) for one in felt if one.at_s >= WARM_UP_S]
    report = summarise(scored, CLASSES, duration_s=plan.seconds, preemptions=preemptions)
    return report.to_json() | felt_by_all(scored, report)


async def watch(arm: str, engine: RealEngine, client: OpenLoop, samples: list[EngineSample]) -> None:
    """Notes what the engine says at the end of the warm-up, and says how it goes."""
    await asyncio.sleep(WARM_UP_S)
    samples.append(await read_sample(engine))
    while True:
        counts = client.counts
        say(
            f"{arm}: {counts.sent} sent, {counts.open} open, {counts.completed} completed, "
            f"{counts.refused} refused, {counts.failed} failed"
        )
        await asyncio.sleep(10)


def felt_by_all(felt: Sequence[Felt], report: Report) -> dict[str, Any]:
    """Figures over all classes."""
    ttfts_s = [one.ttft_s for one in felt if one.ttft_s is not None and one.end is not End.FAILED]
    codes: dict[str, int] = {}
    for one in felt:
        if one.code:
            codes[one.code] = codes.get(one.code, 0) + 1
    return {
        "offered": report.offered,
        "completed": sum(one.end is End.COMPLETED for one in felt),
        "ttft_p50_s": rounded(quantile(ttfts_s, 0.5)),
        "ttft_p99_s": rounded(quantile(ttfts_s, 0.99)),
        "output_tokens_per_s": round(sum(one.output_tokens for one in felt) / report.duration_s, 1),
        "codes": codes,
        "client_late_p99_s": round(report.late_p99_s, 4),
    }


async def read_sample(engine: RealEngine) -> EngineSample:
    """What the engine says of itself."""
    client = EngineClient("127.0.0.1", engine.port)
    try:
        finding = await find_out(client, timeout_s=10.0)
        reading = finding.family.read(finding.sample_path, finding.sample) if finding.sample else None
        return reading.sample if reading else EngineSample(at_s=0.0)
    finally:
        client.close()


async def until_idle(engine: RealEngine) -> None:
    """Waits until nothing runs any more, so that one arm leaves nothing to the next."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        sample = await read_sample(engine)
        if not sample.running and not sample.waiting:
            return
        await asyncio.sleep(0.5)
    raise SystemExit("the engine did not become idle")


def measured_bytes_per_token(engine: RealEngine) -> float:
    """How many bytes of our prompts make a token of this model."""
    text = prompt_text("", 200)
    answer = engine.complete(model=MODEL, prompt=text, max_tokens=1)
    return len(text) / int(answer["usage"]["prompt_tokens"])


def table(results: dict[str, Any]) -> Iterator[str]:
    arms = [arm for arm in ("direct", "forebay") if arm in results]
    yield (
        f"{results['engine']}, {results['load']:g} x its {results['capacity_rps']:.2f} requests/s "
        f"for {results['seconds_s']:g} s, KV cache {results['kv_tokens']} tokens"
    )
    yield "".join((f"{'':<28}", *(f"{arm:>12}" for arm in arms)))
    rows: list[tuple[str, list[Any]]] = [
        (label, [results[arm][key] for arm in arms])
        for label, key in (
            ("offered", "offered"),
            ("completed", "completed"),
            ("refused", "refusals"),
            ("  with Retry-After", "refusals_with_retry_after"),
            ("failed", "errors"),
            ("unanswered", "unanswered"),
            ("TTFT p50, s", "ttft_p50_s"),
            ("TTFT p99, s", "ttft_p99_s"),
            ("preemptions", "preemptions"),
            ("output tokens/s", "output_tokens_per_s"),
            ("goodput, requests/s", "goodput_rps"),
            ("attainment", "slo_attainment"),
            ("attainment of admitted", "admitted_attainment"),
        )
    ]
    for objective in CLASSES:
        for label, key in (("met", "met_slo"), ("offered", "offered"), ("TTFT p99, s", "ttft_p99_s")):
            values = [results[arm]["classes"].get(objective.name, {}).get(key) for arm in arms]
            rows.append((f"{objective.name}: {label}", values))
    for label, values in rows:
        shown = (
            "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
            for value in values
        )
        yield "".join((f"{label:<28}", *(f"{text:>12}" for text in shown)))


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def say(text: str) -> None:
    print(f"overload: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
