from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.patterns import first_granted, fits, fits_any


@pytest.mark.parametrize(
    ("name", "pattern", "does"),
    [
        ("llama", "llama", True),
        ("llama", "llam", False),
        ("", "*", True),
        ("ft-1", "ft-*", True),
        ("axxbyc", "a*b*c", True),
        ("axxc", "a*b*c", False),
        ("a", "a*a", False),
        ("aa", "a*a", True),
        ("m[1m]", "m[1m]", True),
        ("m1", "m[1m]", False),
        ("ab", "a?", False),
    ],
)
def test_a_star_is_anything_and_all_else_is_itself(name: str, pattern: str, does: bool) -> None:
    """Brackets and question marks are letters like others."""
    assert does is fits(name, pattern)


@given(st.text("ab", max_size=8), st.text("ab*", max_size=6))
def test_it_is_what_shells_mean(name: str, pattern: str) -> None:
    """Of patterns with stars only."""
    assert fnmatch.fnmatchcase(name, pattern) is fits(name, pattern)


def test_no_pattern_makes_a_name_costly() -> None:
    """Clients choose the names."""
    began_s = time.perf_counter()
    assert not fits("a" * 100_000, "*a" * 30 + "*b")
    assert time.perf_counter() - began_s < 0.1


def test_the_first_that_is_granted_is_a_name() -> None:
    """A pattern names nothing that could be asked for."""
    assert fits_any("b", ("a", "b*"))
    assert not fits_any("b", ())
    assert "small" == first_granted(("x-*", "big", "small"), ("s*",))
    assert "big" == first_granted(("x-*", "big", "small"), None)
    assert None is first_granted(("x-*", "big"), ("x-*",))
