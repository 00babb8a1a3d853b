"""What nobody could have done better: a clairvoyant bound on a run, by linear programming.

Given every request with its true length, its arrival and its objective, how many could have been met at most, and how
much value? A schedule of an engine is a list of steps, each with some prompt tokens and some decoding sequences in it.
Of a request that is met, the prompt is computed between its arrival and its first-token deadline, and its tokens come
between the arrival and the end of the slowest pace that it may have. So for every interval of time [a, b], all steps
that do work whose window lies inside it lie inside it themselves, and together they take no longer than there is:

    time of those steps  ≤  (b − a) · engines

With s steps, n tokens in them, and the step law's fixed part F, that time is at least

    F·s + low·n + the rest       and       (F − kink)·s + high·n + the rest

(the two slopes of tokens; the rest is attention, sequences and KV read, which belong to requests), and s is at least
sequence-steps ÷ N, KV·steps ÷ M, and tokens ÷ the most of a step. Each pair is a linear condition on which requests are
met; the fixed part is thereby shared in the cheapest way that any batching allows. The best x between 0 and 1 for every
request, under the conditions of all intervals, is the bound. Intervals begin and end on a grid, and windows are rounded
outward to it. There are very many and few of them bind, so they are added as they are found to be broken.

What is left out only loosens it: requests are served in parts, the order of tokens and whole steps do not matter, KV of
half-done prompts and work done twice cost nothing, nor does anything between clients and engines. A refused client that
may come back (`returns_s`) is met in time counted from its return, so its windows end later by that; the longer that
is, the less the bound says.

Needs SciPy (its HiGHS), which is an extra: `forebay[lab]`, imported here and only when a bound is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay.enginemodel import StepLaw

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Bound",
    "BoundEngines",
    "BoundFailed",
    "BoundRequest",
    "LabMissing",
    "clairvoyant_bound",
    "most_value",
]

_GRID: Final = 400
"""Parts of the time from the first arrival to the last deadline in which intervals may begin and end."""
_ROUNDS: Final = 60
_ROWS_PER_ROUND: Final = 60
_MOST_ROWS: Final = 3_000
"""Conditions that are held at once, each 8 bytes for every request. With fewer than there are it is a bound still."""
_BROKEN: Final = 1e-4
"""Conditions that are broken by less, relatively, are let be: the bound stays one, and is hardly looser."""
_SLACK: Final = 1e-6
"""Added to the result, relatively: what the solver's own tolerance may have cost."""


class LabMissing(Exception):
    """SciPy is not installed; the message says how to get it."""


class BoundFailed(Exception):
    """The solver gave up; the message has its words."""


@dataclass(frozen=True, slots=True)
class BoundRequest:
    """One request, with everything that only time tells."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    class_name: str = ""
    value: float = 1.0
    ttft_s: float = math.inf
    """Arrival to first token; with `tpot_s` the objective of a stream."""
    tpot_s: float = math.inf
    """Mean time per further token."""
    whole_s: float = math.inf
    """Arrival to the end, where that is what counts."""
    leaves_s: float = math.inf
    """The client is gone so long after its arrival if it has had nothing by then."""
    returns_s: float = 0.0
    """The latest that a refused client's second try may come, after its arrival; 0 if it does not come back."""
    cached_tokens: int = 0
    """The most of the prompt that a prefix cache could hold already."""


@dataclass(frozen=True, slots=True)
class BoundEngines:
    """What there is to serve them with."""

    law: StepLaw
    endpoints: int
    kv_tokens: int
    """Of each."""
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Bound:
    """What a run may come to at most, per second of offered time."""

    bound_rps: float
    bound_utility: float
    met_parts: Mapping[str, float]
    """By class, the part met where value is greatest. Of several ways to be best this is one."""


def clairvoyant_bound(
    requests: Sequence[BoundRequest], engines: BoundEngines, *, duration_s: float | None = None
) -> Bound:
    """The two bounds: on requests met per second, and on their value per second.

    Args:
        duration_s: what counts are divided by; None takes the time from the first arrival to the last.

    Raises:
        LabMissing: SciPy is not installed.
        BoundFailed: no solution was found, which a correct program always has.
    """
    if not requests:
        return Bound(0.0, 0.0, {})
    arrivals = [one.at_s for one in requests]
    span_s = max(arrivals) - min(arrivals) if duration_s is None else duration_s
    if span_s <= 0:
        raise ValueError("requests that all come at once have no rate: give duration_s")
    program = _Program(requests, engines)
    most, _ = program.solve([1.0] * len(requests))
    value, parts = program.solve([one.value for one in requests])
    return Bound(most / span_s, value / span_s, _by_class(requests, parts))


