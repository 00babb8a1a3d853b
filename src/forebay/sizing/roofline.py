"""How fast an engine would be, from its model's shape and its GPU's data sheet alone.

A step without prompts reads all weights once and the KV cache of everything that runs; a prompt's tokens take two
operations per parameter. Real kernels reach a part of what the data sheet says: the parts below are what the 13
measured profiles that come with Forebay come to, and 70B over several GPUs pays for talking between them as well.

It is a first guess: the cost of a chat came within 10 % of those profiles (17 % at worst), that of a long prompt within
30 %. A profile, or
`forebay calibrate` on the machine itself, is better, and the gateway learns the rest.
"""

from __future__ import annotations

from typing import Final

from forebay.sizing.batching import Engine
from forebay.sizing.gpus import Gpu
from forebay.sizing.memory import ModelShape, kv_bytes_per_token, kv_tokens, weight_bytes

__all__ = ["roofline_engine"]

_WEIGHTS_PART: Final = 0.85
"""Of the memory bandwidth, when weights are read."""
_KV_PART: Final = 0.92
_FLOPS_PART: Final = 0.80
_FLOPS_PART_FP8: Final = 0.55
_TALK_S: Final = 20e-6
"""Per layer and doubling of the GPUs."""
_TALK_PART: Final = 0.2
"""Of a prompt's arithmetic, for each doubling of the GPUs."""
_HOST_S: Final = 0.4e-3
_HOST_SEQUENCE_S: Final = 0.05e-3
"""Host time of a step, and for each sequence of it, as in the profiles (h0, and h1 with the sequence's own work)."""
_LAYER_S: Final = 20e-6
"""Launching a layer's kernels."""
_CHUNK_TOKENS: Final = 2048


def roofline_engine(
    shape: ModelShape,
    gpu: Gpu,
    *,
    weights: str = "bf16",
    kv_dtype: str = "bf16",
    tensor_parallel: int = 1,
    utilization: float = 0.9,
) -> Engine:
    """An engine with that model on that many GPUs, with its KV cache. Raises `SizingError` if it does not fit."""
    tokens = kv_tokens(
        shape,
        gpu,
        weights=weights,
        kv_dtype=kv_dtype,
        tensor_parallel=tensor_parallel,
        utilization=utilization,
    )
    doublings = (tensor_parallel - 1).bit_length()
    fast = weights in {"fp8", "int8"} and gpu.fp8_flops > gpu.bf16_flops
    flops = gpu.fp8_flops * _FLOPS_PART_FP8 if fast else gpu.bf16_flops * _FLOPS_PART
    read_s = weight_bytes(shape, weights, tensor_parallel) / (gpu.bandwidth * _WEIGHTS_PART)
    return Engine(
        name=f"{shape.name} on {tensor_parallel} x {gpu.name}",
        c0_s=read_s + shape.layers * (_LAYER_S + doublings * _TALK_S) + _HOST_S,
        c1_s=2 * shape.active_parameters / tensor_parallel / flops * (1 + _TALK_PART * doublings),
        c2_s=_HOST_SEQUENCE_S,
        c3_s=kv_bytes_per_token(shape, kv_dtype, tensor_parallel) / (gpu.bandwidth * _KV_PART),
        kv_tokens=tokens,
        max_requests=256,
        chunk_tokens=_CHUNK_TOKENS,
        context_tokens=min(shape.context_tokens, tokens),
        gpus=tensor_parallel,
    )
