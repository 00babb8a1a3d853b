"""What each policy is worth, in virtual time: utility and requests on time per second, by scenario and trace.

    .venv/bin/python -m benchmarks.goodput.run [--trace FILE …] [--scenario NAME …] [--policy NAME …] [--seeds N]

Cells are scenario × trace × policy × seed; the same seed is the same requests for every policy, so that differences are
paired. Forebay is told nothing of the engines: it starts cold in each cell, and learns. Made traces are always run;
others are given by path. Exits 1 if in any cell a request has not exactly one outcome, or the books do not balance.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.goodput.scenarios import SCENARIOS, Scenario, Source, setup_of
from benchmarks.goodput.statistics import mean_of, paired
from forebay.admission.settings import PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.policies import UnknownPolicy, find_policy
from forebay.simulate.run import run
from forebay.simulate.scenario import standard_classes

PROFILE: Final = "llama3-8b-a100x1-bf16"
"""Slow enough that a cell of 3,000 requests lasts minutes: longer than anybody may wait."""
CHUNK_TOKENS: Final = 1_024
"""Of a step. With the profile's 2,048, a step full of prompts takes longer than realtime streams may pause."""
MADE: Final = ("synthetic:chat", "synthetic:documents", "synthetic:reasoning", "synthetic:mixed")
REQUESTS: Final = 3_000
QUICK_REQUESTS: Final = 240
SEEDS: Final = 5
OURS: Final = "forebay"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    scenario: str
    trace: str
    requests: int
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it."""

    cell: Cell
    result: dict[str, Any]
    faults: tuple[str, ...]
    took_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    seeds = range(1, options.seeds + 1)
    cells = [
        Cell(scenario.name, trace, options.requests, policy, seed)
        for scenario in options.scenario
        for trace in (options.trace if scenario.name != "mix shift" else ["synthetic:chat"])
        for policy in options.policy
        for seed in seeds
    ]
    done = list(_play(cells, options.jobs))
    wrong = [f"{one.cell}: {fault}" for one in done for fault in one.faults]
    if options.json:
        print(
            json.dumps(
                [{**one.result, "scenario": one.cell.scenario, "trace": one.cell.trace} for one in done]
            )
        )
    else:
        for scenario in options.scenario:
            print(table(scenario, [one for one in done if one.cell.scenario == scenario.name]))
    if options.plot is not None:
        from benchmarks.goodput.plot import draw

        draw([(one.cell.scenario, one.cell.trace, one.result) for one in done], options.plot)
    for fault in wrong[:20]:
        print(f"does not balance: {fault}", file=sys.stderr)
    return 1 if wrong else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = {one.name: one for one in SCENARIOS}
    parser.add_argument("--trace", action="append", help="a trace by path, or synthetic:NAME; repeatable")
    parser.add_argument("--scenario", action="append", choices=names, help="default: all")
    parser.add_argument("--policy", action="append", help="default: forebay and pass-through")
    parser.add_argument("--seeds", type=int, default=None, help=f"default: {SEEDS}")
    parser.add_argument("--requests", type=int, default=None, help=f"of a cell; default: {REQUESTS}")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument(
        "--quick", action="store_true", help="small cells of one made trace: does everything balance?"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="draw utility against load; needs matplotlib")
    options = parser.parse_args(arguments)
    options.policy = options.policy or [OURS, "pass-through"]
    options.trace = options.trace or (["synthetic:mixed"] if options.quick else list(MADE))
    options.seeds = options.seeds or (1 if options.quick else SEEDS)
    options.requests = options.requests or (QUICK_REQUESTS if options.quick else REQUESTS)
    options.scenario = [names[name] for name in options.scenario or names]
    for policy in options.policy:
        try:
            find_policy(policy)
        except UnknownPolicy as error:
            parser.error(str(error))
    return options


def play(cell: Cell) -> Done:
    """One cell, in whatever process."""
    begun_s = time.process_time()
    scenario = next(one for one in SCENARIOS if one.name == cell.scenario)
    profile = load_profile(PROFILE)
    settings = Settings(pools=(PoolSettings("p"),), classes=standard_classes())
    config = EngineConfig.from_profile(profile, max_num_batched_tokens=CHUNK_TOKENS)
    engines = fleet("p", profile, config, scenario.replicas)
    setup = setup_of(scenario, Source(cell.trace, cell.requests), settings, engines, cell.seed)
    came = run(setup, cell.policy, look_at_refusals=False)
    return Done(cell, came.to_json(), came.faults, time.process_time() - begun_s)


def _play(cells: Sequence[Cell], jobs: int) -> Iterator[Done]:
    if jobs == 1:
        done = map(play, cells)
        yield from _told(done, len(cells))
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from _told(pool.imap(play, cells), len(cells))


def _told(done: Iterator[Done], cells: int) -> Iterator[Done]:
    for number, one in enumerate(done, 1):
        cell = one.cell
        print(
            f"{number}/{cells}: {cell.scenario}, {cell.trace}, {cell.policy}, seed {cell.seed}: {one.took_s:.1f} s",
            file=sys.stderr,
        )
        yield one


def table(scenario: Scenario, done: Sequence[Done]) -> str:
    """One scenario: a row for each trace and policy."""
    heads = ("trace", "policy", "utility /s", "Forebay's is higher by", "on time /s", "realtime", "standard", "batch",
             "refused", "wasted", "preempted")  # fmt: skip
    lines = [
        f"\n## {scenario.name}: {scenario.about}\n",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    by: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in done:
        by.setdefault((one.cell.trace, one.cell.policy), []).append(one.result)
    for (trace, policy), results in by.items():
        ours = by.get((trace, OURS))
        less = "–"
        if ours is not None and policy != OURS:
            less = paired([one["utility"] for one in ours], [one["utility"] for one in results]).words()
        lines.append(
            f"| {Source(trace, 0).name} | {policy} | {_mean(results, 'utility')} | {less} "
            f"| {_mean(results, 'slo_met_rps')} | {_class(results, 'realtime')} | {_class(results, 'standard')} "
            f"| {_class(results, 'batch')} | {_mean(results, 'refused', 0)} | {_wasted(results)} "
            f"| {_mean(results, 'preemptions', 0)} |"
        )
    return "\n".join(lines)


def _mean(results: Sequence[dict[str, Any]], key: str, digits: int = 2) -> str:
    return mean_of([one[key] for one in results]).words(digits)


def _class(results: Sequence[dict[str, Any]], name: str) -> str:
    parts = [one["classes"][name]["attainment"] for one in results if name in one["classes"]]
    return f"{mean_of(parts).value:.1%}" if parts else "–"


def _wasted(results: Sequence[dict[str, Any]]) -> str:
    return (
        f"{mean_of([one['wasted_gpu_seconds'] / max(one['gpu_seconds'], 1e-9) for one in results]).value:.1%}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
