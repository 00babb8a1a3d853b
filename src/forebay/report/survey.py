"""Goes through a record or a trace once and keeps what a report needs.

Owns what is counted, by class, by tenant and by window of time, all in bounded memory: a thousand tenants and sixty
classes are kept apart, the others are one. It judges nothing; see `verdict` and `suggestions`.

Work is in GPU-seconds. A record says what each request took. Of a trace it is computed by an engine's profile, which is
an assumption and is told as such.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from forebay.admission.outcomes import Group, Outcome
from forebay.admission.settings import SpeedLaw
from forebay.load.record_line import RecordLine
from forebay.load.synthetic import PREFIX, read_source
from forebay.load.traces import TraceError, TraceRow, format_of, read_records
from forebay.load.workload import request_work_s
from forebay.report.tally import Bursts, Names, Spread

__all__ = ["Busy", "ClassTally", "Survey", "TenantTally", "survey"]

WINDOW_S: Final = 10.0
BUSIEST: Final = 20
"""Windows of ten seconds with the most work, of which it is remembered who was in them."""
MAX_TENANTS: Final = 1000
MAX_CLASSES: Final = 60
_WAITS_FROM_S: Final = 0.5
"""A relative error of hardly any wait says nothing."""
_REFUSED: Final = (Group.CONTENDED, Group.ABSENT)
_CONTENTION: Final = {
    outcome.value
    for outcome in (
        Outcome.QUEUE_FULL,
        Outcome.DEADLINE_UNREACHABLE,
        Outcome.QUEUE_TIMEOUT,
        Outcome.DISPLACED,
    )
}
"""What only comes of too much work at once."""
_GROUPS: Final = {outcome.value: outcome.group for outcome in Outcome}


@dataclass(slots=True)
class ClassTally:
    """What is known of one class."""

    offered: int = 0
    completed: int = 0
    refused: int = 0
    """For want of capacity, or of the tenant's own."""
    judged: int = 0
    """Those of which it is known whether they met their objectives."""
    met: int = 0
    contended: int = 0
    """Those that could not start at once, or in shadow would not have been let."""
    would_refuse: int = 0
    streams: int = 0
    work_s: float = 0.0
    wait_budget_s: float | None = None
    prompt: Spread = field(default_factory=Spread)
    output: Spread = field(default_factory=Spread)
    ttft: Spread = field(default_factory=Spread)
    quiet_ttft: Spread = field(default_factory=Spread)
    """Of those that did not have to wait: what the engines alone take."""
    tpot: Spread = field(default_factory=Spread)
    waited: Spread = field(default_factory=Spread)


@dataclass(slots=True)
class TenantTally:
    """What is known of one tenant."""

    requests: int = 0
    tokens: int = 0
    work_s: float = 0.0
    minute: Bursts = field(default_factory=lambda: Bursts(60.0))
    """Tokens by minute."""


@dataclass(order=True, slots=True)
class Busy:
    """A window with much work."""

    work_s: float
    at_s: float
    tenants: dict[str, float] = field(default_factory=dict, compare=False)
    classes: dict[str, float] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class Survey:
    """Everything that a report is made of."""

    sources: tuple[str, ...]
    format: str
    work_by: str = ""
    """The profile that work was computed by; empty if the record says it."""
    requests: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    prompt: Spread = field(default_factory=Spread)
    output: Spread = field(default_factory=Spread)
    tokens: Spread = field(default_factory=Spread)
    work: Spread = field(default_factory=Spread)
    service: Spread = field(default_factory=Spread)
    """Seconds at an engine, of whole answers."""
    gaps: Spread = field(default_factory=Spread)
    seconds: Bursts = field(default_factory=lambda: Bursts(1.0))
    tens: Bursts = field(default_factory=lambda: Bursts(WINDOW_S))
    work_tens: Bursts = field(default_factory=lambda: Bursts(WINDOW_S))
    cached_tokens: int = 0
    cached_of_tokens: int = 0
    """Prompt tokens of requests of which it is known how much of them was cached."""
    limits: Spread = field(default_factory=Spread)
    """Stated limits of answers."""
    classes: dict[str, ClassTally] = field(default_factory=dict)
    tenants: dict[str, TenantTally] = field(default_factory=dict)
    busiest: list[Busy] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    endpoints: dict[str, dict[str, None]] = field(default_factory=dict)
    """Endpoints by pool, in the order seen."""
    learning: int = 0
    wait_error: Spread = field(default_factory=Spread)
    """|predicted − actual| ÷ actual, of waits of half a second or more."""
    length_ratio: Spread = field(default_factory=Spread)
    """Actual ÷ expected output tokens of whole answers."""
    cost_ratio: Spread = field(default_factory=Spread)
    """Actual ÷ expected GPU-seconds of whole answers."""

    @property
    def recorded(self) -> bool:
        """It is our own record, which tells of decisions and ends."""
        return self.format == "forebay"

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.last_s - self.first_s


