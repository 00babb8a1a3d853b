"""One line per request that did not go well, and never too many."""

from __future__ import annotations

import logging

import pytest

from forebay.admission.model import Mode, TicketId
from forebay.admission.outcomes import Group, Outcome
from forebay.observe.request_log import BURST, RequestLog
from tests.unit.observe.records import record, refusal_record, refused, settlement


class Clock:
    """Seconds that pass only when told."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged about requests."""
    caplog.set_level(logging.INFO, logger="forebay.requests")
    return caplog


def test_requests_that_go_well_leave_no_line(lines: pytest.LogCaptureFixture) -> None:
    """Dispatches, holds and completed answers are not logged."""
    log = RequestLog(Clock())
    log.on_record(record())
    log.on_record(record(action="hold"))
    log.on_settlement(settlement())
    assert [] == lines.records


def test_refusal_leaves_one_line_with_its_reason(lines: pytest.LogCaptureFixture) -> None:
    """A refused request is logged once, with the check that decided and the numbers."""
    log = RequestLog(Clock())
    log.on_record(refusal_record(waited_s=0.1234))
    log.on_settlement(refused())
    (line,) = lines.records
    assert ("request refused", logging.INFO) == (line.getMessage(), line.levelno)
    assert ("queue_full", "class_requests", 0.123) == (line.code, line.decided_by, line.waited_s)  # type: ignore[attr-defined]


def test_shadow_tells_whom_it_would_have_refused(lines: pytest.LogCaptureFixture) -> None:
    """In words of its own; how such a request ends is told as of any other."""
    log = RequestLog(Clock())
    log.on_record(refusal_record(mode=Mode.SHADOW))
    log.on_settlement(settlement(outcome=Outcome.DRAINING))
    assert ["request would be refused (shadow)", "request cut at shutdown"] == [
        line.getMessage() for line in lines.records
    ]


def test_what_was_dispatched_and_given_up_leaves_one_line(lines: pytest.LogCaptureFixture) -> None:
    """A failure is told by its settlement, an engine that could not be reached by the decision; neither twice."""
    log = RequestLog(Clock())
    for outcome, message in [
        (Outcome.UPSTREAM_FAILED, "request failed"),
        (Outcome.NO_ENDPOINTS, "request refused"),
    ]:
        lines.clear()
        log.on_record(record(action="abort", outcome=outcome, decided_by="other_endpoints"))
        log.on_settlement(settlement(outcome=outcome))
        assert [message] == [line.getMessage() for line in lines.records]


def test_failure_is_a_warning_and_a_departure_is_not(lines: pytest.LogCaptureFixture) -> None:
    """A failed request is logged as a warning, a client that left as information."""
    log = RequestLog(Clock())
    for outcome in Outcome:
        if outcome.group in (Group.FAILED, Group.LEFT):
            log.on_settlement(settlement(outcome=outcome))
    found = {(line.getMessage(), line.levelname) for line in lines.records}
    assert {("request failed", "WARNING"), ("client left", "INFO")} == found


def test_flood_is_cut_and_told(lines: pytest.LogCaptureFixture) -> None:
    """Beyond a burst, lines are counted instead of written, and the next line says how many."""
    clock = Clock()
    log = RequestLog(clock)
    for _ in range(10_000):
        log.on_record(refusal_record())
    assert BURST == len(lines.records)
    clock.now_s = 1.0
    log.on_record(refusal_record())
    assert 10_000 - BURST == lines.records[-1].lines_suppressed  # type: ignore[attr-defined]
    log.on_record(refusal_record())
    assert not hasattr(lines.records[-1], "lines_suppressed")


def test_text_of_clients_cannot_forge_lines(lines: pytest.LogCaptureFixture) -> None:
    """Control characters are replaced and long names are cut."""
    log = RequestLog(Clock())
    log.on_record(refusal_record(model="m\n\x1b[31mERROR " + "x" * 1000, tenant="a\r\nb"))
    (line,) = lines.records
    assert line.model.startswith("m??[31mERROR xx")  # type: ignore[attr-defined]
    assert 128 == len(line.model)  # type: ignore[attr-defined]
    assert "a??b" == line.tenant  # type: ignore[attr-defined]


def test_a_client_finds_its_request_by_its_ids(lines: pytest.LogCaptureFixture) -> None:
    """Each line has what a client knows of its request; nobody is asked about requests that leave no line."""
    asked: list[int] = []

    def ids_of(ticket: TicketId) -> dict[str, str]:
        asked.append(ticket)
        return {"id": f"abc-{ticket}", "request_id": "mine"}

    log = RequestLog(Clock(), ids_of)
    log.on_record(record(ticket=TicketId(1)))
    log.on_settlement(settlement(ticket=TicketId(1)))
    log.on_record(refusal_record(ticket=TicketId(2)))
    log.on_settlement(settlement(ticket=TicketId(3), outcome=Outcome.CLIENT_GONE))
    assert [("abc-2", "mine"), ("abc-3", "mine")] == [
        (line.id, line.request_id)  # type: ignore[attr-defined]
        for line in lines.records
    ]
    assert [2, 3] == asked


def test_a_request_cut_at_shutdown_leaves_one_line(lines: pytest.LogCaptureFixture) -> None:
    """What was running when the time to drain was over is told as that; a waiter that was turned away only once."""
    log = RequestLog(Clock())
    log.on_record(record(ticket=TicketId(1)))
    log.on_record(refusal_record(Outcome.DRAINING, ticket=TicketId(2)))
    log.on_settlement(refused(Outcome.DRAINING, ticket=TicketId(2)))
    log.on_settlement(settlement(ticket=TicketId(1), outcome=Outcome.DRAINING))
    assert [("request refused", "INFO"), ("request cut at shutdown", "WARNING")] == [
        (line.getMessage(), line.levelname) for line in lines.records
    ]


def test_at_debug_requests_that_go_well_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    """With what a person looks for who was told that something is slow; within the same number of lines."""
    caplog.set_level(logging.DEBUG, logger="forebay.requests")
    log = RequestLog(Clock())
    log.on_settlement(settlement(ttft_s=0.25))
    (line,) = caplog.records
    assert ("request completed", logging.DEBUG, 0.25) == (line.getMessage(), line.levelno, line.ttft_s)  # type: ignore[attr-defined]
    for _ in range(2 * int(BURST)):
        log.on_settlement(settlement())
    assert len(caplog.records) == BURST
