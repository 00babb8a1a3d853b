"""Makes traces: named workloads with seeded lengths, arrivals, tenants, conversations, bursts and surges.

Owns the laws and their numbers. It is pure and streams its rows: the same name, seed and length of time give the same
rows under any hash seed, and a longer time only adds rows. It never sends anything.

The laws:

- **Lengths** are log-normal, clipped (`workload.Lengths`).
- **Arrivals** are a Poisson process whose rate is switched: *calm* and *burst* phases of exponential length, scaled so
  that `rate_rps` is the mean over all. Bursts give the gaps a coefficient of variation above 1, as recorded ones have.
  `surge_factor` multiplies the rate through the third quarter of every `surge_every_s`.
- **Tenants** share by Zipf's law (the n-th has a part of 1/n), and one of the smaller ones `flood`s: for a tenth
  of each `surge_every_s` it sends as much as all others together.
- **Conversations**: a part of the requests continue one that was begun before, with all of it as the start of their
  prompt; that part is their `cached_tokens`.
"""

from __future__ import annotations

import csv
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from forebay.load.traces import TraceError, TraceRow, read_trace
from forebay.load.workload import Lengths, Mix, Part, client_limit_tokens

__all__ = ["PREFIX", "WORKLOADS", "Workload", "read_source", "synthetic", "write_trace"]