def most_value(
    requests: Sequence[BoundRequest], engines: BoundEngines, value: Callable[[BoundRequest], float]
) -> float:
    """The most that the values of requests met can add up to, for values of any kind.

    With 1 for interactive requests and 0 for others it says how many of them could be met by somebody who cares for
    nothing else.
    """
    if not requests:
        return 0.0
    return _Program(requests, engines).solve([value(one) for one in requests])[0]


def _by_class(requests: Sequence[BoundRequest], parts: Sequence[float]) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for one, part in zip(requests, parts, strict=True):
        sums.setdefault(one.class_name, []).append(part)
    return {name: sum(each) / len(each) for name, each in sums.items()}


@dataclass(frozen=True, slots=True)
class _Work:
    """One request as the program sees it: amounts, as little as they can be, and windows from the first arrival on."""

    prompt_tokens: int
    """To be computed."""
    prompt_ms: float
    """Attention and host time, which do not depend on what else is in a step."""
    chunks: int
    steps: int
    """Of decoding."""
    decode_ms: float
    """Sequences and KV reads of those."""
    kv_steps: float
    """KV tokens held, added up over the steps of decoding, of its own (not shared with others)."""
    start_s: float
    prompt_end_s: float
    end_s: float
    fits: bool
    """False where not even an idle engine could meet it, or hold it."""


class _Program:
    """The conditions of some requests on some engines, to be solved for one kind of value after another."""

    def __init__(self, requests: Sequence[BoundRequest], engines: BoundEngines) -> None:
        first_s = min(one.at_s for one in requests)
        self._works = [_work(one, engines, first_s) for one in requests]
        last_s = max((work.end_s for work in self._works if work.fits), default=0.0)
        self._cell_s = max(last_s / _GRID, 1e-9)
        self._cell_ms = 1000 * self._cell_s * engines.endpoints
        self._forms = _forms(engines)

    def solve(self, values: Sequence[float]) -> tuple[float, list[float]]:
        """The most value, and the part met of each request."""
        try:
            import numpy as np
            from scipy.optimize import linprog
        except ImportError as error:
            raise LabMissing(
                "the clairvoyant bound needs SciPy, which is an extra: pip install 'forebay[lab]'"
            ) from error
        most = np.array([1.0 if work.fits else 0.0 for work in self._works])
        gain = np.array(values, dtype=float)
        conditions = _Conditions(self._works, self._forms, self._cell_s, self._cell_ms)
        parts = most
        for _ in range(_ROUNDS):
            if len(conditions) >= _MOST_ROWS or not conditions.add_broken(parts):
                break
            matrix, room = conditions.rows()
            result = linprog(
                -gain, A_ub=matrix, b_ub=room, bounds=np.column_stack([0 * most, most]), method="highs"
            )
            if result.x is None:
                raise BoundFailed(f"the bound was not found: {result.message}")
            parts = np.clip(result.x, 0.0, most)
        return float(gain @ parts) * (1 + _SLACK), [float(part) for part in parts]


class _Conditions:
    """The conditions found so far, and the search for ones that are broken."""

    def __init__(self, works: Sequence[_Work], forms: Sequence[_Form], cell_s: float, cell_ms: float) -> None:
        import numpy as np

        self._cell_ms = cell_ms
        starts = [int(work.start_s / cell_s + 1e-9) for work in works]
        self._start = np.clip(np.array(starts), 0, _GRID - 1)
        # The cell in which a window ends; one that ends on a border has no part of the next.
        self._ends = [
            np.clip(
                np.array([math.ceil(end_s / cell_s - 1e-9) - 1 for end_s in ends]), self._start, _GRID - 1
            )
            for ends in ([work.prompt_end_s for work in works], [work.end_s for work in works])
        ]
        self._costs = [
            tuple(np.array([form.costs(work)[half] for work in works]) for half in (0, 1)) for form in forms
        ]
        self._known: set[tuple[int, int, int]] = set()
        self._rows: list[Any] = []
        self._room: list[float] = []
        lengths = np.arange(_GRID)[None, :] - np.arange(_GRID)[:, None] + 1
        self._room_ms = np.where(lengths > 0, lengths * cell_ms, np.inf)

    def __len__(self) -> int:
        return len(self._rows)

    def add_broken(self, parts: Any) -> bool:
        """Add the conditions that these parts break most; False if they break none."""
        import numpy as np

        added = False
        for number, costs in enumerate(self._costs):
            demand = np.zeros((_GRID, _GRID))
            for ends, cost in zip(self._ends, costs, strict=True):
                np.add.at(demand, (self._start, ends), cost * parts)
            # Of all windows that begin at a or later and end at b or before.
            demand = np.cumsum(np.cumsum(demand[::-1], axis=0)[::-1], axis=1)
            over = demand / self._room_ms - 1
            # Of each end only the worst beginning: neighbours say nearly the same.
            worst = over.argmax(axis=0)
            degree = over[worst, np.arange(_GRID)]
            for end in np.argsort(-degree)[:_ROWS_PER_ROUND]:
                if degree[end] <= _BROKEN:
                    break
                added |= self._add(number, int(worst[end]), int(end))
        return added

    def _add(self, number: int, start: int, end: int) -> bool:
        if (number, start, end) in self._known:
            return False
        self._known.add((number, start, end))
        inside = [(self._start >= start) & (ends <= end) for ends in self._ends]
        row = sum(cost * within for cost, within in zip(self._costs[number], inside, strict=True))
        room = self._cell_ms * (end - start + 1)
        self._rows.append(row / room)
        self._room.append(1.0)
        return True

    def rows(self) -> tuple[Any, Any]:
        """Matrix and right-hand side, every row in parts of the time that its interval has."""
        import numpy as np
        from scipy.sparse import csr_matrix

        return csr_matrix(np.array(self._rows)), np.array(self._room)


