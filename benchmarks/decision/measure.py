"""One run of the decision benchmark, in a process of its own: takes a plan, prints what was measured, both JSON.

`run` starts it, so that every run has a fresh heap, a collector of its own and a peak of memory that is its own.
"""

from __future__ import annotations

import gc
import importlib.machinery
import json
import math
import os
import resource
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from time import perf_counter_ns
from typing import Any, Final, Self

from benchmarks.decision.driving import ARRIVAL, DISPATCHED, DISPLACING, HELD, REFUSED, Drive, WentWrong
from benchmarks.decision.workload import Plan
from forebay.admission import controller
from forebay.admission.errors import InvariantError

Results = dict[str, Any]
GC_THRESHOLDS: Final = (50_000, 20, 100)
"""As `forebay serve` sets them (forebay.runtime.app)."""
WARM_UP_ARRIVALS: Final = 600
"""Before anything is measured: the interpreter specialises its code, engines are found to be as fast as they are."""
TRACED_WAITING: Final = 5_000
THIRD_LEAST, THIRD_MOST = 0.30, 0.37
"""What passes for a third."""


class Collections:
    """Counts the garbage collector's runs and times its pauses, while it is entered."""

    def __init__(self) -> None:
        self.counts = [0, 0, 0]
        self.longest_ns = 0
        self.total_ns = 0
        self._began = 0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._told)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._told)

    def _told(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = perf_counter_ns()
            return
        took = perf_counter_ns() - self._began
        self.counts[info["generation"]] += 1
        self.total_ns += took
        self.longest_ns = max(self.longest_ns, took)

    def results(self) -> Results:
        return {
            "by_generation": self.counts,
            "longest_pause_ms": self.longest_ns / 1e6,
            "total_ms": self.total_ns / 1e6,
        }


def main() -> int:
    plan = Plan(**json.loads(sys.argv[1]))
    if is_compiled() is not plan.compiled:
        print(f"this runs the other build: {controller.__file__}", file=sys.stderr)
        return 1
    print(json.dumps(measure(plan)))
    return 0


def is_compiled() -> bool:
    return str(controller.__file__).endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def measure(plan: Plan) -> Results:
    results: Results = {"plan": asdict(plan), "problems": []}
    try:
        _measure(plan, results)
    except (WentWrong, InvariantError) as problem:
        results["problems"].append(f"{type(problem).__name__}: {problem}")
    return results


def _measure(plan: Plan, results: Results) -> None:
    drive = Drive(plan)
    gc.set_threshold(*GC_THRESHOLDS)
    if plan.frozen == "start":
        freeze()
    resident = resident_mb()
    began = perf_counter_ns()
    with Collections() as collections:
        drive.fill()
    results["filling"] = {
        "took_s": (perf_counter_ns() - began) / 1e9,
        "arrivals": figures_of(drive, ARRIVAL).get(ARRIVAL),
        "collections": collections.results(),
    }
    results["memory"] = {"filling_mb": resident_mb() - resident}
    if plan.frozen == "filled":
        freeze()
    drive.go(WARM_UP_ARRIVALS)
    with Collections() as collections:
        drive.go(plan.arrivals)
    results["collections"] = collections.results()
    results["memory"]["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    results["calls"] = figures_of(drive)
    calls = [took for times in drive.times_ns.values() for took in times]
    results["events_per_s"] = len(calls) / (sum(calls) / 1e9)
    results["waiting_at_end"] = len(drive.waiting)
    results["problems"] += problems_of(drive, plan)
    drive.verify()
    results["memory"]["traced_bytes_per_waiting"] = traced_bytes_per_waiting(plan)


def freeze() -> None:
    gc.collect()
    gc.freeze()


def figures_of(drive: Drive, only: str | None = None) -> Results:
    """Of every kind of call over all, and of every sort of it."""
    kinds: dict[str, dict[str, list[int]]] = {}
    for (kind, sort), times in drive.times_ns.items():
        if only in (None, kind):
            kinds.setdefault(kind, {})[sort] = times
    results: Results = {}
    for kind, sorts in kinds.items():
        results[kind] = summary([took for times in sorts.values() for took in times])
        results[kind]["sorts"] = {sort: summary(times) for sort, times in sorted(sorts.items())}
    return results


def summary(times_ns: Sequence[int]) -> Results:
    ordered = sorted(times_ns)
    return {
        "count": len(ordered),
        "median_us": _quantile(ordered, 0.5) / 1e3,
        "p99_us": _quantile(ordered, 0.99) / 1e3,
        "max_us": ordered[-1] / 1e3,
        "mean_us": fmean(ordered) / 1e3,
    }


def _quantile(ordered: Sequence[int], quantile: float) -> int:
    return ordered[max(math.ceil(quantile * len(ordered)) - 1, 0)]


def problems_of(drive: Drive, plan: Plan) -> list[str]:
    """Why these figures are not those of the load that the benchmark is about."""
    counts = dict.fromkeys((DISPATCHED, HELD, REFUSED, DISPLACING), 0)
    for (kind, sort), times in drive.times_ns.items():
        if kind == ARRIVAL:
            counts[sort] += len(times)
    thirds = {
        DISPATCHED: counts[DISPATCHED],
        HELD: counts[HELD],
        "refused or displacing": counts[REFUSED] + counts[DISPLACING],
    }
    found = [
        f"{count} of {plan.arrivals} arrivals were {sort}: not about a third"
        for sort, count in thirds.items()
        if not THIRD_LEAST <= count / plan.arrivals <= THIRD_MOST
    ]
    if abs(len(drive.waiting) - plan.waiting) > 0.01 * plan.waiting + 4:
        found.append(f"{len(drive.waiting)} wait at the end, not about {plan.waiting}")
    return found


def traced_bytes_per_waiting(plan: Plan) -> float:
    """What Python allocates for each request that waits, its `Demand` included, over a queue of `TRACED_WAITING`."""
    count = min(TRACED_WAITING, plan.waiting // 2)
    drive = Drive(plan)
    drive.fill(level=1)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    held = drive.hold_untimed(count)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if held != count:
        raise WentWrong(f"only {held} of {count} requests were held for the memory pass")
    return (after - before) / held


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    sys.exit(main())
