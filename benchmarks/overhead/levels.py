"""What is added to a request's time at a quarter, half and three quarters of the most that the gateway can do here.

First the most: wrk, as fast as answers come, over as many connections as the open load has. Then an open load at parts
of that rate, the same to the engine itself and through each proxy, in turn. Its arrivals are a Poisson process, which
does not wait for answers: a request that finds no free connection waits for one, and its time counts from its arrival.
So a target that cannot keep up shows it.

The client is as cheap as one in Python can be (some 15 µs a request), since it shares the machine with what it
measures. It looks at the clock every quarter of a millisecond and sends what is due; that delay is in all figures and
cancels out in the differences. Where it falls behind, the figures say so.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, cast

import uvloop

from benchmarks.overhead.cpu import Load
from benchmarks.overhead.peers import Peer

__all__ = ["CLOSED_LOOP", "LEVELS", "LevelRound", "median_of", "print_levels", "run_level"]

LEVELS: Final = (0.25, 0.5, 0.75)
CONNECTIONS: Final = 64
CLOSED_LOOP: Final = Load(
    f"non-streamed chat requests over {CONNECTIONS} connections, as fast as they go",
    "request",
    CONNECTIONS,
    "answers",
    {},
)
TICK_S: Final = 0.000_25
WARM_S: Final = 0.5
"""Not counted: connections are made, caches are filled."""
TAIL_S: Final = 2.0
LATE_MS_MAX: Final = 5.0
_ENDS: Final = b'"total_tokens": 240}}'
"""Of the stub's answer."""
_BODY: Final = (
    b'{"model":"stub","max_tokens":256,"stream":false,"messages":[{"role":"user","content":'
    b'"Why does a hydro plant need a basin just above its turbines?"}]}'
)
_REQUEST: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: stub\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


@dataclass(frozen=True)
class LevelRound:
    """One run of arrivals at one target."""

    offered: int
    answered: int
    p50_ms: float
    p99_ms: float
    sent_late_p99_ms: float
    """How late the client looked at the clock. Above `LATE_MS_MAX` the machine is too busy for it."""


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._transport: asyncio.Transport
        self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._load.free.append(self)

    def send(self, due_s: float) -> None:
        self._due_s = due_s
        self._transport.write(_REQUEST)

    def data_received(self, data: bytes) -> None:
        # An answer of 1 kB may come in two reads; its last bytes come together but for bad luck, which counts as lost.
        if data.endswith(_ENDS):
            self._load.answered(self, self._due_s)

    def close(self) -> None:
        self._transport.abort()


class _Load:
    """The arrivals of one run."""

    def __init__(self, rate_per_s: float, duration_s: float, seed: int) -> None:
        self.free: deque[_Connection] = deque()
        self.taken_s: list[float] = []
        self.late_s: list[float] = []
        self.offered = 0
        self._waiting: deque[float] = deque()
        self._stream = random.Random(f"{seed}/levels")
        self._rate_per_s = rate_per_s
        self._duration_s = duration_s
        self._counts_from_s = 0.0

    def answered(self, connection: _Connection, due_s: float) -> None:
        """A connection is free again."""
        if due_s >= self._counts_from_s:
            self.taken_s.append(time.perf_counter() - due_s)
        if self._waiting:
            connection.send(self._waiting.popleft())
        else:
            self.free.append(connection)

    async def run(self, port: int) -> None:
        """All of it, until the last answer."""
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: _Connection(self), "127.0.0.1", port)
            for _ in range(CONNECTIONS)
        ]
        begin_s = time.perf_counter()
        due_s, self._counts_from_s = begin_s, begin_s + WARM_S
        end_s = self._counts_from_s + self._duration_s
        while due_s < end_s:
            now = time.perf_counter()
            if due_s <= now and now >= self._counts_from_s:
                self.late_s.append(now - due_s)
            while due_s <= now:
                self._arrive(due_s)
                due_s += self._stream.expovariate(self._rate_per_s)
            await asyncio.sleep(TICK_S)
        until_s = time.perf_counter() + TAIL_S
        while len(self.free) < CONNECTIONS and time.perf_counter() < until_s:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.01)
        for _transport, connection in made:
            connection.close()

    def _arrive(self, due_s: float) -> None:
        if due_s >= self._counts_from_s:
            self.offered += 1
        if self.free:
            self.free.popleft().send(due_s)
        else:
            self._waiting.append(due_s)


def run_level(target: Peer, rate_per_s: float, duration_s: float, seed: int) -> LevelRound:
    """Offer a rate to one target for a while."""
    load = _Load(rate_per_s, duration_s, seed)
    uvloop.run(load.run(target.port))
    taken = sorted(load.taken_s)
    late = sorted(load.late_s)
    return LevelRound(
        load.offered,
        len(taken),
        _quantile_ms(taken, 0.5),
        _quantile_ms(taken, 0.99),
        _quantile_ms(late, 0.99),
    )


def _quantile_ms(ordered: list[float], part: float) -> float:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1000 if ordered else float("nan")


def median_of(rounds: list[LevelRound], base: list[LevelRound]) -> dict[str, float]:
    """What a target's rounds come to, against the direct ones of the same number."""
    return {
        "p50_ms": median(one.p50_ms for one in rounds),
        "p99_ms": median(one.p99_ms for one in rounds),
        "added_p50_ms": median(one.p50_ms - other.p50_ms for one, other in zip(rounds, base, strict=True)),
        "added_p99_ms": median(one.p99_ms - other.p99_ms for one, other in zip(rounds, base, strict=True)),
        "offered": sum(one.offered for one in rounds),
        "answered": sum(one.answered for one in rounds),
        "sent_late_p99_ms": median(one.sent_late_p99_ms for one in rounds),
    }


def print_levels(results: dict[str, Any]) -> None:
    """A table for each level."""
    print(
        f"\nLatency at parts of the most that Forebay can do here, {results['most_per_s']:,.0f} requests/s\n"
    )
    print(f"  {'':5} {'':12} {'p50 ms':>9} {'p99 ms':>9} {'+p50 ms':>9} {'+p99 ms':>9} {'answered':>16}")
    for level, table in results["levels"].items():
        for name, row in table["targets"].items():
            times = f"{row['p50_ms']:9.3f} {row['p99_ms']:9.3f} {row['added_p50_ms']:+9.3f} {row['added_p99_ms']:+9.3f}"
            print(f"  {level:5} {name:12} {times} {row['answered']:7,} of {row['offered']:7,}", end="")
            print("  doubtful: the client was late" if row["sent_late_p99_ms"] > LATE_MS_MAX else "")
