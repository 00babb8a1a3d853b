"""Fits the law of an engine's step to measured times.

    step = fixed + low·min(n, n0) + high·max(n − n0, 0) + kv·KV + attention·A + sequence·B

Two kinds of measurement tell it: *decoding*, the time of one step with B sequences and KV tokens of context, and
*prompts*, the time from sending a lone prompt to its first token. A prompt is computed in chunks of one step each; what
client and server take besides is a constant of its own (`overhead`). The size of a chunk, where it is not known, is the
one with which everything fits best, and so is the kink n0.

Least squares of relative errors with coefficients that are at least 0. There are seven of them, so all choices of which
are 0 can be tried; the best one that leaves none below 0 is the exact solution.

What two numbers do alike cannot be told apart: time per sequence is not split between GPU and host, nor is the fixed
part. Of the law's nine numbers h0 and h1 are therefore 0, and their time is in t0 and g_seq.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

from forebay.sizing.errors import SizingError

__all__ = ["CHUNKS", "Decoding", "FittedLaw", "Prompt", "errors_of", "fit_law"]

CHUNKS: Final = (512, 1024, 2048, 4096, 8192, 16384)
KINKS: Final = (16, 32, 64, 96, 128, 192, 256, 320, 512, 768, 1024)
_FEATURES: Final = 7
_BETTER: Final = 0.98
"""A further kink or chunk size has to fit better by this factor, or noise would choose it."""


class Decoding(NamedTuple):
    """A step in which some sequences decode and nothing else happens."""

    sequences: int
    kv_tokens: float
    seconds: float


class Prompt(NamedTuple):
    """A prompt alone on the engine, from being sent to its first token."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """The law in milliseconds, as a profile has it."""

    t0: float
    n0: int
    s_lo: float
    s_hi: float
    c_kv: float
    f_attn: float
    g_seq: float
    overhead_ms: float
    """Of a request before its first token, besides steps: client, network, tokeniser."""
    chunk_tokens: int

    def decoding_s(self, sequences: int, kv_tokens: float) -> float:
        """Time of a step with so many sequences that decode."""
        return _dot(_coefficients(self), _decoding_row(sequences, kv_tokens, self.n0)) / 1000

    def prompt_s(self, tokens: int) -> float:
        """Time from sending a lone prompt to its first token."""
        return _dot(_coefficients(self), _prompt_row(tokens, self.n0, self.chunk_tokens)) / 1000


def fit_law(
    decoding: Sequence[Decoding], prompts: Sequence[Prompt], *, chunk_tokens: int | None = None
) -> FittedLaw:
    """The law that these times fit best. Raises `SizingError` if there are too few of them.

    Args:
        chunk_tokens: what one step computes at most, if it is known.
    """
    if len(decoding) < 4 or len(prompts) < 3:
        raise SizingError("a law takes at least four times of decoding and three of prompts")
    longest = max(prompt.tokens for prompt in prompts)
    chunks = [chunk_tokens] if chunk_tokens else _possible_chunks(longest)
    best: tuple[float, FittedLaw] | None = None
    for chunk, kink in product(chunks, KINKS):
        rows = [(_decoding_row(one.sequences, one.kv_tokens, kink), one.seconds) for one in decoding]
        rows += [(_prompt_row(one.tokens, kink, chunk), one.seconds) for one in prompts]
        found = _non_negative([row for row, _ in rows], [1000 * seconds for _, seconds in rows])
        if found is None:
            continue
        error, numbers = found
        if best is None or error < best[0] * _BETTER:
            best = error, _law(numbers, kink, chunk)
    if best is None or best[1].t0 <= 0:
        raise SizingError("these times fit no law: was the engine busy with other requests?")
    return best[1]


def errors_of(law: FittedLaw, decoding: Sequence[Decoding], prompts: Sequence[Prompt]) -> list[float]:
    """Relative errors of predictions, predicted over measured less 1: first of decoding, then of prompts."""
    errors = [law.decoding_s(one.sequences, one.kv_tokens) / one.seconds - 1 for one in decoding]
    return errors + [law.prompt_s(one.tokens) / one.seconds - 1 for one in prompts]


def _possible_chunks(longest: int) -> list[int]:
    """Chunk sizes that the prompts could tell of, largest first: one that nothing reaches changes nothing."""
    reached = [size for size in CHUNKS if size < longest]
    above = next((size for size in CHUNKS if size >= longest), CHUNKS[-1])
    return [above, *reversed(reached)]


def _decoding_row(sequences: int, kv_tokens: float, kink: int) -> tuple[float, ...]:
    """What a step of decoding has of each coefficient."""
    return 1.0, min(sequences, kink), max(sequences - kink, 0), kv_tokens, 0.0, sequences, 0.0


def _prompt_row(tokens: int, kink: int, chunk: int) -> tuple[float, ...]:
    """What the steps of a prompt have of each coefficient, together."""
    steps, last = divmod(tokens, chunk)
    sizes = [(chunk, steps), (last, 1 if last else 0)]
    low = sum(min(size, kink) * count for size, count in sizes)
    return float(steps + (last > 0)), low, tokens - low, 0.0, tokens * tokens / 2, 0.0, 1.0


def _coefficients(law: FittedLaw) -> tuple[float, ...]:
    return law.t0, law.s_lo, law.s_hi, law.c_kv, law.f_attn, law.g_seq, law.overhead_ms


def _law(numbers: Sequence[float], kink: int, chunk: int) -> FittedLaw:
    t0, low, high, kv, attention, sequence, overhead = numbers
    return FittedLaw(t0, kink, low, high, kv, attention, sequence, overhead, chunk)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))


def _non_negative(
    rows: Sequence[Sequence[float]], times_ms: Sequence[float]
) -> tuple[float, list[float]] | None:
    """Coefficients of at least 0 with the least squares of relative errors, and that sum."""
    scales = [max(abs(row[place]) for row in rows) or 1.0 for place in range(_FEATURES)]
    weighted = [
        [row[place] / scales[place] / time_ms for place in range(_FEATURES)]
        for row, time_ms in zip(rows, times_ms, strict=True)
    ]
    square = [
        [_column_product(weighted, one, other) for other in range(_FEATURES)] for one in range(_FEATURES)
    ]
    right = [sum(row[place] for row in weighted) for place in range(_FEATURES)]
    best: tuple[float, list[float]] | None = None
    for chosen in product((False, True), repeat=_FEATURES):
        places = [place for place, wanted in enumerate(chosen) if wanted]
        found = _solve(
            [[square[one][other] for other in places] for one in places], [right[one] for one in places]
        )
        if not places or found is None or min(found) < 0:
            continue
        # The sum of squares of (prediction − 1) at its least is count − right · solution.
        error = len(rows) - sum(right[place] * value for place, value in zip(places, found, strict=True))
        if best is None or error < best[0]:
            numbers = [0.0] * _FEATURES
            for place, value in zip(places, found, strict=True):
                numbers[place] = value / scales[place]
            best = error, numbers
    return best


def _column_product(rows: Sequence[Sequence[float]], one: int, other: int) -> float:
    return math.fsum(row[one] * row[other] for row in rows)


def _solve(square: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with the largest pivot; None where there is no single solution."""
    size = len(right)
    table = [[*row, value] for row, value in zip(square, right, strict=True)]
    for step in range(size):
        pivot = max(range(step, size), key=lambda row: abs(table[row][step]))
        if abs(table[pivot][step]) < 1e-12:
            return None
        table[step], table[pivot] = table[pivot], table[step]
        for row in range(step + 1, size):
            factor = table[row][step] / table[step][step]
            for column in range(step, size + 1):
                table[row][column] -= factor * table[step][column]
    solution = [0.0] * size
    for step in reversed(range(size)):
        rest = sum(table[step][column] * solution[column] for column in range(step + 1, size))
        solution[step] = (table[step][size] - rest) / table[step][step]
    return solution
