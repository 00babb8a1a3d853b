"""Small engines with round numbers, for tests that compute by hand."""

from __future__ import annotations

from forebay.enginemodel import Engine, EngineConfig, EngineProfile, StepLaw

LAW = StepLaw(t0=10.0, n0=8, s_lo=1.0, s_hi=2.0, c_kv=0.01, f_attn=0.001, g_seq=0.1, h0=0.5, h1=0.25)


def profile(law: StepLaw = LAW) -> EngineProfile:
    """A profile whose law has round numbers."""
    return EngineProfile(
        name="toy",
        model="toy-model",
        gpu="none",
        gpus=1,
        weights="bf16",
        kv_dtype="bf16",
        law=law,
        kv_tokens=400,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=16,
        context_tokens=200,
        source="made up",
    )


def engine(
    *,
    kv_blocks: int = 100,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 16,
    context_tokens: int | None = None,
    prefix_caching: bool = False,
    watermark: float = 0.0,
    law: StepLaw = LAW,
) -> Engine:
    """An engine of 100 blocks of four tokens, or as asked."""
    config = EngineConfig(
        kv_blocks=kv_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        context_tokens=kv_blocks * block_size if context_tokens is None else context_tokens,
        prefix_caching=prefix_caching,
        watermark=watermark,
    )
    return Engine(profile(law), config)
