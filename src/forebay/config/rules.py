"""From the rules of a configuration to those of the core: each expression compiled once, its evaluation made safe.

CEL is imported here and only where there are rules. What an expression costs at each evaluation is the copying of the
values it names into CEL's own (0.5 µs each) and 0.3 µs for itself.

An expression that cannot be evaluated (a value that nobody knows, a division by zero) counts as not matching, or as
`on_error` says. It is counted, and told in the log at the first time and whenever its number has doubled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from forebay.admission.facts import ENGINE_FACTS, REQUEST_FACTS, key_of
from forebay.admission.patterns import fits
from forebay.admission.rule_book import Rule, RuleBook
from forebay.config.expressions import ExpressionError, Reading, read_expression

if TYPE_CHECKING:
    from cel import Program

    from forebay.config.rule_entries import RuleEntry
    from forebay.config.schema import Config, Pool

__all__ = ["home_of", "rule_book", "rule_faults"]

_log = logging.getLogger(__name__)

KINDS: Final = {
    **{fact.name: fact.kind for fact in REQUEST_FACTS},
    **{fact.name: fact.kind for fact in ENGINE_FACTS},
}
"""Every name that a condition can have, with its type."""
_KEYS: Final = {name: key_of(name) for name in KINDS}
_OF_REQUESTS: Final = frozenset(fact.name for fact in REQUEST_FACTS)
_OF_ENDPOINTS: Final = frozenset(fact.name for fact in ENGINE_FACTS if fact.of_endpoint)


_TRIED_WITH: Final = "a-name of_some_length/as models and tenants have-70b-instruct.2026" * 64
"""As long as clients' texts can be, and joined."""
STEP_S: Final = 1e-7
"""For one word or sign of an expression. Measured: 0.02 to 0.06 µs."""
SLOWEST_RULE_S: Final = 0.001
"""Requests wait while a condition is asked. The dearest are patterns, which are compiled anew at each evaluation: a
usual one takes 30 µs, one with classes of all letters and large counts a hundred times as long."""
SLOWEST_BOOK_S: Final = 0.01
"""All rules together."""


class _Expression:
    """One compiled expression, and how often it failed."""

    def __init__(self, name: str, program: Program, facts: tuple[str, ...], *, on_error: bool) -> None:
        self._name = name
        self._facts = facts
        self._execute = program.execute
        self._on_error = on_error
        self._errors = 0

    def holds(self, context: Any) -> bool:
        """Does it match? Never raises."""
        try:
            value = self._execute(context)
            if value is True or value is False:
                return value
            self._failed(f"its value is {value!r:.80}, which is neither true nor false")
        except Exception as error:  # noqa: BLE001 - the library raises many kinds, and none may reach the core
            self._failed(self._in_words(str(error)))
        return self._on_error

    def errors(self) -> int:
        """How often it could not be evaluated."""
        return self._errors

    def _in_words(self, why: str) -> str:
        """What CEL says of a fact whose value is not known reads like a slip of the pen, which it is not."""
        if why.startswith("Undefined variable"):
            for name in self._facts:
                if f"'{_KEYS[name]}'" in why:
                    return f"{name} is not known: the engine has not told it (a rate takes two readings)"
        return why

    def _failed(self, why: str) -> None:
        self._errors += 1
        if self._errors & (self._errors - 1) == 0:
            effect = "taken as matching" if self._on_error else "skipped"
            _log.warning("rule %s: %s (%d times so far); %s", self._name, why, self._errors, effect)


def rule_faults(entries: Sequence[RuleEntry]) -> Iterator[tuple[int, str]]:
    """What is wrong with the expressions of rules, by the place of each."""
    all_s = 0.0
    for index, entry in enumerate(entries):
        try:
            reading, _ = _compiled(entry.when)
            takes_s = _most_s(reading)
        except ExpressionError as error:
            yield index, str(error)
            continue
        all_s += takes_s
        if all_s > SLOWEST_BOOK_S >= all_s - takes_s:
            told = f"with it all rules together take up to {all_s * 1000:.1f} ms for each request"
            yield index, f"{told}; at most {SLOWEST_BOOK_S * 1000:g} ms are allowed"


