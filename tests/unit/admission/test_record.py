from __future__ import annotations

import dataclasses

import pytest

from forebay.admission.record import record


@record
class Parcel:
    """A record as any other."""

    number: int
    note: str = ""


def test_a_record_is_built_and_compared_by_its_fields() -> None:
    """Two records with the same fields are equal, and any other field makes them differ."""
    assert Parcel(1) == Parcel(1, "")
    assert Parcel(1) != Parcel(1, "x")


def test_a_record_has_its_fields_and_no_others() -> None:
    """A misspelt field is an error and does not hide beside the right one."""
    with pytest.raises(AttributeError):
        setattr(Parcel(1), "nmuber", 2)  # noqa: B010 - the type checker would see a plain assignment


def test_the_type_checker_sees_a_frozen_class() -> None:
    """The checker refuses the assignment below: were it to pass, the unused ignore would be its error."""
    parcel = Parcel(1)
    parcel.number = 2  # type: ignore[misc]
    assert dataclasses.replace(parcel, number=1) == Parcel(1)
