"""Fits the step law of the engine model to a real engine from what its clients see, and says how well it fits.

A probe is a number of equal requests sent at once to an idle engine. The model engine is given the same requests, with
any law: which tokens each of its steps computes does not depend on how long steps take. So the sums over the steps
between two moments that a client sees (sent to first token; first to last token) are known, and the law is what makes
those sums come to the measured times: least squares in relative errors, no coefficient below 0, the knee on a grid.
Time to first token is used where a request is alone only: of several that are sent at once the engine may begin with
the first, and it also holds what is not a step at all (HTTP, tokenizer, the way back), which is fitted as one constant.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, cast

from forebay.enginemodel.engine import Engine
from forebay.enginemodel.law import StepLaw
from forebay.enginemodel.profile import EngineConfig, EngineProfile
from forebay.enginemodel.sequence import Request
from forebay.load.felt import End, Felt
from forebay.load.workload import Arrival

KNEES: Final = (1, 8, 16, 32, 64, 128, 256, 512)
SWEEPS: Final = 20_000
ANY_LAW: Final = StepLaw(t0=1, n0=1, s_lo=1, s_hi=1, c_kv=0, f_attn=0, g_seq=0, h0=0, h1=0)


@dataclass(frozen=True)
class Probe:
    """Equal requests at once."""

    requests: int
    prompt_tokens: int
    output_tokens: int

    def arrivals(self) -> list[Arrival]:
        """They come in an instant."""
        return [
            Arrival(
                index, 0.0, "probe", self.prompt_tokens, self.output_tokens, self.output_tokens, stream=True
            )
            for index in range(self.requests)
        ]


@dataclass(frozen=True)
class Contents:
    """What steps compute, summed: what the law multiplies."""

    steps: float = 0.0
    tokens: tuple[tuple[int, int], ...] = ()
    """(tokens of a step, how many such steps): how they divide at the knee depends on it."""
    kv_tokens: float = 0.0
    attention: float = 0.0
    decoding: float = 0.0
    constant: float = 0.0
    """How often the time outside of steps is in it."""

    def row(self, knee: int) -> list[float]:
        """The columns of the regression."""
        low = sum(min(size, knee) * steps for size, steps in self.tokens)
        high = sum(max(size - knee, 0) * steps for size, steps in self.tokens)
        return [self.steps, low, high, self.kv_tokens, self.attention, self.decoding, self.constant]


@dataclass(frozen=True)
class Observation:
    """A time that a client saw, and what the engine did in it."""

    seconds: float
    """0 where an answer came in one piece, as it does when the API server was kept from running: of no use."""
    contents: Contents


@dataclass(frozen=True)
class Fit:
    """The law, and how it fits."""

    law: StepLaw
    outside_s: float
    """Part of the time to first token that is no step."""
    columns: tuple[float, ...]

    def error(self, observations: Iterable[Observation]) -> float:
        """Median of the relative errors."""
        errors = [
            abs(_dot(one.contents.row(self.law.n0), self.columns) / one.seconds - 1)
            for one in observations
            if one.seconds > 0
        ]
        return median(errors)


class _Recorder:
    """Stands for a law and writes down what each step computes."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, float, int]] = []

    def step_s(
        self, *, prefill_tokens: int, decoding: int, kv_tokens: int, prefill_attention: float, sequences: int
    ) -> float:
        del sequences
        self.steps.append((prefill_tokens + decoding, kv_tokens, prefill_attention, decoding))
        return 1.0


def contents_of(
    probe: Probe, profile: EngineProfile, config: EngineConfig
) -> list[tuple[Contents, Contents]]:
    """Of each request: sent to first token, and first to last token."""
    recorder = _Recorder()
    engine = Engine(replace(profile, law=cast(StepLaw, recorder)), config)
    for one in probe.arrivals():
        engine.submit(Request(one.index, one.prompt_tokens, one.output_tokens))
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    now = 0.0
    while (result := engine.step(now)) is not None:
        now = result.end_s
        for index in result.first_tokens:
            first[index] = len(recorder.steps)
        for index in result.finished:
            last[index] = len(recorder.steps)
    return [
        (
            _sum(recorder.steps[: first[index]], constant=1.0),
            _sum(recorder.steps[first[index] : last[index]], constant=0.0),
        )
        for index in range(probe.requests)
    ]


