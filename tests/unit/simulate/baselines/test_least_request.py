from __future__ import annotations

import pytest

from forebay.admission.errors import MisuseError
from forebay.admission.events import DrainStarted, EndpointDrained, Failure, SampleMissed
from forebay.admission.model import EndpointId
from tests.unit.simulate.baselines.bench import Bench


def test_the_engine_with_the_fewest_gets_the_next() -> None:
    """Equal ones take turns; what ends makes its engine the next."""
    bench = Bench("least-request", engines=3)
    for ticket in range(1, 7):
        bench.arrive(ticket)
    assert ["e0", "e1", "e2", "e0", "e1", "e2"] == [bench.running[ticket] for ticket in range(1, 7)]
    bench.end(2)
    bench.arrive(7)
    assert "e1" == bench.running[7]


def test_a_failed_attempt_goes_elsewhere_once() -> None:
    """It is tried on another engine, and ended when that fails as well."""
    bench = Bench("least-request", engines=3)
    bench.arrive(1)
    bench.fail(1)
    assert "e1" == bench.running[1]
    bench.fail(1)
    assert {1: "upstream_failed"} == bench.over
    bench.policy.verify()


def test_an_answer_that_has_begun_is_not_tried_again() -> None:
    """Its client would get it twice."""
    bench = Bench("least-request", engines=2)
    bench.arrive(1)
    bench.first_token(1)
    bench.fail(1)
    assert {1: "upstream_interrupted"} == bench.over


def test_engines_that_cannot_be_reached_get_nothing() -> None:
    """Neither after a refused connection, nor when a reading found nobody, nor when drained; until they are back."""
    bench = Bench("least-request", engines=2)
    bench.arrive(1)
    bench.fail(1, Failure.CONNECT)
    bench.arrive(2)
    assert "e1" == bench.running[2]
    bench.tell(SampleMissed(EndpointId("e1"), unreachable=True))
    bench.arrive(3)
    assert "no_endpoints" == bench.over[3]
    bench.sample("e0")
    bench.tell(EndpointDrained(EndpointId("e0"), out=True))
    bench.arrive(4)
    assert "no_endpoints" == bench.over[4]
    bench.tell(EndpointDrained(EndpointId("e0"), out=False))
    bench.arrive(5)
    assert "e0" == bench.running[5]


def test_who_comes_while_draining_is_refused() -> None:
    """As by the controller."""
    bench = Bench("least-request")
    bench.tell(DrainStarted(10.0))
    bench.arrive(1)
    assert {1: "draining"} == bench.over


def test_a_ticket_is_used_once() -> None:
    """A driver that gives it twice is told."""
    bench = Bench("least-request")
    bench.arrive(1)
    with pytest.raises(MisuseError, match="in use"):
        bench.arrive(1)
