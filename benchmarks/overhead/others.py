"""CPU per request and per SSE event of every gateway there is, in one run: ours, Envoy, and those of `routers`.

They take turns as in the rest of the benchmark. Before each turn the stub engine must be idle: a slow gateway goes on
with streams whose clients have left. Nothing is left out in silence: what does not run is in the results by name, with
the reason, and what costs less than we do is named as well.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from benchmarks.overhead.cpu import EVENTS, EVENTS_FEW, REQUESTS, Load, measure
from benchmarks.overhead.peers import CannotRun, Peer, fetch
from benchmarks.overhead.routers import ROUTERS

__all__ = ["LOADS", "compare", "print_comparison"]

Results = dict[str, Any]

LOADS: Final = {"requests": REQUESTS, "events": EVENTS}
FEWER: Final = {("events", "litellm"): EVENTS_FEW}
"""What gets a smaller load, since it would do nothing else than begin streams for seconds."""
IDLE_S: Final = 60.0


def compare(
    stub: Peer,
    ours: Peer,
    envoy: Peer,
    *,
    wrk: str,
    rounds: int,
    duration_s: float,
    say: Callable[[str], None],
) -> Results:
    """The two loads through all of them."""
    missing: dict[str, str] = {}
    made: Results = {"missing": missing, "first": ours.name}
    with contextlib.ExitStack() as stack:
        running = [ours, envoy]
        for name, start in ROUTERS.items():
            say(f"starting {name}")
            try:
                running.append(stack.enter_context(start(stub)))
            except CannotRun as reason:
                missing[name] = str(reason)
        for part, load in LOADS.items():
            costs: dict[str, list[float]] = {}
            for number in range(rounds):
                for peer in running if number % 2 == 0 else reversed(running):
                    if peer.name in missing:
                        continue
                    say(f"CPU per {load.unit}: {peer.name}")
                    try:
                        cost_us = _one(FEWER.get((part, peer.name), load), peer, stub, wrk, duration_s)
                    except CannotRun as reason:
                        missing[peer.name] = str(reason)
                        continue
                    costs.setdefault(peer.name, []).append(cost_us)
            made[part] = _table(load, costs, ours.name)
    return made


def _one(load: Load, peer: Peer, stub: Peer, wrk: str, duration_s: float) -> float:
    _until_idle(stub)
    return measure(load, peer, stub=stub, wrk=wrk, duration_s=duration_s).cpu_us


def _until_idle(stub: Peer) -> None:
    """Nothing of the turn before goes on."""
    until_s = time.monotonic() + IDLE_S
    while time.monotonic() < until_s:
        status, body = fetch(stub.port, "/counters")
        if status == 200 and not json.loads(body)["running"]:
            return
        time.sleep(0.2)


def _table(load: Load, costs: dict[str, list[float]], ours: str) -> Results:
    base = costs[ours]
    return {
        "unit": load.unit,
        "load": load.name,
        "gateways": {
            name: {
                "cpu_us": median(each),
                # Rounds are compared with ours of the same number; one that failed later has fewer.
                "times_ours": median(theirs / our for theirs, our in zip(each, base, strict=False)),
                "rounds": each,
            }
            for name, each in costs.items()
        },
    }


def print_comparison(results: Results) -> None:
    """Two tables, and what is missing."""
    ours = results["first"]
    for part in LOADS:
        table = results[part]
        print(f"\nCPU per {table['unit']} of all gateways: {table['load']}\n")
        print(f"  {'':17} {'CPU µs':>10} {'÷ ' + ours:>12}")
        for name, row in table["gateways"].items():
            print(f"  {name:17} {row['cpu_us']:10.1f} {row['times_ours']:12.2f}")
        cheaper = [name for name, row in table["gateways"].items() if row["times_ours"] < 1]
        if cheaper:
            print(f"  Cheaper than {ours}: {', '.join(cheaper)}")
    for name, reason in results["missing"].items():
        print(f"\n  NOT MEASURED: {name}: {reason}")
