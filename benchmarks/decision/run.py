"""What one decision costs with a long queue: wall time of every call of the core. Prints tables; `--json` one document.

    .venv/bin/python -m benchmarks.decision.run [--waiting N] [--shape tenants|anonymous] [--compiled] [--json]

The real `Controller` is driven in virtual time through its contract, without sockets: 8 classes, engines that are
full, a queue held at 10,000 and at 50,000 requests. A third of the arrivals are dispatched at once, a third wait, a
third find the queue at its bound. Ends give room to waiters. Each run has a process of its own, one after another.

Exits 1 if the books do not balance or the arrivals were not about a third of each sort; never for being slow. See
../README.md for how to read the numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.decision.measure import GC_THRESHOLDS, TRACED_WAITING
from benchmarks.decision.workload import CLASS_NAMES, FILLED_BY, FROZEN, RULES, SHAPES, Plan
from benchmarks.overhead import peers

Results = dict[str, Any]
WAITING: Final = (10_000, 50_000)
FEWEST_WAITING: Final = 100
FEWEST_ARRIVALS: Final = 300
TARGET: Final = {"median_us": 25.0, "p99_us": 250.0}
"""For an arrival, and for an end with the dispatch that follows it."""
TARGETED: Final = {("arrival", ""), ("end", "with dispatch")}
KIND_ORDER: Final = ("arrival", "end", "first token", "progress", "reading", "timer")
SORT_ORDER: Final = ("dispatched", "held", "refused", "displacing", "evicting", "with dispatch", "without")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    builds = [False]
    if options.compiled:
        try:
            if not peers.make_compiled():
                return 1
        except peers.CannotRun as reason:
            print(f"benchmark cannot run: {reason}", file=sys.stderr)
            return 1
        builds.append(True)
    plans = [
        Plan(shape, waiting, options.arrivals, options.full_by, options.frozen, options.seed, build, rules)
        for shape in options.shape or SHAPES
        for waiting in options.waiting or WAITING
        for rules in options.rules or RULES
        for build in builds
        # What rules cost does not depend on how many wait, nor on whose they are: one queue shows it.
        if rules == "none" or options.rules or (waiting == WAITING[0] and shape == "tenants")
    ]
    runs = []
    for plan in plans:
        print(f"{describe(plan)} …", file=sys.stderr, flush=True)
        runs.append(run(plan))
    if options.json:
        print(json.dumps(document(runs), indent=2))
    else:
        print_tables(runs)
    faulty = [(describe(Plan(**one["plan"])), problem) for one in runs for problem in one["problems"]]
    for where, problem in faulty:
        print(f"NOT VALID: {where}: {problem}", file=sys.stderr)
    return 1 if faulty else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Wall time of every call of the decision core, long queue.")
    parser.add_argument(
        "--waiting", type=int, action="append", help="requests in the queue; repeatable (10000 and 50000)"
    )
    parser.add_argument("--arrivals", type=int, default=20_000, help="measured arrivals (default 20000)")
    parser.add_argument(
        "--shape",
        choices=tuple(SHAPES),
        action="append",
        help="1,000 tenants, or one that is anonymous (both)",
    )
    parser.add_argument(
        "--full-by", choices=FILLED_BY, default="slots", help="what the engines are full of (default slots)"
    )
    parser.add_argument(
        "--frozen",
        choices=FROZEN,
        default="start",
        help="gc.freeze before the queue is filled, as `forebay serve` does it (default), or after",
    )
    parser.add_argument(
        "--rules",
        choices=RULES,
        action="append",
        help="five rules about engines, five about requests, or none (all three with the smallest queue)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--compiled", action="store_true", help="measure the compiled build beside the sources"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    options = parser.parse_args(arguments)
    if options.arrivals < FEWEST_ARRIVALS or min(options.waiting or WAITING) < FEWEST_WAITING:
        parser.error(f"--arrivals must be at least {FEWEST_ARRIVALS} and --waiting {FEWEST_WAITING}")
    return options


def run(plan: Plan) -> Results:
    """One plan in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if plan.compiled:
        environment["PYTHONPATH"] = str(peers.COMPILED)
    command = [sys.executable, "-m", "benchmarks.decision.measure", json.dumps(asdict(plan))]
    made = subprocess.run(command, cwd=peers.ROOT, env=environment, stdout=subprocess.PIPE, check=False)
    if made.returncode:
        return {"plan": asdict(plan), "problems": [f"the run failed with exit code {made.returncode}"]}
    results: Results = json.loads(made.stdout)
    return results


