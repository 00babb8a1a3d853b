from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from forebay.enginemodel import EngineConfig
from forebay.profiles import DEFAULT_PROFILE, ProfileError, list_profiles, load_profile


def _document() -> dict[str, Any]:
    text = resources.files("forebay.profiles").joinpath("engine_profiles.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def _one() -> dict[str, Any]:
    one: dict[str, Any] = _document()["profiles"][DEFAULT_PROFILE]
    return one


def test_thirteen_profiles_come_with_the_package() -> None:
    """Every packaged profile loads, and an engine can be started from it."""
    names = list_profiles()
    assert (13, True) == (len(names), DEFAULT_PROFILE in names)
    for name in names:
        profile = load_profile(name)
        assert profile.name == name
        assert EngineConfig.from_profile(profile).kv_tokens <= profile.kv_tokens


def test_the_default_profile_has_the_measured_numbers() -> None:
    """The 8B model on one H100 takes 6.4 ms for an empty step and holds 445,872 tokens."""
    profile = load_profile(DEFAULT_PROFILE)
    assert (6.384, 512, 445_872, 16) == (
        profile.law.t0,
        profile.law.n0,
        profile.kv_tokens,
        profile.block_size,
    )
    assert profile.model == "llama3-8b"


def test_profiles_name_their_source_and_licence() -> None:
    """Whoever reads a profile can tell where its numbers come from."""
    source = load_profile(DEFAULT_PROFILE).source
    assert "aiconfigurator" in source
    assert "Apache-2.0" in source


def test_an_unknown_name_lists_the_known_ones() -> None:
    """A misspelt name is answered with the nearest and with all names."""
    with pytest.raises(ProfileError, match="did you mean llama3-8b-h100x1-bf16") as caught:
        load_profile("llama3-8b-h100x1-bf61")
    assert all(name in str(caught.value) for name in list_profiles())


def test_a_file_with_one_profile_is_read(tmp_path: Path) -> None:
    """A file that holds one profile object gives that profile, named after the file unless it has a name."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(_one() | {"kv_tokens": 1600}))
    profile = load_profile(str(path))
    assert ("mine", 1600, str(path)) == (profile.name, profile.kv_tokens, profile.source)


def test_one_of_several_in_a_file_is_picked_by_name(tmp_path: Path) -> None:
    """`FILE:NAME` picks a profile; without a name a file with several says which there are."""
    path = tmp_path / "several.json"
    path.write_text(json.dumps({"profiles": {"a": _one(), "b": _one() | {"gpus": 4}}}))
    assert load_profile(f"{path}:b").gpus == 4
    with pytest.raises(ProfileError, match=r":NAME with one of a, b"):
        load_profile(str(path))
    with pytest.raises(ProfileError, match="has no profile 'c'"):
        load_profile(f"{path}:c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_ms": None}, "step_ms: expected an object with t0, n0"),
        ({"step_ms": {"t0": "fast"}}, "step_ms.t0: expected a number, found text"),
        ({"kv_tokens": 1.5}, "kv_tokens: expected a whole number, found 1.5"),
        ({"kv_tokens": 0}, "kv_tokens must be at least 1"),
        ({"model": ""}, "model: expected text"),
        ({"gpus": True}, "gpus: expected a whole number, found true or false"),
        ({"fit_error_pct": []}, "fit_error_pct: expected a number, found a list"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """A wrong value in a file is refused with the path to it and what was expected."""
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(_one() | change))
    with pytest.raises(ProfileError, match=message):
        load_profile(str(path))


def test_numbers_that_make_no_law_are_refused(tmp_path: Path) -> None:
    """A negative slope is refused, and so is NaN, which JSON as Python reads it allows."""
    for bad in (-1.0, float("nan")):
        body = _one()
        body["step_ms"]["s_lo"] = bad
        path = tmp_path / "law.json"
        path.write_text(json.dumps(body))
        with pytest.raises(ProfileError, match="s_lo must be a finite number"):
            load_profile(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read as JSON"), ("[]", "a profile is a JSON object"), ("\xff", "JSON")],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Broken JSON, other JSON and other bytes are refused with the file's name."""
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ProfileError, match=message) as caught:
        load_profile(str(path))
    assert "broken.json" in str(caught.value)


def test_a_missing_file_is_named() -> None:
    """Something that looks like a path is answered as one."""
    with pytest.raises(ProfileError, match=r"no profile file nowhere/x\.json"):
        load_profile("nowhere/x.json")
