"""Make the sources of the compiled build: the same code, with the constructors of data classes written out.

mypyc compiles a data class to a native class, but leaves the constructor that `dataclasses` generates interpreted,
and loads the types of its fields while the module is imported, which crashes where two modules name each other.
So each `@record` and `@dataclass(slots=True)` gets a plain `__init__` here, on the blank line behind the class: no line
moves, and tracebacks of the compiled build name lines of the real source.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def main() -> None:
    """Rewrite the files named on the command line in place."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(expand(path.read_text()))


def expand(source: str) -> str:
    """The module with constructors written out."""
    lines = source.split("\n")
    tree = ast.parse(source)
    _check_handlers(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                options = _options(decorator)
                if options is not None:
                    _write_out(lines, node, decorator.lineno - 1, options)
        elif isinstance(node, ast.ImportFrom) and node.module == "forebay.admission.record":
            lines[node.lineno - 1] = "from dataclasses import dataclass"
    return "\n".join(lines)


def _check_handlers(tree: ast.Module) -> None:
    """Refuse a function that binds one name in handlers of different types.

    mypyc gives the name the type of the first, and the second then raises TypeError instead of handling anything.
    """
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            types: dict[str, str] = {}
            for handler in ast.walk(function):
                if isinstance(handler, ast.ExceptHandler) and handler.name and handler.type:
                    kind = ast.unparse(handler.type)
                    if types.setdefault(handler.name, kind) != kind:
                        raise SystemExit(
                            f"{function.name}, line {handler.lineno}: {handler.name!r} names two types of exception; "
                            "the compiled build needs a name for each"
                        )


def _options(decorator: ast.expr) -> set[str] | None:
    """The options of a decorator that makes a mutable data class; None if it is another."""
    if isinstance(decorator, ast.Name) and decorator.id == "record":
        return set()
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name)):
        return None
    options = {f"{k.arg}={ast.unparse(k.value)}" for k in decorator.keywords}
    if decorator.func.id != "dataclass" or "frozen=True" in options:
        return None
    return options


def _write_out(lines: list[str], node: ast.ClassDef, decorator: int, options: set[str]) -> None:
    # Without comparison there is nothing that the decorator would add.
    lines[decorator] = "" if "eq=False" in options else "@dataclass(init=False)"
    parameters, body = ["self"], []
    for field in node.body:
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        name, kind, value = field.target.id, ast.unparse(field.annotation), field.value
        if kind == "object":
            # The type is looked up as a global when the class is made, and `object` is none. The same in other words:
            kind = "object | None"
            lines[field.lineno - 1] = lines[field.lineno - 1].replace(": object", f": {kind}", 1)
        if value is None:
            parameters.append(f"{name}: {kind}")
            body.append(f"self.{name} = {name}")
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
            (factory,) = (ast.unparse(k.value) for k in value.keywords if k.arg == "default_factory")
            parameters.append(f"{name}: {kind} | None = None")
            made = "[]" if factory == "list" else f"{factory}()"
            body.append(f"self.{name} = {made} if {name} is None else {name}")
            if "eq=False" in options:
                _cut(lines, field)
        else:
            parameters.append(f"{name}: {kind} = {ast.unparse(value)}")
            body.append(f"self.{name} = {name}")
            if "eq=False" in options:
                _cut(lines, field)
    end = node.end_lineno or 0
    init = f"    def __init__({', '.join(parameters)}) -> None: {'; '.join(body)}"
    if end < len(lines) and not lines[end]:
        lines[end] = init
    else:
        lines.insert(end, init)


def _cut(lines: list[str], field: ast.AnnAssign) -> None:
    """Leave a field without its default, which would be stored twice."""
    for number in range(field.lineno, (field.end_lineno or field.lineno)):
        lines[number] = ""
    lines[field.lineno - 1] = f"    {ast.unparse(field.target)}: {ast.unparse(field.annotation)}"


if __name__ == "__main__":
    main()
