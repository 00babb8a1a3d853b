"""Why a request was treated so, in sentences: for whoever got a 429, and for whoever is asked about it.

Pure: from the records of one request, its end and what it does now to an `Explanation`. The admin API serves it, and
the command line and the dashboard show it. Decides nothing, and knows no more than the records say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from forebay.admission.model import Check, DecisionRecord, Mode, Settlement
from forebay.admission.outcomes import Group, Outcome
from forebay.admission.snapshot import TicketView
from forebay.admission.wording import FALLBACK, OUTCOME_WORDS, number, two_numbers, words_of

__all__ = ["CheckLine", "Explanation", "explain", "unasked"]


class _Error(msgspec.Struct):
    message: str = ""


class _Told(msgspec.Struct):
    """Our own error object."""

    error: _Error


RECORDED_ONLY: Final = "deadline_hopeless"
"""Failed and not enforced unless it decided."""


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One comparison, for a table."""

    name: str
    what: str
    found: str
    allowed: str
    """Empty where there is no limit."""
    passed: bool
    decided: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer to "why?"."""

    summary: tuple[str, ...]
    """Plain sentences, the most important first."""
    checks: tuple[CheckLine, ...]
    """Of the decision that the summary is about, in the order in which they were made."""
    would_admit: tuple[str, ...]
    """What would have let it start or wait instead of being turned away; all of it together. Empty where nothing was
    in the way."""


def explain(
    records: Sequence[DecisionRecord], end: Settlement | None, state: TicketView | None
) -> Explanation:
    """Put a request's story together.

    Args:
        records: what is known of its decisions, oldest first; at least one, or `state`.
        end: how it ended, if that is known.
        state: what it does now, if it is not over.
    """
    about = _the_decision(records)
    summary: list[str] = []
    if about is not None:
        summary += _what_was_decided(about)
    if state is not None:
        summary += _what_it_does(state)
    elif end is not None:
        summary += _how_it_ended(
            end, told=about is not None and about.outcome is end.outcome and _is_real(about)
        )
    if about is None:
        return Explanation(tuple(summary), (), ())
    summary += _what_it_was(about)
    lines = tuple(_line(check, about) for check in about.checks)
    return Explanation(tuple(summary), lines, _would_admit(about))


def unasked(status: int, code: str, body: bytes) -> Explanation:
    """Of a request that was answered without a decision: `body` is what its client was told."""
    first = f"It was answered at once with {status} ({code}), before any decision was needed."
    try:
        told = msgspec.json.decode(body, type=_Told).error.message
    except (msgspec.DecodeError, RecursionError):
        told = ""
    return Explanation((first, told) if told else (first,), (), ())


def _the_decision(records: Sequence[DecisionRecord]) -> DecisionRecord | None:
    """The one that a person asks about: what turned it away, else what made it wait, else the last."""
    for record in reversed(records):
        if record.outcome is not None:
            return record
    for record in records:
        if record.action == "hold":
            return record
    return records[-1] if records else None


def _is_real(record: DecisionRecord) -> bool:
    return record.mode is not Mode.SHADOW or record.endpoint is None


# Sentences


def _what_was_decided(record: DecisionRecord) -> list[str]:
    outcome = record.outcome
    words = "" if outcome is None else OUTCOME_WORDS.get(outcome, "")
    if not _is_real(record):
        if outcome is not None:
            first = f"It was let through (shadow mode). Enforcing would have refused it ({outcome.value}): {words}"
        elif record.action == "hold":
            first = "It was let through (shadow mode). Enforcing would have made it wait."
        else:
            first = "It started at once (shadow mode), and enforcing would have let it."
    elif record.mode is Mode.BYPASS:
        return ["It was let through without a decision (bypass mode)."]
    elif outcome is None:
        first = "It had to wait." if record.action == "hold" else "It was let in, and started at once."
        if record.action == "dispatch" and record.waited_s > 0:
            first = f"It waited {_seconds(record.waited_s)}, and started."
    elif record.action == "abort":
        first = f"It was ended after it had been sent to an engine ({outcome.value}): {words}"
    elif record.action == "evict":
        first = f"It waited {_seconds(record.waited_s)} and was turned away ({outcome.value}): {words}"
    else:
        first = f"It was refused at once ({outcome.value}): {words}"
    return [first, *_why(record)]


def _why(record: DecisionRecord) -> list[str]:
    sentences = [record.detail] if record.detail else []
    check = _decisive(record)
    if check is not None:
        line = _line(check, record)
        found = f"{line.what}: {line.found}" if line.found else line.what
        allowed = f", and {line.allowed} is the most" if line.allowed else ""
        sentences.append(
            f"What decided is the check `{check.name}`. {found[:1].upper()}{found[1:]}{allowed}."
        )
    if record.learning and record.action in ("hold", "dispatch") and check is not None:
        sentences.append("The pool was still learning its engines, so no prediction could refuse it.")
    return sentences


def _what_it_does(state: TicketView) -> list[str]:
    if state.phase == "waiting":
        told = f"It waits now, for {_seconds(state.waited_s)} so far"
        if state.position is not None:
            told += f", with {state.position} to be served before it"
        expected = state.predicted_wait_s
        if expected is not None and math.isfinite(expected):
            told += f"; it is expected to start in {_seconds(expected)}"
        if state.waits_at_most_s is not None:
            told += f", and may wait for {_seconds(state.waits_at_most_s)} more"
        return [f"{told}."]
    told = f"It runs now on {state.endpoint}"
    if state.ttft_s is not None:
        told += f"; its first token came {_seconds(state.ttft_s)} after it did"
    if state.output_events:
        told += f", and {state.output_events} events were sent to its client"
    return [f"{told}."]


def _how_it_ended(end: Settlement, *, told: bool) -> list[str]:
    """How it went on after the decision; nothing where the decision was its end."""
    if told:
        return []
    if end.outcome is Outcome.COMPLETED:
        first = "" if end.ttft_s is None else f", the first token after {_seconds(end.ttft_s)}"
        met = "met" if end.met_objective else "missed"
        return [
            f"It was answered in {_seconds(end.duration_s)}{first}: {end.output_tokens} tokens.",
            f"The objective of its class was {met}.",
        ]
    if end.outcome is Outcome.CLIENT_GONE:
        what = "while it waited" if end.endpoint is None else "before the answer was whole"
        return [f"Its client left after {_seconds(end.duration_s)}, {what}."]
    if end.outcome is Outcome.ENGINE_REJECTED:
        return ["The engine answered with an error of its own about the request, which was passed on."]
    words = OUTCOME_WORDS.get(end.outcome, "")
    return [f"It ended after {_seconds(end.duration_s)} ({end.outcome.value}): {words}"]


def _what_it_was(record: DecisionRecord) -> list[str]:
    model = f" for {record.model}" if record.model else ""
    expected = f"{number(record.cost_gpu_s)} GPU-seconds and {record.kv_tokens} KV tokens"
    sentences = [
        f"It was a request{model} of tenant {record.tenant}, in pool {record.pool} and class {record.class_name}.",
        f"It was expected to take {expected}.",
    ]
    if record.predicted_wait_s > 0 and math.isfinite(record.predicted_wait_s):
        budget_s = record.wait_budget_s
        allowed = (
            f"{_seconds(budget_s)} allowed" if math.isfinite(budget_s) else "it may take as long as it takes"
        )
        sentences.append(
            f"When it came, a wait of {_seconds(record.predicted_wait_s)} was expected, and {allowed}."
        )
    return sentences


def _would_admit(record: DecisionRecord) -> tuple[str, ...]:
    if record.outcome is None or record.outcome.group in (Group.SERVED, Group.REJECTED, Group.LEFT):
        return ()
    remedies: dict[str, None] = {}
    for check in _own_checks(record):
        if check.passed or (check.name == RECORDED_ONLY and check.name != record.decided_by):
            continue
        found, allowed = _numbers(check)
        remedy = words_of(check.name).remedy
        if check.limit == 0 and check.name.startswith("quota_"):
            remedy = "a plan that allows more than none"
        elif not remedy and check.limit is not None:
            remedy = f"{words_of(check.name).what} of at most {allowed}"
        if remedy:
            names = {"pool": record.pool, "class": record.class_name, "value": found, "limit": allowed}
            remedies[remedy.format_map(names)] = None
    return tuple(f"{text[:1].upper()}{text[1:]}." for text in remedies)


# Numbers


def _decisive(record: DecisionRecord) -> Check | None:
    """The comparison that decided; None if nothing stood in the way."""
    found = (c for c in reversed(_own_checks(record)) if c.name == record.decided_by and not c.passed)
    return next(found, None)


def _own_checks(record: DecisionRecord) -> tuple[Check, ...]:
    """Those of the record's own pool: not what pools said that it fell back to in vain, or fell back from."""
    begin, end = 0, len(record.checks)
    for place, check in enumerate(record.checks):
        if check.name.startswith(FALLBACK):
            if check.passed:
                begin, end = place + 1, len(record.checks)
            elif end == len(record.checks):
                end = place
    return record.checks[begin:end]


def _line(check: Check, record: DecisionRecord) -> CheckLine:
    words = words_of(check.name)
    found, allowed = _numbers(check)
    if words.counted_low and check.value:
        found = f"at least {found}"
    decided = check.name == record.decided_by and not check.passed
    return CheckLine(check.name, words.what, found, allowed, check.passed, decided)


def _numbers(check: Check) -> tuple[str, str]:
    """What was found and what is allowed, with units; both empty for what is a plain yes or no."""
    words = words_of(check.name)
    unit = words.unit
    if check.limit is None:
        is_plain = check.value == 1 and check.name.startswith(("rule:", FALLBACK))
        return "" if is_plain else f"{number(check.value)}{unit}", ""
    if words.is_plain:
        return "", ""
    found, allowed = two_numbers(check.value, check.limit)
    return f"{found}{unit}", f"{allowed}{unit}"


def _seconds(value_s: float) -> str:
    return f"{number(value_s)} s" if value_s >= 0.001 or value_s == 0 else "under 1 ms"
