"""Outcomes and checks in words for people."""

from __future__ import annotations

import ast
import re

import pytest

from forebay.admission.outcomes import Group, Outcome
from forebay.admission.wording import CHECK_WORDS, OUTCOME_WORDS, number, two_numbers, words_of
from tests.tidy.sources import source_modules, tree_of


def checks_made() -> set[str]:
    """The names of all checks that the core makes: the first argument of `Check(…)` and of `….check(…)`."""
    found = set()
    for path in source_modules("admission"):
        constants = {
            target.id: node.value.value
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.AnnAssign)
            and isinstance(target := node.target, ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0]
            if called not in ("Check", "check"):
                continue
            if isinstance(name, ast.Constant):
                found.add(str(name.value))
            elif isinstance(name, ast.Name) and name.id in constants:
                found.add(str(constants[name.id]))
    return found


def test_every_check_has_its_words() -> None:
    """A check that is new is explained to whoever it refuses: give it an entry in `CHECK_WORDS`."""
    made = checks_made()
    assert len(made) > 20
    assert set() == made - set(CHECK_WORDS)


def test_every_remedy_can_be_filled_in() -> None:
    """With the names and numbers that are there."""
    for words in CHECK_WORDS.values():
        assert set(re.findall(r"\{(\w+)\}", words.remedy)) <= {"value", "limit", "pool", "class"}
        assert words.what


def test_every_outcome_that_is_told_has_its_words() -> None:
    """Those that went well, and those of which nobody is left to be told, need none."""
    silent = (Group.SERVED, Group.LEFT, Group.REJECTED)
    assert [] == [o for o in Outcome if o.group not in silent and o not in OUTCOME_WORDS]


def test_an_unknown_check_is_called_by_its_name() -> None:
    """Better than nothing."""
    assert "some new bound" == words_of("some_new_bound").what


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3.0, "3"), (0.12345, "0.123"), (12345.6, "12346"), (999.9, "1000"), (1e300, "1e+300")],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    """Three digits are enough for a person; large ones have no fraction."""
    assert shown == number(value)


def test_two_numbers_are_told_apart() -> None:
    """By as many digits as that takes."""
    assert ("1.23", "2") == two_numbers(1.2345, 2.0)
    assert ("1.00001", "1") == two_numbers(1.00001, 1.0)
    assert ("0.3", "0.3") == two_numbers(0.29991509400861105, 0.29991509400861105)
