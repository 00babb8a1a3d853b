from __future__ import annotations

import json

import pytest

from forebay.admission.prompt_ratio import MODELS, PromptRatio, PromptRatios


def learned_of(*seen: tuple[int, int], times: int = 100) -> PromptRatio:
    """(bytes, tokens) of prompts, seen in turn so many times."""
    ratio = PromptRatio()
    for _ in range(times):
        for prompt_bytes, prompt_tokens in seen:
            ratio.observe(prompt_bytes, prompt_tokens)
    return ratio


def test_the_prior_is_four_bytes_a_token_and_a_short_template() -> None:
    """Before anything is known, 4000 bytes are taken for 1000 tokens and what a template adds."""
    assert 1008 == PromptRatio().estimate(4000)


def test_no_prompt_is_empty() -> None:
    """Even an empty prompt has tokens: chat templates see to that."""
    assert 8 == PromptRatio().estimate(0)
    assert 1 <= learned_of((4000, 1000)).estimate(0) <= 9


def test_a_few_prompts_outweigh_the_prior() -> None:
    """It weighs 500 tokens: after one prompt of a thousand the estimate is nearer to that prompt than to the prior."""
    ratio = learned_of((2000, 1000), times=1)
    assert 754 < ratio.estimate(2000) < 1000
    assert 1 == ratio.observations


def test_text_and_template_are_told_apart() -> None:
    """From prompts of two sizes: 30 tokens each time, and two bytes a token."""
    ratio = learned_of((200, 130), (4000, 2030))
    assert pytest.approx(30, abs=1) == ratio.template_tokens
    assert pytest.approx(2.0, rel=0.01) == ratio.bytes_per_token


def test_tiny_prompts_say_nothing_of_large_ones() -> None:
    """However many are nothing but template: text of 20 kB stays some 5000 tokens."""
    ratio = learned_of((4, 30), times=2000)
    assert 30 <= ratio.estimate(4) <= 32
    assert 4900 <= ratio.estimate(20_000) <= 5200


@pytest.mark.parametrize("prompt_bytes", [40, 300, 2000, 50_000])
def test_prompts_of_one_size_are_known_exactly(prompt_bytes: int) -> None:
    """Nobody can tell there what is text and what is template, and nobody needs to."""
    tokens = 20 + prompt_bytes // 2
    ratio = learned_of((prompt_bytes, tokens), times=3000)
    assert pytest.approx(tokens, rel=0.02) == ratio.estimate(prompt_bytes)


@pytest.mark.parametrize("together", [1, 10, 50])
def test_what_was_learned_follows_a_change(together: int) -> None:
    """Old prompts are forgotten, one by one or counted together: after 5000 of a new kind the old does not show."""
    ratio = PromptRatio()
    for prompt_bytes in (6000, 2000):
        for _ in range(5000 // together):
            ratio.observe(prompt_bytes * together, 1000 * together, together)
    assert pytest.approx(1000, rel=0.03) == ratio.estimate(2000)
    assert 10_000 == ratio.observations


def test_counted_together_is_as_one_by_one() -> None:
    """Prompts of two sizes, in windows of eight of one kind."""
    ratio = PromptRatio()
    for _ in range(40):
        ratio.observe(8 * 200, 8 * 130, 8)
        ratio.observe(8 * 4000, 8 * 2030, 8)
    assert pytest.approx(30, abs=1) == ratio.template_tokens
    assert pytest.approx(2.0, rel=0.01) == ratio.bytes_per_token


@pytest.mark.parametrize(
    ("prompt_bytes", "prompt_tokens"), [(0, 10), (10, 0), (-5, 10), (10, -5), (10, 1011), (2, 15_000)]
)
def test_nonsense_teaches_nothing(prompt_bytes: int, prompt_tokens: int) -> None:
    """A prompt without bytes or tokens, or with more tokens than its text can make (an image), is no evidence."""
    ratio = PromptRatio()
    ratio.observe(prompt_bytes, prompt_tokens)
    assert (4.0, 8.0, 0) == (ratio.bytes_per_token, ratio.template_tokens, ratio.observations)


def test_whatever_is_observed_stays_plausible() -> None:
    """Between a token a byte and one every eight, and a template of at most 100."""
    dense, sparse = learned_of((5000, 5900), (9, 1000)), learned_of((500_000, 10))
    assert (1.0, 100.0) == (dense.bytes_per_token, dense.template_tokens)
    assert 8.0 == sparse.bytes_per_token
    assert 0.0 <= sparse.template_tokens <= 8.0


def test_what_a_prompt_has_at_least_is_cautious() -> None:
    """A refusal for size rests on a quarter of the estimate at first, on half of it after 30 prompts."""
    assert 254 == learned_of((4000, 1016), times=29).at_least(4000)
    assert 500 == learned_of((4000, 1008), times=30).at_least(4000)


def test_odd_prompts_of_some_make_nobody_elses_too_large() -> None:
    """A token for each byte is what was learned, and still eight bytes are needed for one that is surely there."""
    ratio = learned_of((3000, 3000), times=1000)
    assert ratio.estimate(20_000) >= 19_000
    assert 2500 == ratio.at_least(20_000)


def test_it_comes_back_from_a_file() -> None:
    """What was exported gives the same estimates after a restore, by way of JSON."""
    ratio, again = learned_of((2000, 900), (100, 70), times=20), PromptRatio()
    again.restore(json.loads(json.dumps(ratio.export())))
    assert (ratio.bytes_per_token, ratio.template_tokens, 40) == (
        again.bytes_per_token,
        again.template_tokens,
        again.observations,
    )
    assert ratio.at_least(9000) == again.at_least(9000)


SUMS = [1.0, 2.0, 9.0, 1.0, 4.0]


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"sums": SUMS, "prior": 0.25},
        {"sums": SUMS, "observations": 1},
        {"sums": SUMS[:4], "prior": 0.25, "observations": 1},
        {"sums": [1.0, 9.0, 2.0, 1.0, 4.0], "prior": 0.25, "observations": 1},
        {"sums": [float("nan"), *SUMS[1:]], "prior": 0.25, "observations": 1},
        {"sums": [-1.0, *SUMS[1:]], "prior": 0.25, "observations": 1},
        {"sums": [10**400] * 5, "prior": 0.25, "observations": 1},
        {"sums": ["1"] * 5, "prior": 0.25, "observations": 1},
        {"sums": SUMS, "prior": 0, "observations": 1},
        {"sums": SUMS, "prior": 7.0, "observations": 1},
        {"sums": SUMS, "prior": 0.25, "observations": -1},
        {"sums": SUMS, "prior": 0.25, "observations": True},
        {"sums": SUMS, "prior": 0.25, "observations": 1.5},
    ],
    ids=str,
)
def test_it_takes_no_nonsense_back(state: object) -> None:
    """Whatever a state file holds, it is a fit or a ValueError that changes nothing."""
    ratio = learned_of((2000, 1000), times=1)
    before = ratio.export()
    with pytest.raises(ValueError, match=r"\w+: "):
        ratio.restore(state)
    assert before == ratio.export()


