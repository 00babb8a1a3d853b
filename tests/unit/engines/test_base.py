from __future__ import annotations

import pytest

from forebay.engines.base import positive


@pytest.mark.parametrize(("value", "expected"), [(5, 5), ("5", 5), ("0064", 64), (2**53, 2**53)])
def test_positive_numbers(value: object, expected: int) -> None:
    """Whole numbers above zero are taken, as numbers or as digits."""
    assert expected == positive(value)


@pytest.mark.parametrize(
    "value", [None, 0, -1, "", "-1", "None", "1.5", 1.5, True, "²", "9" * 40, 2**60, [], {}]
)
def test_anything_else_is_unknown(value: object) -> None:
    """Whatever is not plainly a positive whole number is unknown."""
    assert positive(value) is None
