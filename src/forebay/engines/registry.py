"""Which engine families there are: every module of `families`, found by looking.

A new family is one file there with a `FAMILY`; nothing else needs to be told. Order does not matter, since a family
claims only what can be no other's; the one without claims is the fallback.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from forebay.admission.model import EngineKind
from forebay.engines import families
from forebay.engines.base import EngineFamily

__all__ = ["FALLBACK", "all_families", "family_of"]

FALLBACK = EngineKind.OPENAI


@cache
def all_families() -> tuple[EngineFamily, ...]:
    """All families, by the name of their module."""
    names = sorted(module.name for module in pkgutil.iter_modules(families.__path__))
    return tuple(importlib.import_module(f"{families.__name__}.{name}").FAMILY for name in names)


def family_of(kind: EngineKind) -> EngineFamily:
    """The family of this kind."""
    return {family.kind: family for family in all_families()}[kind]
