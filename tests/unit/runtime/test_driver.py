"""The driver: events in order, one timer, and what it does when the core or a listener fails."""

from __future__ import annotations

import pytest

from forebay.admission.errors import ConfigRefused
from forebay.admission.events import AttemptFailed, ClientLeft, Ended, Failure
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from forebay.runtime.driver import RECENT_EVENTS
from tests.unit.runtime.doubles import ENGINE, Bench, Kept


def break_core(bench: Bench) -> None:
    """A core with a bug: its books are gone, so the next booking fails."""
    # Not by replacing a method: a compiled core lets nobody do that.
    bench.driver._controller._life.ledger.pools.clear()


def test_tickets_are_never_given_twice() -> None:
    """Each ticket number is new."""
    driver = Bench().driver
    assert [1, 2, 3] == [driver.new_ticket() for _ in range(3)]


def test_effects_reach_the_listener_of_their_ticket() -> None:
    """The first request is dispatched, the second waits and is dispatched when the first has ended."""
    bench = Bench()
    first, one = bench.arrive()
    _, two = bench.arrive()
    assert (["dispatch 1"], ["hold"]) == (one.told, two.told)
    bench.driver.feed(Ended(first, Outcome.COMPLETED))
    assert ["hold", "dispatch 1"] == two.told
    assert 1 == bench.driver.delivery.open_tickets


def test_event_from_inside_a_listener_is_handled_after_the_effects_at_hand() -> None:
    """A listener that feeds an event at once does not enter the core a second time."""
    bench = Bench()
    order: list[str] = []
    listener = Kept()

    def act(what: str) -> None:
        if what == "dispatch 1":
            bench.driver.feed(AttemptFailed(ticket, ENGINE, Failure.CONNECT))
            order.append("fed")

    listener.act = act
    ticket = bench.driver.new_ticket()
    bench.driver.register(ticket, listener)
    bench.driver.delivery.observe(settlements=[lambda s: order.append(s.outcome.value)], records=[])
    bench.driver.feed(ClientLeft(ticket))  # late news about nothing changes nothing
    bench.arrive(listener)
    assert ["fed"] == order
    assert ["dispatch 1"] == listener.told


def test_a_thousand_nested_events_do_not_deepen_the_stack() -> None:
    """A listener that answers each dispatch by leaving lets a long queue drain without recursion."""
    bench = Bench()
    blocker, _ = bench.arrive()
    waiters = [Kept() for _ in range(1500)]
    tickets = {}
    for waiter in waiters:
        ticket, _ = bench.arrive(waiter)
        tickets[id(waiter)] = ticket

        def act(what: str, ticket: int = ticket) -> None:
            if what.startswith("dispatch"):
                bench.driver.feed(Ended(ticket, Outcome.COMPLETED))  # type: ignore[arg-type]

        waiter.act = act
    bench.driver.feed(Ended(blocker, Outcome.COMPLETED))
    assert 0 == bench.driver.delivery.open_tickets
    assert all(waiter.told[-1] == "dispatch 1" for waiter in waiters)


def test_one_timer_wakes_the_core_at_its_deadline() -> None:
    """A wait ends at its budget, and there is never more than one timer."""
    bench = Bench()
    bench.arrive()
    _, waiter = bench.arrive()
    assert 1 == len(bench.timers.armed)
    while not waiter.refusals:
        bench.timers.fire()
        assert len(bench.timers.armed) <= 1
    assert ["hold", "evict queue_timeout"] == waiter.told
    assert 1005.0 == pytest.approx(bench.clock.now_s, abs=0.01)


def test_timer_that_fires_early_counts_as_its_time() -> None:
    """A loop whose timers come a little early wakes the core once, not over and over."""
    bench = Bench()
    bench.arrive()
    _, waiter = bench.arrive(class_name="realtime")
    (handle,) = bench.timers.armed
    bench.timers.fire(at_s=handle.due_s - 0.002)
    fired = 1
    while not waiter.refusals:
        (handle,) = bench.timers.armed
        bench.timers.fire(at_s=handle.due_s - 0.002)
        fired += 1
    assert fired < 5


def test_clock_that_goes_back_does_not_reach_the_core() -> None:
    """After an early timer the core's time stands still until the clock has caught up."""
    bench = Bench()
    bench.arrive()
    bench.clock.now_s -= 5.0
    _, listener = bench.arrive()
    assert ["hold"] == listener.told
    assert [] == bench.errors


def test_late_deadline_leaves_the_timer_alone() -> None:
    """A timer is replaced only by an earlier one."""
    bench = Bench()
    first, _ = bench.arrive()
    made = len(bench.timers.handles)
    bench.clock.now_s += 1.0
    bench.driver.feed(Ended(first, Outcome.COMPLETED))
    bench.arrive()
    assert made == len(bench.timers.handles)


def test_decision_times_are_told_for_arrivals_only() -> None:
    """Each arrival is timed; other events are not."""
    bench = Bench()
    ticket, _ = bench.arrive()
    bench.driver.feed(Ended(ticket, Outcome.COMPLETED))
    assert [0.0] == bench.decided


def test_event_that_breaks_the_contract_is_refused_and_nothing_else() -> None:
    """A request of a class that is not configured gets a 503; the core goes on."""
    bench = Bench()
    _, listener = bench.arrive(class_name="unheard-of")
    assert ["refuse no_endpoints"] == listener.told
    assert ["driver.misuse"] == bench.errors
    assert 0 == bench.driver.delivery.open_tickets
    _, other = bench.arrive()
    assert ["dispatch 1"] == other.told


