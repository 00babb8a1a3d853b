"""One line per change of an endpoint's state, with why."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from forebay.admission.events import Sampled, SampleMissed
from forebay.admission.model import DecisionRecord, EndpointState, EngineSample, Settlement
from forebay.admission.outcomes import Outcome
from forebay.admission.snapshot import Snapshot
from forebay.observe.endpoint_log import LOOK_S, EndpointLog
from tests.unit.observe.records import ENDPOINT, record, settlement
from tests.unit.observe.snapshots import a_snapshot

SAMPLED = Sampled(ENDPOINT, EngineSample(at_s=0.0))


class Bench:
    """An endpoint log in front of a core that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.looks = 0
        self.shown: Snapshot | None = None
        self.log = EndpointLog(self._look, lambda: self.now_s)
        self.state(EndpointState.STARTING)

    def _look(self) -> Snapshot | None:
        self.looks += 1
        return self.shown

    def state(self, state: EndpointState) -> None:
        """The endpoint is now in this state, and some time has passed."""
        self.shown = a_snapshot(state=state)
        self.now_s += 1.0


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged about endpoints."""
    caplog.set_level(logging.INFO, logger="forebay.endpoints")
    return caplog


def test_each_change_leaves_one_line_with_its_reason(lines: pytest.LogCaptureFixture) -> None:
    """Coming up, going down, hanging and leaving are each told once, as a warning where requests suffer."""
    bench = Bench()
    bench.log.on_event(SAMPLED)
    for state, event in (
        (EndpointState.UP, SAMPLED),
        (EndpointState.UP, SAMPLED),
        (EndpointState.DOWN, SampleMissed(ENDPOINT, unreachable=True)),
        (EndpointState.UP, SAMPLED),
        (EndpointState.STALLED, SampleMissed(ENDPOINT, unreachable=False)),
        (EndpointState.REMOVED, SAMPLED),
    ):
        bench.state(state)
        bench.log.on_event(event)
    told = [(line.levelname, line.getMessage().partition(f"{ENDPOINT} is ")[2]) for line in lines.records]
    assert [
        ("INFO", "up: it answers"),
        ("WARNING", "down: no connection can be made; it gets no requests until it answers again"),
        ("INFO", "up: it works again"),
        (
            "WARNING",
            "stalled: requests run there and nothing has come of any for too long; it gets no new ones",
        ),
        ("INFO", "removed: it is configured no more; what runs there may finish"),
    ] == told
    assert ("p", "stalled", "up") == tuple(
        getattr(lines.records[3], name) for name in ("pool", "state", "was")
    )


def test_an_endpoint_that_is_forgotten_was_removed(lines: pytest.LogCaptureFixture) -> None:
    """One that is not in the core any more leaves the same line, once."""
    bench = Bench()
    bench.log.on_event(SAMPLED)
    assert bench.shown is not None
    bench.shown = replace(bench.shown, pools=())
    for _ in range(2):
        bench.now_s += 1.0
        bench.log.on_event(SAMPLED)
    assert ["removed"] == [line.state for line in lines.records]  # type: ignore[attr-defined]


def test_failed_requests_tell_why(lines: pytest.LogCaptureFixture) -> None:
    """An endpoint that goes down by failing requests is told with what failed; an older reason is not."""
    news: list[DecisionRecord | Settlement] = [
        record(action="abort", detail="The engine failed (closed)."),
        settlement(outcome=Outcome.UPSTREAM_INTERRUPTED),
        record(action="hold", decided_by="attempt_failed", endpoint=None),
    ]
    for told in news:
        bench = Bench()
        bench.log.on_event(SampleMissed(ENDPOINT, unreachable=False))
        bench.now_s += 1.0
        bench.log.on_event(SAMPLED)
        bench.state(EndpointState.DOWN)
        if isinstance(told, DecisionRecord):
            bench.log.on_record(told)
        else:
            bench.log.on_settlement(told)
    assert ["The engine failed (closed)", "its answers break off", "attempts failed"] == [
        line.getMessage().partition("is down: ")[2].partition(";")[0] for line in lines.records
    ]


def test_ordinary_requests_cost_no_look() -> None:
    """Requests that go well are not looked at, a burst of failures is one look, and a failed core is left alone."""
    bench = Bench()
    for _ in range(100):
        bench.log.on_record(record())
        bench.log.on_record(record(action="hold"))
        bench.log.on_settlement(settlement())
    assert bench.looks == 0
    for _ in range(100):
        bench.log.on_settlement(settlement(outcome=Outcome.UPSTREAM_INTERRUPTED))
    assert bench.looks == 1
    bench.now_s += LOOK_S
    bench.shown = None
    bench.log.on_event(SAMPLED)
    assert bench.looks == 2


def test_an_engine_that_gives_nothing_but_errors_is_told_once(lines: pytest.LogCaptureFixture) -> None:
    """And again when it had given a good answer in between."""
    bench = Bench()
    bench.log.on_event(SAMPLED)
    lines.clear()
    for in_row in (5, 20, 25, 0, 21):
        bench.now_s += 1.0
        assert bench.shown is not None
        (pool,) = bench.shown.pools
        endpoints = tuple(replace(view, rejections_in_row=in_row) for view in pool.endpoints)
        bench.shown = replace(bench.shown, pools=(replace(pool, endpoints=endpoints),))
        bench.log.on_settlement(settlement(outcome=Outcome.ENGINE_REJECTED))
    assert [20, 21] == [line.rejections for line in lines.records]  # type: ignore[attr-defined]
