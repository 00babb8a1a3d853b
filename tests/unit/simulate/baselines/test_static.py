from __future__ import annotations

from tests.unit.simulate.baselines.bench import Bench


def test_so_many_run_per_engine_and_the_rest_wait() -> None:
    """Up to the limit in flight at each engine, the others in front; an end lets one start."""
    bench = Bench("static:2", engines=2)
    for ticket in range(1, 7):
        bench.arrive(ticket)
    assert [1, 2, 3, 4] == bench.started
    assert {"e0", "e1"} == set(bench.running.values())
    bench.end(3)
    assert [5] == bench.started[4:]
    assert [6] == list(bench.waiting)


def test_the_more_important_class_goes_first_then_the_earlier() -> None:
    """The queue is by rank, inside a class by arrival."""
    bench = Bench("static:1")
    for ticket, class_name in enumerate(("batch", "batch", "standard", "realtime", "realtime"), 1):
        bench.arrive(ticket, class_name)
    for _ in range(4):
        bench.end(bench.started[-1])
    assert [1, 4, 5, 3, 2] == bench.started


def test_a_wait_ends_with_the_budget_of_its_class() -> None:
    """After 1.5 s a realtime request is turned away, after 60 s one of the batch class."""
    bench = Bench("static:1")
    bench.arrive(1)
    bench.arrive(2, "realtime")
    bench.arrive(3, "batch")
    bench.pass_time(1.49)
    assert [2, 3] == list(bench.waiting)
    bench.pass_time(1.5)
    assert "queue_timeout" == bench.over[2]
    bench.pass_time(60.0)
    assert "queue_timeout" == bench.over[3]


def test_a_clients_own_deadline_ends_its_wait_earlier() -> None:
    """What the client says counts where it is less than the budget."""
    bench = Bench("static:1")
    bench.arrive(1)
    bench.arrive(2, "batch", by_s=3.0)
    bench.pass_time(3.0)
    assert "queue_timeout" == bench.over[2]


def test_a_fixed_depth_refuses_the_next() -> None:
    """There is no queue: what is over the depth of all engines is refused at once."""
    bench = Bench("fixed-depth:2", engines=2)
    for ticket in range(1, 6):
        bench.arrive(ticket)
    assert {5: "queue_full"} == bench.over
    bench.end(1)
    bench.arrive(6)
    assert 6 in bench.running
