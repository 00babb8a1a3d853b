"""How long an answer may become: one distribution of output tokens, as a snapshot that nothing changes any more.

L is the number of output tokens of one answer. The law is kept as S(x) = P(L > x) at the borders of log-spaced
bins (four an octave, single tokens below 8); inside a bin S falls in a straight line, so all lengths of a bin are
equally likely. L is a whole number, and the sums here are exact for that law:

    E[min(L, c)] = Σ S(x) for 0 <= x < c          E[min(L, c)²] = Σ (2x + 1)·S(x) for 0 <= x < c

Both are kept as running sums over the bins, so that any limit takes one bisection. A limit c (the client's own, or
the room that is left in the context window) turns all that is longer into a spike at c.

`learned_law` is the estimator: what was observed at a key, backed off to the law above it. `lengths` keeps the
observations and decides when a law is made anew.
"""

from __future__ import annotations

from bisect import bisect_right
from math import ceil, exp
from typing import Final

KNOTS: Final[tuple[int, ...]] = (0, 1, *dict.fromkeys(round(2 ** (k / 4)) for k in range(4, 73)), 2**19)
"""Borders of the bins in tokens: bin i holds the lengths above KNOTS[i] up to KNOTS[i + 1]. A bin is 19 % wide; the
last takes everything above 262,144."""
BINS: Final = len(KNOTS) - 1
_TABLED: Final = 4096
_BIN_OF: Final[tuple[int, ...]] = tuple(bisect_right(KNOTS, tokens) - 1 for tokens in range(_TABLED))
_WIDTHS: Final[tuple[int, ...]] = (*(KNOTS[i + 1] - KNOTS[i] for i in range(BINS)), 1)
"""One more than there are bins, as in the tables of a law: a limit beyond the last border needs no case of its own."""


def _weights() -> tuple[tuple[float, ...], ...]:
    """What S at the upper and the lower border of each bin adds to both sums: see the head of this module."""
    upper, lower, upper_square, lower_square = [], [], [], []
    for i in range(BINS):
        start, width = KNOTS[i], KNOTS[i + 1] - KNOTS[i]
        more, less = (width + 1) / 2, (width - 1) / 2
        pairs, share = width * (width - 1), (2 * width - 1) / (3 * width)
        upper.append(more)
        lower.append(less)
        upper_square.append((2 * start + 1) * more + pairs * (1 - share))
        lower_square.append((2 * start + 1) * less + pairs * share)
    return tuple(upper), tuple(lower), tuple(upper_square), tuple(lower_square)


_UPPER: Final[tuple[float, ...]] = _weights()[0]
_LOWER: Final[tuple[float, ...]] = _weights()[1]
_UPPER_SQUARE: Final[tuple[float, ...]] = _weights()[2]
_LOWER_SQUARE: Final[tuple[float, ...]] = _weights()[3]

PRIOR_OUTPUT_TOKENS: Final = 256
"""Expected answer before any was seen."""
PRIOR_WEIGHT: Final = 10.0
"""Answers that the prior counts for."""
_PRIOR_SCALE_TOKENS: Final = 253.64
"""Mean of the exponential body, which gives the whole law its mean of `PRIOR_OUTPUT_TOKENS`."""
_PRIOR_BODY: Final = 8.0
"""Scales after which the prior's tail begins, where one in 3000 is left: as S falls with 1/x² from there on, whoever
is in it is expected to go on for as long again. It makes no length impossible, and hardly shows in the moments."""


def bin_from(tokens: int) -> int:
    """The bin whose lower border is the last that is not above `tokens` (at least 0)."""
    return _BIN_OF[tokens] if tokens < _TABLED else bisect_right(KNOTS, tokens) - 1


