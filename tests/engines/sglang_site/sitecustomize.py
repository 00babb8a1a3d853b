"""Stands in for `sgl_kernel`, SGLang's GPU kernels, which have no build for the CPU and which no test here comes to.

Python imports a module of this name at its start, so SGLang's child processes, which start anew, have it too.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

ABSENT = "sgl_kernel"


class Anything(type):
    """Classes that have every name, each of which is such a class."""

    def __getattr__(cls, name: str) -> Anything:
        found = named(name)
        setattr(cls, name, found)
        return found


def named(name: str) -> Anything:
    """A class that can be called with whatever, and does nothing."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(
        name, (), {"__init__": lambda *_, **__: None, "__class_getitem__": classmethod(lambda cls, _: cls)}
    )


class Absent(types.ModuleType):
    """A module that has every name."""

    __version__ = "0.0.0"
    __path__: list[str] = []  # noqa: RUF012 - as of a package

    def __getattr__(self, name: str) -> Anything:
        found = named(name)
        setattr(self, name, found)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds it and all below it."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Absent:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


sys.meta_path.insert(0, Finder())
