from __future__ import annotations

import pytest

from forebay.admission.cost import decode_us, estimate, prefill_us, true_work_us
from forebay.admission.model import Cost
from forebay.admission.settings import OPTIMISTIC_LAW, SpeedLaw

LAW = SpeedLaw(c0_s=0.01, c1_s=1e-4, c2_s=1e-3, c3_s=1e-7, c4_s=1e-9, kv_tokens=10_000, max_requests=50)


def test_prefill_of_a_fresh_prompt() -> None:
    """1000 tokens take 1000·c1 + c4·1000²/2 = 0.1 s + 0.5 ms."""
    assert 100_500 == prefill_us(LAW, 1000)


def test_prefill_of_a_partly_cached_prompt() -> None:
    """With 200 of 1000 tokens cached: 800·c1 + c4·(1000² − 200²)/2 = 80 ms + 0.48 ms."""
    assert 80_480 == prefill_us(LAW, 1000, 200)


@pytest.mark.parametrize("cached", [1000, 5000])
def test_a_cached_prompt_is_free_and_never_pays_back(cached: int) -> None:
    """A prompt that is cached whole costs nothing, also when the engine claims to have cached more than it has."""
    assert 0 == prefill_us(LAW, 1000, cached)


def test_decode_where_kv_is_the_dominant_share() -> None:
    """w = 1000·100 + 100²/2 = 105,000: 100·c2 + w·c3 + c0·w/M = 0.1 + 0.0105 + 0.105 s."""
    assert 215_500 == decode_us(LAW, 1000, 100)


def test_decode_where_sequences_are_the_dominant_share() -> None:
    """w = 10·100 + 100²/2 = 6,000, and 100/N = 2 > w/M: 0.1 + 0.0006 + 0.02 s."""
    assert 120_600 == decode_us(LAW, 10, 100)


def test_estimate_of_one_answer() -> None:
    """The work is prefill plus decode of what is expected; KV is the prompt plus what is reserved."""
    expected = Cost(
        work_us=100_500 + 215_500, prefill_us=100_500, kv_tokens=1150, prompt_tokens=1000, output_tokens=100
    )
    assert expected == estimate(
        LAW, prompt_tokens=1000, expected_output=100, reserved_output=150, samples=1, generates=True
    )


def test_estimate_of_several_answers() -> None:
    """Three samples pay one prefill and three decodes, and share the KV of the prompt."""
    expected = Cost(
        work_us=100_500 + 3 * 215_500,
        prefill_us=100_500,
        kv_tokens=1450,
        prompt_tokens=1000,
        output_tokens=300,
    )
    assert expected == estimate(
        LAW, prompt_tokens=1000, expected_output=100, reserved_output=150, samples=3, generates=True
    )


def test_estimate_of_an_embedding() -> None:
    """What generates nothing pays its prefill and one sequence's share of a step, and holds no KV."""
    expected = Cost(work_us=100_700, prefill_us=100_500, kv_tokens=0, prompt_tokens=1000, output_tokens=0)
    assert expected == estimate(
        LAW, prompt_tokens=1000, expected_output=100, reserved_output=150, samples=1, generates=False
    )


def test_an_empty_embedding_is_not_free() -> None:
    """However small the prompt, a step is never free."""
    cost = estimate(LAW, prompt_tokens=0, expected_output=1, reserved_output=1, samples=1, generates=False)
    assert 200 == cost.work_us


def test_true_work_of_several_answers() -> None:
    """The truth is priced as the estimate is: output is counted over all samples, the cache is not charged."""
    assert 80_480 + 3 * 215_500 == true_work_us(
        LAW, prompt_tokens=1000, cached_tokens=200, output_tokens=300, samples=3
    )


def test_true_work_of_an_exact_estimate_is_the_estimate() -> None:
    """A request that turns out as expected settles to the cost it was admitted at."""
    cost = estimate(LAW, prompt_tokens=700, expected_output=60, reserved_output=90, samples=2, generates=True)
    assert cost.work_us == true_work_us(LAW, prompt_tokens=700, cached_tokens=0, output_tokens=120, samples=2)


def test_costs_are_whole_numbers() -> None:
    """The books hold integers, so costs are integers."""
    cost = estimate(
        OPTIMISTIC_LAW, prompt_tokens=777, expected_output=33, reserved_output=99, samples=1, generates=True
    )
    assert [int] * 5 == [
        type(value)
        for value in (cost.work_us, cost.prefill_us, cost.kv_tokens, cost.prompt_tokens, cost.output_tokens)
    ]


def test_a_full_batch_costs_its_step() -> None:
    """With N requests in the batch, one token each costs together c0 + N·c2: the fixed cost is shared out once."""
    law = SpeedLaw(c0_s=0.02, c1_s=0, c2_s=1e-3, c3_s=0, c4_s=0, kv_tokens=10**9, max_requests=50)
    assert 70_000 == 50 * decode_us(law, 10, 1)
