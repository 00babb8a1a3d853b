"""What fits a GPU's memory: weights, and with what is left, KV cache.

    KV bytes of a token = 2 · layers · KV heads · head size · bytes of a number
    KV cache of a GPU   = memory · utilisation − its part of the weights − what a step needs besides

Four things are often left out, and each is a factor, not a per cent:

- *KV heads*, not attention heads: with grouped queries (GQA) there are 4 to 16 times fewer.
- Weights come first. Of an 80 GB GPU with a 70B model over four of them, half is weights.
- With tensor parallelism KV heads are split over the GPUs, until there is one a GPU; beyond that they are copied.
- A request holds prompt and answer *so far*, not the longest context that the model allows.

Held against the 13 profiles that come with Forebay it gives their KV tokens within 1 %. Not covered: layers with
sliding windows or without attention hold less (counted as full here, so the figure is low); LoRA adapters and other
models on the GPU take more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forebay.sizing.errors import SizingError
from forebay.sizing.gpus import Gpu

__all__ = ["NUMBER_BYTES", "SHAPES", "ModelShape", "kv_bytes_per_token", "kv_tokens", "weight_bytes"]

NUMBER_BYTES: Final[dict[str, float]] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
}
"""Bytes of a number. int4 weights carry scales besides; a few per cent that are not counted."""

_STEP_BYTES: Final = 2.5e9
"""Activations, CUDA graphs and the like, per GPU: what is missing between memory, weights and the KV cache that vLLM
reports, the same within 0.3e9 from a 46 GB to a 141 GB GPU and from 8B to 70B."""
_SMALL_STEP_PART: Final = 0.06
"""On a small GPU or slice it cannot be that much."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's sizes, in the words of its `config.json`."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    parameters: float
    embedding_parameters: float
    """Of these, embeddings and output head, which stay in 16 bits when the rest is quantised."""
    active_parameters: float
    """Those that one token uses; fewer than all in a mixture of experts."""
    latent_size: int = 0
    """Latent attention (MLA): what a layer keeps of a token in place of keys and values; 0 for others."""
    context_tokens: int = 131_072

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_size", "context_tokens"):
            if int(getattr(self, name)) < 1:
                raise SizingError(f"model {self.name}: {name} must be at least 1")
        if self.parameters <= 0 or not 0 <= self.embedding_parameters <= self.parameters:
            raise SizingError(f"model {self.name}: its number of parameters cannot be {self.parameters:g}")


SHAPES: Final[dict[str, ModelShape]] = {
    shape.name: shape
    for shape in (
        ModelShape("llama3-8b", 32, 4096, 32, 8, 128, 8.03e9, 1.05e9, 8.03e9),
        ModelShape("llama3-70b", 80, 8192, 64, 8, 128, 70.55e9, 2.10e9, 70.55e9),
        ModelShape("mistral-7b", 32, 4096, 32, 8, 128, 7.25e9, 0.27e9, 7.25e9, context_tokens=32_768),
        ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 8.19e9, 1.24e9, 8.19e9, context_tokens=40_960),
        ModelShape("qwen3-32b", 64, 5120, 64, 8, 128, 32.76e9, 1.56e9, 32.76e9, context_tokens=40_960),
    )
}
"""Models whose shape is known by name; of others `config.json` is read."""


def kv_bytes_per_token(shape: ModelShape, kv_dtype: str, tensor_parallel: int = 1) -> float:
    """KV bytes that one token takes on one GPU."""
    number = _bytes_of(kv_dtype)
    if shape.latent_size:
        return shape.layers * shape.latent_size * number  # every GPU holds all of it
    heads = max(1.0, shape.kv_heads / tensor_parallel)
    return 2 * shape.layers * heads * shape.head_size * number


def weight_bytes(shape: ModelShape, weights: str, tensor_parallel: int = 1) -> float:
    """Bytes of weights on one GPU."""
    number = _bytes_of(weights)
    embeddings = shape.embedding_parameters * max(2.0, number)
    return ((shape.parameters - shape.embedding_parameters) * number + embeddings) / tensor_parallel


def kv_tokens(
    shape: ModelShape,
    gpu: Gpu,
    *,
    weights: str = "bf16",
    kv_dtype: str = "bf16",
    tensor_parallel: int = 1,
    utilization: float = 0.9,
) -> int:
    """Tokens that the KV cache of one engine holds. Raises `SizingError` if the weights leave no room.

    Args:
        utilization: part of the memory that the engine may use (`--gpu-memory-utilization`).
    """
    if tensor_parallel < 1 or shape.heads % tensor_parallel:
        raise SizingError(
            f"{shape.name} has {shape.heads} attention heads, which {tensor_parallel} GPUs cannot share evenly"
        )
    if not 0 < utilization <= 1:
        raise SizingError(f"the part of the GPU's memory must be above 0 and at most 1, got {utilization:g}")
    step = min(_STEP_BYTES, _SMALL_STEP_PART * gpu.memory_bytes)
    own_weights = weight_bytes(shape, weights, tensor_parallel)
    room = gpu.memory_bytes * utilization - own_weights - step
    tokens = int(room / kv_bytes_per_token(shape, kv_dtype, tensor_parallel))
    if tokens < 1:
        raise SizingError(
            f"{shape.name} in {weights} takes {own_weights / 1e9:.1f} GB of each GPU, and {gpu.name} has "
            f"{gpu.memory_bytes * utilization / 1e9:.1f} GB to give: no room for a KV cache. More GPUs "
            f"(tensor parallel), smaller numbers (fp8), or a larger GPU"
        )
    return tokens


def _bytes_of(dtype: str) -> float:
    number = NUMBER_BYTES.get(dtype)
    if number is None:
        raise SizingError(f"there is no number format {dtype!r}. Known: {', '.join(NUMBER_BYTES)}")
    return number