class _Form(NamedTuple):
    """One linear form below the time of any steps: milliseconds per token, sequence-step and KV·step."""

    token_ms: float
    sequence_ms: float
    kv_ms: float

    def costs(self, work: _Work) -> tuple[float, float]:
        """What a request's prompt, and its tokens after the first, take at least."""
        prompt_ms = work.prompt_ms + self.token_ms * work.prompt_tokens + self.sequence_ms * work.chunks
        decode_ms = (
            work.decode_ms + (self.token_ms + self.sequence_ms) * work.steps + self.kv_ms * work.kv_steps
        )
        return prompt_ms, decode_ms


def _forms(engines: BoundEngines) -> list[_Form]:
    """Every slope of tokens with every bound on the number of steps."""
    law, most = engines.law, engines.max_num_batched_tokens
    fixed_ms = law.t0 + law.h0
    if law.s_hi < law.s_lo:
        # Concave in the tokens of a step: the chord to the fullest one lies below it everywhere.
        bent = min(law.n0, most)
        slopes = [((law.s_lo * bent + law.s_hi * (most - bent)) / most, fixed_ms)]
    else:
        kink_ms = (law.s_hi - law.s_lo) * law.n0
        if kink_ms <= fixed_ms:
            slopes = [(law.s_lo, fixed_ms), (law.s_hi, fixed_ms - kink_ms)]
        else:
            # Time per token is least at the kink, with no more in a step: the line through it and nothing.
            slopes = [(law.s_lo, fixed_ms), (law.s_lo + fixed_ms / law.n0, 0.0)]
    forms = []
    for token_ms, step_ms in slopes:
        forms += [
            _Form(token_ms, step_ms / engines.max_num_seqs, 0.0),
            _Form(token_ms, 0.0, step_ms / engines.kv_tokens),
            _Form(token_ms + step_ms / most, 0.0, 0.0),
        ]
    return forms


def _work(one: BoundRequest, engines: BoundEngines, first_s: float) -> _Work:
    """Amounts and windows of one request.

    The first token comes with the prompt; each further one takes a step, in which the context is read, the token being
    computed included. Held meanwhile is one token less.
    """
    law = engines.law
    cached = min(one.cached_tokens, one.prompt_tokens - 1)
    fresh, steps = one.prompt_tokens - cached, max(0, one.output_tokens - 1)
    chunks = math.ceil(fresh / engines.max_num_batched_tokens)
    read = steps * one.prompt_tokens + steps * (steps + 1) / 2
    decode_ms = (law.g_seq + law.h1) * steps + law.c_kv * read
    prompt_ms = law.f_attn * (one.prompt_tokens**2 - cached**2) / 2 + law.h1 * chunks
    prompt_s = min(one.ttft_s, one.whole_s, one.leaves_s)
    whole_s = min(one.ttft_s + (one.tpot_s * steps if steps else 0.0), one.whole_s)
    if math.isinf(whole_s):
        raise ValueError("a request without an objective is always met: give ttft_s and tpot_s, or whole_s")
    fixed_ms, slope = law.t0 + law.h0, min(law.s_lo, law.s_hi)
    alone_prompt_s = (chunks * fixed_ms + slope * fresh + prompt_ms) / 1000
    alone_decode_s = (steps * (fixed_ms + slope) + decode_ms) / 1000
    too_large = one.prompt_tokens + steps > engines.kv_tokens
    too_late = (
        alone_prompt_s > prompt_s
        or alone_prompt_s + alone_decode_s > whole_s
        or (steps > 0 and alone_decode_s > one.tpot_s * steps)
    )
    start_s = one.at_s - first_s
    return _Work(
        prompt_tokens=fresh,
        prompt_ms=prompt_ms,
        chunks=chunks,
        steps=steps,
        decode_ms=decode_ms,
        kv_steps=max(0.0, read - steps - cached * steps),
        start_s=start_s,
        prompt_end_s=start_s + prompt_s + one.returns_s,
        end_s=start_s + whole_s + one.returns_s,
        fits=not (too_large or too_late),
    )
