"""The recorder: a line for each request that ended, in a file, without holding up a request.

Owns the buffer between the two. What is told of decisions and ends is kept as it is; a moment later, some at a time,
lines are made of it; a thread writes them. Whatever is too much for the buffer, or that the disk does not take, is
dropped and counted. Nothing that a client said goes into a line but the names it gave: of its model, its tenant, its
session and its request, shortened.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

import msgspec

from forebay.admission.model import DecisionRecord, Mode, Settlement, TicketId
from forebay.admission.outcomes import Outcome
from forebay.load.record_line import LINE_VERSION, RecordLine
from forebay.observe.record_files import RecordFiles

__all__ = ["RecordCounts", "Recorder", "line_of"]

_log = logging.getLogger(__name__)

CAPACITY: Final = 10_000
"""Ends that wait to be made lines: ten seconds of a gateway at its limit, 10 MB."""
FLUSH_S: Final = 0.5
"""From the first end to its line."""
SLICE: Final = 50
"""Lines that are made in one go: half a millisecond."""
PAUSE_S: Final = 0.005
"""Between two slices, while there are more."""
_CHUNKS: Final = 40
"""Slices that may wait for the disk."""
_BYTES_AT_ONCE: Final = 256 * 1024
_STOP_S: Final = 2.0
_TEXT_LENGTH: Final = 128
_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class RecordCounts:
    """What came of the lines; goes on over reloads."""

    used: bool = False
    """There was a record at some time."""
    written: int = 0
    no_room: int = 0
    """Ends for which there was no room in the buffer."""
    not_written: int = 0
    """Lines that the disk did not take."""


class Recorder:
    """Buffers, makes lines, and has them written. `on_record` and `on_settlement` are the observers."""

    def __init__(
        self,
        files: RecordFiles,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        ids_of: Callable[[TicketId], Mapping[str, str]],
        counts: RecordCounts,
    ) -> None:
        """See the module.

        Args:
            files: where lines go; used only by the recorder's own thread.
            loop: where lines are made.
            clock: the core's.
            ids_of: what a client knows its request by.
            counts: written to.
        """
        self._files = files
        self._loop = loop
        self._clock = clock
        self._ids_of = ids_of
        self._counts = counts
        self._first: dict[TicketId, DecisionRecord] = {}
        """What was decided first about each request that is open."""
        self._ended: deque[tuple[Settlement, DecisionRecord | None, Mapping[str, str]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._start_s: float | None = None
        """From when lines count; None until the thread knows."""
        self._chunks: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._failing = False
        counts.used = True
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._write, name="record", daemon=True)
        self._thread.start()

    def on_record(self, record: DecisionRecord) -> None:
        """A decision."""
        self._first.setdefault(record.ticket, record)

    def on_settlement(self, settlement: Settlement) -> None:
        """An end."""
        ticket = settlement.ticket
        first = self._first.pop(ticket, None)
        if len(self._ended) >= CAPACITY:
            self._counts.no_room += 1
            return
        self._ended.append((settlement, first, self._ids_of(ticket)))
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self._make_lines)

    def close(self) -> None:
        """Nothing more is coming: the thread writes what is there, and ends by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._chunks.put(None)

    def join(self) -> None:
        """Wait until everything is written, but not for a disk that hangs. Blocks."""
        self._thread.join(_STOP_S)

    # On the loop

    def _make_lines(self) -> None:
        self._timer = None
        if self._start_s is not None and self._chunks.qsize() < _CHUNKS:
            self._chunks.put(self._slice(self._start_s))
            pause_s = PAUSE_S
        else:
            pause_s = FLUSH_S
        if self._ended:
            self._timer = self._loop.call_later(pause_s, self._make_lines)

    def _slice(self, start_s: float) -> tuple[bytes, int]:
        """Some lines, and how many."""
        # Taken anew each time, since the wall clock may be set while the process runs.
        to_wall_s = time.time() - self._clock()
        lines = []
        for _ in range(min(SLICE, len(self._ended))):
            settlement, first, ids = self._ended.popleft()
            lines.append(_encode(line_of(settlement, first, ids, to_wall_s, start_s)))
        lines.append(b"")
        return b"\n".join(lines), len(lines) - 1

    # In the thread

    def _write(self) -> None:
        try:
            start_s = self._files.start_s()
        except OSError as error:
            self._fails(error)
            start_s = time.time()
        self._start_s = start_s
        while (chunk := self._chunks.get()) is not None:
            data, lines = chunk
            while len(data) < _BYTES_AT_ONCE and not self._chunks.empty():
                further = self._chunks.get()
                if further is None:
                    self._chunks.put(None)
                    break
                data, lines = data + further[0], lines + further[1]
            self._append(data, lines)
        while self._ended:  # closed: nobody else takes any more
            self._append(*self._slice(start_s))
        self._files.close()

    def _append(self, data: bytes, lines: int) -> None:
        try:
            self._files.append(data)
        except OSError as error:
            self._counts.not_written += lines
            self._fails(error)
        else:
            self._counts.written += lines
            if self._failing:
                self._failing = False
                _log.info("the record %s can be written again", self._files.path)

    def _fails(self, error: OSError) -> None:
        """Say so, once until it works again."""
        if not self._failing:
            self._failing = True
            _log.error(
                "the record %s cannot be written (%s): requests are served, their lines are dropped",
                self._files.path,
                error.strerror or error,
            )