class LengthLaw:
    """One distribution of output tokens. Limits (`cap`) are at least 1; lengths are counted per sample."""

    __slots__ = ("_mean", "_square", "_survival", "at_risk", "known_tokens")

    def __init__(self, survival: list[float], at_risk: list[float], evidence: float) -> None:
        """Add the sums up.

        Args:
            survival: S at each of `KNOTS`; from 1 falling to 0.
            at_risk: share of the evidence that was still being watched at each of `KNOTS`. Without answers that
                were cut off this is S itself.
            evidence: answers that the law rests on, those counted that stand for the law it was backed off to.
        """
        mean, square, mean_sums, square_sums = 0.0, 0.0, [0.0], [0.0]
        upper = survival[0]
        for i in range(BINS):
            lower = survival[i + 1]
            mean += _UPPER[i] * upper + _LOWER[i] * lower
            square += _UPPER_SQUARE[i] * upper + _LOWER_SQUARE[i] * lower
            mean_sums.append(mean)
            square_sums.append(square)
            upper = lower
        known = BINS
        while known > 1 and (survival[known - 1] <= 0 or evidence * at_risk[known - 1] < 1):
            known -= 1
        self._survival = (*survival, 0.0)
        self._mean = tuple(mean_sums)
        self._square = tuple(square_sums)
        self.at_risk = tuple(at_risk)
        self.known_tokens = KNOTS[known]
        """Up to here at least one answer was seen, or stood for by the prior. Beyond is nothing but guessing."""

    def knots(self) -> tuple[float, ...]:
        """S at each of `KNOTS`, and one 0 more."""
        return self._survival

    def survival(self, tokens: float) -> float:
        """P(L > tokens)."""
        if tokens <= 0:
            return 1.0
        i = bisect_right(KNOTS, tokens) - 1
        here = self._survival[i]
        return here - (here - self._survival[i + 1]) * (tokens - KNOTS[i]) / _WIDTHS[i]

    def survival_after(self, generated: int, more_tokens: float) -> float:
        """P(L > generated + more_tokens | L > generated): what a running answer is expected to do.

        Never divides by nothing: beyond what is known, a mean of as much again is spread as (g / (g + x))².
        """
        if more_tokens <= 0:
            return 1.0
        if generated < self.known_tokens:
            return self.survival(generated + more_tokens) / self.survival(generated)
        share = generated / (generated + more_tokens)
        return share * share

    def moments(self, cap: int) -> tuple[float, float]:
        """E[min(L, cap)] and E[min(L, cap)²] at the price of one."""
        if cap <= 1:
            return 1.0, 1.0
        i = bin_from(cap)
        lower = KNOTS[i]
        here = self._survival[i]
        count = cap - lower
        slope = (here - self._survival[i + 1]) / _WIDTHS[i]
        pairs = count * (count - 1)
        part = count * here - slope * pairs / 2
        return (
            self._mean[i] + part,
            self._square[i] + (2 * lower + 1) * part + pairs * (here - slope * (2 * count - 1) / 3),
        )

    def mean(self, cap: int) -> float:
        """E[min(L, cap)] in tokens."""
        return self.moments(cap)[0]

    def second_moment(self, cap: int) -> float:
        """E[min(L, cap)²] in tokens²."""
        return self.moments(cap)[1]

    def quantile(self, q: float, cap: int) -> int:
        """The least length x, cut at `cap`, with P(L <= x) >= q."""
        left = 1 - q
        low, high = 1, BINS
        while low < high:
            middle = (low + high) // 2
            if self._survival[middle] <= left:
                high = middle
            else:
                low = middle + 1
        here = self._survival[low - 1]
        if here <= left or cap <= 1:
            return 1
        width = _WIDTHS[low - 1]
        into = ceil((here - left) * width / (here - self._survival[low]))
        tokens = KNOTS[low - 1] + (into if into < width else width)
        return tokens if tokens < cap else cap

    def remaining_mean(self, generated: int, cap: int) -> float:
        """E[min(L, cap) − generated | L > generated]: tokens that a running answer has before it.

        Who has outlived all evidence is expected to go on for as long again, up to the limit.
        """
        left = cap - generated
        if left <= 0:
            return 0.0
        if generated <= 0:
            return self.moments(cap)[0]
        if generated >= self.known_tokens:
            return float(generated if generated < left else left)
        return (self.moments(cap)[0] - self.moments(generated)[0]) / self.survival(generated)


def learned_law(
    parent: LengthLaw, ended: list[float], cut: list[float], unit: float, pseudo_count: float
) -> LengthLaw:
    """What was observed at one key, backed off to `parent`.

    The estimator is Kaplan-Meier with a prior (Susarla and Van Ryzin, 1976). Each bin multiplies S by the share of
    those at risk in it that got through, and the parent's law S' takes part as κ = `pseudo_count` answers:

        S(next) ÷ S = (through + κ·S'(next)) ÷ (at risk + κ·S')

    Where nothing was cut off, that is the plain mixture (n·S_observed + κ·S') ÷ (n + κ). Where all that came so far
    were cut off, the parent's law goes on from there. It takes what cut an answer off to know nothing of how long
    the answer would have become.

    Args:
        ended: weight of the answers that ended in each bin.
        cut: weight of the answers cut off at the start of each bin: watched in all bins before, and not in it. It
            has one entry more than there are bins.
        unit: weight of one answer in both.
    """
    backing = pseudo_count * unit
    after = cut[BINS]
    through = [after] * BINS
    for i in range(BINS - 1, -1, -1):
        through[i] = after
        after += ended[i] + cut[i]
    total = after + backing
    theirs, watched = parent.knots(), parent.at_risk
    survival, at_risk, here = [1.0], [1.0], 1.0
    for i in range(BINS - 1):
        behind = through[i]
        here *= (behind + backing * theirs[i + 1]) / (behind + ended[i] + backing * theirs[i])
        survival.append(here)
        at_risk.append((behind - cut[i + 1] + backing * watched[i + 1]) / total)
    survival.append(0.0)
    at_risk.append(0.0)
    return LengthLaw(survival, at_risk, total / unit)


def _prior() -> LengthLaw:
    survival = []
    for tokens in KNOTS[:-1]:
        scales = tokens / _PRIOR_SCALE_TOKENS
        body = exp(-(scales if scales < _PRIOR_BODY else _PRIOR_BODY))
        survival.append(body if scales < _PRIOR_BODY else body * (_PRIOR_BODY / scales) ** 2)
    survival.append(0.0)
    return LengthLaw(survival, survival, PRIOR_WEIGHT)


PRIOR: Final = _prior()
"""The law before anything was seen: exponential, with a mean of `PRIOR_OUTPUT_TOKENS`."""
