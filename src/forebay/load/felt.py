"""What users felt: one client-side record per request, and the summary of many.

Owns the meaning of *met* for a client: a streamed answer is met when its first token came within the class's
TTFT objective and its later tokens within the TPOT objective on average; any other answer when the whole of it
came within the class's objective for whole answers, by default TTFT + TPOT × output tokens. Refused, failed and
unanswered requests are not met, and all of them count in what was offered: attainment = met ÷ offered.

It is pure and judges only from what a client can see, so the same arithmetic serves traffic that went straight
to an engine and traffic that went through Forebay. It never asks the gateway how well it did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final

from forebay.admission.settings import ClassSettings

_MOST_FAILURES: Final = 5


@unique
class End(Enum):
    """How a request ended, as its client saw it."""

    COMPLETED = "completed"
    REFUSED = "refused"
    """Answered with 429, 503 or 529 before any token: turned away, not failed."""
    FAILED = "failed"
    """Any other error, a broken connection, or an error inside the stream."""
    UNANSWERED = "unanswered"
    """Still open when the clients stopped waiting."""


@dataclass(frozen=True, slots=True)
class Felt:
    """One request as its client saw it. Times are seconds from the moment it was due to be sent."""

    class_name: str
    at_s: float
    """When the request was due, from the start of the workload."""
    stream: bool
    end: End
    duration_s: float
    """To the end of the answer; the age of an unanswered request."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    output_tokens: int = 0
    status: int | None = None
    code: str = ""
    """The error code of the answer, or the kind of connection failure."""
    retry_after_s: float | None = None
    late_s: float = 0.0
    """How much later than due the request was really sent: a check on the client itself."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token; of an unanswered request at least its age. None if it never could have one."""
        if self.first_token_s is not None:
            return self.first_token_s
        return self.duration_s if self.end is End.UNANSWERED else None

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first."""
        if self.first_token_s is None or self.last_token_s is None or self.output_tokens < 2:
            return 0.0
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    def met(self, objective: ClassSettings) -> bool:
        """Whether the answer was whole and within the objective of its class."""
        if self.end is not End.COMPLETED or self.first_token_s is None:
            return False
        if not self.stream:
            return self.duration_s <= objective.answer_s(self.output_tokens)
        return self.first_token_s <= objective.ttft_s and self.tpot_s <= objective.tpot_s


@dataclass(frozen=True, slots=True)
class ClassReport:
    """What the users of one class felt."""

    offered: int
    completed: int
    refused: int
    failed: int
    unanswered: int
    met_slo: int
    ttft_p50_s: float | None
    """Over every request that was not refused and did not fail; unanswered ones count at their age."""
    ttft_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """What all users felt over a measured stretch of time."""

    classes: Mapping[str, ClassReport]
    duration_s: float
    goodput_rps: float
    """Requests that were met, per second of the stretch in which they were offered."""
    slo_attainment: float
    """Met ÷ offered."""
    admitted_attainment: float
    """Met ÷ not refused."""
    refusals: int
    refusals_with_retry_after: int
    errors: int
    unanswered: int
    preemptions: int | None = None
    """Requests that the engines pushed out of their KV cache; None when the engines don't say."""
    late_p99_s: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    """The most frequent statuses and codes of those that failed, as the target named them."""

    @property
    def offered(self) -> int:
        """Requests of all classes."""
        return sum(report.offered for report in self.classes.values())

    @property
    def met_slo(self) -> int:
        """Requests of all classes within their objectives."""
        return sum(report.met_slo for report in self.classes.values())

    def to_json(self) -> dict[str, object]:
        """The report as one JSON object."""
        return {
            "classes": {
                name: {
                    "offered": report.offered,
                    "completed": report.completed,
                    "refused": report.refused,
                    "failed": report.failed,
                    "unanswered": report.unanswered,
                    "met_slo": report.met_slo,
                    "ttft_p50_s": _rounded(report.ttft_p50_s),
                    "ttft_p99_s": _rounded(report.ttft_p99_s),
                }
                for name, report in self.classes.items()
            },
            "duration_s": round(self.duration_s, 3),
            "goodput_rps": round(self.goodput_rps, 3),
            "slo_attainment": round(self.slo_attainment, 4),
            "admitted_attainment": round(self.admitted_attainment, 4),
            "preemptions": self.preemptions,
            "refusals": self.refusals,
            "refusals_with_retry_after": self.refusals_with_retry_after,
            "errors": self.errors,
            "failures": dict(self.failures),
            "unanswered": self.unanswered,
        }


def summarise(
    felt: Sequence[Felt],
    classes: Sequence[ClassSettings],
    *,
    duration_s: float,
    preemptions: int | None = None,
) -> Report:
    """Sum up what was felt over `duration_s` seconds of offered requests.

    Args:
        felt: one record per offered request, in any order.
        classes: the objectives; a record of a class that is not among them is an error.
        duration_s: how long requests were offered for, without the tail in which the last were answered.
        preemptions: counted by the engines meanwhile.
    """
    objectives = {objective.name: objective for objective in classes}
    reports: dict[str, ClassReport] = {}
    for name, objective in objectives.items():
        of_class = [one for one in felt if one.class_name == name]
        if of_class:
            reports[name] = _class_report(of_class, objective)
    unknown = {one.class_name for one in felt} - set(objectives)
    if unknown:
        raise ValueError(f"no objectives for class {min(unknown)!r}; known: {', '.join(objectives)}")
    met = sum(report.met_slo for report in reports.values())
    refused = [one for one in felt if one.end is End.REFUSED]
    return Report(
        classes=reports,
        duration_s=duration_s,
        goodput_rps=met / duration_s if duration_s > 0 else 0.0,
        slo_attainment=met / len(felt) if felt else 0.0,
        admitted_attainment=met / (len(felt) - len(refused)) if len(felt) > len(refused) else 0.0,
        refusals=len(refused),
        refusals_with_retry_after=sum(one.retry_after_s is not None for one in refused),
        errors=sum(one.end is End.FAILED for one in felt),
        unanswered=sum(one.end is End.UNANSWERED for one in felt),
        preemptions=preemptions,
        late_p99_s=quantile((one.late_s for one in felt), 0.99) or 0.0,
        failures=dict(
            Counter(_how(one) for one in felt if one.end is End.FAILED).most_common(_MOST_FAILURES)
        ),
    )


def quantile(values: Iterable[float], part: float) -> float | None:
    """The smallest value that at least `part` of the values do not exceed (nearest rank); None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _class_report(felt: Sequence[Felt], objective: ClassSettings) -> ClassReport:
    ends = [one.end for one in felt]
    ttfts_s = [one.ttft_s for one in felt if one.ttft_s is not None and one.end is not End.FAILED]
    return ClassReport(
        offered=len(felt),
        completed=ends.count(End.COMPLETED),
        refused=ends.count(End.REFUSED),
        failed=ends.count(End.FAILED),
        unanswered=ends.count(End.UNANSWERED),
        met_slo=sum(one.met(objective) for one in felt),
        ttft_p50_s=quantile(ttfts_s, 0.5),
        ttft_p99_s=quantile(ttfts_s, 0.99),
    )


def _how(one: Felt) -> str:
    """What a failure was, in a word or two."""
    parts = ["" if one.status in {None, 200} else str(one.status), one.code[:60]]
    return " ".join(filter(None, parts)) or "no answer"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
