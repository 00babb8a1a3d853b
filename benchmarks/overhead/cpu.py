"""CPU time per proxied request and per relayed SSE event, with wrk as load.

The work done is counted by the stub engine and the CPU time by the kernel, both over the same stretch in the
middle of a wrk run, so neither the start nor the end of the run, nor what wrk itself counts, matters.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass

from benchmarks.overhead.peers import HERE, CannotRun, Peer, fetch

SETTLE_S = 0.5


@dataclass(frozen=True)
class Load:
    """A kind of load for wrk, and the counter of the stub that measures it."""

    name: str
    unit: str
    connections: int
    counter: str
    environment: dict[str, str]


REQUESTS = Load(
    "non-streamed chat requests over 16 connections, as fast as they go", "request", 16, "answers", {}
)
REQUESTS_ALONE = Load(
    "non-streamed chat requests over 1 connection, one after the other", "request", 1, "answers", {}
)
REQUESTS_MANY = Load(
    "non-streamed chat requests over 200 connections, as fast as they go", "request", 200, "answers", {}
)
REQUESTS_NAMED = Load(
    "the same over 16 connections, each request with an id of its own: no two heads are alike",
    "request",
    16,
    "answers",
    {"OWN_IDS": "1"},
)
EVENTS = Load(
    "200 streams of 50 SSE events a second each, one event per write",
    "event",
    200,
    "events",
    {"STREAM_EVENTS": "100", "STREAM_GAP_MS": "20"},
)
EVENTS_FEW = Load(
    "10 streams of 50 SSE events a second each, one event per write",
    "event",
    10,
    "events",
    EVENTS.environment,
)


@dataclass(frozen=True)
class Round:
    """One measured stretch."""

    peer: str
    per_s: float
    cpu_us: float
    """Per unit of work, all threads of the proxy, user and kernel mode."""
    kernel_us: float
    """The part of it in kernel mode: system calls, loopback TCP."""
    busy: float
    """CPU seconds per second."""
    resident_mb: float


def measure(load: Load, proxy: Peer, *, stub: Peer, wrk: str, duration_s: float) -> Round:
    """One round of a load through one proxy."""
    command = [
        wrk,
        "--threads=1",
        f"--connections={load.connections}",
        f"--duration={duration_s + 2 * SETTLE_S:.0f}s",
    ]
    command += ["--timeout=10s", f"--script={HERE / 'chat.lua'}", f"{proxy.url}/v1/chat/completions"]
    process = subprocess.Popen(
        command,
        env=os.environ | load.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        time.sleep(SETTLE_S)
        began_s, cpu_before_s, done_before = time.monotonic(), proxy.cpu_s(), _count(stub, load.counter)
        time.sleep(duration_s)
        elapsed_s = time.monotonic() - began_s
        user_s, kernel_s = (after - before for after, before in zip(proxy.cpu_s(), cpu_before_s, strict=True))
        done = _count(stub, load.counter) - done_before
        said = process.communicate(timeout=duration_s + 30)[0]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode or "Non-2xx" in said or not done:
        raise CannotRun(f"{proxy.name}: not every request was answered with 200:\n{said}")
    cpu_s = user_s + kernel_s
    return Round(
        proxy.name,
        per_s=done / elapsed_s,
        cpu_us=cpu_s / done * 1e6,
        kernel_us=kernel_s / done * 1e6,
        busy=cpu_s / elapsed_s,
        resident_mb=proxy.resident_mb(),
    )


def _count(stub: Peer, counter: str) -> int:
    status, body = fetch(stub.port, "/counters")
    if status != 200:
        raise CannotRun(
            "the stub engine does not answer: the machine is overloaded, or it was ended from outside"
        )
    return int(json.loads(body)[counter])