def home_of(model: str, pools: Sequence[Pool]) -> str | None:
    """The pool whose `models` name this model, itself before a pattern; None if none does."""
    for exact in (True, False):
        for pool in pools:
            for name in pool.models or ():
                if model == name if exact else fits(model, name):
                    return pool.name
    return None


def rule_book(config: Config) -> RuleBook | None:
    """The core's rules; None if there are none. Raises: ExpressionError, where a configuration was not checked."""
    from cel import Context

    rules = []
    of_requests: set[str] = set()
    of_engines: set[str] = set()
    for entry in config.rules:
        reading, program = _compiled(entry.when)
        expression = _Expression(entry.name, program, reading.names, on_error=entry.on_error == "match")
        names = set(reading.names)
        of_request = bool(names & _OF_REQUESTS)
        (of_requests if of_request else of_engines).update(names)
        then = entry.then
        pool = then.pool
        if pool is None and then.model is not None:
            pool = home_of(then.model, config.pools)
        rules.append(
            Rule(
                name=entry.name,
                check=f"rule:{entry.name}",
                when=expression.holds,
                errors=expression.errors,
                of_request=of_request,
                of_endpoint=bool(names & _OF_ENDPOINTS),
                class_name=then.class_,
                pool=pool,
                model=then.model,
                refuses=then.refuse is not None,
                retry_after_s=None if then.refuse is None else then.refuse.retry_after,
                low_only=then.refuse is not None and then.refuse.priority == "low",
                accepts=then.accept,
            )
        )
    if not rules:
        return None
    context: Callable[..., object] = Context
    return RuleBook(
        rules=tuple(rules),
        context=context,
        engine_facts=tuple(fact for fact in ENGINE_FACTS if fact.name in of_engines),
        request_facts=tuple(fact for fact in REQUEST_FACTS if fact.name in of_requests),
        request_engine_facts=tuple(fact for fact in ENGINE_FACTS if fact.name in of_requests),
    )


def _compiled(source: str) -> tuple[Reading, Program]:
    from cel import compile as compile_expression

    reading = read_expression(source, KINDS, _KEYS)
    if reading.kind not in ("bool", "any"):
        raise ExpressionError(f"its value is of type {reading.kind}; a condition is true or false")
    try:
        compile_expression(source)  # as it was written: what is said about it must be about that
        program = compile_expression(reading.text)
    except ValueError as error:
        raise ExpressionError(_first_line(str(error))) from None
    return reading, program


def _most_s(reading: Reading) -> float:
    """How long an evaluation takes at most, here. Raises: ExpressionError, if that is too long."""
    all_s = reading.steps * STEP_S
    if all_s > SLOWEST_RULE_S:
        raise ExpressionError(
            f"{reading.steps} steps, and every request would wait for them: its lists are too long for what is asked "
            "of each entry"
        )
    for pattern, times in reading.patterns:
        takes_s = _time_pattern(pattern) * times
        all_s += takes_s
        if all_s > SLOWEST_RULE_S:
            often = f", {times} times," if times > 1 else ""
            raise ExpressionError(
                f"matches({pattern:.80}){often} takes {takes_s * 1000:.1f} ms, and every request would wait for it; "
                "write [a-z0-9] for \\w, smaller counts, no (?i), fewer, or use startsWith, endsWith and contains"
            )
    return all_s


def _time_pattern(pattern: str) -> float:
    """Match something with it. Raises: ExpressionError if it is no pattern."""
    from cel import Context
    from cel import compile as compile_expression

    took_s = inf
    try:
        program = compile_expression(f"tried.matches({pattern})")
        context = Context({"tried": _TRIED_WITH})
        for _ in range(5):
            began_s = time.thread_time()  # not what others take of the processor meanwhile
            program.execute(context)
            took_s = min(took_s, time.thread_time() - began_s)
    except Exception as error:  # noqa: BLE001 - the library raises many kinds
        raise ExpressionError(f"matches({pattern:.80}): {_first_line(str(error))}") from None
    return took_s


def _first_line(said: str) -> str:
    return said.partition("ERROR: <input>:")[2].partition("\n")[0] or said.partition("\n")[0]
