from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forebay.admission.model import EngineKind
from forebay.engines import families
from forebay.engines.registry import FALLBACK, all_families, family_of


def test_each_family_has_one_kind() -> None:
    """No two modules speak for one kind, and there is a fallback."""
    kinds = [family.kind for family in all_families()]
    assert sorted(set(kinds), key=lambda kind: kind.value) == sorted(kinds, key=lambda kind: kind.value)
    assert FALLBACK in kinds


def test_every_kind_has_its_family() -> None:
    """Whatever can be configured as an engine is served by a module of its own."""
    for kind in EngineKind:
        assert kind is family_of(kind).kind


def test_adding_a_file_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module put into the package is found without being named anywhere."""
    (tmp_path / "newcomer.py").write_text("class _Family:\n    kind = 'newcomer'\nFAMILY = _Family()\n")
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    all_families.cache_clear()
    try:
        assert "newcomer" in [str(family.kind) for family in all_families()]
    finally:
        monkeypatch.undo()
        all_families.cache_clear()
        sys.modules.pop(f"{families.__name__}.newcomer", None)
