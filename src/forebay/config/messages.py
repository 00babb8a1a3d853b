"""From a validator's findings to sentences for an operator: what was found, what is allowed, what was likely meant.

Pure. The key path and the document give the place; values of secret keys are never repeated.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from forebay.config.engine_entry import EngineEntry, MetricNames
from forebay.config.errors import ConfigProblem
from forebay.config.gpu_metrics import GpuMetrics
from forebay.config.record_entry import RecordEntry
from forebay.config.rule_entries import RefuseAction, RuleAction, RuleEntry
from forebay.config.schema import LATER_KEYS, ClassEntry, Config, Limits, Pool
from forebay.config.secret_keys import harmless, in_words, may_be_secret
from forebay.config.tenancy import PlanEntry, TenantEntry
from forebay.config.yaml_text import Document, KeyPath, key_text

__all__ = ["describe", "problems_from"]

_MODELS: Mapping[str, type[BaseModel]] = {
    "": Config,
    "pools[]": Pool,
    "pools[].gpu_metrics": GpuMetrics,
    "pools[].engine": EngineEntry,
    "pools[].engine.metrics": MetricNames,
    "classes.*": ClassEntry,
    "plans.*": PlanEntry,
    "tenants[]": TenantEntry,
    "limits": Limits,
    "record": RecordEntry,
    "rules[]": RuleEntry,
    "rules[].then": RuleAction,
    "rules[].then.refuse": RefuseAction,
}
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}
_LISTS = {
    "endpoints": "endpoints: [http://10.0.0.1:8000]",
    "pools": "pools: [{name: main, endpoints: [http://10.0.0.1:8000]}]",
    "models": "models: [llama-8b]",
    "rules": "rules: [{name: cliff, when: running_seq_count > 32, then: {refuse: {retry_after: 2s}}}]",
}
_PLACES = {
    "": "the top level",
    "pools[]": "a pool",
    "pools[].gpu_metrics": "a pool's `gpu_metrics`",
    "pools[].engine": "a pool's `engine`",
    "pools[].engine.metrics": "`metrics` of a pool's `engine`",
    "classes.*": "a class",
    "plans.*": "a plan",
    "tenants[]": "a tenant",
    "rules[]": "a rule",
    "rules[].then": "a rule's `then`",
}
_BOUNDED = frozenset({"too_short", "string_too_short", "too_long", "string_too_long"})
_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_DURATION_KEYS = frozenset(
    {
        "poll_interval",
        "hold_without_endpoints",
        "ttft",
        "tpot",
        "wait_budget",
        "idle_stream",
        "aging",
        "max_stream",
        "waiting_comments",
        "head_timeout",
        "connect_timeout",
        "answer_timeout",
        "grace",
        "notice",
        "retry_after",
    }
)
_SIZE_KEYS = frozenset({"max_body", "max_waiting_bytes", "max_size", "memory"})


def problems_from(error: ValidationError, document: Document) -> list[ConfigProblem]:
    """Every finding as a located problem, in the order of the document."""
    problems = []
    for finding in error.errors(include_url=False):
        path: KeyPath = tuple(finding["loc"])
        problems.append(document.problem(path, describe(path, finding, document)))
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))


def describe(path: KeyPath, finding: Mapping[str, Any], document: Document) -> str:
    """One finding as a sentence."""
    kind: str = finding["type"]
    context: Mapping[str, Any] = finding.get("ctx", {})
    is_hidden = may_be_secret(path)
    found = "a value" if is_hidden else in_words(finding["input"])
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "missing":
        return _missing_key(path)
    if kind == "value_error":
        return str(context.get("error", finding["msg"]))
    if kind in _EXPECTED:
        example = _LISTS.get(str(path[-1])) if kind == "list_type" and path else None
        if path == ("record",):
            example = "record: {path: requests.jsonl}"
        return f"found {found}, expected {_EXPECTED[kind]}" + (f", as in `{example}`" if example else "")
    if is_hidden and kind not in _BOUNDED:
        return "cannot be used here"
    if kind == "literal_error":
        return (
            f"found {found}, allowed: {context['expected'].replace(chr(39), '')}{_suggestion_from(finding)}"
        )
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return (
            f"found {_with_unit(path, finding['input'])}, must be {words} {_with_unit(path, context[name])}"
        )
    if kind in _BOUNDED and "min_length" in context:
        return f"too short, needs at least {context['min_length']}"
    if kind in _BOUNDED:
        return f"too long, may have at most {context['max_length']}"
    return f"found {found}: {finding['msg']}"


def _unknown_key(path: KeyPath) -> str:
    where = _where(path[:-1])
    key = str(path[-1])
    if key in LATER_KEYS.get(where, ()):
        return "this version of Forebay does not have this setting yet; remove it"
    model = _MODELS.get(where)
    allowed = sorted(_keys_of(model)) if model is not None else []
    hint = _belongs_elsewhere(key, where)
    if not hint:
        guess = difflib.get_close_matches(key, allowed, n=1, cutoff=0.6)
        hint = f"; did you mean {guess[0]}?" if guess else ""
    return f"unknown key{hint} (allowed here: {', '.join(allowed)})"


def _belongs_elsewhere(key: str, where: str) -> str:
    """A right key in the wrong place is the commonest mistake after a misspelt one."""
    for other, model in _MODELS.items():
        if other != where and key in _keys_of(model):
            place = _PLACES.get(other, other)
            return f"; it belongs to {place}"
    return ""


def _keys_of(model: type[BaseModel]) -> list[str]:
    """As they are written."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _missing_key(path: KeyPath) -> str:
    if path == ("pools",):
        return "none: add `pools: [{name: main, endpoints: [http://HOST:8000]}]`, or use --upstream URL"
    if path[-1] == "endpoints":
        return "missing; list the engines, as in `endpoints: [http://HOST:8000]`"
    return "missing"


def _where(path: KeyPath) -> str:
    """The kind of place that a path is in: the keys of `_MODELS` and `LATER_KEYS`."""
    if not path:
        return ""
    if path[0] == "tenants" and len(path) == 2:
        return "tenants[]"
    if path[0] in ("classes", "plans") and len(path) == 2:
        return f"{path[0]}.*"
    if path[0] in ("pools", "rules") and len(path) > 1:
        return key_text((f"{path[0]}[]", *path[2:]))
    return key_text(path)


def _size(value: float) -> str:
    """In the largest unit of which there is a whole number."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= size and value % size == 0:
            return f"{value // size:g}{unit}"
    return f"{value:.0f} bytes"


def _with_unit(path: KeyPath, value: object) -> str:
    key = path[-1] if path else ""
    if not isinstance(value, int | float):
        return harmless(str(value), "a value")
    if key in _DURATION_KEYS:
        return f"{value:g}s" if value >= 1 or value == 0 else f"{value * 1000:g}ms"
    if key in _SIZE_KEYS:
        return _size(value)
    return f"{value:g}"


def _suggestion_from(finding: Mapping[str, Any]) -> str:
    allowed: Iterable[str] = (
        str(finding["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
    )
    guess = difflib.get_close_matches(str(finding["input"]).lower(), list(allowed), n=1, cutoff=0.6)
    return f"; did you mean {guess[0]}?" if guess else ""