def line_of(
    settlement: Settlement,
    first: DecisionRecord | None,
    ids: Mapping[str, str],
    to_wall_s: float,
    start_s: float,
) -> RecordLine:
    """The line of one request.

    Args:
        first: what was decided when it came; None if that was before the recorder was there.
        ids: `id` and perhaps `request_id`.
        to_wall_s: what to add to a time of the core's clock.
        start_s: when the recording began.
    """
    demand, cost, usage = settlement.demand, settlement.cost, settlement.usage
    at_s = settlement.at_s - settlement.duration_s + to_wall_s
    line = RecordLine(
        forebay=LINE_VERSION,
        timestamp=max(0, round((at_s - start_s) * 1000)),
        input_length=settlement.prompt_tokens,
        output_length=_output_length(settlement),
        time=round(at_s, 6),
        id=ids.get("id", ""),
        request_id=_plain(ids.get("request_id", "")),
        pool=settlement.pool,
        class_name=settlement.class_name,
        tenant=_plain(settlement.tenant),
        model=_plain(settlement.model),
        outcome=settlement.outcome.value,
        endpoint=settlement.endpoint or "",
        attempts=settlement.attempts,
        wait_predicted_s=round(settlement.predicted_wait_s, 4),
        waited_s=round(settlement.waited_s, 4),
        duration_s=round(settlement.duration_s, 4),
        cost_expected_gpu_s=round(settlement.estimated_gpu_s, 6),
        met=None if settlement.outcome is Outcome.ENGINE_REJECTED else settlement.met_objective,
    )
    if settlement.endpoint is not None:
        line.cost_gpu_s = round(settlement.charged_gpu_s, 6)
    output = _output_counted(settlement)
    if demand is not None:
        line.session = _plain(demand.session or "")
        line.stream, line.generates, line.flat = demand.stream, demand.generates, demand.flat
        line.samples, line.retry = demand.samples, demand.retry_count
        line.limit_tokens, line.prompt_tokens = demand.max_output_tokens, demand.prompt_tokens
    if cost is not None:
        line.prompt_expected, line.cached_expected = cost.prompt_tokens, cost.cached_tokens
        line.output_expected = cost.output_tokens
    if usage is not None:
        line.prompt_tokens, line.cached_tokens = usage.prompt_tokens, usage.cached_tokens
    line.output_tokens = output
    if settlement.ttft_s is not None:
        line.ttft_s = round(settlement.ttft_s, 4)
        each = (output or 0) / line.samples
        if line.stream and each > 1:
            line.tpot_s = round((settlement.duration_s - settlement.ttft_s) / (each - 1), 6)
    if first is not None:
        _add_decision(line, first)
    return line


def _add_decision(line: RecordLine, first: DecisionRecord) -> None:
    line.mode, line.learning = first.mode.value, first.learning
    line.decision, line.decided_by = first.action, first.decided_by
    line.wait_predicted_s = round(first.predicted_wait_s, 4)
    if isfinite(first.wait_budget_s):
        line.wait_budget_s = round(first.wait_budget_s, 4)
    if first.mode is Mode.SHADOW and first.outcome is not None:
        line.would_be = first.outcome.value


def _output_counted(settlement: Settlement) -> int | None:
    """Output tokens, if anybody counted them: the engine, or we by the events of a stream."""
    if settlement.usage is not None:
        return settlement.usage.output_tokens
    streams = settlement.demand is not None and settlement.demand.stream
    return settlement.output_tokens if streams and settlement.ttft_s is not None else None


def _output_length(settlement: Settlement) -> int:
    if settlement.outcome is Outcome.COMPLETED or settlement.cost is None:
        return settlement.output_tokens
    return max(settlement.output_tokens, settlement.cost.output_tokens)


def _plain(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH else text[:_TEXT_LENGTH]
