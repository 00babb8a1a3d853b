from __future__ import annotations

import pytest

from forebay.simulate.baselines.llm_d import LlmD, SoftReflective, Static
from tests.unit.simulate.baselines.bench import Bench


def saturation(bench: Bench) -> float:
    """Of the pool, now."""
    law = bench.law
    assert isinstance(law, LlmD)
    return law.saturation(bench.now)


def test_saturation_is_the_fuller_of_queue_and_cache_on_average() -> None:
    """max(queue / 5, cache / 0.8) of each engine; one that was not read for 0.2 s counts as full."""
    bench = Bench("llm-d", engines=2)
    bench.sample("e0", waiting=2, kv=0.2)
    bench.sample("e1", waiting=0, kv=0.4)
    assert (0.4 + 0.5) / 2 == pytest.approx(saturation(bench))
    bench.now = 0.15
    bench.sample("e1", waiting=0, kv=0.4)
    bench.now = 0.3
    assert (1.0 + 0.5) / 2 == pytest.approx(saturation(bench))


def test_what_was_sent_since_the_engine_was_read_counts_as_queued() -> None:
    """In flight less what the reading shows, and never less than nothing."""
    bench = Bench("llm-d")
    bench.arrive(1)
    bench.arrive(2)
    assert 0.4 == pytest.approx(saturation(bench))
    bench.sample("e0", running=2)
    assert 0.0 == saturation(bench)
    bench.sample("e0", running=50, waiting=1)
    assert 0.2 == pytest.approx(saturation(bench))


def test_ceilings_reflect_the_saturation() -> None:
    """Of three bands: 1, 1 - s/2, 1 - s; past it open once in a period, at 1 never."""
    ceilings = SoftReflective(3)
    assert [1.0, 1.0, 1.0] == ceilings.ask(0.49)
    asked = [tuple(ceilings.ask(0.62)) for _ in range(4)]
    assert [(1.0, 1.0, 0.0), (1.0, 1.0, 1.0), (1.0, 1.0, 0.0), (1.0, 1.0, 1.0)] == asked
    assert [1.0, 0.0, 0.0] == ceilings.ask(1.0)
    assert [1.0] == SoftReflective(1).ask(0.9)


@pytest.mark.parametrize("at", [0.3, 0.55, 0.7, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("start", [0, 3, 7])
def test_the_next_open_cycle_is_what_asking_would_show(at: float, start: int) -> None:
    """Counted ahead, and found by asking one cycle after the other."""
    for band in range(3):
        counted, asked = SoftReflective(3), SoftReflective(3)
        for ceilings in (counted, asked):
            ceilings.skip(0.6, start)
            ceilings.skip(0.9, 5)
        cycles = counted.cycles_until_open(at, band)
        found = None
        for n in range(1, 200):
            if all(at < ceiling for ceiling in asked.ask(at)[: band + 1]):
                found = n
                break
        assert found == cycles


def test_skipping_is_asking() -> None:
    """The counters go on as if the cycles had run."""
    skipped, asked = SoftReflective(3), SoftReflective(3)
    skipped.skip(0.75, 17)
    for _ in range(17):
        asked.ask(0.75)
    assert [asked.ask(0.75) for _ in range(9)] == [skipped.ask(0.75) for _ in range(9)]


def test_static_ceilings_close_for_all_at_once() -> None:
    """At saturation 1."""
    assert [1.0, 1.0] == list(Static(2).ask(0.5))
    assert (1, None) == (Static(2).cycles_until_open(0.99, 1), Static(2).cycles_until_open(1.0, 0))


def test_one_starts_at_each_arrival_and_each_millisecond() -> None:
    """A full engine that has emptied takes one request a millisecond, by band and then by deadline."""
    bench = Bench("llm-d-static")
    bench.sample(waiting=5)
    for ticket, class_name in enumerate(("batch", "standard", "realtime", "realtime"), 1):
        bench.arrive(ticket, class_name)
    bench.arrive(5, "realtime", by_s=0.5)
    assert [] == bench.started
    bench.now = 0.1
    bench.sample(kv=0.1, running=0)
    bench.pass_time(0.1015)
    assert [5] == bench.started
    bench.pass_time(0.1025)
    assert [5, 3] == bench.started
    bench.pass_time(0.15)
    assert [5, 3, 4, 2, 1] == bench.started[:5]


def test_lower_bands_are_held_back_before_the_pool_is_full() -> None:
    """At 0.75 one of the last band starts in the third cycle after it came, one of the first band at once."""
    bench = Bench("llm-d")
    bench.sample(kv=0.6)
    bench.arrive(1, "batch")
    assert [] == bench.started
    bench.pass_time(0.0015)
    assert [] == bench.started
    bench.pass_time(0.0025)
    assert [1] == bench.started
    bench.sample(kv=0.6)
    bench.arrive(2, "realtime")
    assert [1, 2] == bench.started


def test_what_waits_too_long_is_turned_away_without_a_time_to_come_back() -> None:
    """Its time to live is the wait budget of its class."""
    bench = Bench("llm-d")
    bench.sample(waiting=50)
    bench.arrive(1, "realtime")
    bench.pass_time(1.5)
    assert {1: "queue_timeout"} == bench.over
    assert None is bench.refusals[1].retry_after_s


def test_a_band_is_bounded_in_requests_and_bytes() -> None:
    """The next is refused; another band still has room."""
    bench = Bench("llm-d")
    bench.sample(waiting=50)
    for ticket in range(1, 5_002):
        bench.arrive(ticket, "batch")
    assert {5_001: "queue_full"} == bench.over
    bench.arrive(5_002, "standard", prompt=200_000_000)
    bench.arrive(5_003, "standard", prompt=200_000_000)
    assert "queue_full" == bench.over[5_003]
    bench.leave(5_002)
    bench.arrive(5_004, "standard", prompt=200_000_000)
    assert 5_004 in bench.waiting


def test_engines_that_are_not_read_stop_all_dispatch() -> None:
    """Stale readings count as full; the next one opens the gate."""
    bench = Bench("llm-d")
    bench.now = 1.0
    bench.arrive(1, "batch")
    assert [1] == list(bench.waiting)
    bench.pass_time(2.0)
    assert [] == bench.started
    bench.sample()
    bench.pass_time(2.01)
    assert [1] == bench.started
