"""Reads an expression of a rule as far as it takes to find mistakes before requests do.

CEL itself finds them only when an expression is evaluated, and there `||` may hide one for months. So the types of
names, operators and functions are worked out here once; what cannot be known without a request counts as any type.
The CEL library stays the judge of the syntax, and of what an expression means.

Owns nothing. It also puts one word in the place of each name of two (`request.model`), which makes an evaluation three
times as fast.

What an evaluation costs is bounded by the text alone: macros go over lists that are written out, and not into each
other, so how often each part is evaluated is counted here; and clients' texts are not made longer without bound.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ExpressionError", "Reading", "read_expression"]

MAX_CHARACTERS: Final = 4096
MAX_DEPTH: Final = 50
MAX_JOINS: Final = 8
"""Signs `+` between texts. Clients choose some of those."""

_Operand = Callable[[], str]
_NUMBERS: Final = ("int", "uint", "double")
_ANY: Final = "any"
_LIST_OF_ANY: Final = "list(any)"

_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<space>//[^\n]*)
  | (?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<int>(?:0x[0-9a-fA-F]+|\d+)[uU]?)
  | (?P<string>(?:[bB]?[rR]?|[rR][bB])(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''
        |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>&&|\|\||[<>=!]=|[-+*/%<>!?:.,()\[\]{}])
  | (?P<end>$)
    )""",
    re.VERBOSE | re.DOTALL,
)
_LITERALS: Final = {"true": "bool", "false": "bool", "null": "null"}
_STRING_TESTS: Final = ("contains", "startsWith", "endsWith", "matches")
_CONVERSIONS: Final = {
    "int": "int",
    "uint": "uint",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "duration": "duration",
    "timestamp": "timestamp",
    "dyn": _ANY,
    "type": _ANY,
}
_MACROS: Final = {"all": "bool", "exists": "bool", "exists_one": "bool", "map": _LIST_OF_ANY, "filter": ""}
_FUNCTIONS: Final = sorted([*_STRING_TESTS, *_CONVERSIONS, *_MACROS, "size"])


class ExpressionError(ValueError):
    """What is wrong with an expression, in a sentence, with the column where that is."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found in an expression."""

    text: str
    """The same with one word for each name of two."""
    names: tuple[str, ...]
    """The facts that it names, in order of appearance, each once."""
    kind: str
    """The type of its value, `any` where that cannot be told."""
    patterns: tuple[tuple[str, int], ...] = ()
    """What `matches` compares with, as it is written, quotation marks and all, and how often in one evaluation."""
    steps: int = 0
    """Words and signs, those in a macro counted for each entry of its list."""


def read_expression(source: str, kinds: Mapping[str, str], key_of: Mapping[str, str]) -> Reading:
    """Read an expression.

    Args:
        source: its text.
        kinds: type of each name that there is, `request.model` and the like.
        key_of: the word that stands for each.

    Raises:
        ExpressionError: an unknown name or function, a wrong type, or a syntax that is not understood.
    """
    if len(source) > MAX_CHARACTERS:
        raise ExpressionError(f"longer than {MAX_CHARACTERS} characters")
    reader = _Reader(source, kinds)
    kind = reader.expression()
    reader.expect_end()
    text, done = "", 0
    for start, end, name in reader.found:
        text += source[done:start] + key_of[name]
        done = end
    names = tuple(dict.fromkeys(name for _, _, name in reader.found))
    return Reading(text + source[done:], names, kind, tuple(reader.patterns), reader.steps)


