"""What is left behind when the core fails."""

from __future__ import annotations

import json
from pathlib import Path

from forebay.admission.events import Arrived, Described, Ended, EndpointsChanged, Event
from forebay.admission.model import EndpointId, EngineInfo, EngineKind, TicketId
from forebay.admission.outcomes import Outcome
from forebay.runtime.dump import write_dump
from tests.unit.runtime.doubles import demand


def test_dump_holds_the_error_and_the_events(tmp_path: Path) -> None:
    """Each line is a JSON document: the error first, then the events with their times and types."""
    events: list[tuple[float, Event]] = [
        (1.0, EndpointsChanged("p", (EndpointId("e"),))),
        (1.5, Described(EndpointId("e"), EngineInfo(EngineKind.VLLM))),
        (2.0, Arrived(demand(TicketId(7)))),
        (3.0, Ended(TicketId(7), Outcome.COMPLETED)),
    ]
    path = write_dump(RuntimeError("books"), events, tmp_path)
    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert "RuntimeError('books')" == head["error"]
    assert "RuntimeError: books" in "".join(head["traceback"])
    assert ["EndpointsChanged", "Described", "Arrived", "Ended"] == [line["type"] for line in lines]
    assert (3.0, 7, "completed") == (
        lines[3]["at_s"],
        lines[3]["event"]["ticket"],
        lines[3]["event"]["outcome"],
    )


def test_dump_is_private(tmp_path: Path) -> None:
    """Only the user of the process may read it: it names tenants and models."""
    path = write_dump(RuntimeError(), [], tmp_path)
    assert 0o600 == path.stat().st_mode & 0o777
