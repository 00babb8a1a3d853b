"""When polls slow down and when they are hurried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission.model import DecisionRecord, EndpointState, EngineKind
from forebay.admission.snapshot import EndpointView, Snapshot
from forebay.runtime.polling import EngineClient, Polled, Polling
from tests.unit.runtime.doubles import ENGINE, Bench, Clock, Kept


def polling_over(clock: Clock, view: EndpointView | None) -> tuple[Polling, list[int]]:
    """Pollers over a core that looks like this, and how often it was looked at."""
    looks: list[int] = []
    template = Bench().driver.snapshot()
    assert template is not None

    def snapshot() -> Snapshot | None:
        looks.append(1)
        if view is None:
            return None
        return replace(template, pools=(replace(template.pools[0], endpoints=(view,)),))

    polling = Polling(
        lambda _: None, snapshot, lambda polled: EngineClient(polled.host, polled.port, clock), clock
    )
    polling.follow([Polled("p", ENGINE, "10.0.0.1", 8000, EngineKind.VLLM, 0.2)])
    return polling, looks


def a_view(**changes: object) -> EndpointView:
    """An endpoint that is up and idle."""
    snapshot = Bench().driver.snapshot()
    assert snapshot is not None
    idle = replace(snapshot.pools[0].endpoints[0], state=EndpointState.UP, engine_running=0, engine_waiting=0)
    return replace(idle, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "agrees"),
    [
        ({}, True),
        ({"engine_running": 1}, True),
        ({"engine_running": 2}, False),
        ({"running_requests": 100, "engine_running": 91}, True),
        ({"running_requests": 100, "engine_running": 80}, False),
        ({"running_requests": 3, "draining_requests": 2, "engine_running": 5}, True),
        ({"engine_waiting": 1}, False),
        ({"engine_running": None}, True),
        ({"engine_running": None, "running_requests": 1}, False),
        ({"state": EndpointState.DOWN}, False),
    ],
)
def test_books_and_samples_agree_or_not(changes: dict[str, object], agrees: bool) -> None:
    """Polls slow down only where the engine says what the books say and nothing waits inside it."""
    polling, _ = polling_over(Clock(), a_view(**changes))
    assert agrees is polling._agrees(ENGINE)


def test_core_that_cannot_be_asked_agrees_with_nobody() -> None:
    """Without a snapshot polls keep their pace."""
    polling, _ = polling_over(Clock(), None)
    assert not polling._agrees(ENGINE)


def test_many_pollers_share_a_look_at_the_core() -> None:
    """The core is looked at once for all pollers that ask within a moment."""
    clock = Clock()
    polling, looks = polling_over(clock, a_view())
    for _ in range(10):
        polling._agrees(ENGINE)
    assert 1 == len(looks)
    clock.now_s += 0.2
    polling._agrees(ENGINE)
    assert 2 == len(looks)


def test_waiting_requests_hurry_the_polls_of_their_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request that has to wait hurries its pool's pollers, and a crowd does so no more often."""
    holds: list[DecisionRecord] = []
    bench = Bench()
    bench.driver.delivery.observe(settlements=[], records=[], holds=[holds.append])
    bench.arrive(Kept())
    assert [] == holds
    bench.arrive(Kept())
    (held,) = holds
    clock = Clock()
    polling, _ = polling_over(clock, a_view())
    hurried: list[float] = []
    monkeypatch.setattr(polling._pollers[ENGINE], "hurry", lambda: hurried.append(clock.now_s))
    for _ in range(50):
        polling.on_hold(held)
    polling.on_hold(replace(held, pool="another"))
    assert [1000.0] == hurried
    clock.now_s += 0.2
    polling.on_hold(held)
    assert [1000.0, 1000.2] == hurried
