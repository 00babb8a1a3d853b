"""Each house rule catches what it is for, and lets the allowed form pass."""

from __future__ import annotations

import ast

import pytest

from tests.tidy import rules

ALLOWED = frozenset({"math", "collections.abc"})

CAUGHT = [
    (rules.missing_docstring, "x = 1"),
    (rules.missing_future_import, '"""Doc."""\nx: int = 1'),
    (rules.prints, "def f():\n    print(1)"),
    (rules.impure_calls, "seed = hash('a')"),
    (rules.impure_calls, "async def f(): ..."),
    (rules.impure_calls, "m = __import__('time')"),
    (rules.impure_imports(ALLOWED, "forebay.admission"), "import time"),
    (rules.impure_imports(ALLOWED, "forebay.admission"), "def f():\n    from random import random"),
    (rules.impure_imports(ALLOWED, "forebay.admission"), "import collections"),
    (rules.impure_imports(ALLOWED, "forebay.admission"), "from . import model"),
    (rules.impure_imports(ALLOWED, "forebay.admission"), "from forebay.http import server"),
    (rules.impure_imports(ALLOWED, "forebay.admission"), "from forebay import admission"),
    (rules.set_iterations, "for x in {1, 2}: ..."),
    (rules.set_iterations, "def f(names):\n    return [n for n in set(names)]"),
    (rules.set_iterations, "a: set[str] = set()\nb = list(a)"),
    (
        rules.set_iterations,
        "class A:\n    def f(self):\n        self.s = set()\n        return tuple(self.s)",
    ),
    (rules.set_iterations, "a = {1}\nfor x in a | {2}: ..."),
    (rules.set_iterations, "a = {1}\nfirst = a.pop()"),
    (rules.long_functions, "def f():\n" + "    x = 1\n" * 60),
]

PASSED = [
    (rules.missing_future_import, '"""Doc."""'),
    (rules.prints, "report.print(1)"),
    (rules.impure_calls, "value = table.hash(1)"),
    (rules.impure_imports(ALLOWED, "forebay.admission"), "from forebay.admission.model import Ticket"),
    (rules.impure_imports(ALLOWED, "forebay.admission"), "import math\nfrom collections.abc import Mapping"),
    (rules.set_iterations, "a = {1}\nfor x in sorted(a): ...\nb = 1 in a\nc = len(a)"),
    (rules.set_iterations, "d = {1: 2}\nfor x in d: ...\nlast = [1].pop()"),
    (rules.long_functions, "def f():\n" + "    x = 1\n" * 59),
]


@pytest.mark.parametrize(("rule", "code"), CAUGHT)
def test_rule_catches(rule: rules.Rule, code: str) -> None:
    """The rule finds the fault."""
    assert list(rule(ast.parse(code)))


@pytest.mark.parametrize(("rule", "code"), PASSED)
def test_rule_passes(rule: rules.Rule, code: str) -> None:
    """The rule has nothing to say about the allowed form."""
    assert list(rule(ast.parse(code))) == []
