"""The law of a step from times: exact where times are exact, and near where they are not."""

from __future__ import annotations

import random

import pytest

from forebay.enginemodel import StepLaw
from forebay.profiles import list_profiles, load_profile
from forebay.sizing.errors import SizingError
from forebay.sizing.fitting import Decoding, Prompt, errors_of, fit_law

GRID = [(count, context) for count in (1, 2, 4, 8, 16, 32, 64) for context in (32, 1000)]
PROMPTS = (16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def decoding_of(law: StepLaw, count: int, context: int, noise: float = 1.0) -> Decoding:
    """What a step of decoding takes by a law."""
    step_s = law.step_s(
        prefill_tokens=0, decoding=count, kv_tokens=count * context, prefill_attention=0, sequences=count
    )
    return Decoding(count, count * context, step_s * noise)


def prompt_of(law: StepLaw, tokens: int, chunk: int, overhead_s: float, noise: float = 1.0) -> Prompt:
    """What a prompt takes by a law, in chunks."""
    total_s, done = overhead_s, 0
    while done < tokens:
        size = min(chunk, tokens - done)
        total_s += law.step_s(
            prefill_tokens=size,
            decoding=0,
            kv_tokens=0,
            prefill_attention=size * (done + size / 2),
            sequences=1,
        )
        done += size
    return Prompt(tokens, total_s * noise)


@pytest.mark.parametrize("name", list_profiles())
def test_exact_times_give_the_law(name: str) -> None:
    """From exact times of every profile, those that were not told come out within 1.5 %, and the chunk is found."""
    law = load_profile(name).law
    fitted = fit_law(
        [decoding_of(law, count, context) for count, context in GRID],
        [prompt_of(law, tokens, 2048, 0.004) for tokens in PROMPTS],
    )
    assert fitted.chunk_tokens == 2048
    held_out = errors_of(
        fitted,
        [decoding_of(law, count, context) for count, context in ((3, 500), (12, 200), (48, 700))],
        [prompt_of(law, tokens, 2048, 0.004) for tokens in (200, 900, 2500, 6000)],
    )
    assert max(map(abs, held_out)) < 0.015


def test_noisy_times_give_it_nearly() -> None:
    """With 2 % of noise, predictions are within 3 %."""
    law, stream = load_profile("llama3-8b-h100x1-bf16").law, random.Random(2)
    fitted = fit_law(
        [decoding_of(law, count, context, stream.uniform(0.98, 1.02)) for count, context in GRID],
        [prompt_of(law, tokens, 2048, 0.004, stream.uniform(0.98, 1.02)) for tokens in PROMPTS],
        chunk_tokens=2048,
    )
    held_out = errors_of(
        fitted, [decoding_of(law, 12, 300), decoding_of(law, 48, 700)], [prompt_of(law, 900, 2048, 0.004)]
    )
    assert max(map(abs, held_out)) < 0.03


def test_no_number_is_below_zero() -> None:
    """However odd the times are."""
    stream = random.Random(7)
    fitted = fit_law(
        [Decoding(count, count * context, stream.uniform(0.01, 0.02)) for count, context in GRID],
        [Prompt(tokens, stream.uniform(0.01, 0.2)) for tokens in PROMPTS],
    )
    numbers = (
        fitted.t0,
        fitted.s_lo,
        fitted.s_hi,
        fitted.c_kv,
        fitted.f_attn,
        fitted.g_seq,
        fitted.overhead_ms,
    )
    assert min(numbers) >= 0


def test_too_few_times_are_refused() -> None:
    """Three of decoding are not enough."""
    law = load_profile("llama3-8b-h100x1-bf16").law
    with pytest.raises(SizingError, match="at least four"):
        fit_law([decoding_of(law, 1, 10)] * 3, [prompt_of(law, 10, 2048, 0)] * 3)
