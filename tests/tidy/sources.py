"""What the tidy tests look at: the project's files and, for Python, their syntax trees."""

from __future__ import annotations

import ast
import functools
import os
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SRC: Final = ROOT / "src" / "forebay"

PURE_PACKAGES: Final = ("admission", "enginemodel", "sizing")
"""Packages that hold no clock, no randomness and no input or output; those that exist so far are checked."""

_SKIPPED_FOLDERS: Final = {
    "__pycache__",
    "build",
    "dist",
    "node_modules",
    "results",
}


@functools.cache
def project_files() -> tuple[Path, ...]:
    """Every file of the project but environments, caches and results; hidden folders only where they are ours."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED_FOLDERS and (not name.startswith(".") or name in (".ci", ".github"))
        )
        found += [Path(folder, name) for name in sorted(names)]
    return tuple(found)


def files_with_suffix(*suffixes: str) -> list[Path]:
    """The project's files with one of these endings."""
    return [path for path in project_files() if path.suffix in suffixes]


def source_modules(package: str = "") -> list[Path]:
    """Python files of `forebay`, or of one of its packages."""
    folder = SRC / package
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def pure_modules() -> list[Path]:
    """Python files of the pure packages."""
    return [path for package in PURE_PACKAGES for path in source_modules(package)]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    """The path as a reader of a failure wants it."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def project_settings() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
