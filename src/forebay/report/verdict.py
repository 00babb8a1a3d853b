"""Whether a workload needs admission control, and which part of it, in plain words.

Owns the thresholds. Each part is judged on its own and says the numbers that it goes by. A record shows what happened
at the engines that there were; a trace cannot, so of it only the shape is judged, and the verdict says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forebay.report.survey import Survey
from forebay.report.tally import share

__all__ = ["Part", "Verdict", "judge"]

CONTENDED: Final = 0.005
"""Part of the requests that find no room, from which that is no chance."""
ATTAINED: Final = 0.99
BURSTY: Final = 1.5
"""Peak of ten seconds over the mean, from which engines that are enough on average are not."""
UNEQUAL: Final = 0.5
"""Part of the work that the largest tenth of the requests have, from which small ones wait for large ones."""
DOMINANT: Final = 0.5
"""Part of the work of busy times that one tenant has, from which the others need their shares kept."""
FEW: Final = 200
"""Requests, below which nothing much can be said."""
YES, NO, UNKNOWN = "yes", "no", "unknown"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of admission control."""

    name: str
    needed: str
    """`yes`, `no` or `unknown`."""
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer."""

    needed: str
    """`yes`, `no` or `unknown`."""
    text: str
    parts: tuple[Part, ...]


def judge(survey: Survey) -> Verdict:
    """The verdict on what was surveyed."""
    parts = (_queue(survey), _refusals(survey), _classes(survey), _tenants(survey), _limits(survey))
    if not survey.requests:
        return Verdict(UNKNOWN, "There is not one request in it.", ())
    needed, text = _of_record(survey) if survey.recorded else _of_trace(survey)
    if survey.requests < FEW:
        text += f" These are {survey.requests} requests: too few to rely on."
    return Verdict(needed, text, parts)


def _percent(part: float) -> str:
    return f"{part:.1%}" if 0 < part < 0.1 or 0.99 < part < 1 else f"{part:.0%}"


def _contended(survey: Survey) -> float:
    return share(sum(tally.contended for tally in survey.classes.values()), survey.requests)


def _attained(survey: Survey) -> float | None:
    judged = sum(tally.judged for tally in survey.classes.values())
    return sum(tally.met for tally in survey.classes.values()) / judged if judged else None


def _of_record(survey: Survey) -> tuple[str, str]:
    contended, attained = _contended(survey), _attained(survey)
    met = "" if attained is None else f" {_percent(attained)} of all met their objectives."
    if set(survey.modes) == {"bypass"}:
        return (
            UNKNOWN,
            f"All was recorded in bypass, where nothing is decided.{met} Record in shadow to know more.",
        )
    shadow = " or would have, were it enforced" if "shadow" in survey.modes else ""
    found = f"{_percent(contended)} of {survey.requests} requests had to wait or were refused for want of room{shadow}."
    if contended >= CONTENDED:
        return YES, f"You need admission control: {found}{met}"
    if attained is None or attained >= ATTAINED:
        text = f"You do not need admission control for this traffic: only {found}{met}"
        return NO, f"{text} Keep it in shadow, and look again when traffic has grown."
    return NO, (
        f"Admission control would not help this traffic much: only {found}{met} Requests missed although there was "
        "room, so the engines are too slow for the objectives, or the objectives too tight."
    )


def _of_trace(survey: Survey) -> tuple[str, str]:
    mean, peak = survey.work_tens.mean_per_s, survey.work_tens.peak_per_s
    text = (
        "This is a trace: it says what was asked for, and nothing of engines, waits or objectives. "
        f"On {survey.work_by} its work would keep {_number(mean)} engines busy on average, and {_number(peak)} in its "
        "worst ten seconds."
    )
    if survey.work_tens.peak_over_mean >= BURSTY:
        return YES, (
            f"You need admission control unless you pay for the peak. {text} With fewer engines than that, somebody "
            "has to wait or be refused at times, and it should not be chance who."
        )
    return (
        UNKNOWN,
        f"{text} That is even: with enough engines for the mean and some more, nobody has to wait long.",
    )


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _queue(survey: Survey) -> Part:
    ratio = survey.work_tens.peak_over_mean
    said = f"the worst ten seconds bring {ratio:.1f} times the mean of work, and gaps vary by {survey.gaps.cv:.1f}"
    if survey.recorded and _contended(survey) < CONTENDED:
        return Part("queue", NO, f"hardly anybody found the engines full; {said}")
    needed = YES if ratio >= BURSTY or survey.recorded else NO
    return Part("queue", needed, f"{said}: what comes in bursts can wait for a moment instead of failing")


def _refusals(survey: Survey) -> Part:
    if not survey.recorded:
        return Part("refusals", UNKNOWN, "whether waits get too long depends on the engines")
    refused = sum(tally.refused + tally.would_refuse for tally in survey.classes.values())
    part = share(refused, survey.requests)
    reason = (
        f"{_percent(part)} of the requests were refused, or would have been, as they could not be on time"
    )
    return Part("refusals", YES if part >= CONTENDED else NO, reason)


def _classes(survey: Survey) -> Part:
    largest = survey.work.share_above(0.9)
    busy = [tally for tally in survey.classes.values() if tally.offered >= 0.01 * survey.requests]
    uneven = f"the largest tenth of the requests has {_percent(largest)} of the work"
    if len(busy) > 1:
        return Part("classes", YES, f"{len(busy)} classes share the engines; {uneven}")
    if largest >= UNEQUAL:
        return Part("classes", YES, f"{uneven}: it holds up all others, and could wait itself")
    return Part("classes", NO, f"one class, and its requests are much alike: {uneven}")


def _tenants(survey: Survey) -> Part:
    named = {name: tally for name, tally in survey.tenants.items() if name not in {"", "anonymous"}}
    if not named:
        return Part("tenants", UNKNOWN, "no request says whose it is")
    if len(survey.tenants) < 2:
        return Part("tenants", NO, "there is one tenant")
    total = sum(busy.work_s for busy in survey.busiest)
    sums: dict[str, float] = {}
    for busy in survey.busiest:
        for name, work_s in busy.tenants.items():
            sums[name] = sums.get(name, 0.0) + work_s
    top = max(sums, key=lambda name: sums[name])
    part, overall = share(sums[top], total), share(survey.tenants[top].work_s, survey.work.total)
    reason = (
        f"{top or 'who gives no name'} has {_percent(part)} of the work in the busiest times, and {_percent(overall)} "
        f"over all, of {len(survey.tenants)} tenants"
    )
    dominant = part >= DOMINANT or part >= 3 / len(survey.tenants)
    return Part("tenants", YES if dominant else NO, reason)


def _limits(survey: Survey) -> Part:
    longest, usual = survey.output.high, max(survey.output.quantile(0.5), 1.0)
    stated = share(survey.limits.count, survey.requests)
    reason = (
        f"the longest answer is {longest / usual:.0f} times the usual one, and {_percent(stated)} of the requests "
        "state a limit"
    )
    return Part("limits", YES if longest >= 20 * usual and stated < 0.9 else NO, reason)
