from __future__ import annotations

from typing import Any

import pytest

from forebay.admission.plain_data import entries_of, fields_of, name_of, number_of


@pytest.mark.parametrize("value", [0, 1, 2.5, 1e12])
def test_numbers_are_taken_as_they_are(value: float) -> None:
    """From 0 to what may still be meant."""
    assert value == number_of(value, "it")


@pytest.mark.parametrize("value", [None, "1", True, -1, 1e13, float("nan"), float("inf"), 10**400, [1]])
def test_what_is_no_plausible_number_is_told(value: Any) -> None:
    """With its name, and not at any length."""
    with pytest.raises(ValueError, match=r"^it: .{1,120}$"):
        number_of(value, "it")


def test_objects_lists_and_names() -> None:
    """Each by its kind; lists up to a length."""
    assert fields_of({"a": 1}, "it") == {"a": 1}
    assert entries_of([{}, {"a": 1}], "it", 2) == [{}, {"a": 1}]
    assert name_of({"n": "x"}, "n") == "x"
    with pytest.raises(ValueError, match="it: not an object, but list"):
        fields_of([], "it")
    wrongs: list[object] = [{}, [1], [{}] * 3]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="it: "):
            entries_of(wrong, "it", 2)
    several: list[dict[str, object]] = [{}, {"n": 1}]
    for fields in several:
        with pytest.raises(ValueError, match="n: not a name"):
            name_of(fields, "n")
