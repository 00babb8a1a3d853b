"""YAML text to plain data, with places and without surprises."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.errors import ConfigError
from forebay.config.yaml_text import MAX_DOCUMENT_BYTES, key_text, parse_yaml


def problem(text: str) -> str:
    """The only problem with a text."""
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    (only,) = caught.value.problems
    return str(only)


def test_keys_and_items_have_places() -> None:
    """Each key and each list item is known by its line and column."""
    document = parse_yaml("a: 1\nb:\n  - c: 2\n  - [x, y]\n", "f.yaml")
    assert {"a": 1, "b": [{"c": 2}, ["x", "y"]]} == document.data
    assert (1, 1) == document.place(("a",))
    assert (3, 5) == document.place(("b", 0, "c"))
    assert (4, 9) == document.place(("b", 1, 1))
    assert (3, 5) == document.place(("b", 0, "missing", "deep"))


def test_problem_names_file_line_and_key() -> None:
    """A problem is written as compilers write theirs, with the key's path."""
    document = parse_yaml("pools:\n- gpus: x\n", "f.yaml")
    assert "f.yaml:2:3: pools[0].gpus: wrong" == str(document.problem(("pools", 0, "gpus"), "wrong"))


def test_key_given_twice_is_an_error() -> None:
    """The second of two equal keys does not silently win."""
    assert "f.yaml:2:1: a: given twice (first in line 1); keep one" == problem("a: 1\na: 2\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("~", None),
        ("", None),
        ("007", 7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("'1'", "1"),
        ("0x10", "0x10"),
        (".inf", ".inf"),
        ("1" * 30, float("1" * 30)),
    ],
)
def test_only_core_scalars_are_special(text: str, value: object) -> None:
    """Words and times of day stay text; only true, false, null and plain numbers are read as such."""
    assert {"k": value} == parse_yaml(f"k: {text}", "f.yaml").data


def test_merged_mappings_give_way_to_own_keys() -> None:
    """`<<` takes over a mapping's keys without replacing those written beside it."""
    text = "base: &b {x: 1, y: 2}\nown: {<<: *b, y: 3}\n"
    assert {"x": 1, "y": 3} == parse_yaml(text, "f.yaml").data["own"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a: [1", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
        ("a: 1\n--- \nb: 2", "not valid YAML"),
        ("a: !!python/object:os.system x", "cannot use the value"),
        ("a: !secret x", "cannot use the value"),
        ("[a]: 1", "not valid YAML|plain text"),
        ("? [a]\n: 1", "plain text"),
        ("a: *gone", "undefined alias"),
        ("a: &a {<<: *a}", "undefined alias|deep"),
        ("a: {<<: 3}", "mapping"),
        ("a: \x00", "not valid YAML"),
        ("[" * 5000, "deep"),
        ("a: &a [" + ", ".join(["1"] * 10) + "]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(8)), "too large"),
        ("x" * (MAX_DOCUMENT_BYTES + 1), "256 KiB"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_used_is_one_problem(text: str, hint: str) -> None:
    """Broken, hostile or oversized text is a short error, never a traceback and never an expansion."""
    message = problem(text)
    assert len(message) < 300
    assert any(part in message for part in hint.split("|"))


@given(st.text(alphabet="ab:-[]{}&*<>!|#'\"\n 1.~,?%@`", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever the text, the answer is data or a ConfigError."""
    with contextlib.suppress(ConfigError):
        parse_yaml(text, "f.yaml")


def test_key_paths_are_written_as_people_write_them() -> None:
    """Indexes are in brackets, keys after dots."""
    assert "pools[0].endpoints[2]" == key_text(("pools", 0, "endpoints", 2))
