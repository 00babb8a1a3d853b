from __future__ import annotations

from itertools import pairwise

import pytest

from forebay.admission.lengths import _EDGES, OutputLengths, PromptRatio

PLENTY = 100_000


def answers(*lengths: int, class_name: str = "standard") -> OutputLengths:
    """Lengths that have been seen, in this order."""
    seen = OutputLengths()
    for length in lengths:
        seen.observe(class_name, length)
    return seen


def test_the_prior_is_four_bytes_a_token() -> None:
    """Before anything is known, 4000 bytes are taken for 1000 tokens."""
    assert 1000 == PromptRatio().estimate(4000)


def test_no_prompt_is_empty() -> None:
    """Even an empty prompt has a token: chat templates see to that."""
    assert 1 == PromptRatio().estimate(0)


def test_one_observation_moves_the_ratio_by_its_weight() -> None:
    """The prior weighs 2000 tokens: 1000 tokens of 2 bytes give (8000·0.999 + 2000) ÷ (2000·0.999 + 1000)."""
    ratio = PromptRatio()
    ratio.observe(2000, 1000)
    assert pytest.approx(9992 / 2998) == ratio.bytes_per_token
    assert 1 == ratio.observations


def test_the_ratio_is_learned() -> None:
    """A language with two bytes a token is known after a hundred prompts."""
    ratio = PromptRatio()
    for _ in range(100):
        ratio.observe(2000, 1000)
    assert pytest.approx(2.0, rel=0.05) == ratio.bytes_per_token


def test_the_ratio_follows_a_change() -> None:
    """Old prompts are forgotten: after 5000 of a new kind the old kind does not show."""
    ratio = PromptRatio()
    for _ in range(5000):
        ratio.observe(6000, 1000)
    for _ in range(5000):
        ratio.observe(2000, 1000)
    assert pytest.approx(2.0, rel=0.02) == ratio.bytes_per_token


@pytest.mark.parametrize(
    ("prompt_bytes", "prompt_tokens"), [(0, 10), (10, 0), (-5, 10), (10, -5), (10, 1011), (2, 15_000)]
)
def test_nonsense_teaches_no_ratio(prompt_bytes: int, prompt_tokens: int) -> None:
    """A prompt without bytes or tokens, or with more tokens than its text can make (an image), is no evidence."""
    ratio = PromptRatio()
    ratio.observe(prompt_bytes, prompt_tokens)
    assert (4.0, 0) == (ratio.bytes_per_token, ratio.observations)


def test_what_a_prompt_has_at_least_is_cautious_until_learned() -> None:
    """A refusal for size rests on a quarter of the estimate at first, on half of it after 30 prompts."""
    ratio = PromptRatio()
    for _ in range(29):
        ratio.observe(4000, 1000)
    assert 250 == ratio.at_least(4000)
    ratio.observe(4000, 1000)
    assert 500 == ratio.at_least(4000)


@pytest.mark.parametrize(
    ("limit", "room", "expected"),
    [
        (None, PLENTY, (256, 512)),
        (100, PLENTY, (100, 100)),
        (4000, PLENTY, (256, 4000)),
        (4000, 2000, (256, 2000)),
        (None, 50, (50, 50)),
        (0, PLENTY, (1, 1)),
    ],
)
def test_the_prior_of_answers(limit: int | None, room: int, expected: tuple[int, int]) -> None:
    """Unknown answers are expected at 256 tokens; the client's limit, or else 512, is kept room for."""
    assert expected == OutputLengths().expect("standard", limit, room)


def test_the_mean_is_learned() -> None:
    """Forty answers of 100 tokens are expected to be followed by one of about 100, within a bin of 19 %."""
    mean, reserved = answers(*[100] * 40).expect("standard", None, PLENTY)
    assert pytest.approx(100, rel=0.1) == mean
    assert 100 <= reserved <= 119


def test_the_reserve_is_a_high_quantile() -> None:
    """Room is kept for nine in ten answers: one long one in five counts, one in twenty does not."""
    often = answers(*[1000 if index % 5 == 0 else 100 for index in range(200)])
    seldom = answers(*[1000 if index % 20 == 0 else 100 for index in range(200)])
    assert 1000 <= often.expect("standard", None, PLENTY)[1] <= 1190
    assert 100 <= seldom.expect("standard", None, PLENTY)[1] <= 119


def test_the_client_limit_cuts_both() -> None:
    """Neither the expectation nor the reserve is ever above the client's limit or the room that is left."""
    seen = answers(*[1000] * 100)
    assert (50, 50) == seen.expect("standard", 50, PLENTY)
    assert (60, 60) == seen.expect("standard", 4000, 60)


def test_the_limit_shapes_the_mean() -> None:
    """A limit is applied to each answer seen, not to their mean: half 10, half 1000, cut at 100, is about 55."""
    seen = answers(*[10, 1000] * 100)
    assert pytest.approx(55, rel=0.1) == seen.expect("standard", 100, PLENTY)[0]


def test_the_limit_stays_reserved_until_enough_is_seen() -> None:
    """Thirty answers must agree before less room is kept than the client asked for."""
    few = answers(*[10] * 29)
    assert 2000 == few.expect("standard", 2000, PLENTY)[1]
    assert 512 == few.expect("standard", None, PLENTY)[1]
    few.observe("standard", 10)
    assert few.expect("standard", 2000, PLENTY)[1] <= 12


def test_old_answers_fade() -> None:
    """After 600 short answers the 300 long ones before them weigh little."""
    mean, reserved = answers(*[1000] * 300, *[10] * 600).expect("standard", None, PLENTY)
    assert mean < 100
    assert reserved <= 12


def test_ten_thousand_answers_keep_the_numbers_sane() -> None:
    """The growing weights are scaled back, and what is expected does not move by that."""
    few, many = answers(*[64] * 40), answers(*[64] * 12_000)
    assert few.expect("standard", None, PLENTY) == many.expect("standard", None, PLENTY)


def test_classes_are_learned_apart() -> None:
    """What batch jobs answer says nothing about chats."""
    seen = answers(*[4000] * 40, class_name="batch")
    assert (256, 512) == seen.expect("standard", None, PLENTY)
    assert pytest.approx(4000, rel=0.1) == seen.expect("batch", None, PLENTY)[0]


def test_an_answer_has_at_least_one_token() -> None:
    """An empty answer counts as one token, and what is expected is never zero."""
    mean, reserved = answers(*[0] * 40).expect("standard", None, PLENTY)
    assert (1, 1) <= (mean, reserved) <= (2, 2)


def test_an_endless_answer_is_counted() -> None:
    """Answers beyond the last bin border are expected to be long again, and the client's limit still cuts them."""
    seen = answers(*[1_000_000] * 40)
    assert seen.expect("standard", None, 10**9)[0] >= 262_144
    assert (500, 500) == seen.expect("standard", 500, 10**9)


def test_any_limit_cuts_every_bin_alike() -> None:
    """What is expected under a limit is the mean over all bins, each cut at it, whatever the limit."""
    seen = answers(*[3 * k * k + 1 for k in range(64)])
    histogram = seen._by_class["standard"]
    edges = (1, *_EDGES, 2 * _EDGES[-1])
    middles = [(lower + upper) / 2 for lower, upper in pairwise(edges)]
    for limit in (1, 2, 3, 50, 999, 20_000, 10**6):
        cut = sum(count * min(middle, limit) for count, middle in zip(histogram.counts, middles, strict=True))
        mean, reserved = seen.expect("standard", limit, 10**9)
        assert mean == max(1, round(cut / sum(histogram.counts)))
        assert 1 <= reserved <= limit
