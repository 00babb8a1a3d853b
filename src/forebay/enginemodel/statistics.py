"""What the engine has done, in the terms of vLLM's metrics.

`Counters` is the engine's own running tally; `EngineStatistics` is the frozen view that leaves the package.
Two of vLLM's habits are kept because they matter to whoever learns from the numbers: a request's prompt counts
when its first token comes (once, also if it is preempted and recomputed), and the iteration histogram leaves out
steps that gave no token (a chunk of a long prompt, alone in its step). One habit is not kept: vLLM's preemption
counter grows when the preempted request gives its next token; this one grows at the preemption.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

ITERATION_TOKENS_BOUNDS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the iteration histogram: vLLM's."""


@dataclass(frozen=True, slots=True)
class IterationTokens:
    """Histogram over steps that gave a token: prompt tokens credited plus tokens given."""

    count: int
    sum: int
    buckets: tuple[int, ...]
    """Steps per bucket, not cumulated; one more than there are bounds, the last is everything above."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """The engine at one moment, and what it has done since it started."""

    running: int
    """Sequences in the batch, prefilling or decoding."""
    waiting: int
    """Sequences that have been submitted, or preempted, and are not in the batch."""
    kv_blocks: int
    kv_blocks_used: int
    """Blocks held by running sequences. Reusable blocks of ended requests are not in use."""
    kv_blocks_idle: int
    """Free blocks that hold reusable prefixes."""
    steps: int
    busy_s: float
    """Sum of the steps' times."""
    preemptions: int
    requests_admitted: int
    """Requests that entered the batch for the first time."""
    requests_finished: int
    requests_aborted: int
    prompt_tokens: int
    """Prompt tokens of requests that have given their first token."""
    prompt_tokens_cached: int
    """Those of them that were found in the prefix cache."""
    prefill_tokens: int
    """Tokens computed in prefill chunks, recomputation after preemption included."""
    generation_tokens: int
    prefix_queries_tokens: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits_tokens: int
    iteration_tokens: IterationTokens

    @property
    def kv_usage(self) -> float:
        """Part of the KV cache that is in use, 0 to 1."""
        return self.kv_blocks_used / self.kv_blocks


@dataclass(slots=True)
class Counters:
    """The running tally."""

    steps: int = 0
    busy_s: float = 0.0
    preemptions: int = 0
    requests_admitted: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prefill_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    iterations: int = 0
    iterations_sum: int = 0
    iteration_buckets: list[int] = field(default_factory=lambda: [0] * (len(ITERATION_TOKENS_BOUNDS) + 1))

    def count_iteration(self, tokens: int) -> None:
        """Add a step that gave at least one token to the histogram."""
        self.iterations += 1
        self.iterations_sum += tokens
        self.iteration_buckets[bisect_left(ITERATION_TOKENS_BOUNDS, tokens)] += 1
