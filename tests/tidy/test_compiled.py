"""What the compiled build makes of the sources, seen without a compiler."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.compile_modules import HOT
from scripts.expand_records import expand
from tests.tidy.sources import SRC

MODULES = [path for pattern in HOT for path in sorted(SRC.glob(pattern))]

RECORD = """\
@record
class Point:
    x_s: float
    names: list[str] = field(default_factory=list)
    kind: str = "plain"

def after() -> None: ...
"""


def _names(tree: ast.AST) -> list[str]:
    return [f"{n.name} {n.lineno}" for n in ast.walk(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_module_can_be_expanded_and_no_line_moves(path: Path) -> None:
    """With its constructors written out a module still parses, and what it had stands on the same lines."""
    source = path.read_text()
    expanded = expand(source)
    found = [name for name in _names(ast.parse(expanded)) if not name.startswith("__init__ ")]
    assert [name for name in _names(ast.parse(source)) if not name.startswith("__init__ ")] == found


def test_constructor_of_a_record_is_written_out() -> None:
    """Fields become parameters in their order; what has a factory is made anew for each object."""
    made = expand(RECORD).split("\n")
    assert "@dataclass(init=False)" == made[0]
    assert (
        "    def __init__(self, x_s: float, names: list[str] | None = None, kind: str = 'plain') -> None: "
        "self.x_s = x_s; self.names = [] if names is None else names; self.kind = kind"
    ) == made[5]
    assert "def after() -> None: ..." == made[6]


def test_two_exceptions_under_one_name_are_refused() -> None:
    """A name that two handlers of a function bind to different exceptions stops the build, with the line."""
    source = "def f():\n try: g()\n except KeyError as error: h(error)\n except OSError as error: h(error)\n"
    with pytest.raises(SystemExit, match=r"f, line 4: 'error' names two types of exception"):
        expand(source)
