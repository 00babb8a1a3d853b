from __future__ import annotations

from dataclasses import replace

from forebay.admission.model import TicketId
from forebay.admission.pools import Pool
from forebay.admission.repricing import SLICE, Repricing
from forebay.admission.timers import Timers
from tests.unit.admission.build import LAW, Site

TWICE = replace(LAW, c1_s=2 * LAW.c1_s, c2_s=2 * LAW.c2_s)


class Bench:
    """A pool with waiters, and what is looked at after each slice."""

    def __init__(self, waiters: int) -> None:
        self.site = Site()
        self.timers = Timers()
        self.filled: list[float] = []
        self.repricing = Repricing(self.site.life, self.timers, self._fill)
        for number in range(waiters):
            self.site.queued(number)

    def _fill(self, pool: Pool, now: float) -> None:
        self.filled.append(now)

    def priced(self) -> int:
        """Waiters that cost twice as much."""
        return sum(waiter.work_us == 2_000_000 for waiter in self.site.pool.queue)

    def begin(self, now: float) -> None:
        """The engine turns out to be half as fast."""
        self.site.pool.pricing.law = TWICE
        self.repricing.begin(self.site.pool, now)


def test_a_short_queue_is_priced_at_once() -> None:
    """Nothing is left for later, and no timer is set."""
    bench = Bench(SLICE)
    bench.begin(1.0)
    assert (SLICE, None) == (bench.priced(), bench.timers.next_s())
    bench.site.life.ledger.verify()


def test_a_long_queue_is_priced_slice_by_slice() -> None:
    """Each wake takes one, looks for who can start now, and asks for the next; who has left is passed over."""
    bench = Bench(3 * SLICE - 50)
    bench.begin(1.0)
    assert (SLICE, 1.0) == (bench.priced(), bench.timers.next_s())
    bench.site.life.drop(bench.site.life.tickets[TicketId(SLICE + 1)], 1.0)
    bench.timers.run_due(1.0)
    assert 2 * SLICE - 1 == bench.priced()
    bench.timers.run_due(1.0)
    assert (3 * SLICE - 51, None) == (bench.priced(), bench.timers.next_s())
    assert [1.0, 1.0] == bench.filled
    bench.site.life.ledger.verify()


def test_another_change_begins_anew_with_one_timer() -> None:
    """However often costs change while a long queue is priced, each wake takes one slice."""
    bench = Bench(3 * SLICE)
    for _ in range(5):
        bench.begin(1.0)
    assert 1 == len(bench.timers)
    for _ in range(3):
        bench.timers.run_due(1.0)
    assert (3 * SLICE, None) == (bench.priced(), bench.timers.next_s())
