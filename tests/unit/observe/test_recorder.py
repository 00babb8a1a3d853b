"""The recorder: a line per end, made in a moment, never at the cost of a request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.admission.model import Cost, Demand, Mode, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.load.record_line import RecordLine
from forebay.load.traces import read_records, read_trace
from forebay.observe import recorder as recorder_module
from forebay.observe.record_files import RecordFiles
from forebay.observe.recorder import RecordCounts, Recorder, line_of
from tests.unit.observe.records import record, refusal_record, settlement

DEMAND = Demand(
    TicketId(1), "p", "standard", "m", True, 400, 900, "acme", None, 0, 256, session="s1", retry_count=2
)
COST = Cost(
    work_us=1_000_000, prefill_us=1, kv_tokens=150, prompt_tokens=90, output_tokens=50, cached_tokens=30
)
USAGE = Usage(100, 20, 32)
IDS = {"id": "ab-1", "request_id": "theirs"}


def line(settled: Any, first: Any = None) -> dict[str, Any]:
    """A line as it is written."""
    made = line_of(settled, first, IDS, 1000.0, 1050.0)
    told: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return told


def test_a_line_says_what_was_asked_decided_and_done() -> None:
    """Sizes, estimate and truth, decision, outcome and times, under documented names."""
    settled = settlement(demand=DEMAND, cost=COST, usage=USAGE, waited_s=0.25)
    first = record(action="hold", decided_by="slots", predicted_wait_s=0.2, learning=True)
    assert {
        "forebay": 1, "timestamp": 49_000, "input_length": 100, "output_length": 20, "time": 1099.0,
        "id": "ab-1", "request_id": "theirs", "pool": "p", "class": "standard", "tenant": "acme", "model": "m",
        "session": "s1", "retry": 2, "limit_tokens": 256, "prompt_tokens": 100, "cached_tokens": 32,
        "output_tokens": 20, "prompt_expected": 90, "cached_expected": 30, "output_expected": 50,
        "decision": "hold", "decided_by": "slots", "outcome": "completed", "endpoint": "http://10.0.0.1:8000",
        "attempts": 1, "wait_budget_s": 5.0, "wait_predicted_s": 0.2, "waited_s": 0.25, "ttft_s": 0.3,
        "tpot_s": round(1.7 / 19, 6), "duration_s": 2.0, "cost_expected_gpu_s": 1.0, "cost_gpu_s": 1.5,
        "met": True, "learning": True,
    } == line(settled, first)  # fmt: skip


def test_a_refused_request_has_the_answer_that_was_expected() -> None:
    """Its row in a trace is what it would have been; what nobody counted is not said."""
    settled = settlement(
        demand=DEMAND, cost=COST, outcome=Outcome.QUEUE_FULL, endpoint=None, ttft_s=None, duration_s=0.0,
        prompt_tokens=90, output_tokens=0, attempts=0, met_objective=False, charged_gpu_s=0.0,
    )  # fmt: skip
    told = line(settled, refusal_record(wait_budget_s=inf))
    assert (90, 50, "refuse", "queue_full") == (
        told["input_length"], told["output_length"], told["decision"], told["outcome"],
    )  # fmt: skip
    for key in (
        "prompt_tokens",
        "output_tokens",
        "ttft_s",
        "tpot_s",
        "cost_gpu_s",
        "wait_budget_s",
        "endpoint",
    ):
        assert key not in told
    assert told["met"] is False


def test_shadow_says_what_it_would_have_done() -> None:
    """The outcome is what happened, `would_be` what enforcing would have made of it."""
    told = line(settlement(demand=DEMAND, cost=COST, usage=USAGE), refusal_record(mode=Mode.SHADOW))
    assert ("shadow", "refuse", "queue_full", "completed") == (
        told["mode"], told["decision"], told["would_be"], told["outcome"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "usage", "ttft_s", "counted"),
    [(True, USAGE, 0.3, 20), (True, None, 0.3, 17), (True, None, None, None), (False, None, 0.3, None)],
)
def test_only_what_was_counted_counts(
    stream: bool, usage: Usage | None, ttft_s: float | None, counted: int | None
) -> None:
    """The engine's count, or the events of a stream; an expectation is not passed off as the truth."""
    demand = Demand(TicketId(1), "p", "standard", "m", stream, 400, 900)
    told = line(settlement(demand=demand, cost=COST, usage=usage, ttft_s=ttft_s, output_tokens=17))
    assert counted == told.get("output_tokens")
    assert ("tpot_s" in told) is (stream and counted is not None)


