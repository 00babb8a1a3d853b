"""KV cache and weights, against figures worked by hand and the measured profiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.profiles import list_profiles, load_profile
from forebay.sizing.errors import SizingError
from forebay.sizing.gpus import GPUS, find_gpu
from forebay.sizing.memory import SHAPES, kv_bytes_per_token, kv_tokens, weight_bytes

SMALL, LARGE = SHAPES["llama3-8b"], SHAPES["llama3-70b"]


def test_kv_bytes_by_hand() -> None:
    """Two of 32 layers × 8 KV heads × 128 × 2 bytes: 131,072; a quarter with heads over four GPUs; half in fp8."""
    assert kv_bytes_per_token(SMALL, "bf16") == 131_072
    assert kv_bytes_per_token(LARGE, "bf16") == 327_680
    assert kv_bytes_per_token(LARGE, "bf16", 4) == 81_920
    assert kv_bytes_per_token(LARGE, "fp8") == 163_840


def test_grouped_queries_are_counted() -> None:
    """Counting attention heads, as articles do, would say eight times as much for a 70B."""
    all_heads = replace(LARGE, kv_heads=LARGE.heads)
    assert kv_bytes_per_token(all_heads, "bf16") == 8 * kv_bytes_per_token(LARGE, "bf16")


def test_heads_are_copied_beyond_one_a_gpu() -> None:
    """Eight KV heads over sixteen GPUs: each holds one, as over eight."""
    assert kv_bytes_per_token(LARGE, "bf16", 16) == kv_bytes_per_token(LARGE, "bf16", 8)


def test_latent_attention_holds_its_latent() -> None:
    """61 layers × 576 numbers × 2 bytes, on every GPU."""
    latent = replace(LARGE, layers=61, latent_size=576)
    assert kv_bytes_per_token(latent, "bf16", 8) == 61 * 576 * 2


def test_embeddings_stay_in_sixteen_bits() -> None:
    """In fp8 the 1.05e9 parameters of embeddings still take two bytes each."""
    assert weight_bytes(SMALL, "bf16") == pytest.approx(16.06e9)
    assert weight_bytes(SMALL, "fp8") == pytest.approx(6.98e9 + 2.10e9)


@pytest.mark.parametrize("name", list_profiles())
def test_kv_tokens_are_those_of_the_profiles(name: str) -> None:
    """Memory of the GPU, less weights, less what a step needs: within 1 % of the measured engines."""
    profile = load_profile(name)
    tokens = kv_tokens(
        SHAPES[profile.model],
        find_gpu(profile.gpu.removesuffix("_sxm")),
        weights=profile.weights,
        kv_dtype=profile.kv_dtype,
        tensor_parallel=profile.gpus,
    )
    assert tokens == pytest.approx(profile.kv_tokens, rel=0.01)


def test_a_mig_slice_has_its_part() -> None:
    """Half the memory of an A100 leaves an 8B model less than half its KV cache, since the weights are all there."""
    half = find_gpu("a100", "3g.40gb")
    assert half.memory_bytes == GPUS["a100"].memory_bytes // 2
    assert half.bf16_flops == pytest.approx(GPUS["a100"].bf16_flops * 3 / 7)
    assert kv_tokens(SMALL, half) < 0.4 * kv_tokens(SMALL, GPUS["a100"])


@pytest.mark.parametrize("name", [gpu.name for gpu in GPUS.values() if gpu.mig])
def test_every_slice_is_a_part(name: str) -> None:
    """A slice has some and at most all of its GPU, and the last is all of it."""
    whole = GPUS[name]
    parts = [find_gpu(name, mig).memory_bytes for mig in whole.mig]
    assert parts == sorted(parts)
    assert parts[-1] == whole.memory_bytes
    assert parts[0] == whole.memory_bytes // 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: kv_tokens(LARGE, GPUS["h100"]), "141.1 GB of each GPU"),
        (lambda: kv_tokens(LARGE, GPUS["h100"], tensor_parallel=3), "64 attention heads, which 3 GPUs"),
        (lambda: kv_tokens(SMALL, GPUS["h100"], weights="fp7"), "no number format 'fp7'"),
        (lambda: kv_tokens(SMALL, GPUS["h100"], utilization=1.2), "at most 1, got 1.2"),
        (lambda: find_gpu("h1000"), "no GPU 'h1000'. Known: a10g"),
        (lambda: find_gpu("h100", "5g.1gb"), "it has 1g.10gb"),
        (lambda: find_gpu("l4", "1g.5gb"), "cannot be split"),
        (lambda: replace(SMALL, kv_heads=0), "kv_heads must be at least 1"),
        (lambda: replace(SMALL, parameters=0), "parameters cannot be 0"),
    ],
)
def test_what_cannot_be_says_so(wrong: object, message: str) -> None:
    """Errors name what is wrong and what there is."""
    assert callable(wrong)
    with pytest.raises(SizingError, match=message):
        wrong()
