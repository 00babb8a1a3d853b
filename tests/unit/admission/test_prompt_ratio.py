from __future__ import annotations

import json

import pytest

from forebay.admission.prompt_ratio import MODELS, PromptRatio, PromptRatios


def test_the_prior_is_four_bytes_a_token() -> None:
    """Before anything is known, 4000 bytes are taken for 1000 tokens."""
    assert 1000 == PromptRatio().estimate(4000)


def test_no_prompt_is_empty() -> None:
    """Even an empty prompt has a token: chat templates see to that."""
    assert 1 == PromptRatio().estimate(0)


def test_one_observation_moves_the_ratio_by_its_weight() -> None:
    """The prior weighs 500 tokens: 1000 tokens of 2 bytes give (2000·0.999 + 2000) ÷ (500·0.999 + 1000)."""
    ratio = PromptRatio()
    ratio.observe(2000, 1000)
    assert pytest.approx(3998 / 1499.5) == ratio.bytes_per_token
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


def test_a_ratio_comes_back_from_a_file() -> None:
    """What was exported gives the same estimates after a restore, by way of JSON."""
    ratio, again = PromptRatio(), PromptRatio()
    for _ in range(40):
        ratio.observe(2000, 900)
    again.restore(json.loads(json.dumps(ratio.export())))
    assert (ratio.bytes_per_token, 40) == (again.bytes_per_token, again.observations)
    assert ratio.at_least(9000) == again.at_least(9000)


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"bytes": 10, "tokens": 0, "observations": 1},
        {"bytes": -10.0, "tokens": 10.0, "observations": 1},
        {"bytes": 1e9, "tokens": 1.0, "observations": 1},
        {"bytes": float("nan"), "tokens": 1.0, "observations": 1},
        {"bytes": 10**400, "tokens": 10**400, "observations": 1},
        {"bytes": "10", "tokens": 2, "observations": 1},
        {"bytes": True, "tokens": True, "observations": 1},
        {"bytes": 10, "tokens": 2, "observations": -1},
        {"bytes": 10, "tokens": 2, "observations": True},
        {"bytes": 10, "tokens": 2, "observations": 1.5},
    ],
)
def test_a_ratio_takes_no_nonsense_back(state: object) -> None:
    """Whatever a state file holds, it is a ratio or a ValueError that changes nothing."""
    ratio = PromptRatio()
    ratio.observe(2000, 1000)
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
    assert pytest.approx(5.0, rel=0.02) == ratios.of("wide").bytes_per_token
    assert pytest.approx(2.0, rel=0.02) == ratios.of("narrow").bytes_per_token


def test_a_model_that_is_not_known_goes_by_all() -> None:
    """And begins there."""
    ratios = learned(wide=5000)
    assert ratios.of("other") is ratios.common
    assert pytest.approx(5.0, rel=0.02) == ratios.of("other").bytes_per_token
    ratios.observe("other", 10, 10)
    assert 4.8 < ratios.of("other").bytes_per_token < 5.0
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
