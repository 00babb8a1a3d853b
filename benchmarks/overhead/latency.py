"""Added latency at half load: the same open arrivals to the engine itself and through each proxy, in turn.

The stub engine takes 20 ms for an answer, and stands for one that runs 32 of them at once: 1,600 requests a
second. Half of that is offered, as a Poisson process, by our own open-loop client. A request's latency counts from
its sending to the last byte of its answer. What a proxy adds is the difference of the quantiles to those of the
direct run of the same round; the median over rounds is reported.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import uvloop

from benchmarks.overhead.peers import Peer
from forebay.load.felt import End, Felt, quantile
from forebay.load.generator import OpenLoop, Target
from forebay.load.workload import Arrival

SERVICE_MS = 20
SLOTS = 32
RATE_PER_S = SLOTS * 1000 / SERVICE_MS / 2
SENT_LATE_MS_MAX = 10.0
_BODY = (
    b'{"model":"stub","max_tokens":256,"stream":false,"messages":[{"role":"user","content":'
    b'"Why does a hydro plant need a basin just above its turbines?"}]}'
)


@dataclass(frozen=True)
class LatencyRound:
    """One run of arrivals at one target."""

    target: str
    answered: int
    not_answered: int
    """Refused, failed or still open: there should be none at half load."""
    p50_ms: float
    p95_ms: float
    p99_ms: float
    sent_late_p99_ms: float
    """Above `SENT_LATE_MS_MAX` the machine is too busy for the client, and the figures are doubtful."""


def measure(target: Peer, duration_s: float, seed: int) -> LatencyRound:
    """Offer half load to one target for a while."""
    felt = uvloop.run(_offer(target, _arrivals(duration_s, seed)))
    taken_ms = [(one.duration_s - one.late_s) * 1000 for one in felt if one.end is End.COMPLETED]
    p50_ms, p95_ms, p99_ms = (quantile(taken_ms, part) or float("nan") for part in (0.5, 0.95, 0.99))
    late_p99_ms = (quantile((one.late_s for one in felt), 0.99) or 0.0) * 1000
    return LatencyRound(
        target.name, len(taken_ms), len(felt) - len(taken_ms), p50_ms, p95_ms, p99_ms, late_p99_ms
    )


async def _offer(target: Peer, planned: list[Arrival]) -> list[Felt]:
    headers = (("x-stub-delay-ms", str(SERVICE_MS)),)
    client = OpenLoop([Target("127.0.0.1", target.port)], lambda _arrival: _BODY, headers=headers)
    return await client.run(planned, tail_s=5.0)


def _arrivals(duration_s: float, seed: int) -> list[Arrival]:
    stream = random.Random(f"{seed}/latency")
    planned: list[Arrival] = []
    at_s = stream.expovariate(RATE_PER_S)
    while at_s < duration_s:
        planned.append(Arrival(len(planned), at_s, "standard", 30, 140, 256, stream=False))
        at_s += stream.expovariate(RATE_PER_S)
    return planned