def test_failed_core_turns_everybody_away_and_lets_running_ones_end() -> None:
    """After a failure of the core waiters and newcomers get 503 with Retry-After, and running requests end."""
    bench = Bench()
    running, runner = bench.arrive()
    failing, tried = bench.arrive()
    break_core(bench)
    _, newcomer = bench.arrive()
    assert ["evict draining"] == tried.told[1:]
    assert ["refuse draining"] == newcomer.told
    assert 5.0 == newcomer.refusals[0].retry_after_s
    assert (["dispatch 1"], 1) == (runner.told, bench.driver.delivery.open_tickets)
    assert ["core"] == bench.errors
    assert isinstance(bench.driver.broken, KeyError)
    assert [bench.driver.broken] == bench.broken
    assert bench.driver.snapshot() is None
    bench.driver.feed(Ended(failing, Outcome.COMPLETED))
    bench.driver.feed(Ended(running, Outcome.COMPLETED))
    assert 0 == bench.driver.delivery.open_tickets
    _, later = bench.arrive()
    assert ["refuse draining"] == later.told
    assert 1 == len(bench.broken)


def test_attempt_that_fails_after_the_core_is_told_to_the_client() -> None:
    """Without a core there is no second attempt: the client is told."""
    bench = Bench()
    ticket, listener = bench.arrive()
    break_core(bench)
    bench.driver.feed(AttemptFailed(ticket, ENGINE, Failure.CLOSED))
    assert ["dispatch 1", "abort upstream_failed"] == listener.told
    assert 0 == bench.driver.delivery.open_tickets


def test_core_that_fails_at_a_timer_fails_closed_too() -> None:
    """A failure while waking has the same consequences, and no timer is left."""
    bench = Bench()
    bench.arrive()
    _, waiter = bench.arrive()
    break_core(bench)
    while waiter.told == ["hold"]:  # the first timers only look whether it waits in vain
        bench.timers.fire()
    assert ["hold", "evict draining"] == waiter.told
    assert [] == bench.timers.armed


@pytest.mark.parametrize("failing", [False, True])
def test_what_is_open_at_the_end_of_a_drain_is_told(failing: bool) -> None:
    """Waiters are turned away and running requests are ended as `draining`, also by a core that fails just then."""
    bench = Bench()
    settled: list[str] = []
    bench.driver.delivery.observe([lambda s: settled.append(s.outcome.value)], [])
    _, runner = bench.arrive()
    _, waiter = bench.arrive()
    if failing:
        break_core(bench)
    bench.driver.cut_all("The time is over.")
    assert ["hold", "evict draining"] == waiter.told
    assert ["dispatch 1", "abort draining"] == runner.told
    assert "The time is over." == runner.aborts[0].detail
    assert 0 == bench.driver.delivery.open_tickets
    if not failing:
        assert ["draining", "draining"] == settled


def test_recent_events_are_kept_and_bounded() -> None:
    """The last few hundred events with their times are there for a dump."""
    bench = Bench()
    for _ in range(1200):
        bench.driver.feed(ClientLeft(bench.driver.new_ticket()))
    assert RECENT_EVENTS == len(bench.driver.recent_events)
    assert (1000.0, ClientLeft(bench.driver.new_ticket() - 1)) == bench.driver.recent_events[-1]  # type: ignore[arg-type]


def test_new_settings_take_effect_and_bad_ones_change_nothing() -> None:
    """Room that new settings open is used at once; settings that cannot be applied are refused."""
    bench = Bench()
    bench.arrive()
    _, waiter = bench.arrive()
    with pytest.raises(ConfigRefused):
        bench.driver.reconfigure(Settings((PoolSettings("other"),)), pytest.fail)
    assert ["hold"] == waiter.told
    bench.driver.reconfigure(Settings((PoolSettings("p", max_inflight_requests=2),)), lambda: None)
    assert ["hold", "dispatch 1"] == waiter.told


def test_all_else_goes_by_new_settings_before_anybody_hears_of_them() -> None:
    """Whatever is carried out may let a request in: it must not be told apart by the table of before."""
    bench = Bench()
    bench.arrive()
    waiter = Kept()
    table, found = ["old"], list[str]()
    waiter.act = lambda what: found.append(f"{what} {table[0]}")
    bench.arrive(waiter)
    twice = Settings((PoolSettings("p", max_inflight_requests=2),))
    bench.driver.reconfigure(twice, lambda: table.__setitem__(0, "new"))
    assert ["hold old", "dispatch 1 new"] == found


def test_effects_are_carried_out_though_the_rest_has_a_fault() -> None:
    """The core has decided, and books what nobody would start."""
    bench = Bench()
    bench.arrive()
    _, waiter = bench.arrive()

    def broken() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        bench.driver.reconfigure(Settings((PoolSettings("p", max_inflight_requests=2),)), broken)
    assert ["hold", "dispatch 1"] == waiter.told


def test_stop_leaves_no_timer() -> None:
    """After `stop` nothing wakes the core."""
    bench = Bench()
    bench.arrive()
    bench.driver.stop()
    bench.driver.stop()
    assert [] == bench.timers.armed
