"""Learned lengths: how many prompt tokens the bytes make, and how long answers are.

`PromptRatio` keeps a decayed mean of bytes per prompt token. `OutputLengths` keeps, per class, a decayed
histogram of output tokens in log-spaced bins; from it come the mean (what a request is expected to cost)
and a high quantile (what KV room is kept for it), both cut at the client's own limit.

Only finished answers are observed. An answer that was cut off says "at least this long", which a mean
cannot use; taking it as a length would teach that answers are short just when clients lose patience.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import mul
from typing import Final

PRIOR_BYTES_PER_TOKEN: Final = 4.0
"""English text with present vocabularies."""
PRIOR_TOKENS: Final = 2000.0
"""Weight of that prior, in tokens: a few requests outweigh it."""
RATIO_DECAY: Final = 0.999
TEMPLATE_TOKENS: Final = 1000
"""Most tokens that a chat template adds by itself. Text makes at most one token per byte: a prompt with more than both
held something that is not text, and would teach that every text is hundreds of times its size."""

PRIOR_OUTPUT_TOKENS: Final = 256
"""Expected answer before any was seen."""
RESERVE_QUANTILE: Final = 0.9
"""KV is kept for this quantile of the output: sums of independent answers stay well below the sum of these."""
TRUSTED_AFTER: Final = 30
"""Answers seen in a class before its quantile replaces the client's limit as the reserve."""
SUMMARISED_EVERY: Final = 32
"""Answers between two looks at the histogram, once trusted."""
LENGTH_DECAY: Final = 0.995
"""Per answer: the memory is about 200 answers."""
_EDGES: Final = tuple(round(2 ** (k / 4)) for k in range(4, 73))
"""Bin borders in tokens, 2 to 262,144, four bins an octave: a bin is 19 % wide."""
_UPPER: Final = (*_EDGES, 2 * _EDGES[-1])
_MIDDLES: Final = tuple((lower + upper) / 2 for lower, upper in zip((1, *_EDGES), _UPPER, strict=True))
_RESCALE_AT: Final = 1e12


class PromptRatio:
    """Bytes of prompt text per prompt token."""

    __slots__ = ("_bytes", "_tokens", "observations")

    def __init__(self) -> None:
        self._tokens = PRIOR_TOKENS
        self._bytes = PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN
        self.observations = 0

    @property
    def bytes_per_token(self) -> float:
        """The present estimate."""
        return self._bytes / self._tokens

    def observe(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn from one request whose true token count is known."""
        if prompt_bytes <= 0 or not 0 < prompt_tokens <= prompt_bytes + TEMPLATE_TOKENS:
            return
        self._bytes = self._bytes * RATIO_DECAY + prompt_bytes
        self._tokens = self._tokens * RATIO_DECAY + prompt_tokens
        self.observations += 1

    def estimate(self, prompt_bytes: int) -> int:
        """Expected prompt tokens, at least 1."""
        return round(prompt_bytes / (self._bytes / self._tokens)) or 1

    def at_least(self, prompt_bytes: int) -> int:
        """A count that the prompt very likely exceeds: what a refusal for size may rest on."""
        return int(self.estimate(prompt_bytes) / (2 if self.observations >= TRUSTED_AFTER else 4))


class _Histogram:
    """Decayed counts per bin. Old observations shrink by making new ones larger."""

    __slots__ = ("_increment", "_mass", "_reserve", "_weight", "counts", "observations")

    def __init__(self) -> None:
        self.counts = [0.0] * (len(_EDGES) + 1)
        self._increment = 1.0
        self.observations = 0
        self._weight: list[float] = []
        """Sums of the counts up to each bin; empty when they are to be worked out anew."""
        self._mass: list[float] = []
        """The same of the tokens in them."""
        self._reserve = 0
        """Upper border of the bin that holds the reserve quantile."""

    def observe(self, tokens: int) -> None:
        self.counts[bisect_left(_EDGES, tokens)] += self._increment
        self._increment /= LENGTH_DECAY
        self.observations += 1
        if self._increment > _RESCALE_AT:
            self.counts = [count / self._increment for count in self.counts]
            self._increment = 1.0
        # Estimates move little with one answer; recomputing them for each arrival would cost more than it gives.
        if self.observations % SUMMARISED_EVERY == 0 or self.observations < TRUSTED_AFTER:
            self._weight = []

    def summary(self, cap: int) -> tuple[int, int]:
        """(mean, reserve quantile) of min(length, cap)."""
        if not self._weight:
            self._summarise()
        uncut = bisect_right(_MIDDLES, cap)
        total = self._weight[-1]
        mean = (self._mass[uncut] + cap * (total - self._weight[uncut])) / total
        return round(mean) or 1, min(self._reserve, cap)

    def _summarise(self) -> None:
        """Add the counts up, so that a summary takes a bisection whatever the cap: caps differ with each prompt."""
        self._weight = list(accumulate(self.counts, initial=0.0))
        self._mass = list(accumulate(map(mul, self.counts, _MIDDLES), initial=0.0))
        index = bisect_left(self._weight, RESERVE_QUANTILE * self._weight[-1], 1) - 1
        self._reserve = _UPPER[index]


class OutputLengths:
    """Output tokens per answer, by class."""

    __slots__ = ("_by_class",)

    def __init__(self) -> None:
        self._by_class: dict[str, _Histogram] = {}

    def observe(self, class_name: str, output_tokens: int) -> None:
        """Learn from one finished answer (one sample)."""
        histogram = self._by_class.get(class_name)
        if histogram is None:
            histogram = self._by_class[class_name] = _Histogram()
        histogram.observe(output_tokens if output_tokens > 1 else 1)

    def expect(self, class_name: str, limit: int | None, room: int) -> tuple[int, int]:
        """Expected and reserved output tokens of one answer.

        Args:
            limit: the client's own limit; None when it set none.
            room: the most that can come (context window less prompt).
        """
        cap = room if limit is None or limit > room else limit
        if cap < 1:
            cap = 1
        histogram = self._by_class.get(class_name)
        if histogram is None or not histogram.observations:
            reserve = cap if limit is not None else min(cap, 2 * PRIOR_OUTPUT_TOKENS)
            return min(cap, PRIOR_OUTPUT_TOKENS), reserve
        mean, reserve = histogram.summary(cap)
        if histogram.observations < TRUSTED_AFTER:
            reserve = max(reserve, min(cap, limit if limit is not None else 2 * PRIOR_OUTPUT_TOKENS))
        return mean, reserve