def test_long_names_are_cut() -> None:
    """A client's names cannot make a line long."""
    settled = settlement(tenant="t" * 10_000, model="m" * 10_000)
    assert len(json.dumps(line(settled))) < 1000


class Bench:
    """A recorder on a running loop."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.counts = RecordCounts()
        self.files = RecordFiles(path, max_bytes=1 << 20, files=2)
        self.recorder = Recorder(
            more.pop("files", self.files),
            asyncio.get_running_loop(),
            lambda: 500.0,
            lambda _: IDS,
            self.counts,
        )

    def end(self, number: int) -> None:
        """A request comes and ends."""
        self.recorder.on_record(record(ticket=TicketId(number)))
        self.recorder.on_settlement(
            settlement(ticket=TicketId(number), demand=DEMAND, cost=COST, usage=USAGE, at_s=500.0)
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the thread does."""
        async with asyncio.timeout(5):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.002)

    async def started(self) -> None:
        """Wait until the thread has looked at the files."""
        await self.until(lambda: self.recorder._start_s is not None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are made in a moment."""
    monkeypatch.setattr(recorder_module, "FLUSH_S", 0.002)
    monkeypatch.setattr(recorder_module, "PAUSE_S", 0.0)


async def test_every_end_has_a_line_that_any_reader_takes(tmp_path: Path) -> None:
    """Many ends, in order, with their decisions; also as a trace and as Mooncake's rows."""
    bench = Bench(tmp_path / "r")
    for number in range(230):
        bench.end(number)
    await bench.until(lambda: bench.counts.written == 230)
    bench.end(231)
    bench.recorder.close()
    bench.recorder.join()
    lines = [one for _, one in read_records(tmp_path / "r")]
    assert (231, 231, 0, 0) == (
        len(lines), bench.counts.written, bench.counts.no_room, bench.counts.not_written,
    )  # fmt: skip
    assert {"dispatch"} == {one.decision for one in lines}
    assert [(100, 20, 32)] * 231 == [
        (row.prompt_tokens, row.output_tokens, row.cached_tokens) for row in read_trace(tmp_path / "r")
    ]
    for text in (tmp_path / "r").read_text().splitlines():
        assert {"timestamp", "input_length", "output_length"} <= json.loads(text).keys()
    assert {} == bench.recorder._first


class HangingFiles(RecordFiles):
    """A disk that does not come back until it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, max_bytes=1 << 20, files=1)
        self.go_on = threading.Event()

    def append(self, data: bytes) -> None:
        self.go_on.wait(10)
        super().append(data)


async def test_a_disk_that_hangs_fills_a_bounded_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends beyond the buffer are dropped and counted; nothing waits for the disk."""
    monkeypatch.setattr(recorder_module, "CAPACITY", 100)
    monkeypatch.setattr(recorder_module, "_CHUNKS", 1)
    files = HangingFiles(tmp_path / "r")
    bench = Bench(tmp_path / "r", files=files)
    await bench.started()
    for number in range(2000):
        bench.end(number)
        if number % 100 == 0:
            await asyncio.sleep(0.005)
    assert bench.counts.no_room > 1500
    assert len(bench.recorder._ended) <= 100
    files.go_on.set()
    bench.recorder.close()
    bench.recorder.join()
    assert 2000 == bench.counts.no_room + bench.counts.written
    assert bench.counts.written == len(list(read_records(tmp_path / "r")))


async def test_a_disk_that_fails_is_told_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines are dropped while it fails, with one line in the log; when it works again, they are written."""
    folder = tmp_path / "r"
    folder.mkdir()
    bench = Bench(folder)
    await bench.started()
    for number in range(3):
        bench.end(number)
        await bench.until(lambda number=number: bench.counts.not_written > number)  # type: ignore[misc]
    folder.rmdir()
    caplog.set_level("INFO")
    bench.end(4)
    bench.recorder.close()
    bench.recorder.join()
    assert (1, 3) == (bench.counts.written, bench.counts.not_written)
    assert 1 == len(list(read_records(folder)))
    told = [one.getMessage() for one in caplog.records]
    assert ["cannot be written (Is a directory)", "can be written again"] == [
        text.split(f"{folder} ")[1].split(":")[0] for text in told
    ]


async def test_ends_of_requests_that_came_before(tmp_path: Path) -> None:
    """A request that was decided before the recorder was there has a line without a decision."""
    bench = Bench(tmp_path / "r")
    await bench.started()
    bench.recorder.on_settlement(settlement())
    bench.recorder.close()
    bench.recorder.join()
    ((_, only),) = read_records(tmp_path / "r")
    assert isinstance(only, RecordLine)
    assert ("", "completed") == (only.decision, only.outcome)