def survey(
    sources: Sequence[str],
    law: SpeedLaw,
    profile: str,
    *,
    limit: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Survey:
    """Go through a trace, or the files of one record.

    Args:
        sources: one trace, or one or more files of our recorder.
        law: what requests of a trace would take.
        profile: the name of that.
        limit: look at no more requests.
        progress: told now and then how many were read.

    Raises:
        TraceError: something cannot be read.
    """
    synthetic = sources[0].startswith(PREFIX)
    found = "synthetic" if synthetic else format_of(sources[0])
    result = Survey(tuple(sources), found)
    surveyor = _Surveyor(result, law)
    if found != "forebay" and len(sources) > 1:
        raise TraceError(
            f"{sources[0]}: only files of one record can be taken together; this is a trace ({found})"
        )
    if found == "forebay":
        items: Iterator[tuple[float, TraceRow | RecordLine]] = read_records(*sources)
    else:
        result.work_by = profile
        items = ((row.at_s, row) for row in read_source(sources[0], limit))
    for count, (at_s, item) in enumerate(items):
        if count == limit:
            break
        if isinstance(item, RecordLine):
            surveyor.add_line(at_s, item)
        else:
            surveyor.add_row(at_s, item)
        if count % 2048 == 0:
            progress(count)
    surveyor.close_window()
    result.busiest.sort(reverse=True)
    return result


class _Surveyor:
    """Puts one request after the other into a survey."""

    def __init__(self, result: Survey, law: SpeedLaw) -> None:
        self._result = result
        self._law = law
        self._tenants = Names(MAX_TENANTS)
        self._classes = Names(MAX_CLASSES)
        self._window: Busy | None = None

    def add_row(self, at_s: float, row: TraceRow) -> None:
        work_s = request_work_s(self._law, row.prompt_tokens, max(row.output_tokens, 1))
        tally = self._add(at_s, row.class_name, row.tenant, row.prompt_tokens, row.output_tokens, work_s)
        tally.streams += row.stream
        if row.cached_tokens is not None:
            self._result.cached_tokens += row.cached_tokens
            self._result.cached_of_tokens += row.prompt_tokens
        if row.limit_tokens is not None:
            self._result.limits.add(row.limit_tokens)

    def add_line(self, at_s: float, line: RecordLine) -> None:
        work_s = line.cost_gpu_s or (line.cost_expected_gpu_s or 0.0)
        tally = self._add(at_s, line.class_name, line.tenant, line.input_length, line.output_length, work_s)
        result = self._result
        if len(result.modes) < 10 or line.mode in result.modes:
            result.modes[line.mode] = result.modes.get(line.mode, 0) + 1
        if len(result.outcomes) < 100 or line.outcome in result.outcomes:
            result.outcomes[line.outcome] = result.outcomes.get(line.outcome, 0) + 1
        if line.endpoint and len(result.endpoints) < 100:
            of_pool = result.endpoints.setdefault(line.pool, {})
            if len(of_pool) < 100:
                of_pool[line.endpoint] = None
        result.learning += line.learning
        if line.prompt_tokens is not None and line.cached_tokens is not None:
            result.cached_tokens += line.cached_tokens
            result.cached_of_tokens += line.prompt_tokens
        if line.limit_tokens is not None:
            result.limits.add(line.limit_tokens)
        self._add_end(tally, line)
        self._add_predictions(line)

    def _add(  # noqa: PLR0917 - by position: it is called for each request
        self, at_s: float, class_name: str, tenant: str, prompt: int, output: int, work_s: float
    ) -> ClassTally:
        result = self._result
        if result.requests:
            result.gaps.add(at_s - result.last_s)
        else:
            result.first_s = at_s
        result.last_s = at_s
        result.requests += 1
        at_s -= result.first_s
        result.prompt.add(prompt)
        result.output.add(output)
        result.tokens.add(prompt + output)
        result.work.add(work_s)
        result.seconds.add(at_s)
        result.tens.add(at_s)
        result.work_tens.add(at_s, work_s)
        class_name, tenant = self._classes.of(class_name), self._tenants.of(tenant)
        own = result.tenants.get(tenant)
        if own is None:
            own = result.tenants[tenant] = TenantTally()
        own.requests += 1
        own.tokens += prompt + output
        own.work_s += work_s
        own.minute.add(at_s, prompt + output)
        tally = result.classes.get(class_name)
        if tally is None:
            tally = result.classes[class_name] = ClassTally()
        tally.offered += 1
        tally.work_s += work_s
        tally.prompt.add(prompt)
        tally.output.add(output)
        self._add_to_window(at_s, class_name, tenant, work_s)
        return tally

    def _add_to_window(self, at_s: float, class_name: str, tenant: str, work_s: float) -> None:
        start_s = at_s // WINDOW_S * WINDOW_S
        window = self._window
        if window is None or window.at_s != start_s:
            self.close_window()
            window = self._window = Busy(0.0, start_s)
        window.work_s += work_s
        window.tenants[tenant] = window.tenants.get(tenant, 0.0) + work_s
        window.classes[class_name] = window.classes.get(class_name, 0.0) + work_s

    def close_window(self) -> None:
        """The present window is over."""
        if self._window is not None:
            heapq.heappush(self._result.busiest, self._window)
            if len(self._result.busiest) > BUSIEST:
                heapq.heappop(self._result.busiest)
            self._window = None

    def _add_end(self, tally: ClassTally, line: RecordLine) -> None:
        completed = line.outcome == Outcome.COMPLETED.value
        tally.completed += completed
        tally.streams += line.stream
        tally.refused += _GROUPS.get(line.outcome) in _REFUSED
        tally.would_refuse += line.would_be != ""
        tally.contended += line.decision == "hold" or bool({line.would_be, line.outcome} & _CONTENTION)
        if line.met is not None:
            tally.judged += 1
            tally.met += line.met
        if line.wait_budget_s is not None:
            tally.wait_budget_s = max(tally.wait_budget_s or 0.0, line.wait_budget_s)
        tally.waited.add(line.waited_s)
        if line.ttft_s is not None and line.stream:
            tally.ttft.add(line.ttft_s)
            if not line.waited_s:
                tally.quiet_ttft.add(line.ttft_s)
        if line.tpot_s is not None:
            tally.tpot.add(line.tpot_s)
        if completed:
            self._result.service.add(line.duration_s - line.waited_s)

    def _add_predictions(self, line: RecordLine) -> None:
        result = self._result
        if line.waited_s >= _WAITS_FROM_S and line.wait_predicted_s is not None:
            result.wait_error.add(abs(line.wait_predicted_s - line.waited_s) / line.waited_s)
        if line.outcome != Outcome.COMPLETED.value:
            return
        if line.output_expected and line.output_tokens:
            result.length_ratio.add(line.output_tokens / line.output_expected)
        if line.cost_expected_gpu_s and line.cost_gpu_s:
            result.cost_ratio.add(line.cost_gpu_s / line.cost_expected_gpu_s)
