"""What engine is modelled (`EngineProfile`, measured) and how it was started (`EngineConfig`, chosen).

A profile is one model on one kind of GPU. A config is what an operator would give on an engine's command line;
`EngineConfig.from_profile` fills in what is left out, and refuses what a real engine would refuse to start with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from forebay.enginemodel.errors import MisuseError
from forebay.enginemodel.law import StepLaw


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One measured engine."""

    name: str
    model: str
    """Name under which the engine serves its model."""
    gpu: str
    gpus: int
    """GPUs of one engine (tensor parallel)."""
    weights: str
    """Number format of the weights: bf16, fp8."""
    kv_dtype: str
    law: StepLaw
    kv_tokens: int
    """Tokens that the KV cache holds."""
    block_size: int
    """Tokens in a KV block."""
    max_num_seqs: int
    max_num_batched_tokens: int
    context_tokens: int
    """Longest prompt plus answer that the model allows."""
    source: str
    """Where the numbers come from, and their licence."""
    fit_error_pct: float | None = None
    """Mean error of the law on the points that it was fitted to."""
    mixed_fit_error_pct: float | None = None
    """The same on held-out steps that mix prefill and decode."""

    def __post_init__(self) -> None:
        counts = {
            "gpus": self.gpus,
            "kv_tokens": self.kv_tokens,
            "block_size": self.block_size,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "context_tokens": self.context_tokens,
        }
        for name, value in counts.items():
            if value < 1:
                raise MisuseError(f"profile {self.name}: {name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine is started."""

    kv_blocks: int
    """KV blocks; all of them are usable."""
    block_size: int
    """Tokens in a KV block."""
    max_num_seqs: int
    """Sequences that run at once."""
    max_num_batched_tokens: int
    """Tokens that one step computes at most: decoding sequences plus prefill chunks."""
    context_tokens: int
    """Longest prompt plus answer. A single request of this length fits the KV cache."""
    prefix_caching: bool = True
    """Keep the blocks of ended requests and reuse those whose tokens come again."""
    watermark: float = 0.0
    """Part of the blocks that the admission of a waiting request must leave free (not its later growth). vLLM's
    default is 0: prompts are let in until the cache is full, and preempted as the answers grow."""

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "context_tokens"):
            value = int(getattr(self, name))
            if value < 1:
                raise MisuseError(f"{name} must be at least 1, got {value}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise MisuseError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running sequence computes one token per step"
            )
        if self.context_tokens > self.kv_tokens:
            raise MisuseError(
                f"a request of context_tokens ({self.context_tokens}) does not fit the KV cache of {self.kv_tokens} "
                f"tokens: lower the context or raise kv_tokens"
            )
        if not 0.0 <= self.watermark < 1.0:
            raise MisuseError(f"watermark must be at least 0 and below 1, got {self.watermark}")

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_size

    @classmethod
    def from_profile(
        cls,
        profile: EngineProfile,
        *,
        kv_tokens: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        context_tokens: int | None = None,
        prefix_caching: bool = True,
        watermark: float = 0.0,
    ) -> Self:
        """A config with the profile's values for everything that is None.

        `kv_tokens` is rounded down to whole blocks. A context that is not given is the model's, or the KV cache
        if that is smaller. Raises `MisuseError`, naming the fix, for values that cannot work together.
        """
        tokens = profile.kv_tokens if kv_tokens is None else kv_tokens
        if tokens < profile.block_size:
            raise MisuseError(
                f"kv_tokens must be at least one block of {profile.block_size} tokens, got {tokens}"
            )
        blocks = tokens // profile.block_size
        seqs = profile.max_num_seqs if max_num_seqs is None else max_num_seqs
        batched = profile.max_num_batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens
        if max_num_batched_tokens is None:
            batched = max(batched, seqs)
        context = (
            min(profile.context_tokens, blocks * profile.block_size)
            if context_tokens is None
            else context_tokens
        )
        return cls(
            kv_blocks=blocks,
            block_size=profile.block_size,
            max_num_seqs=seqs,
            max_num_batched_tokens=batched,
            context_tokens=context,
            prefix_caching=prefix_caching,
            watermark=watermark,
        )
