"""Plain data from a state file, which may hold anything.

What is asked for is taken out by name and kind, or there is a ValueError that says what is off.
"""

from __future__ import annotations

from typing import Final

_LARGEST: Final = 1e12
"""No number in a state file is larger."""


def fields_of(value: object, what: str) -> dict[str, object]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError(f"{what}: not an object, but {type(value).__name__}")
    return value


def entries_of(value: object, what: str, most: int) -> list[dict[str, object]]:
    """A list of objects."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{what}: not a list of at most {most}")
    return [fields_of(entry, what) for entry in value]


def name_of(fields: dict[str, object], field: str) -> str:
    """A text among the fields of an object."""
    value = fields.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field}: not a name: {value!r:.80}")
    return value


def number_of(value: object, what: str) -> float:
    """A number of at least 0 that is neither infinite nor absurd."""
    # The bounds leave out what is not a number as well.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{what}: not a plausible number: {value!r:.80}")
    return float(value)
