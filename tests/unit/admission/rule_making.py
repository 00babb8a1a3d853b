"""Rules for the tests of the core, their conditions in plain Python over the values that they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.admission.facts import ENGINE_FACTS, REQUEST_FACTS, FactValue, key_of
from forebay.admission.rule_book import Rule, RuleBook

Condition = Callable[[dict[str, FactValue]], bool]
OF_REQUESTS = {fact.name for fact in REQUEST_FACTS}
OF_ENDPOINTS = {fact.name for fact in ENGINE_FACTS if fact.of_endpoint}


class Asked:
    """A condition that counts how often it is asked."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.times = 0

    def __call__(self, context: Any) -> bool:
        self.times += 1
        return self.condition(context)


def rule(name: str, names: tuple[str, ...], condition: Condition, **does: Any) -> Rule:
    """A rule that names these facts; what it does is in the rule's own fields."""
    return Rule(
        name=name,
        check=f"rule:{name}",
        when=Asked(condition),
        errors=lambda: 0,
        of_request=bool(OF_REQUESTS & set(names)),
        of_endpoint=bool(OF_ENDPOINTS & set(names)),
        **does,
    )


def asked(of: Rule) -> int:
    """How often it was asked so far."""
    assert isinstance(of.when, Asked)
    return of.when.times


def book(*rules: Rule, names: tuple[str, ...]) -> RuleBook:
    """The rules, with all of these facts for each."""
    engine = tuple(fact for fact in ENGINE_FACTS if fact.name in names)
    return RuleBook(
        rules=rules,
        context=lambda values: values,
        engine_facts=engine,
        request_facts=tuple(fact for fact in REQUEST_FACTS if fact.name in names),
        request_engine_facts=engine,
    )


def over(name: str, limit: float) -> Condition:
    """True if that fact is above the limit."""

    def condition(values: dict[str, FactValue]) -> bool:
        value = values[key_of(name)]
        assert isinstance(value, int | float)
        return value > limit

    return condition


def always(_: dict[str, FactValue]) -> bool:
    """True."""
    return True
