from __future__ import annotations

from math import ceil

import pytest

from forebay.admission.cost import decode_us, estimate, prefill_us, true_work_us
from forebay.admission.length_law import BINS, KNOTS, PRIOR, LengthLaw, learned_law
from forebay.admission.model import Cost
from forebay.admission.settings import OPTIMISTIC_LAW, SpeedLaw

LAW = SpeedLaw(c0_s=0.01, c1_s=1e-4, c2_s=1e-3, c3_s=1e-7, c4_s=1e-9, kv_tokens=10_000, max_requests=50)
LONG = LengthLaw([1.0] * BINS + [0.0], [1.0] * BINS + [0.0], 1000.0)
"""Answers that go on to whatever limit there is: with it the limit is the length."""


def mixed(*lengths: int) -> LengthLaw:
    """The law of these lengths, each of a bin of its own size 1."""
    ended = [0.0] * BINS
    for length in lengths:
        ended[KNOTS.index(length) - 1] += 1
    return learned_law(PRIOR, ended, [0.0] * (BINS + 1), 1.0, 1e-9)


def of_length(
    output_tokens: int, *, prompt_tokens: int = 1000, cached_tokens: int = 0, samples: int = 1
) -> Cost:
    """The estimate where it is known how long each answer will be."""
    return estimate(
        LAW,
        LONG,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        cap=output_tokens,
        samples=samples,
        generates=True,
    )


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
    assert 215_500 == decode_us(LAW, 1000, 100, 100**2)


def test_decode_where_sequences_are_the_dominant_share() -> None:
    """w = 10·100 + 100²/2 = 6,000, and 100/N = 2 > w/M: 0.1 + 0.0006 + 0.02 s."""
    assert 120_600 == decode_us(LAW, 10, 100, 100**2)


def test_estimate_of_one_answer() -> None:
    """The work is prefill plus decode; an answer of 100 tokens holds 50 on average besides the prompt."""
    expected = Cost(
        work_us=100_500 + 215_500, prefill_us=100_500, kv_tokens=1050, prompt_tokens=1000, output_tokens=100
    )
    assert expected == of_length(100)


def test_estimate_of_several_answers() -> None:
    """Three samples pay one prefill and three decodes, and share the KV of the prompt."""
    expected = Cost(
        work_us=100_500 + 3 * 215_500,
        prefill_us=100_500,
        kv_tokens=1150,
        prompt_tokens=1000,
        output_tokens=300,
    )
    assert expected == of_length(100, samples=3)


def test_what_is_cached_is_held_but_not_charged() -> None:
    """With 200 tokens of the prompt cached the prefill is cheaper, and decode and KV are as before."""
    fresh, cached = of_length(100), of_length(100, cached_tokens=200)
    assert (80_480, 80_480 + 215_500) == (cached.prefill_us, cached.work_us)
    assert (fresh.kv_tokens, fresh.prompt_tokens) == (cached.kv_tokens, cached.prompt_tokens)


def test_the_second_moment_is_charged() -> None:
    """Answers of 1 and of 7 tokens: w = p·4 + 25/2, not p·4 + 4²/2. Their KV is 25 ÷ 8 on average, rounded up."""
    law = SpeedLaw(c0_s=0, c1_s=0, c2_s=0, c3_s=1e-3, c4_s=0, kv_tokens=10_000, max_requests=50)
    cost = estimate(law, mixed(1, 7), prompt_tokens=100, cached_tokens=0, cap=50, samples=1, generates=True)
    assert (412_500, 100 + 4, 4) == (cost.work_us, cost.kv_tokens, cost.output_tokens)


def test_estimates_are_the_mean_of_the_truth() -> None:
    """Over the answers that come, the estimate is what they cost in the end, whatever their spread."""
    lengths = [1, 2, 3, 3, 7, 8]
    cost = estimate(
        LAW, mixed(*lengths), prompt_tokens=5000, cached_tokens=0, cap=50, samples=1, generates=True
    )
    truth = [
        true_work_us(LAW, prompt_tokens=5000, cached_tokens=0, output_tokens=length, samples=1)
        for length in lengths
    ]
    assert pytest.approx(sum(truth) / len(truth), abs=1) == cost.work_us


def test_kv_is_what_is_held_on_average_over_all_steps() -> None:
    """Token by token: the answers 2 and 6 hold 0, 1 and 0 … 5 tokens and half of the one in the making: 40 ÷ 16."""
    held = [step + 0.5 for length in (2, 6) for step in range(length)]
    cost = estimate(LAW, mixed(2, 6), prompt_tokens=100, cached_tokens=0, cap=50, samples=1, generates=True)
    assert 100 + ceil(sum(held) / len(held)) == cost.kv_tokens


@pytest.mark.parametrize("cap", [1, 0, -7])
def test_the_shortest_answer_holds_a_token(cap: int) -> None:
    """However little room is left, an answer has one token and holds one."""
    cost = of_length(cap)
    assert (1001, 1) == (cost.kv_tokens, cost.output_tokens)


def test_estimate_of_an_embedding() -> None:
    """What generates nothing pays its prefill and one sequence's share of a step, and holds no KV."""
    expected = Cost(work_us=100_700, prefill_us=100_500, kv_tokens=0, prompt_tokens=1000, output_tokens=0)
    assert expected == estimate(
        LAW, LONG, prompt_tokens=1000, cached_tokens=0, cap=100, samples=1, generates=False
    )


def test_an_empty_embedding_is_not_free() -> None:
    """However small the prompt, a step is never free."""
    cost = estimate(LAW, LONG, prompt_tokens=0, cached_tokens=0, cap=1, samples=1, generates=False)
    assert 200 == cost.work_us


def test_true_work_of_several_answers() -> None:
    """The truth is priced as the estimate is: output is counted over all samples, the cache is not charged."""
    assert 80_480 + 3 * 215_500 == true_work_us(
        LAW, prompt_tokens=1000, cached_tokens=200, output_tokens=300, samples=3
    )


def test_true_work_of_an_exact_estimate_is_the_estimate() -> None:
    """A request that turns out as expected settles to the cost it was admitted at."""
    cost = of_length(60, prompt_tokens=700, cached_tokens=128, samples=2)
    assert cost.work_us == true_work_us(
        LAW, prompt_tokens=700, cached_tokens=128, output_tokens=120, samples=2
    )


def test_costs_are_whole_numbers() -> None:
    """The books hold integers, so costs are integers."""
    cost = estimate(
        OPTIMISTIC_LAW, PRIOR, prompt_tokens=777, cached_tokens=5, cap=4096, samples=3, generates=True
    )
    assert [int] * 5 == [
        type(value)
        for value in (cost.work_us, cost.prefill_us, cost.kv_tokens, cost.prompt_tokens, cost.output_tokens)
    ]


def test_a_full_batch_costs_its_step() -> None:
    """With N requests in the batch, one token each costs together c0 + N·c2: the fixed cost is shared out once."""
    law = SpeedLaw(c0_s=0.02, c1_s=0, c2_s=1e-3, c3_s=0, c4_s=0, kv_tokens=10**9, max_requests=50)
    assert 70_000 == 50 * decode_us(law, 10, 1, 1)