PREFIX: Final = "synthetic:"
_OPEN_CONVERSATIONS: Final = 400
_LONGEST_CONTEXT: Final = 30_000
"""Tokens after which a conversation is not continued."""
_PAUSE_S: Final = 8.0
"""The least time between two requests of a conversation: reading the answer, and typing."""
_FLOOD_PART: Final = 0.1
_COLUMNS: Final = (
    "arrival_s", "prompt_tokens", "output_tokens", "tenant", "session_id", "model", "reusable_prefix_tokens", "class",
    "limit_tokens", "stream",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that makes up a named workload."""

    about: str
    mix: Mix
    """Parts with an empty class name leave the class to whoever uses the trace."""
    rate_rps: float
    """Mean rate of requests, surges and floods apart."""
    tenants: int = 1
    flood: bool = False
    continued: float = 0.0
    """Part of the requests that continue a conversation, where one is open."""
    burst_factor: float = 1.0
    """Rate during a burst, over that of calm times."""
    burst_s: float = 5.0
    calm_s: float = 20.0
    surge_factor: float = 1.0
    surge_every_s: float = 600.0


WORKLOADS: Final[Mapping[str, Workload]] = {
    "chat": Workload(
        "conversations of many people: short questions, growing prompts, answers of a few hundred tokens",
        (Part("", 1.0, Lengths(180, 1.0, 8, 6_000), Lengths(220, 0.8, 4, 2_000)),),
        rate_rps=6.0,
        tenants=8,
        continued=0.55,
        burst_factor=2.0,
        surge_factor=1.5,
    ),
    "documents": Workload(
        "long documents to be summed up or searched: long prompts, short answers, violent bursts",
        (Part("", 1.0, Lengths(5_000, 0.8, 400, 60_000), Lengths(150, 0.7, 8, 1_000)),),
        rate_rps=1.5,
        tenants=4,
        burst_factor=8.0,
        burst_s=4.0,
        calm_s=25.0,
    ),
    "reasoning": Workload(
        "short questions with very long, heavy-tailed answers",
        (Part("", 1.0, Lengths(250, 0.8, 20, 8_000), Lengths(1_500, 1.0, 50, 30_000)),),
        rate_rps=1.5,
        tenants=6,
        burst_factor=1.5,
    ),
    "mixed": Workload(
        "chats, ordinary requests and documents of twelve unequal tenants, with surges and one that floods",
        (
            Part("realtime", 0.50, Lengths(300, 0.8, 20, 3_000), Lengths(120, 0.7, 8, 600)),
            Part("standard", 0.30, Lengths(1_200, 0.8, 60, 8_000), Lengths(300, 0.7, 16, 1_500)),
            Part("batch", 0.20, Lengths(4_000, 0.6, 600, 20_000), Lengths(300, 0.7, 30, 1_500), stream=False),
        ),
        rate_rps=5.0,
        tenants=12,
        flood=True,
        burst_factor=3.0,
        surge_factor=2.0,
    ),
}


def synthetic(
    name: str, seed: int = 1, seconds: float = 600.0, rate_rps: float | None = None
) -> Iterator[TraceRow]:
    """The rows of a named workload, in order of time, the first near 0.

    Args:
        name: one of `WORKLOADS`.
        seed: same seed, same rows.
        seconds: how long requests come.
        rate_rps: mean requests a second, instead of the workload's own.
    """
    workload = WORKLOADS.get(name)
    if workload is None:
        raise TraceError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    if not 0 < seconds <= 1e7 or (rate_rps is not None and not 0 < rate_rps <= 1e6):
        raise TraceError("a synthetic trace needs seconds above 0 and a rate above 0")
    return _rows(workload, f"{name}/{seed}", seconds, rate_rps or workload.rate_rps)


def read_source(source: str | Path, limit: int | None = None) -> Iterator[TraceRow]:
    """The rows of a trace file, or of a workload written as `synthetic:NAME`.

    `synthetic:NAME,seconds=600,seed=1,rate=5` sets what is to differ from the defaults.
    """
    text = str(source)
    if not text.startswith(PREFIX):
        return read_trace(source, limit)
    name, *settings = text.removeprefix(PREFIX).split(",")
    values = {"seconds": 600.0, "seed": 1.0, "rate": 0.0}
    for setting in settings:
        key, _, value = setting.partition("=")
        number = _number(value) if key in values else None
        if number is None:
            raise TraceError(
                f"{source}: found {setting!r}, allowed are seconds=, seed= and rate= with a number"
            )
        values[key] = number
    if not values["seed"].is_integer():
        raise TraceError(f"{source}: seed: found {values['seed']:g}, allowed are whole numbers")
    rows = synthetic(name, round(values["seed"]), values["seconds"], values["rate"] or None)
    return rows if limit is None else (row for _, row in zip(range(limit), rows, strict=False))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def write_trace(rows: Iterable[TraceRow], file: IO[str]) -> int:
    """Write rows as the common CSV; how many."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    count = 0
    for row in rows:
        cells = (
            f"{row.at_s:.4f}".rstrip("0").rstrip("."),
            row.prompt_tokens,
            row.output_tokens,
            row.tenant,
            row.session,
            row.model,
            "" if row.cached_tokens is None else row.cached_tokens,
            row.class_name,
            "" if row.limit_tokens is None else row.limit_tokens,
            "" if row.stream else "false",
        )
        writer.writerow(cells)
        count += 1
    return count


def _rows(workload: Workload, seed: str, seconds: float, rate_rps: float) -> Iterator[TraceRow]:
    parts = random.Random(f"{seed}/parts")
    lengths = random.Random(f"{seed}/lengths")
    tenants = _Tenants(workload, random.Random(f"{seed}/tenants"))
    conversations = _Conversations(workload.continued, random.Random(f"{seed}/conversations"))
    weights = [part.share for part in workload.mix]
    for at_s in _times(workload, random.Random(f"{seed}/times"), rate_rps, seconds):
        part = parts.choices(workload.mix, weights)[0]
        fresh, output = part.prompt.draw(lengths), part.output.draw(lengths)
        tenant = tenants.draw(at_s)
        session, cached = conversations.draw(at_s, tenant, fresh, output)
        yield TraceRow(
            at_s=at_s,
            prompt_tokens=cached + fresh,
            output_tokens=output,
            tenant=tenant,
            session=session,
            cached_tokens=cached if session else None,
            class_name=part.class_name,
            limit_tokens=client_limit_tokens(output),
            stream=part.stream,
        )


def _times(workload: Workload, stream: random.Random, rate_rps: float, seconds: float) -> Iterator[float]:
    """Arrival times: a Poisson process at the highest rate, thinned to the rate of the moment."""
    share = workload.burst_s / (workload.burst_s + workload.calm_s)
    calm = 1 / (1 - share + share * workload.burst_factor)
    # A flood adds as much as there is.
    highest = calm * workload.burst_factor * max(1.0, workload.surge_factor) * (2 if workload.flood else 1)
    phases = random.Random(stream.random())
    burst, until_s = False, phases.expovariate(1 / workload.calm_s)
    at_s = 0.0
    while True:
        at_s += stream.expovariate(rate_rps * highest)
        if at_s >= seconds:
            return
        while at_s >= until_s:
            burst = not burst
            until_s += phases.expovariate(1 / (workload.burst_s if burst else workload.calm_s))
        rate = calm * (workload.burst_factor if burst else 1.0)
        if 0.5 <= at_s % workload.surge_every_s / workload.surge_every_s < 0.75:
            rate *= workload.surge_factor
        if _floods(workload, at_s):
            rate *= 2
        if stream.random() * highest < rate:
            yield at_s


def _floods(workload: Workload, at_s: float) -> bool:
    return workload.flood and at_s % workload.surge_every_s < _FLOOD_PART * workload.surge_every_s


class _Tenants:
    """Whose request it is."""

    def __init__(self, workload: Workload, stream: random.Random) -> None:
        self._workload = workload
        self._stream = stream
        self._names = [f"tenant-{number + 1}" for number in range(workload.tenants)]
        self._weights = [1 / (number + 1) for number in range(workload.tenants)]
        self._flooder = self._names[len(self._names) // 2]

    def draw(self, at_s: float) -> str:
        if _floods(self._workload, at_s) and self._stream.random() < 0.5:
            return self._flooder
        return self._stream.choices(self._names, self._weights)[0]


class _Conversations:
    """Which conversation a request goes on with, and how many tokens of that come again."""

    def __init__(self, continued: float, stream: random.Random) -> None:
        self._continued = continued
        self._stream = stream
        self._count = 0
        self._open: deque[tuple[float, str, str, int]] = deque(maxlen=_OPEN_CONVERSATIONS)
        """When it may go on, its tenant, name and tokens; the oldest first."""

    def draw(self, at_s: float, tenant: str, fresh: int, output: int) -> tuple[str, int]:
        if not self._continued:
            return "", 0
        session, context = "", 0
        if self._stream.random() < self._continued:
            for place, (ready_s, owner, name, tokens) in enumerate(self._open):
                if owner == tenant and ready_s <= at_s:
                    del self._open[place]
                    session, context = name, tokens
                    break
        if not session:
            self._count += 1
            session = f"conversation-{self._count}"
        total = context + fresh + output
        if total < _LONGEST_CONTEXT:
            self._open.append((at_s + _PAUSE_S + self._stream.expovariate(1 / 30), tenant, session, total))
        return session, context
