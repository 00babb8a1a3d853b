"""Very many at once: memory and CPU of one gateway process with open streams, waiting requests, and large bodies.

    .venv/bin/python -m benchmarks.scale.run [--only PART] [--streams N] [--waiting N] [--quick] [--json]

Everything is loopback on one machine: a stub engine, `forebay serve` with admission on, compiled if that is possible
here, Envoy as a plain proxy beside it, and clients with a connection each. See ../README.md for what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import uvloop

from benchmarks.overhead import peers
from benchmarks.scale.callers import Callers, open_files
from benchmarks.scale.memory import MemoryWatch, memory_bytes

Results = dict[str, Any]
Target = Callable[[], AbstractContextManager[peers.Peer]]

PARTS: Final = ("bodies", "streams", "waiting")
MB: Final = 1e6
MIB: Final = 1024 * 1024
OTHER_FILES: Final = 100
"""Of a process, that are not connections."""
PER_REQUEST_FILES: Final = 2
"""A gateway's: its client's connection and the one to the engine. Forebay lets clients take half of its files."""

POD: Final = {"FOREBAY_LIMITS__MEMORY": "512MiB"}
POD_CLIENTS: Final = 5_000
POD_BODY_BYTES: Final = 400_000
POD_RSS_MIB: Final = 400
"""Most that the gateway may take then."""

GAP_S: Final = 0.5
"""Between two events of a stream."""
SETTLE_S: Final = 3.0
MEASURED_S: Final = 10.0
OPENING_S: Final = 60.0
"""Longest that it may take until all have what they came for."""
KV_BLOCKS: Final = 4_000_000
"""So many that the cache of the stub is no reason to wait."""
STREAMS_MB: Final = 600
WAITING_MB: Final = 1_000
"""The targets."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Memory and CPU of one gateway process with very many at once."
    )
    parser.add_argument("--only", choices=PARTS, help="one part of the benchmark")
    parser.add_argument("--streams", type=int, default=10_000, help="open streams (default 10,000)")
    parser.add_argument("--waiting", type=int, default=50_000, help="waiting requests (default 50,000)")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: does it work?")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    options = parser.parse_args(arguments)
    if min(options.streams, options.waiting) < 100:
        parser.error("--streams and --waiting must be at least 100")
    if options.quick:
        options.streams //= 10
        options.waiting //= 10
    parts = [options.only] if options.only else PARTS
    try:
        results = run(parts, options.streams, options.waiting)
    except peers.CannotRun as reason:
        print(f"benchmark cannot run: {reason}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        print_tables(results)
    return 0 if all(results[part]["valid"] for part in parts) else 1


def run(parts: Sequence[str], streams: int, waiting: int) -> Results:
    compiled, envoy = peers.make_compiled(), peers.find_envoy()
    files = open_files(PER_REQUEST_FILES * max(streams, waiting) + OTHER_FILES)
    most = (files - OTHER_FILES) // PER_REQUEST_FILES
    results: Results = {"files": files, "compiled": compiled}
    if "bodies" in parts:
        with peers.stub_engine() as stub, peers.forebay(stub, compiled=compiled, settings=POD) as gateway:
            results["bodies"] = uvloop.run(large_bodies(gateway))
    for part, wanted, measure in (("streams", streams, open_streams), ("waiting", waiting, in_the_queue)):
        if part not in parts:
            continue
        count = min(wanted, most)
        made: Results = {"wanted": wanted, "count": count, "targets": {}}
        for target in targets(part, count, compiled, envoy):
            with peers.stub_engine(kv_blocks=KV_BLOCKS) as stub, target(stub) as proxy:
                print(f"{part}, {count:,}: {proxy.name}", file=sys.stderr, flush=True)
                made["targets"][proxy.name] = uvloop.run(measure(proxy, count))
        made["valid"] = all(row["valid"] for row in made["targets"].values())
        results[part] = made
    return results


def targets(
    part: str, count: int, compiled: bool, envoy: str
) -> Iterator[Callable[[peers.Peer], AbstractContextManager[peers.Peer]]]:
    """The proxies of a part. Where requests are to wait, there is one place at the engine for all of them."""
    places = count if part == "streams" else 1
    settings = {
        "FOREBAY_POOLS__0__MAX_INFLIGHT_REQUESTS": str(places),
        "FOREBAY_LIMITS__MAX_CONNECTIONS": str(count + OTHER_FILES),
        # However long it takes: what is asked here is what it costs to hold them, not who would be turned away.
        "FOREBAY_CLASSES": "{standard: {never_refuse: true}}",
    }
    yield lambda stub: peers.forebay(stub, compiled=compiled, settings=settings)
    yield lambda stub: peers.envoy(stub, envoy, connections=count if part == "streams" else 1)


async def large_bodies(gateway: peers.Peer) -> Results:
    """Clients with large bodies, all at once, at a gateway that believes to be in a pod of 512 MiB."""
    filler = b"x" * (POD_BODY_BYTES - len(chat(b"")))
    request = post(chat(filler), b"x-stub-delay-ms: 600000\r\nx-forebay-class: batch\r\n")
    callers = Callers(gateway.port, request)
    with MemoryWatch(gateway.process.pid) as memory:
        await callers.call(POD_CLIENTS)
        await until(lambda: callers.unanswered, lambda before, after: before == after)
    kept = callers.unanswered
    callers.close()
    answers = {f"{status} {reason}": count for (status, reason), count in callers.answers.items()}
    peak_mib = memory.peak_rss_bytes / MIB
    return {
        "clients": POD_CLIENTS,
        "body_bytes": POD_BODY_BYTES,
        "kept": kept,
        "answers": answers,
        "peak_rss_mib": peak_mib,
        "peak_pss_mib": memory.peak_pss_bytes / MIB,
        "valid": peak_mib < POD_RSS_MIB and kept + sum(answers.values()) == POD_CLIENTS,
    }


async def open_streams(proxy: peers.Peer, count: int) -> Results:
    """So many streams at once, each of two events a second; every event of each is counted to the last."""
    pid = proxy.process.pid
    idle_rss_bytes, _ = memory_bytes(pid)
    # Long enough that the first is still open when the last has begun and was measured.
    events = int((OPENING_S + 2 * SETTLE_S + MEASURED_S) / GAP_S)
    steer = b"x-stub-events: %d\r\nx-stub-gap-ms: %d\r\n" % (events, GAP_S * 1000)
    callers = Callers(proxy.port, post(chat(b"word " * 60, stream=True), steer))
    with MemoryWatch(pid) as memory:
        began_s = time.monotonic()
        await callers.call(count)
        await until(callers.answers.total, lambda _before, after: after >= count)
        opened_s = time.monotonic() - began_s
        await asyncio.sleep(SETTLE_S)
        row = await measured(proxy, lambda: callers.events)
        still_open = sum(caller.transport is not None and caller.events < events for caller in callers.all)
        # The stub writes its last event with two more behind it: the usage, and `[DONE]`.
        whole = events + 2
        await until(
            lambda: sum(caller.events >= whole for caller in callers.all),
            lambda _before, after: after >= count,
            within_s=events * GAP_S + OPENING_S,
        )
    callers.close()
    complete = sum(caller.events == whole for caller in callers.all)
    return row | {
        "idle_rss_mb": idle_rss_bytes / MB,
        "peak_rss_mb": memory.peak_rss_bytes / MB,
        "peak_pss_mb": memory.peak_pss_bytes / MB,
        "each_kb": (memory.peak_rss_bytes - idle_rss_bytes) / count / 1000,
        "opened_s": opened_s,
        "open_when_measured": still_open,
        "events_expected": count * whole,
        "events_came": callers.events,
        "streams_complete": complete,
        "valid": complete == count == still_open and callers.events == count * whole,
    }


async def in_the_queue(proxy: peers.Peer, count: int) -> Results:
    """So many requests at once at an engine that runs one; all others wait in the proxy."""
    pid = proxy.process.pid
    idle_rss_bytes, _ = memory_bytes(pid)
    # A stream keeps the place: an engine that is silent for long would be taken for hung.
    steer = b"x-stub-events: 100000\r\nx-stub-gap-ms: %d\r\n" % (GAP_S * 1000)
    callers = Callers(proxy.port, post(chat(b"word " * 60, stream=True), steer))
    with MemoryWatch(pid) as memory:
        before_s = sum(proxy.cpu_s())
        await callers.call(count)
        await asyncio.sleep(SETTLE_S)
        come_s = sum(proxy.cpu_s()) - before_s
        row = await measured(proxy, lambda: 0)
        waiting = callers.unanswered
        before_s = sum(proxy.cpu_s())
        callers.close()
        await asyncio.sleep(SETTLE_S)
        gone_s = sum(proxy.cpu_s()) - before_s
    return row | {
        "idle_rss_mb": idle_rss_bytes / MB,
        "peak_rss_mb": memory.peak_rss_bytes / MB,
        "peak_pss_mb": memory.peak_pss_bytes / MB,
        "each_kb": (memory.peak_rss_bytes - idle_rss_bytes) / count / 1000,
        "waiting": waiting,
        "answers": {f"{status} {reason}": n for (status, reason), n in callers.answers.items()},
        "come_us": come_s / count * 1e6,
        "gone_us": gone_s / count * 1e6,
        "valid": waiting == count - 1,
    }


async def measured(proxy: peers.Peer, count: Callable[[], int]) -> Results:
    """CPU over a stretch in which nothing but the steady state happens."""
    began_s, done, before_s = time.monotonic(), count(), sum(proxy.cpu_s())
    await asyncio.sleep(MEASURED_S)
    elapsed_s, done, cpu_s = time.monotonic() - began_s, count() - done, sum(proxy.cpu_s()) - before_s
    return {
        "busy": cpu_s / elapsed_s,
        "events_per_s": done / elapsed_s,
        "event_us": cpu_s / done * 1e6 if done else None,
    }


async def until(
    look: Callable[[], int], done: Callable[[int, int], bool], *, within_s: float = OPENING_S
) -> None:
    """Waits until what is seen, against a second before, is what was waited for, or the time is over."""
    until_s, before = time.monotonic() + within_s, look()
    while time.monotonic() < until_s:
        await asyncio.sleep(1.0)
        after = look()
        if done(before, after):
            return
        before = after


def chat(words: bytes, *, stream: bool = False) -> bytes:
    head = b'{"model":"stub","max_tokens":256,"stream":%b,"messages":' % (b"true" if stream else b"false")
    return head + b'[{"role":"user","content":"%b"}]}' % words


def post(body: bytes, headers: bytes) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: stub\r\ncontent-type: application/json\r\n%b"
    return (head + b"content-length: %d\r\n\r\n%b") % (headers, len(body), body)


def print_tables(results: Results) -> None:
    if "bodies" in results:
        row = results["bodies"]
        print(
            f"\nA pod of 512 MiB: {row['clients']:,} clients with {row['body_bytes']:,} bytes each, at once\n"
        )
        print(f"  kept waiting {row['kept']}, answered {row['answers']}")
        print(f"  most memory: RSS {row['peak_rss_mib']:.0f} MiB, PSS {row['peak_pss_mib']:.0f} MiB", end="")
        print(f" (target: under {POD_RSS_MIB} MiB)")
    for part, title, target_mb in (
        ("streams", "open streams of 2 events a second", STREAMS_MB),
        ("waiting", "requests waiting for one place", WAITING_MB),
    ):
        if part in results:
            _print_part(results, part, title, target_mb)
    print()


def _print_part(results: Results, part: str, title: str, target_mb: int) -> None:
    table = results[part]
    print(f"\n{table['count']:,} {title} (target with {table['wanted']:,}: under {target_mb} MB)\n")
    if table["count"] < table["wanted"]:
        print(
            f"  Not {table['wanted']:,}: this process may open {results['files']:,} files, and each takes two."
        )
    for name, row in table["targets"].items():
        whole_mb = row["idle_rss_mb"] + row["each_kb"] * table["wanted"] / 1000
        print(f"  {name:9} RSS {row['peak_rss_mb']:.0f} MB, PSS {row['peak_pss_mb']:.0f} MB", end="")
        print(f" (idle {row['idle_rss_mb']:.0f}; {row['each_kb']:.1f} kB each", end="")
        print(
            f"; so {whole_mb:.0f} MB with {table['wanted']:,})" if table["count"] < table["wanted"] else ")"
        )
        print(f"  {'':9} {row['busy']:.2f} cores busy", end="")
        if part == "streams":
            print(f", {row['events_per_s']:,.0f} events/s, {row['event_us']:.1f} µs each; ", end="")
            print(f"{row['events_came']:,} of {row['events_expected']:,} events came, ", end="")
            print(f"{row['streams_complete']:,} streams whole")
        else:
            print(
                f" while they wait; {row['come_us']:.0f} µs to come, {row['gone_us']:.0f} µs to leave", end=""
            )
            print(f"; {row['waiting']:,} waited")
        if not row["valid"]:
            print(f"  {'':9} NOT VALID: not all were there when it was measured, or something is missing")


if __name__ == "__main__":
    sys.exit(main())
