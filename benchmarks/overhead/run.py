"""What the gateway costs: CPU against Envoy, and added latency against none. Prints tables; `--json` one document.

    .venv/bin/python -m benchmarks.overhead.run [--quick] [--rounds N] [--json] [--only PART]

Everything is loopback on one machine and in one run: a stub engine, `forebay serve` with admission on, compiled as
in the wheel and as pure Python, Envoy as a plain proxy with one worker, and wrk. The targets take turns in every
round, so that a machine that changes its speed changes it for all; medians over rounds are reported. See
../README.md for how to read the numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.overhead import cpu, latency, levels, others, peers

Results = dict[str, Any]
CPU_PARTS = {
    "requests_alone": cpu.REQUESTS_ALONE,
    "requests": cpu.REQUESTS,
    "requests_many": cpu.REQUESTS_MANY,
    "requests_named": cpu.REQUESTS_NAMED,
    "events": cpu.EVENTS,
}
PARTS = ("latency", "levels", *CPU_PARTS, "others")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="CPU and latency of the gateway, against Envoy and against none."
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round: checks that the benchmark works"
    )
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measured seconds per target and round (default 3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--only", choices=PARTS, help="one part of the benchmark")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    if options.rounds < 1 or options.seconds < 1:
        parser.error("--rounds and --seconds must be at least 1")
    parts = [options.only] if options.only else PARTS
    try:
        results = run(parts, options.rounds, options.seconds)
    except peers.CannotRun as reason:
        print(f"benchmark cannot run: {reason}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        print_tables(results)
    return 0


def run(parts: Sequence[str], rounds: int, duration_s: float) -> Results:
    wrk, envoy_program, compiled = peers.find_wrk(), peers.find_envoy(), peers.make_compiled()
    builds = (True, False) if compiled else (False,)
    results: Results = {"machine": platform.platform(), "python": platform.python_version(), "rounds": rounds}
    with peers.stub_engine() as stub, peers.envoy(stub, envoy_program) as envoy:
        # Latency comes first, against gateways that have just started: refusals in the first seconds would show.
        if "latency" in parts:
            with contextlib.ExitStack() as stack:
                ours = [stack.enter_context(peers.forebay(stub, compiled=build)) for build in builds]
                results["latency"] = added_latency([stub, *ours, envoy], rounds, duration_s)
        if "levels" in parts:
            with peers.forebay(stub, compiled=compiled) as ours_alone:
                results["levels"] = latency_at_levels([stub, ours_alone, envoy], wrk, rounds, duration_s)
        if "others" in parts:
            with peers.forebay(stub, compiled=compiled) as ours_alone:
                results["others"] = others.compare(
                    stub, ours_alone, envoy, wrk=wrk, rounds=rounds, duration_s=duration_s, say=say
                )
        wanted = {part: load for part, load in CPU_PARTS.items() if part in parts}
        if not wanted:
            return results
        with contextlib.ExitStack() as stack:
            ours = [stack.enter_context(peers.forebay(stub, compiled=build)) for build in builds]
            defaults = stack.enter_context(peers.envoy(stub, envoy_program, lean=False))
            for part, load in wanted.items():

                def one_round(proxy: peers.Peer, load: cpu.Load = load) -> cpu.Round:
                    say(f"CPU per {load.unit}, {load.connections} connections: {proxy.name}")
                    return cpu.measure(load, proxy, stub=stub, wrk=wrk, duration_s=duration_s)

                results[part] = cpu_per_unit(load, [*ours, envoy], defaults, one_round, rounds)
    return results


def added_latency(targets: Sequence[peers.Peer], rounds: int, duration_s: float) -> Results:
    made: dict[str, list[latency.LatencyRound]] = {target.name: [] for target in targets}
    for target in alternating(targets, rounds):
        say(f"latency at half load: {target.name}")
        made[target.name].append(latency.measure(target, duration_s, seed=len(made[target.name])))
    direct = made[targets[0].name]
    result: Results = {"rate_per_s": latency.RATE_PER_S, "service_ms": latency.SERVICE_MS, "targets": {}}
    for name, measured in made.items():
        result["targets"]["direct" if name == targets[0].name else name] = {
            "p50_ms": median(one.p50_ms for one in measured),
            "p95_ms": median(one.p95_ms for one in measured),
            "added_p50_ms": median(
                one.p50_ms - base.p50_ms for one, base in zip(measured, direct, strict=True)
            ),
            "added_p95_ms": median(
                one.p95_ms - base.p95_ms for one, base in zip(measured, direct, strict=True)
            ),
            "answered": sum(one.answered for one in measured),
            "not_answered": sum(one.not_answered for one in measured),
            "rounds": [asdict(one) for one in measured],
        }
    result["sent_late_p99_ms"] = median(
        one.sent_late_p99_ms for rounds_of in made.values() for one in rounds_of
    )
    return result


def latency_at_levels(targets: Sequence[peers.Peer], wrk: str, rounds: int, duration_s: float) -> Results:
    """The most that the second target can do, then parts of that rate at all of them."""
    stub, ours, *_ = targets
    say(f"the most requests a second: {ours.name}")
    most = [
        cpu.measure(levels.CLOSED_LOOP, ours, stub=stub, wrk=wrk, duration_s=duration_s).per_s
        for _ in range(rounds)
    ]
    made: Results = {"most_per_s": median(most), "levels": {}}
    for level in levels.LEVELS:
        rate_per_s = median(most) * level
        measured: dict[str, list[levels.LevelRound]] = {target.name: [] for target in targets}
        for target in alternating(targets, rounds):
            say(f"latency at {level:.0%}, {rate_per_s:,.0f} requests/s: {target.name}")
            seed = len(measured[target.name])
            measured[target.name].append(levels.run_level(target, rate_per_s, duration_s, seed))
        made["levels"][f"{level:.0%}"] = {
            "rate_per_s": rate_per_s,
            "targets": {
                "direct" if target is stub else target.name: levels.median_of(
                    measured[target.name], measured[stub.name]
                )
                for target in targets
            },
        }
    return made


def cpu_per_unit(
    load: cpu.Load,
    proxies: Sequence[peers.Peer],
    once: peers.Peer,
    one_round: Callable[[peers.Peer], cpu.Round],
    rounds: int,
) -> Results:
    """Rounds of the proxies in turn, of which the last is what the others are compared with, and one of `once`."""
    made: dict[str, list[cpu.Round]] = {proxy.name: [] for proxy in proxies}
    for proxy in alternating(proxies, rounds):
        made[proxy.name].append(one_round(proxy))
    *ours, theirs = made.items()
    made[once.name] = [one_round(once)]
    return {
        "load": load.name,
        "unit": load.unit,
        "ratios": {
            f"{name} / {theirs[0]}": median(
                our.cpu_us / their.cpu_us for our, their in zip(measured, theirs[1], strict=True)
            )
            for name, measured in ours
        },
        "proxies": {
            name: {
                "cpu_us": median(one.cpu_us for one in measured),
                "kernel_us": median(one.kernel_us for one in measured),
                "per_s": median(one.per_s for one in measured),
                "busy": median(one.busy for one in measured),
                "resident_mb": median(one.resident_mb for one in measured),
                "rounds": [asdict(one) for one in measured],
            }
            for name, measured in made.items()
        },
    }


def alternating(targets: Sequence[peers.Peer], rounds: int) -> Iterator[peers.Peer]:
    """The targets in turn; every other round goes backwards, so that none is always the first."""
    for number in range(rounds):
        yield from targets if number % 2 == 0 else reversed(targets)


def print_tables(results: Results) -> None:
    for part in CPU_PARTS:
        if part in results:
            table = results[part]
            print(f"\nCPU per {table['unit']}: {table['load']} (median of {results['rounds']} rounds)\n")
            print(
                f"  {'':17} {'CPU µs':>8} {'in kernel':>10} {'per second':>11} {'cores busy':>11} {'memory MB':>10}"
            )
            for name, row in table["proxies"].items():
                numbers = f"{row['cpu_us']:8.1f} {row['kernel_us']:10.1f} {row['per_s']:11,.0f}"
                print(f"  {name:17} {numbers} {row['busy']:11.2f} {row['resident_mb']:10.0f}")
            print("  " + "   ".join(f"{name}: {ratio:.2f}" for name, ratio in table["ratios"].items()))
    if "latency" in results:
        table = results["latency"]
        print(
            f"\nLatency at half load: {table['rate_per_s']:,.0f} requests/s, {table['service_ms']} ms of service\n"
        )
        print(
            f"  {'':17} {'p50 ms':>8} {'p95 ms':>8} {'+p50 ms':>9} {'+p95 ms':>9} {'answered':>9} {'not':>5}"
        )
        for name, row in table["targets"].items():
            added = f"{row['added_p50_ms']:+9.3f} {row['added_p95_ms']:+9.3f}"
            counts = f"{row['answered']:9,} {row['not_answered']:5}"
            print(f"  {name:17} {row['p50_ms']:8.3f} {row['p95_ms']:8.3f} {added} {counts}")
        if table["sent_late_p99_ms"] > latency.SENT_LATE_MS_MAX:
            print(
                f"  Doubtful: the client sent {table['sent_late_p99_ms']:.0f} ms late (p99); is the machine busy?"
            )
    if "levels" in results:
        levels.print_levels(results["levels"])
    if "others" in results:
        others.print_comparison(results["others"])
    print()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
