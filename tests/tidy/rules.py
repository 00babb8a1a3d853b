"""House rules that read a syntax tree. Each takes a tree and gives (line, complaint) pairs.

They are functions over trees, not tests, so that `test_rules.py` can show on a few lines of code that each
one catches what it is for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

Finding = tuple[int, str]
Rule = Callable[[ast.Module], Iterator[Finding]]

FUNCTION_LINES_MAX: Final = 60

# Builtins that reach outside, depend on memory addresses or hash seeds, or hide what is imported.
_IMPURE_CALLS: Final = {
    "__import__": "imports in hiding",
    "breakpoint": "stops the process",
    "compile": "runs text",
    "eval": "runs text",
    "exec": "runs text",
    "hash": "depends on the hash seed",
    "id": "depends on memory addresses",
    "input": "reads from outside",
    "open": "reaches the file system",
    "print": "writes to the outside",
}


def long_functions(tree: ast.Module) -> Iterator[Finding]:
    """Functions that do not fit a screen."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def missing_docstring(tree: ast.Module) -> Iterator[Finding]:
    """A module that does not say what it is for."""
    if not ast.get_docstring(tree):
        yield 1, "no module docstring: what it is for, what it owns, what it must never do"


def missing_future_import(tree: ast.Module) -> Iterator[Finding]:
    """A module without `from __future__ import annotations`; one that is only a docstring has no use for it."""
    if len(tree.body) > 1 and not any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in tree.body
    ):
        yield 1, "no `from __future__ import annotations`"


def prints(tree: ast.Module) -> Iterator[Finding]:
    """Calls of print, which belong into the command line alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno, "print belongs into cli; elsewhere log, or return the text"


def impure_calls(tree: ast.Module) -> Iterator[Finding]:
    """Builtins with no place in a pure package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _IMPURE_CALLS:
            yield node.lineno, f"{node.func.id}() {_IMPURE_CALLS[node.func.id]}"
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield node.lineno, "__del__ runs at a moment of the interpreter's choosing"
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, "a pure package never awaits"


def impure_imports(allowed: frozenset[str], own_package: str) -> Rule:
    """Imports outside `allowed` (dotted names) and the package itself; also inside functions and for typing."""

    def rule(tree: ast.Module) -> Iterator[Finding]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = ["." * node.level + (node.module or "")]
            else:
                continue
            for name in names:
                if name not in allowed and name != own_package and not name.startswith(f"{own_package}."):
                    yield node.lineno, f"imports {name}, which is not on the list for pure packages"

    return rule


def set_iterations(tree: ast.Module) -> Iterator[Finding]:
    """Iteration over a set, whose order changes with the hash seed.

    A heuristic: it knows set literals, comprehensions, `set()`/`frozenset()` calls, set operators on those, and
    names and attributes that the same module annotates or assigns as sets. `sorted(…)`, `len`, `in` and the like
    are fine.
    """
    known = _set_names(tree)
    for node in ast.walk(tree):
        for source in _iterated(node):
            if _is_set(source, known):
                yield source.lineno, "the order of a set changes with the hash seed: use a dict, or sorted(…)"


def _iterated(node: ast.AST) -> list[ast.expr]:
    """The expressions whose order of items matters to this node."""
    match node:
        case ast.For(iter=source) | ast.comprehension(iter=source) | ast.Starred(value=source):
            return [source]
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter" | "enumerate" | "next" | "zip" | "map")):
            return node.args
        case ast.Call(func=ast.Attribute(attr="join" | "extend" | "fromkeys")):
            return node.args
        case ast.Call(func=ast.Attribute(attr="pop", value=source), args=[], keywords=[]):
            return [source]
    return []


def _is_set(node: ast.expr, known: frozenset[str]) -> bool:
    """True if the expression is a set as far as one module can tell."""
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(attr="union" | "intersection" | "difference", value=of)):
            return _is_set(of, known)
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return _is_set(node.left, known) or _is_set(node.right, known)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in known
    return False


def _set_names(tree: ast.Module) -> frozenset[str]:
    """Names and attributes that this module declares to be sets."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=target, annotation=annotation):
                text = ast.unparse(annotation)
                declared = text.startswith(("set[", "frozenset[", "set", "frozenset", "AbstractSet["))
            case ast.Assign(targets=[target], value=value):
                declared = isinstance(value, ast.Set | ast.SetComp) or (
                    isinstance(value, ast.Call)
                    and isinstance(value.func, ast.Name)
                    and value.func.id in ("set", "frozenset")
                )
            case _:
                continue
        if declared and isinstance(target, ast.Name):
            names.add(target.id)
        elif declared and isinstance(target, ast.Attribute):
            names.add(target.attr)
    return frozenset(names)