def observations(
    probe: Probe, felt: Sequence[Felt], profile: EngineProfile, config: EngineConfig
) -> list[Observation]:
    """What the clients of a probe saw."""
    sums = contents_of(probe, profile, config)
    found: list[Observation] = []
    lone = probe.requests == 1
    # Equal requests are taken up in an order that the engine chooses: the mean over them does not depend on it.
    durations = [
        one.last_token_s - one.first_token_s
        for one in felt
        if one.end is End.COMPLETED and one.first_token_s is not None and one.last_token_s is not None
    ]
    if len(durations) < probe.requests:
        raise RuntimeError(f"{probe}: only {len(durations)} of its requests were answered whole")
    if probe.output_tokens > 1:
        mean = _mean([after for _, after in sums])
        found.append(Observation(sum(durations) / len(durations), mean))
    if lone and felt[0].first_token_s is not None:
        found.append(Observation(felt[0].first_token_s, sums[0][0]))
    return found


def fit(seen: Sequence[Observation]) -> Fit:
    """The law that fits best, over all knees."""
    seen = [one for one in seen if one.seconds > 0]
    best: tuple[float, int, list[float]] | None = None
    for knee in KNEES:
        rows = [[value / one.seconds for value in one.contents.row(knee)] for one in seen]
        columns = _not_negative(rows)
        misfit = sum((_dot(row, columns) - 1) ** 2 for row in rows)
        if best is None or misfit < best[0]:
            best = misfit, knee, columns
    assert best is not None
    _, knee, columns = best
    fixed, low, high, kv, attention, decoding, outside_s = columns
    ms = 1e3
    law = StepLaw(
        t0=max(fixed * ms, 1e-6),
        n0=knee,
        s_lo=low * ms,
        s_hi=high * ms,
        c_kv=kv * ms,
        f_attn=attention * ms,
        g_seq=decoding * ms,
        h0=0.0,
        h1=0.0,
    )
    return Fit(law, outside_s, tuple(columns))


def token_prompt(arrival: Arrival, label: str, first_id: int, last_id: int) -> list[int]:
    """A prompt of exactly its length, in token ids, unlike all others."""
    stream = random.Random(f"{label}/{arrival.index}")
    return [stream.randint(first_id, last_id) for _ in range(arrival.prompt_tokens)]


def _sum(steps: Sequence[tuple[int, int, float, int]], *, constant: float) -> Contents:
    sizes: dict[int, int] = {}
    for size, _, _, _ in steps:
        sizes[size] = sizes.get(size, 0) + 1
    return Contents(
        float(len(steps)),
        tuple(sizes.items()),
        float(sum(step[1] for step in steps)),
        sum(step[2] for step in steps),
        float(sum(step[3] for step in steps)),
        constant,
    )


def _mean(parts: Sequence[Contents]) -> Contents:
    count = len(parts)
    sizes = [(size, steps) for part in parts for size, steps in part.tokens]
    # `row` is linear in the counts, so shares of a step do as well as whole ones.
    merged: dict[int, float] = {}
    for size, steps in sizes:
        merged[size] = merged.get(size, 0.0) + steps / count
    return Contents(
        sum(part.steps for part in parts) / count,
        cast(tuple[tuple[int, int], ...], tuple(merged.items())),
        sum(part.kv_tokens for part in parts) / count,
        sum(part.attention for part in parts) / count,
        sum(part.decoding for part in parts) / count,
        sum(part.constant for part in parts) / count,
    )


def _not_negative(rows: Sequence[Sequence[float]]) -> list[float]:
    """Least squares to 1 in every row with no coefficient below 0, one coefficient after the other."""
    width = len(rows[0])
    scale = [sum(row[c] ** 2 for row in rows) ** 0.5 or 1.0 for c in range(width)]
    gram = [
        [sum(row[a] * row[b] for row in rows) / scale[a] / scale[b] for b in range(width)]
        for a in range(width)
    ]
    target = [sum(row[c] for row in rows) / scale[c] for c in range(width)]
    found = [0.0] * width
    for _ in range(SWEEPS):
        moved = 0.0
        for c in range(width):
            if gram[c][c] == 0.0:
                continue
            rest = target[c] - sum(gram[c][k] * found[k] for k in range(width) if k != c)
            value = max(rest / gram[c][c], 0.0)
            moved = max(moved, abs(value - found[c]))
            found[c] = value
        if moved < 1e-12:
            break
    return [found[c] / scale[c] for c in range(width)]


def _dot(row: Sequence[float], columns: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, columns, strict=True))
