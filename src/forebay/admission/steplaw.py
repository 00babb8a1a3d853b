"""The law of an engine's step, learned: what a prompt token, a sequence and a KV token cost on this engine.

With B = prefill tokens + decoding sequences in a step, n sequences, K KV tokens read and A prefill attention:

    step = c0 + s_lo·min(B, n0) + s_hi·max(B − n0, 0) + g·n + c3·K + c4·A

(below n0 batch tokens a step is bound by memory, above it by compute). From it `SpeedLaw` follows: c1 = s_hi and
c2 = s_lo + g.

Method: recursive least squares with forgetting, kept as decayed sums of products (they stay bounded, and positive
definite, where a recursive covariance would not) and solved anew after each observation, no coefficient below 0.

- Every coefficient is a multiple of the prior's, and errors are relative to the time of the step.
- Of the prior only the proportions are believed: what is penalised is how far the coefficients spread about their own
  mean (ridge regression). So an engine ten times off has nothing to unlearn: the first observation sets the scale.
- An observation counts for the steps that it averages, `HEAVIEST_STEPS` at most, and makes earlier ones fade by
  `FORGETTING` for each. One that is off by more than `HUBER` times the usual error counts for less (Huber's estimator).
- The knee is not linear: a regression for each of `KNEES` runs beside the others, and the one that fits best speaks.
- Large errors in one direction, several in a row, are a changed engine: what was learned becomes the prior, all that
  is older than the run is dropped, and trust begins anew.

Owns what was learned of one engine. What makes an observation is `steps`' business. Bounded and finite whatever it is
fed: what makes no sense is counted and dropped.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

from forebay.admission.record import record
from forebay.admission.settings import SpeedLaw
from forebay.admission.step_fit import (
    ATTENTION,
    BASE,
    EACH,
    HIGH,
    KV,
    LOW,
    SHARED,
    SIZE,
    TIME,
    USUAL_NOISE,
    StepFit,
    add_row,
)

KNEES: Final[tuple[float, ...]] = (0.0, 96.0, 160.0, 256.0, 384.0, 640.0)
"""Candidates for n0, in batch tokens; 0 is a law without a knee. Measured ones lie between 96 and 512."""
FIRST_KNEE: Final = 3
LOW_SHARE: Final = 0.5
"""s_lo as a part of s_hi where only s_hi is given: 0.35 to 0.7 in the measured profiles."""

FORGETTING: Final = 0.9995
"""Per step: the memory is about 2,000 steps, some 20 seconds of a busy engine."""
HEAVIEST_STEPS: Final = 32
SPREAD: Final = 0.3
"""Variance of the prior's coefficients about their mean: with the noise it says what the proportions weigh. Those of
the measured profiles are a third to three times what another suggests; 0.1 to 1 serve about as well."""
LEARNED_SPREAD: Final = 0.005
"""The same where the proportions are those learned before a jump: what slows an engine mostly slows all of it."""
HUBER: Final = 3.0
LEAST_HUBER: Final = 0.05
KNEE_EVIDENCE: Final = 4.0
"""Another knee is taken if observations × ln(squared error ÷ its squared error) exceeds this: noise must not choose."""
REVIEWED_EVERY: Final = 4
"""Observations between two comparisons of the knees."""

ERRORS_KEPT: Final = 64
LEAST_SCORED: Final = 8
"""Predictions that must have been compared before the error is stated."""
TRUSTED_STEPS: Final = 200
TRUSTED_ERROR: Final = 0.25
JUMP_OBSERVATIONS: Final = 4
JUMP_STEPS: Final = 100.0
"""A run of large errors is a jump when it is this many observations and this many (bounded) steps long."""
JUMP_FACTOR: Final = 3.0
LEAST_JUMP: Final = 0.15
MOST_JUMP: Final = 0.35
"""An error is large from `JUMP_FACTOR` times the usual one, kept between these."""
LONGEST_RUN: Final = 32
"""Observations that are kept to learn from again."""

SHORTEST_STEP_S: Final = 1e-6
LONGEST_STEP_S: Final = 100.0
MOST_BATCH_TOKENS: Final = 1e6
MOST_KV_TOKENS: Final = 1e8
MOST_ATTENTION: Final = 1e12
MOST_STEPS: Final = 1_000_000
"""What one observation may claim."""

_USUAL: Final[tuple[float, ...]] = (0.0, 1.0, 4e-3, 5e-6, 1.5e-7, 2e-3, 4e-3)
"""Coefficients of the measured profiles as parts of c0, roughly."""
_LEAST_SHARE: Final = 0.2
"""A coefficient of a prior is at least this part of the usual one: one of 0 could not be learned."""
_LEAST_LEARNED: Final = 0.05
"""The same after a jump, as a part of the largest multiple."""
_USUAL_C0_S: Final = 5e-3
_LEAST_UNIT: Final = 1e-18
_MOST_UNIT: Final = 1e3


@record
class _Observation:
    """A mean over some steps, as it is learned from."""

    step_s: float
    steps: float
    """How many it counts for."""
    share: float
    """Part of them that had prefill."""
    prefill_tokens: float
    sequences: float
    kv_tokens: float
    attention: float


class StepLearner:
    """Learns the law of one engine."""

    __slots__ = (
        "_best",
        "_errors",
        "_fits",
        "_largest_batch",
        "_observations",
        "_ordered_errors",
        "_prior",
        "_recent",
        "_run",
        "_run_steps",
        "_shared",
        "_spread",
        "_steps_told",
        "_units",
        "_unreviewed",
        "jumps",
        "rejected",
        "steps",
    )

    def __init__(self, prior: SpeedLaw) -> None:
        self.steps = 0
        """Steps behind the observations taken."""
        self._steps_told = 0
        self.rejected = 0
        """Observations that made no sense."""
        self.jumps = 0
        """Times that the engine was found changed."""
        self._prior = prior
        self._units = _units_of(prior)
        """The prior's coefficients in seconds, by place."""
        self._spread = SPREAD
        self._largest_batch = 0.0
        """Most batch tokens in a step with prefill."""
        self._errors: deque[float] = deque()
        self._ordered_errors: list[float] = []
        self._recent: deque[_Observation] = deque(maxlen=LONGEST_RUN)
        self._run = 0
        """Large errors in a row: above 0 if the steps took longer than predicted, below if less long."""
        self._run_steps = 0.0
        self._best = FIRST_KNEE
        self._observations = 0.0
        """Their number, faded like them."""
        self._forget_all()

    def new_steps(self) -> int:
        """Steps behind the observations taken since this was asked last."""
        told, self._steps_told = self._steps_told, self.steps
        return self.steps - told

    @property
    def error(self) -> float | None:
        """Median relative error of the last predictions, each made before its observation; None while there are few."""
        ordered = self._ordered_errors
        return ordered[len(ordered) // 2] if len(ordered) >= LEAST_SCORED else None

    @property
    def is_trusted(self) -> bool:
        """True if enough steps were seen, and their times were predicted."""
        error = self.error
        return self.steps >= TRUSTED_STEPS and error is not None and error < TRUSTED_ERROR

    @property
    def knee_tokens(self) -> float:
        """Batch tokens at which the slope changes in the law as it is now; 0 if it does not change."""
        return self._fits[self._best].knee

    def observe(
        self,
        step_s: float,
        *,
        steps: int,
        prefill_tokens: float,
        prefill_steps: float,
        sequences: float,
        kv_tokens: float,
        attention: float,
    ) -> None:
        """Learn from the mean of some consecutive steps. What makes no sense is counted in `rejected`.

        Args:
            step_s: mean time of a step.
            steps: how many steps it is the mean of.
            prefill_tokens: mean prefill tokens per step, over all of them.
            prefill_steps: how many of them had prefill. The knee is about the batch of one step: these are taken to
                have shared the prefill evenly, the others to have had `sequences` tokens.
            sequences: mean decoding sequences.
            kv_tokens: mean KV tokens read.
            attention: mean of Σ chunk · (context before it + chunk ÷ 2).
        """
        if not (
            1 <= steps <= MOST_STEPS
            and SHORTEST_STEP_S <= step_s <= LONGEST_STEP_S
            and 0.0 <= prefill_tokens <= MOST_BATCH_TOKENS
            and 0.0 <= prefill_steps <= MOST_STEPS
            and 0.0 <= sequences <= MOST_BATCH_TOKENS
            and 0.0 <= kv_tokens <= MOST_KV_TOKENS
            and 0.0 <= attention <= MOST_ATTENTION
        ):
            self.rejected += 1
            return
        share = 0.0
        if prefill_tokens > 0.0:
            share = min(max(prefill_steps, 1.0) / steps, 1.0)
            batch = sequences + prefill_tokens / share
            if batch > self._largest_batch:
                self._largest_batch = batch
        self.steps += steps
        weight = steps if steps < HEAVIEST_STEPS else HEAVIEST_STEPS
        seen = _Observation(step_s, weight, share, prefill_tokens, sequences, kv_tokens, attention)
        error = self._learn(seen)
        self._recent.append(seen)
        self._score(abs(error))
        self._watch_for_jump(error, weight)

    def step_s(self, *, prefill_tokens: float, sequences: float, kv_tokens: float, attention: float) -> float:
        """Predicted time of one step with these contents."""
        fit = self._fits[self._best]
        share = 1.0 if prefill_tokens > 0.0 else 0.0
        row = self._row(sequences, kv_tokens, attention)
        self._split(row, fit.knee, share, prefill_tokens, sequences)
        return fit.predict(row)

    def law(self, *, kv_tokens: int | None = None, max_requests: int | None = None) -> SpeedLaw:
        """The law in the form that costs are computed from. Before the first observation it is the prior.

        c1 is the slope above the knee, unless there was prefill and none of it got there.

        Args:
            kv_tokens: KV capacity; None takes the prior's.
            max_requests: sequences at once; None takes the prior's.
        """
        prior = self._prior
        capacity = prior.kv_tokens if kv_tokens is None else kv_tokens
        slots = prior.max_requests if max_requests is None else max_requests
        if not self.steps:
            c0, c1, c2, c3, c4 = prior.c0_s, prior.c1_s, prior.c2_s, prior.c3_s, prior.c4_s
            return SpeedLaw(c0, c1, c2, c3, c4, kv_tokens=capacity, max_requests=slots)
        fit, units = self._fits[self._best], self._units
        beta = fit.beta
        high = units[HIGH] * beta[HIGH]
        low = units[LOW] * beta[LOW] if fit.knee else high
        return SpeedLaw(
            c0_s=units[BASE] * beta[BASE],
            c1_s=low if 0.0 < self._largest_batch <= fit.knee else high,
            c2_s=low + units[EACH] * beta[EACH],
            c3_s=units[KV] * beta[KV],
            c4_s=units[ATTENTION] * beta[ATTENTION],
            kv_tokens=capacity,
            max_requests=slots,
        )

    def _row(self, sequences: float, kv_tokens: float, attention: float) -> list[float]:
        """What the steps had in them, in seconds of the prior; without the split at a knee."""
        u = self._units
        return [0.0, u[BASE], u[EACH] * sequences, u[KV] * kv_tokens, u[ATTENTION] * attention, 0.0, 0.0]

    def _split(self, row: list[float], knee: float, share: float, prefill: float, sequences: float) -> None:
        """Put the mean batch tokens below and above a knee into a row; `share` of the steps have prefill."""
        low = sequences if sequences < knee else knee
        if share > 0.0:
            batch = sequences + prefill / share
            low += share * ((batch if batch < knee else knee) - low)
        units = self._units
        row[LOW] = units[LOW] * low
        row[HIGH] = units[HIGH] * (sequences + prefill - low)

    def _learn(self, seen: _Observation) -> float:
        """Add an observation to all regressions. Returns by what part of its time it took longer than predicted."""
        fits = self._fits
        best = fits[self._best]
        step_s, weight = seen.step_s, seen.steps
        row = self._row(seen.sequences, seen.kv_tokens, seen.attention)
        self._split(row, best.knee, seen.share, seen.prefill_tokens, seen.sequences)
        predicted = best.predict(row)
        # Relative to the larger of the two, so that neither a step of no time nor a law of none weighs without bound.
        size = step_s if step_s > predicted else predicted
        decay: float = FORGETTING**weight
        usual = self.error
        if usual is not None:
            limit = max(HUBER * usual, LEAST_HUBER)
            off = abs(step_s - predicted) / size
            if off > limit:
                weight *= limit / off
        row = [value / size for value in row]
        row[TIME] = step_s / size
        add_row(self._shared, row, weight, decay)
        for fit in fits:
            self._split(row, fit.knee, seen.share, seen.prefill_tokens, seen.sequences)
            row[LOW] /= size
            row[HIGH] /= size
            add_row(fit.own, row, weight, decay)
        self._observations = self._observations * decay + 1.0
        self._unreviewed += 1
        if self._unreviewed < REVIEWED_EVERY:
            best.solve(self._spread, self._observations)
        else:
            self._review()
        return (step_s - predicted) / step_s

    def _review(self) -> None:
        """Solve for every knee, and take the one that fits clearly best."""
        self._unreviewed = 0
        fits = self._fits
        for fit in fits:
            fit.solve(self._spread, self._observations)
        # Differences far below the usual noise are those of the penalty.
        even = 0.1 * USUAL_NOISE * self._observations
        least = (fits[self._best].misfit + even) * math.exp(-KNEE_EVIDENCE / self._observations)
        for place, fit in enumerate(fits):
            if fit.misfit + even < least:
                least = fit.misfit + even
                self._best = place

    def _score(self, error: float) -> None:
        """Keep an error among the last ones."""
        errors, ordered = self._errors, self._ordered_errors
        errors.append(error)
        insort(ordered, error)
        if len(errors) > ERRORS_KEPT:
            del ordered[bisect_left(ordered, errors.popleft())]

    def _watch_for_jump(self, error: float, weight: float) -> None:
        """Count large errors in a row, and start again when there are too many."""
        usual = self.error
        if usual is None:
            return
        limit = min(max(JUMP_FACTOR * usual, LEAST_JUMP), MOST_JUMP)
        # Half the predicted time is as far off as twice: both are an error of a half of the longer.
        off = error if error > 0.0 else error / (1.0 - error)
        sign = 1 if off > limit else -1 if off < -limit else 0
        if sign * self._run <= 0:
            self._run = 0
            self._run_steps = 0.0
        self._run += sign
        self._run_steps += weight if sign else 0.0
        if self._run_steps >= JUMP_STEPS and abs(self._run) >= JUMP_OBSERVATIONS:
            self._start_again()

    def _start_again(self) -> None:
        """The engine has changed: what was learned becomes the prior, and only the run just seen is learned from."""
        self.jumps += 1
        beta, units = self._fits[self._best].beta, self._units
        least = _LEAST_LEARNED * max(beta)
        for place in range(BASE, SIZE):
            units[place] = min(max(units[place] * max(beta[place], least), _LEAST_UNIT), _MOST_UNIT)
        if not self._fits[self._best].knee:
            units[LOW] = units[HIGH]
        self._spread = LEARNED_SPREAD
        self._errors.clear()
        self._ordered_errors.clear()
        # The first of the run may be a mean over the moment of the change.
        since = max(len(self._recent) - abs(self._run) + 1, 0)
        self._run = 0
        self._run_steps = 0.0
        self._forget_all()
        for number, seen in enumerate(self._recent):
            if number >= since:
                self._learn(seen)

    def _forget_all(self) -> None:
        """No observations, and the law is the prior."""
        self._shared = [[0.0] * (place + 1) for place in range(SHARED)]
        self._fits = [StepFit(knee, self._shared) for knee in KNEES]
        self._observations = 0.0
        self._unreviewed = 0


def _units_of(prior: SpeedLaw) -> list[float]:
    """The prior's coefficients by place, with a knee, none of them 0."""
    low = LOW_SHARE * prior.c1_s
    base = prior.c0_s if prior.c0_s > 0.0 else _USUAL_C0_S
    given = [0.0, base, prior.c2_s - low, prior.c3_s, prior.c4_s, low, prior.c1_s]
    return [
        min(max(value, _LEAST_SHARE * base * usual, _LEAST_UNIT), _MOST_UNIT)
        for value, usual in zip(given, _USUAL, strict=True)
    ]
