from __future__ import annotations

from forebay.admission.timers import COMPACT_ABOVE, Timers


class Rung:
    """What rang, and when."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def ring(self, name: str, now: float) -> None:
        """An action."""
        self.calls.append((name, now))


def test_nothing_is_due_at_first() -> None:
    """Without deadlines no wake-up is wanted, and an early one does nothing."""
    timers = Timers()
    assert timers.next_s() is None
    timers.run_due(1e9)
    assert 0 == len(timers)


def test_deadlines_come_in_time_order() -> None:
    """What was set last but is due first comes first, and all get the time of the call."""
    timers, rung = Timers(), Rung()
    for due_s, name in [(3.0, "c"), (1.0, "a"), (2.0, "b")]:
        timers.at(due_s, rung.ring, name)
    assert 1.0 == timers.next_s()
    timers.run_due(2.5)
    assert [("a", 2.5), ("b", 2.5)] == rung.calls
    assert 3.0 == timers.next_s()


def test_equal_times_come_in_the_order_they_were_set() -> None:
    """Order does not depend on what is called or on its address."""
    timers, rung = Timers(), Rung()
    names = [f"{number:02}" for number in range(50)]
    for name in names:
        timers.at(1.0, rung.ring, name)
    timers.run_due(1.0)
    assert names == [name for name, _ in rung.calls]


def test_a_deadline_is_due_at_its_own_time_and_not_before() -> None:
    """The limit is inclusive, so a driver that wakes exactly then is not sent away."""
    timers, rung = Timers(), Rung()
    timers.at(1.0, rung.ring, "a")
    timers.run_due(0.999_999)
    assert [] == rung.calls
    timers.run_due(1.0)
    assert [("a", 1.0)] == rung.calls


def test_what_an_action_sets_runs_at_the_next_call() -> None:
    """An action that sets a deadline at or before now makes the driver wake again, and cannot hang the call."""
    timers, rung = Timers(), Rung()

    def again(name: str, now: float) -> None:
        rung.ring(name, now)
        timers.at(0.5, again, name)

    timers.at(1.0, again, "again")
    timers.run_due(1.0)
    assert [("again", 1.0)] == rung.calls
    assert 0.5 == timers.next_s()
    timers.run_due(1.5)
    assert [("again", 1.0), ("again", 1.5)] == rung.calls


def test_compaction_drops_the_dead_and_keeps_the_order() -> None:
    """Once dead entries outnumber the live four to one they go, and what is left comes in time order."""
    timers, rung = Timers(), Rung()
    for number in range(2000):
        timers.at(float(2000 - number), rung.ring, "live" if number % 100 == 0 else "dead")
    timers.compact(20, lambda subject: subject == "live")
    assert 20 == len(timers)
    timers.run_due(1e9)
    assert ["live"] * 20 == [name for name, _ in rung.calls]
    timers.at(2.0, rung.ring, "b")
    timers.at(1.0, rung.ring, "a")
    assert 1.0 == timers.next_s()


def test_compaction_leaves_small_or_busy_heaps_alone() -> None:
    """A scan is not worth its time below a thousand entries, nor while a quarter of them live."""
    small, busy, rung = Timers(), Timers(), Rung()
    for number in range(COMPACT_ABOVE):
        small.at(float(number), rung.ring, "dead")
    small.compact(0, lambda _: False)
    assert COMPACT_ABOVE == len(small)
    for number in range(2000):
        busy.at(float(number), rung.ring, "dead")
    busy.compact(500, lambda _: False)
    assert 2000 == len(busy)


def test_compacted_deadlines_keep_their_time_and_order() -> None:
    """The live ones come at their times, equal times in the order they were set."""
    timers, rung = Timers(), Rung()
    for number in range(1500):
        timers.at(5.0, rung.ring, f"{number:04}")
    timers.compact(3, lambda subject: subject in ("0003", "0700", "1400"))
    timers.run_due(5.0)
    assert [("0003", 5.0), ("0700", 5.0), ("1400", 5.0)] == rung.calls


def test_what_cannot_be_dropped_is_not_gone_through_at_each_call() -> None:
    """When all entries live, the next look comes only when there are twice as many."""
    timers, rung, asked = Timers(), Rung(), 0

    def lives(_: object) -> bool:
        nonlocal asked
        asked += 1
        return True

    count = 2 * COMPACT_ABOVE
    for number in range(count):
        timers.at(float(number), rung.ring, str(number))
        timers.compact(0, lives)
    assert count == len(timers)
    assert asked <= count
