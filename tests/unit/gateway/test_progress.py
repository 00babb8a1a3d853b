from __future__ import annotations

import asyncio

import pytest

from forebay.admission.events import Event, Progressed
from forebay.admission.model import EndpointId, TicketId
from forebay.gateway.progress import HELD_HEAD_S, Progress


class Stream:
    """Something that moves."""

    def __init__(self, ticket: int, endpoint: str = "e") -> None:
        self.ticket = TicketId(ticket)
        self.endpoint = EndpointId(endpoint)
        self.new_events = 0
        self.moved = False
        self.last_event_s = 0.0
        self.reported_event_s = 0.0
        self.over = False
        self.released = 0

    def release_head(self) -> None:
        self.released += 1


class Reports:
    """A reporter with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.events: list[Event] = []
        self.progress = Progress(self.events.append, lambda: self.now_s, 0.01)

    def event(self, stream: Stream, at_s: float, count: int = 1) -> None:
        """Data events of a stream arrive."""
        stream.new_events += count
        stream.last_event_s = at_s
        if not stream.moved:
            self.progress.note(stream)

    def flush(self) -> list[Progressed]:
        """The reports made now."""
        self.events.clear()
        self.progress.flush()
        return [event for event in self.events if isinstance(event, Progressed)]


@pytest.fixture
async def reports() -> Reports:
    """Reports on a running loop."""
    return Reports()


async def test_events_are_reported_in_one_batch_per_endpoint(reports: Reports) -> None:
    """All that moved at an endpoint is one report with a count per stream, and is reported once."""
    first, second, other = Stream(1), Stream(2), Stream(3, "f")
    for _ in range(3):
        reports.event(first, 10.0)
    reports.event(second, 10.0)
    reports.event(other, 10.0)
    assert [("e", [(1, 3), (2, 1)]), ("f", [(3, 1)])] == [
        (r.endpoint, list(r.tokens)) for r in reports.flush()
    ]
    assert reports.flush() == []
    reports.progress.close()


async def test_the_mean_gap_is_per_stream(reports: Reports) -> None:
    """The gap is the time between events of one stream, over all streams; the first event has none before it."""
    slow, fast = Stream(1), Stream(2)
    reports.event(slow, 10.0)
    reports.event(fast, 10.0)
    assert [None] == [r.mean_gap_s for r in reports.flush()]
    reports.event(slow, 10.2, 2)
    reports.event(fast, 10.2, 4)
    (report,) = reports.flush()
    assert report.mean_gap_s == pytest.approx(0.4 / 6)
    reports.progress.close()


async def test_what_is_over_is_not_reported(reports: Reports) -> None:
    """A stream that ended between its event and the report has told its count by then."""
    stream = Stream(1)
    reports.event(stream, 10.0)
    stream.over = True
    assert reports.flush() == []
    reports.progress.close()


async def test_a_paused_stream_is_not_silent(reports: Reports) -> None:
    """While a slow client keeps us from reading it is not the engine's silence; nor does it show that the engine works.

    The pause is no gap either.
    """
    stream = Stream(1)
    reports.event(stream, 10.0)
    reports.flush()
    reports.progress.pause(stream)
    reports.now_s += 5
    assert [([(1, 0)], False)] == [(list(r.tokens), r.alive) for r in reports.flush()]
    assert reports.flush() == []
    reports.progress.resume(stream)
    reports.event(stream, 30.0)
    assert [None] == [r.mean_gap_s for r in reports.flush()]
    reports.progress.close()


async def test_held_heads_are_let_go_in_time(reports: Reports) -> None:
    """A head held with comments is released after its time, unless it is over."""
    early, ended, late = Stream(1), Stream(2), Stream(3)
    reports.progress.hold(early)
    reports.progress.hold(ended)
    reports.now_s += 5
    reports.progress.hold(late)
    ended.over = True
    reports.now_s += HELD_HEAD_S - 5
    reports.flush()
    assert (1, 0, 0) == (early.released, ended.released, late.released)
    reports.now_s += 5
    reports.flush()
    assert late.released == 1
    reports.progress.close()


async def test_the_timer_runs_only_while_there_is_something_to_tell() -> None:
    """One timer reports by itself and stops when nothing moves."""
    told = asyncio.Event()

    def feed(_: Event) -> None:
        told.set()

    progress = Progress(feed, lambda: 1.0, 0.001)
    assert progress._timer is None
    stream = Stream(1)
    stream.new_events = 1
    progress.note(stream)
    await asyncio.wait_for(told.wait(), 5.0)
    assert progress._timer is None
    assert not stream.moved
