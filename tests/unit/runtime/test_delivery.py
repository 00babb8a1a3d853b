"""Delivery: listeners and observers that fail do not leak tickets or disturb others."""

from __future__ import annotations

import pytest

from forebay.admission.events import Arrived, AttemptFailed, ClientLeft, Ended, Failure
from forebay.admission.model import DecisionRecord, Settlement
from forebay.admission.outcomes import Outcome
from forebay.runtime import delivery
from tests.unit.runtime.doubles import ENGINE, Bench, Kept, demand


def raises_on(*words: str) -> Kept:
    """A listener that fails when told one of these."""
    listener = Kept()

    def act(what: str) -> None:
        if what.split(maxsplit=1)[0] in words:
            raise RuntimeError(what)

    listener.act = act
    return listener


@pytest.mark.parametrize(
    ("words", "error"),
    [(("dispatch",), "listener.dispatch"), (("dispatch", "hold", "refuse", "abort"), "listener.dispatch")],
)
def test_dispatch_that_fails_frees_its_room(words: tuple[str, ...], error: str) -> None:
    """A request whose listener cannot send it is ended, and the next one takes its place."""
    bench = Bench()
    _, listener = bench.arrive(raises_on(*words))
    assert error in bench.errors
    assert ["dispatch 1", "abort upstream_failed"] == listener.told
    assert 0 == bench.driver.delivery.open_tickets
    _, next_one = bench.arrive()
    assert ["hold"] == next_one.told  # what was sent in part may linger at the engine
    bench.timers.fire()
    assert ["hold", "dispatch 1"] == next_one.told


def test_hold_that_fails_gives_up_the_place_in_the_queue() -> None:
    """A waiter whose listener fails is no longer waiting."""
    bench = Bench()
    bench.arrive()
    bench.arrive(raises_on("hold"))
    snapshot = bench.driver.snapshot()
    assert snapshot is not None
    assert (1, 0) == (snapshot.tickets, snapshot.pools[0].waiting_requests)
    assert ["listener.hold"] == bench.errors


def test_refusal_that_fails_is_over_all_the_same() -> None:
    """A refused ticket is closed although its listener fails."""
    bench = Bench(max_queue=0)
    bench.arrive()
    bench.arrive(raises_on("refuse"))
    assert ["listener.refuse"] == bench.errors
    assert 1 == bench.driver.delivery.open_tickets


def test_request_without_a_listener_does_not_keep_its_room() -> None:
    """A ticket that nobody registered for is given up."""
    bench = Bench()
    bench.driver.feed(Arrived(demand(bench.driver.new_ticket())))
    assert ["listener.dispatch"] == bench.errors
    snapshot = bench.driver.snapshot()
    assert snapshot is not None
    assert 0 == snapshot.tickets


def test_observers_see_every_decision_and_every_ending() -> None:
    """Each decision is told once, each settlement once, in the order in which they happened."""
    bench = Bench()
    seen: list[str] = []
    bench.driver.delivery.observe(
        settlements=[lambda s: seen.append(f"settled {s.ticket} {s.outcome.value}")],
        records=[lambda r: seen.append(f"{r.action} {r.ticket}")],
    )
    first, _ = bench.arrive()
    second, _ = bench.arrive()
    bench.driver.feed(Ended(first, Outcome.COMPLETED))
    assert [
        f"dispatch {first}",
        f"hold {second}",
        f"settled {first} completed",
        f"dispatch {second}",
    ] == seen


def test_observers_see_why_a_request_was_given_up() -> None:
    """An abort is a decision too: its record comes before the settlement."""
    bench = Bench()
    seen: list[str] = []
    bench.driver.delivery.observe(
        settlements=[lambda s: seen.append(f"settled {s.outcome.value}")],
        records=[lambda r: seen.append(f"{r.action} {r.decided_by}")],
    )
    ticket, _ = bench.arrive()
    bench.driver.feed(AttemptFailed(ticket, ENGINE, Failure.CLOSED))
    assert ["dispatch passed", "abort other_endpoints", "settled upstream_failed"] == seen


def test_observer_that_fails_does_not_touch_the_request() -> None:
    """A broken observer is counted, and the request goes on."""

    def broken(_: DecisionRecord | Settlement) -> None:
        raise RuntimeError

    bench = Bench()
    bench.driver.delivery.observe(settlements=[broken], records=[broken])
    ticket, listener = bench.arrive()
    bench.driver.feed(Ended(ticket, Outcome.COMPLETED))
    assert ["dispatch 1"] == listener.told
    assert ["observer", "observer"] == bench.errors
    assert 0 == bench.driver.delivery.open_tickets


def test_a_request_id_is_known_while_open_and_for_a_while_after() -> None:
    """What a client called its request is told while it is open and after its end; only so many are remembered.

    Fewer of those that were served without having waited, and they do not push out the others.
    """
    bench = Bench()
    seen: list[str | None] = []
    told = bench.driver.delivery
    told.observe(settlements=[lambda s: seen.append(told.request_id_of(s.ticket))], records=[])
    failed, _ = bench.arrive(Kept(b"failed"))
    bench.driver.feed(Ended(failed, Outcome.UPSTREAM_INTERRUPTED))
    assert ["failed"] == seen
    seen.clear()
    tickets = []
    for number in range(delivery._PLAIN_IDS + 2):
        ticket, _ = bench.arrive(Kept(b"call-%d" % number))
        assert f"call-{number}" == told.request_id_of(ticket)
        bench.driver.feed(Ended(ticket, Outcome.COMPLETED))
        tickets.append(ticket)
    names = [f"call-{number}" for number in range(len(tickets))]
    assert names == seen
    assert [None, None, *names[2:]] == [told.request_id_of(ticket) for ticket in tickets]
    assert told.request_id_of(failed) == "failed"
    unnamed, _ = bench.arrive()
    assert told.request_id_of(unnamed) is None


def test_a_waiter_whose_client_left_is_forgotten() -> None:
    """A client that leaves while it waits leaves nothing behind that would grow with every such client."""
    bench = Bench()
    bench.arrive()
    ticket, gone = bench.arrive()
    bench.driver.feed(ClientLeft(ticket))
    bench.driver.delivery.evict_all_held(Outcome.DRAINING, "")
    assert (["hold"], []) == (gone.told, bench.errors)
