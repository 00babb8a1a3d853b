from __future__ import annotations

import dataclasses
import inspect
from typing import get_args

import pytest

from forebay.admission import effects
from forebay.admission.effects import Effect

DECLARED = [
    value
    for _, value in inspect.getmembers(effects, dataclasses.is_dataclass)
    if inspect.isclass(value) and value.__module__ == effects.__name__
]


def test_the_union_holds_every_effect() -> None:
    """A driver that handles the union handles everything the core can ask for."""
    assert {kind.__name__ for kind in DECLARED} == {kind.__name__ for kind in get_args(Effect)}


@pytest.mark.parametrize("kind", DECLARED)
def test_effects_are_records(kind: type) -> None:
    """An effect has its declared fields and compares by them."""
    assert not kind.__dictoffset__  # no room for an attribute that was not declared
    assert kind.__dataclass_params__.eq  # type: ignore[attr-defined]
