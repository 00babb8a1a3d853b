from __future__ import annotations

import dataclasses
import inspect
from typing import get_args

import pytest

from forebay.admission import Controller, Outcome, events
from forebay.admission.events import (
    AttemptFailed,
    ClientLeft,
    Described,
    DrainStarted,
    Ended,
    EndpointsChanged,
    Event,
    Failure,
    FirstTokenCame,
    Progressed,
    Sampled,
    SampleMissed,
    ShareChanged,
)
from forebay.admission.model import EndpointId, TicketId
from tests.unit.admission.build import VLLM, reading, settings_for

NOBODY = TicketId(404)
NOWHERE = EndpointId("nowhere")

LATE_NEWS: list[Event] = [
    Progressed(NOWHERE, [(NOBODY, 3)], 0.02),
    FirstTokenCame(NOBODY),
    Ended(NOBODY, Outcome.COMPLETED),
    ClientLeft(NOBODY),
    AttemptFailed(NOBODY, NOWHERE, Failure.CLOSED),
    Sampled(NOWHERE, reading(0.5)),
    SampleMissed(NOWHERE, unreachable=True),
    Described(NOWHERE, VLLM),
]
DECLARED = [
    value
    for _, value in inspect.getmembers(events, dataclasses.is_dataclass)
    if inspect.isclass(value) and value.__module__ == events.__name__
]


def test_the_union_holds_every_event() -> None:
    """Whoever feeds the core can send any of the declared events, and no others."""
    assert {kind.__name__ for kind in DECLARED} == {kind.__name__ for kind in get_args(Event)}


@pytest.mark.parametrize("kind", DECLARED)
def test_events_are_records(kind: type) -> None:
    """An event has its declared fields and compares by them."""
    assert not kind.__dictoffset__  # no room for an attribute that was not declared
    assert kind.__dataclass_params__.eq  # type: ignore[attr-defined]


@pytest.mark.parametrize("event", LATE_NEWS, ids=lambda event: type(event).__name__)
def test_late_news_changes_nothing(event: Event) -> None:
    """News about a ticket or an endpoint that is gone has no effect and leaves everything as it was."""
    controller = Controller(settings_for(), 0.0)
    controller.handle(EndpointsChanged("llama", (EndpointId("a"),)), 0.0)
    controller.handle(Sampled(EndpointId("a"), reading(1.0)), 1.0)
    before = controller.snapshot()
    assert [] == controller.handle(event, 1.0)
    assert before == controller.snapshot()


@pytest.mark.parametrize(
    "event", [EndpointsChanged("llama", ()), ShareChanged("llama", 1.0), DrainStarted(5.0)], ids=str
)
def test_an_idle_core_has_nothing_to_do(event: Event) -> None:
    """Events that concern everybody ask for nothing while nobody is there."""
    assert [] == Controller(settings_for(), 0.0).handle(event, 1.0)