# Of each model


def learned(**bytes_each: int) -> PromptRatios:
    """A hundred prompts of 1000 tokens for each of these models, with so many bytes each."""
    ratios = PromptRatios()
    for model, prompt_bytes in bytes_each.items():
        for _ in range(100):
            ratios.observe(model, prompt_bytes, 1000)
    return ratios


def test_each_model_has_a_ratio_of_its_own() -> None:
    """Two vocabularies in one pool do not disturb each other."""
    ratios = learned(wide=5000, narrow=2000)
    assert pytest.approx(1000, rel=0.02) == ratios.of("wide").estimate(5000)
    assert pytest.approx(1000, rel=0.02) == ratios.of("narrow").estimate(2000)


def test_a_model_that_is_not_known_goes_by_all() -> None:
    """And begins there."""
    ratios = learned(wide=5000)
    assert ratios.of("other") is ratios.common
    assert pytest.approx(1000, rel=0.02) == ratios.of("other").estimate(5000)
    ratios.observe("other", 10, 10)
    assert pytest.approx(1000, rel=0.02) == ratios.of("other").estimate(5000)
    assert 1 == ratios.of("other").observations


def test_models_are_bounded_and_those_in_use_are_kept() -> None:
    """Clients choose names."""
    ratios = learned(used=2000)
    for number in range(3 * MODELS):
        ratios.observe(f"m{number}", 4000, 1000)
        ratios.observe("used", 2000, 1000)
    assert ratios.of("used") is not ratios.common
    assert ratios.of("m0") is ratios.common
    exported = ratios.export()["models"]
    assert isinstance(exported, list)
    assert MODELS == len(exported)


def test_ratios_of_models_come_back_from_a_file() -> None:
    """By way of JSON."""
    ratios, again = learned(wide=5000, narrow=2000), PromptRatios()
    again.restore(json.loads(json.dumps(ratios.export())))
    assert ratios.export() == again.export()
    assert ratios.of("narrow").estimate(999) == again.of("narrow").estimate(999)


GOOD = PromptRatio().export()


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"all": GOOD},
        {"all": GOOD, "models": {}},
        {"all": {}, "models": []},
        {"all": GOOD, "models": [{"model": "m"}]},
        {"all": GOOD, "models": [{**GOOD, "model": 7}]},
        {"all": GOOD, "models": [{**GOOD, "model": "m"}] * (MODELS + 1)},
    ],
    ids=str,
)
def test_ratios_take_no_nonsense_back(state: object) -> None:
    """Whatever a state file holds, it is ratios or a ValueError that changes nothing."""
    ratios = learned(wide=5000)
    before = ratios.export()
    with pytest.raises(ValueError, match=r"\w+: "):
        ratios.restore(state)
    assert before == ratios.export()


def test_a_prompt_has_a_token_for_sure() -> None:
    """A record that says that nought tokens were compared would be wrong of any prompt."""
    assert 1 == PromptRatio().at_least(1)