class _Reader:
    """A descent through the grammar of CEL; each method takes one level of it and returns the type of what it took."""

    def __init__(self, source: str, kinds: Mapping[str, str]) -> None:
        self.found: list[tuple[int, int, str]] = []
        """Start, end and name of each fact."""
        self.patterns: list[tuple[str, int]] = []
        self._kinds = kinds
        self._roots = {name.partition(".")[0] for name in kinds if "." in name}
        self._tokens = _tokens(source)
        self._at = 0
        self._bound: dict[str, str] = {}
        """The variable of a macro, and its type."""
        self.steps = len(self._tokens)
        self._entries: int | None = None
        """Of the list that was read last; None if that is not known, or something else was read."""
        self._times = 1
        """How often what is read is evaluated."""
        self._joins = 0
        self._depth = 0

    # The grammar

    def expression(self) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong("nested too deeply")
        kind = self._or()
        if self._take("?"):
            self._must_be("bool", kind, "before ?")
            yes = self._or()
            self._need(":")
            no = self.expression()
            kind = yes if yes == no else _ANY
        self._depth -= 1
        return kind

    def _or(self) -> str:
        return self._logical("||", lambda: self._logical("&&", self._relation))

    def _logical(self, sign: str, operand: _Operand) -> str:
        kind = operand()
        while self._take(sign):
            self._must_be("bool", kind, f"before {sign}")
            kind = operand()
            self._must_be("bool", kind, f"after {sign}")
            kind = "bool"
        return kind

    def _relation(self) -> str:
        left = self._sum()
        while True:
            sign = self._take("<", "<=", ">", ">=", "==", "!=", "in")
            if not sign:
                return left
            right = self._sum()
            if sign == "in":
                self._check_in(left, right)
            elif not _comparable(left, right, sign):
                raise self._wrong(f"{_named(left)} {sign} {_named(right)} is never what is meant")
            left = "bool"

    def _check_in(self, left: str, right: str) -> None:
        if right == _ANY or right.startswith("map"):
            return
        inner = _element(right)
        if not inner:
            raise self._wrong(
                f"after `in` there must be a list, as in `x in ['a', 'b']`, not {_named(right)}"
            )
        if not _comparable(left, inner, "=="):
            raise self._wrong(f"{_named(left)} is never in a list of {_named(inner)}")

    def _sum(self) -> str:
        return self._arithmetic(("+", "-"), lambda: self._arithmetic(("*", "/", "%"), self._unary))

    def _arithmetic(self, signs: tuple[str, ...], operand: _Operand) -> str:
        left = operand()
        while True:
            sign = self._take(*signs)
            if not sign:
                return left
            right = operand()
            if sign == "+" and left not in _NUMBERS and right not in _NUMBERS:
                self._note_join()
            if _ANY in (left, right):
                left = right if left == _ANY else left
                continue
            joins = sign == "+" and (left in ("string", "bytes") or left.startswith("list"))
            if left == right and (joins or (left in _NUMBERS and not (sign == "%" and left == "double"))):
                continue
            if left in _NUMBERS and right in _NUMBERS and left != right:
                hint = (
                    f"convert one, as in `double(x) {sign} 1.5`; whole numbers of a double are written `2.0`"
                )
                raise self._wrong(f"{left} {sign} {right}: CEL does not mix kinds of numbers; {hint}")
            if left.startswith("list") and right.startswith("list") and joins:
                left = _LIST_OF_ANY
                continue
            raise self._wrong(f"{_named(left)} {sign} {_named(right)} has no meaning")

    def _note_join(self) -> None:
        self._joins += 1
        if self._bound:
            raise self._wrong(
                "in a macro texts and lists are not joined; do that before, or compare them one by one"
            )
        if self._joins > MAX_JOINS:
            raise self._wrong(f"more than {MAX_JOINS} times texts or lists are joined")

    def _unary(self) -> str:
        if self._take("!"):
            kind = self._nested(self._unary)
            self._must_be("bool", kind, "after !")
            return "bool"
        if self._take("-"):
            kind = self._nested(self._unary)
            if kind not in (*_NUMBERS, _ANY):
                raise self._wrong(f"- before {_named(kind)} has no meaning")
            return kind
        return self._member()

    def _nested(self, operand: _Operand) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong("nested too deeply")
        kind = operand()
        self._depth -= 1
        return kind

    def _member(self) -> str:
        self._entries = None
        kind = self._primary()
        while True:
            if self._take("["):
                self._check_index(kind, self.expression())
                self._need("]")
                self._entries = None
                kind = _element(kind) or _ANY
            elif self._take("."):
                name = self._word()
                if not self._take("("):
                    if kind == _ANY or kind.startswith("map"):
                        kind, self._entries = _ANY, None
                        continue
                    raise self._wrong(f"{_named(kind)} has no part `{name}`")
                kind = self._call(name, kind)
            else:
                return kind

    def _check_index(self, kind: str, index: str) -> None:
        if kind == _ANY or kind.startswith("map"):
            return
        if not _element(kind):
            raise self._wrong(f"{_named(kind)} has no [ ]")
        if index not in ("int", "uint", _ANY):
            raise self._wrong(f"the place in a list is an int, not {_named(index)}")

    def _primary(self) -> str:
        group, text, start, end = self._tokens[self._at]
        self._at += 1
        if group == "int":
            return "uint" if text[-1] in "uU" else "int"
        if group == "double":
            return "double"
        if group == "string":
            return "bytes" if text[: text.index(text[-1])].lower().find("b") >= 0 else "string"
        if group == "word":
            return self._name(text, start, end)
        if text == "(":
            kind = self.expression()
            self._need(")")
            self._entries = None
            return kind
        if text == "[":
            entries = self._arguments("]")
            self._entries = len(entries)
            kinds = set(entries)
            return f"list({kinds.pop()})" if len(kinds) == 1 else _LIST_OF_ANY
        if text == "{":
            while not self._take("}"):
                self.expression()
                self._need(":")
                self.expression()
                if not self._take(","):
                    self._need("}")
                    break
            self._entries = None
            return "map"
        self._at -= 1
        raise self._wrong("a value is missing here")

    def _name(self, word: str, start: int, end: int) -> str:
        if word in self._bound:
            return self._bound[word]
        if word in _LITERALS:
            return _LITERALS[word]
        if self._take("("):
            return self._call(word, None)
        if word in self._roots:
            after = self._tokens[self._at]
            part = self._tokens[self._at + 1] if after[1] == "." else after
            if part[0] == "word" and after[1] == ".":
                word, end = f"{word}.{part[1]}", part[3]
                self._at += 2
        if word in self._kinds:
            self.found.append((start, end, word))
            return self._kinds[word]
        if word in _CONVERSIONS:
            return _ANY  # the name of a type
        guess = difflib.get_close_matches(word, self._kinds, n=1, cutoff=0.5)
        hint = f"; did you mean {guess[0]}?" if guess else ""
        if word in self._roots:
            parts = ", ".join(name for name in self._kinds if name.startswith(word + "."))
            hint = f"; it has the parts {parts}"
        raise self._wrong(f"there is no `{word}`{hint}", at=start)

    def _call(self, name: str, receiver: str | None) -> str:
        """A function, or a macro, whose opening bracket was taken."""
        if receiver is not None and name in _MACROS:
            return self._macro(name, receiver)
        if name == "has":
            raise self._wrong("has() is not needed: every name always has a value, or the rule has an error")
        begin = self._at
        kinds = self._arguments(")")
        self._entries = None
        if receiver is not None:
            kinds.insert(0, receiver)
        if name == "matches":
            self._note_pattern(begin)
        if name == "size" and len(kinds) == 1:
            if kinds[0] in (*_NUMBERS, "bool"):
                raise self._wrong(f"{_named(kinds[0])} has no size")
            return "int"
        if name in _STRING_TESTS and len(kinds) == 2:
            if any(kind not in ("string", _ANY) for kind in kinds):
                raise self._wrong(f"{name} is for two strings, not {' and '.join(map(_named, kinds))}")
            return "bool"
        if name in _CONVERSIONS and len(kinds) == 1 and receiver is None:
            return _CONVERSIONS[name]
        if name in _FUNCTIONS:
            raise self._wrong(f"{name}() is not called so")
        guess = difflib.get_close_matches(name, _FUNCTIONS, n=1, cutoff=0.6)
        hint = f"did you mean {guess[0]}?" if guess else f"there are {', '.join(_FUNCTIONS)}"
        raise self._wrong(f"there is no function {name}(); {hint}")

    def _note_pattern(self, begin: int) -> None:
        """The last argument of the call that has just ended: a text that is written out, so that it can be tried."""
        last = self._at - 2
        group, text, start, _ = self._tokens[last]
        if group != "string" or (last > begin and self._tokens[last - 1][1] != ","):
            raise self._wrong(
                "the pattern of matches() must be written out, so that it can be checked", at=start
            )
        self.patterns.append((text, self._times))

    def _macro(self, name: str, receiver: str) -> str:
        variable = self._word()
        self._need(",")
        if receiver != _ANY and not _element(receiver) and not receiver.startswith("map"):
            raise self._wrong(f"{name}() is for lists, not for {_named(receiver)}")
        entries = self._entries
        if entries is None:
            raise self._wrong(f"{name}() goes over a list that is written out, as in ['a', 'b'].{name}(x, …)")
        if self._bound:
            raise self._wrong("a macro in another one would be asked for all pairs; write it without")
        self._bound[variable] = _element(receiver) or _ANY
        begin, self._times = self._at, max(entries, 1)
        kinds = self._arguments(")")
        self.steps += (self._at - begin) * self._times
        self._bound, self._times = {}, 1
        self._entries = entries if name in ("map", "filter") else None
        if name != "map" and len(kinds) == 1:
            self._must_be("bool", kinds[0], f"in {name}()")
        return _MACROS[name] or receiver

    # Tokens

    def _arguments(self, closing: str) -> list[str]:
        kinds: list[str] = []
        while not self._take(closing):
            kinds.append(self.expression())
            if not self._take(","):
                self._need(closing)
                break
        return kinds

    def _take(self, *signs: str) -> str:
        group, text, _, _ = self._tokens[self._at]
        if text in signs and group in ("sign", "word"):
            self._at += 1
            return text
        return ""

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise self._wrong(f"`{sign}` is missing here")

    def _word(self) -> str:
        group, text, _, _ = self._tokens[self._at]
        if group != "word":
            raise self._wrong("a name is missing here")
        self._at += 1
        return text

    def expect_end(self) -> None:
        if self._tokens[self._at][0] != "end":
            raise self._wrong("an operator is missing here")

    def _must_be(self, wanted: str, kind: str, where: str) -> None:
        if kind not in (wanted, _ANY):
            raise self._wrong(f"{where} there must be a {wanted}, not {_named(kind)}")

    def _wrong(self, message: str, *, at: int | None = None) -> ExpressionError:
        column = (self._tokens[self._at][2] if at is None else at) + 1
        return ExpressionError(f"{message} (character {column})")


def _tokens(source: str) -> list[tuple[str, str, int, int]]:
    """Kind, text, start and end of each; the last is the end."""
    tokens = []
    at = 0
    while True:
        match = _TOKEN.match(source, at)
        if match is None:
            rest = len(source[at:]) - len(source[at:].lstrip())
            raise ExpressionError(f"{source[at + rest]!r} is not understood (character {at + rest + 1})")
        group = match.lastgroup or "end"
        at = match.end()
        if group != "space":
            tokens.append((group, match[group], match.start(group), at))
        if group == "end":
            return tokens


def _comparable(left: str, right: str, sign: str) -> bool:
    if _ANY in (left, right) or (left in _NUMBERS and right in _NUMBERS):
        return True
    if sign in ("==", "!="):
        lists = left.startswith("list") and right.startswith("list")
        return left == right or "null" in (left, right) or lists
    return left == right and not left.startswith(("list", "map", "null"))


def _element(kind: str) -> str:
    """Of what a list is; empty for anything else."""
    return kind[5:-1] if kind.startswith("list(") else ""


def _named(kind: str) -> str:
    if kind.startswith("list"):
        return "a list"
    return "null" if kind == "null" else f"an {kind}" if kind[0] in "iau" else f"a {kind}"