def describe(plan: Plan) -> str:
    count = SHAPES[plan.shape]
    tenants = f"{count:,} tenants" if count > 1 else "one anonymous tenant"
    build = "compiled" if plan.compiled else "pure Python"
    rules = "" if plan.rules == "none" else f", 5 rules about {plan.rules}"
    return (
        f"{build}, {tenants}, {len(CLASS_NAMES)} classes, {plan.waiting:,} waiting, engines full by "
        f"{plan.full_by}{rules}"
    )


def document(runs: Iterable[Results]) -> Results:
    return {
        "machine": platform.platform(),
        "python": platform.python_version(),
        "gc_thresholds": GC_THRESHOLDS,
        "target": TARGET,
        "runs": list(runs),
    }


def print_tables(runs: Iterable[Results]) -> None:
    for one in runs:
        plan = Plan(**one["plan"])
        print(f"\n{describe(plan)}\n")
        if "calls" in one:
            _print_calls(one["calls"])
            _print_rest(one, plan)
    median, p99 = TARGET["median_us"], TARGET["p99_us"]
    print(
        f"\nTarget, marked *: median ≤ {median:g} µs, p99 ≤ {p99:g} µs. A maximum holds what else the machine did.\n"
    )


def _print_calls(calls: Results) -> None:
    print(f"  {'µs per call':18} {'count':>8} {'median':>9} {'p99':>9} {'max':>9} {'mean':>9}")
    for kind in sorted(calls, key=KIND_ORDER.index):
        _print_row(kind, calls[kind], (kind, "") in TARGETED)
        sorts = calls[kind]["sorts"]
        for sort in sorted(sorts, key=SORT_ORDER.index):
            if len(sorts) > 1 or (kind, sort) in TARGETED:
                _print_row(f"  {sort}", sorts[sort], (kind, sort) in TARGETED)


def _print_row(name: str, row: Results, has_target: bool) -> None:
    median = f"{row['median_us']:8.1f}{_mark(row, 'median_us', has_target)}"
    p99 = f"{row['p99_us']:8.1f}{_mark(row, 'p99_us', has_target)}"
    print(f"  {name:18} {row['count']:8,} {median} {p99} {row['max_us']:9.1f} {row['mean_us']:9.1f}")


def _mark(row: Results, figure: str, has_target: bool) -> str:
    """`*` on target, `!` above it, nothing where there is none."""
    if not has_target:
        return " "
    return "*" if row[figure] <= TARGET[figure] else "!"


def _print_rest(one: Results, plan: Plan) -> None:
    collections, filling, memory = one["collections"], one["filling"], one["memory"]
    frozen = "before the queue was filled" if plan.frozen == "start" else "once the queue was filled"
    print(f"  {one['events_per_s']:,.0f} calls per second of the core's own time")
    print(f"  collector: thresholds {GC_THRESHOLDS}, frozen {frozen}. {_collected(collections)}")
    arrivals = filling["arrivals"]
    print(
        f"  filling: {arrivals['mean_us']:.1f} µs an arrival (mean), p99 {arrivals['p99_us']:.1f}. "
        f"{_collected(filling['collections'])}"
    )
    print(
        f"  memory: peak {memory['peak_mb']:.0f} MB; filling took {memory['filling_mb']:.0f} MB of it, with what the "
        f"benchmark keeps"
    )
    if "traced_bytes_per_waiting" in memory:
        traced = memory["traced_bytes_per_waiting"]
        print(
            f"  {traced:,.0f} bytes per waiting request (Python's allocations, over at most {TRACED_WAITING:,})"
        )


def _collected(collections: Results) -> str:
    young, middle, full = collections["by_generation"]
    count = young + middle + full
    if not count:
        return "No collection"
    return f"{count} collections ({full} full), longest pause {collections['longest_pause_ms']:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
