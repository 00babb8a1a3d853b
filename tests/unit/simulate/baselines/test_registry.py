from __future__ import annotations

import pytest

from forebay.simulate.baselines.registry import BASELINES, numbers


@pytest.mark.parametrize(
    ("argument", "keys", "found"),
    [
        ("64", ("limit",), {"limit": 64}),
        ("limit=64", ("limit",), {"limit": 64}),
        ("rpm=6,tpm=100", ("rpm", "tpm"), {"rpm": 6, "tpm": 100}),
        ("tpm=100", ("rpm", "tpm"), {"tpm": 100}),
    ],
)
def test_numbers_are_read(argument: str, keys: tuple[str, ...], found: dict[str, int]) -> None:
    """Bare where there is one key, else by name."""
    assert found == numbers(argument, keys)


@pytest.mark.parametrize(
    "argument",
    ["", "x", "0", "-1", "1.5", "64,64", "9" * 40, "٣", "limit=", "other=3", "=3", "limit=3,limit=3"],
)
def test_nonsense_is_told(argument: str) -> None:
    """The message says what would be taken, and does not repeat a long argument."""
    with pytest.raises(ValueError, match="it takes a number behind a colon") as told:
        numbers(argument, ("limit",))
    assert len(str(told.value)) < 150


@pytest.mark.parametrize("name", ["least-request", "gradient2", "llm-d", "llm-d-static", "vtc"])
def test_those_without_numbers_take_none(name: str) -> None:
    """They say so."""
    with pytest.raises(ValueError, match="nothing behind a colon"):
        BASELINES[name][1]("3")


@pytest.mark.parametrize("name", ["static", "fixed-depth", "vllm-caps", "litellm", "kong", "token-bucket"])
def test_those_with_numbers_have_usual_ones(name: str) -> None:
    """A name alone will do; nonsense behind the colon is told."""
    assert callable(BASELINES[name][1](""))
    with pytest.raises(ValueError, match="it takes"):
        BASELINES[name][1]("many")
