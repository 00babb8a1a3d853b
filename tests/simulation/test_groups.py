"""Two pools on one GPU, which works on all that runs at once: what each gets, by its share and by what it asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.controller import Controller
from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Refuse
from forebay.admission.events import (
    Arrived,
    Described,
    Ended,
    EndpointsChanged,
    FirstTokenCame,
    Progressed,
    Sampled,
)
from forebay.admission.model import EndpointId, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from tests.unit.admission.build import (
    VLLM,
    demand,
    know_lengths,
    pool_settings,
    reading,
    settings_for,
    with_class,
)

TICK_S = 0.02
TOKEN_S = 0.01
WORK_S = 0.1
"""A token, and a request, alone on the GPU: as the pools' profile says."""
POOLS = ("small", "large")


def grouped(small: int, large: int, *, share: float | None = 0.2, **changes: Any) -> Settings:
    """As many requests at once at either engine; with no share there is no group."""
    group = None if share is None else "gpu"
    pools = (
        pool_settings(name="small", max_inflight_requests=small, group=group, share=share, **changes),
        pool_settings(name="large", max_inflight_requests=large, group=group, **changes),
    )
    return with_class("standard", replace(settings_for(), pools=pools), wait_budget_s=1e4)


class Gpu:
    """A GPU that is shared by all requests that run, whichever engine they are at."""

    def __init__(
        self, settings: Settings, *, at_most: float = 1.0, times: float = 1.0, hung: Sequence[str] = ()
    ) -> None:
        """`at_most`: part of the GPU that one request can use. `times` as fast as the profile; `hung` do nothing."""
        self.controller = Controller(settings, 0.0)
        self.at_most = at_most
        self.times = times
        self.hung = hung
        self.now = 0.0
        self.running: dict[int, tuple[str, float]] = {}
        """By ticket: the pool, and the work left in seconds of the whole GPU."""
        self.done: dict[str, float] = dict.fromkeys(POOLS, 0.0)
        """Seconds of the GPU that each pool had."""
        self.refused = 0
        self.number = 0
        for pool in self.controller._pools.values():
            know_lengths(pool)
        for name in POOLS:
            self.controller.handle(EndpointsChanged(name, (EndpointId(name),)), 0.0)
            self.controller.handle(Described(EndpointId(name), VLLM), 0.0)

    def run(self, seconds: float, rates: dict[str, float]) -> dict[str, float]:
        """Go on for so long, with so many requests per second. Returns what each pool had."""
        before = dict(self.done)
        owed = dict.fromkeys(rates, 0.0)
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            due = self.controller.next_deadline()
            if due is not None and due <= self.now:
                self._take(self.controller.wake(self.now))
            for name, rate in rates.items():
                owed[name] += rate * TICK_S
                while owed[name] >= 1.0:
                    owed[name] -= 1.0
                    self.number += 1
                    wanted = demand(self.number, pool=name, max_output_tokens=9, stream=True)
                    self._take(self.controller.handle(Arrived(wanted), self.now))
            self._work()
            for name in POOLS:
                running = sum(pool == name for pool, _ in self.running.values())
                sample = Sampled(EndpointId(name), reading(self.now, running=running))
                self._take(self.controller.handle(sample, self.now))
        self.controller.verify()
        return {name: (self.done[name] - before[name]) / max(seconds, TICK_S) for name in POOLS}

    def _work(self) -> None:
        working = sum(pool not in self.hung for pool, _ in self.running.values())
        if not working:
            return
        each = min(TICK_S / working, TICK_S * self.at_most)
        came: dict[str, list[tuple[TicketId, int]]] = {name: [] for name in POOLS}
        for ticket, (pool, left) in self.running.items():
            if pool in self.hung:
                continue
            tokens = int(left / TOKEN_S) - int((left - each) / TOKEN_S)
            if tokens and left > each:
                came[pool].append((TicketId(ticket), tokens))
        for name, tokens_of in came.items():
            if tokens_of:
                self._take(self.controller.handle(Progressed(EndpointId(name), tokens_of, None), self.now))
        for ticket, (pool, left) in list(self.running.items()):
            if ticket not in self.running or pool in self.hung:
                continue
            self.done[pool] += each
            self.running[ticket] = (pool, left - each)
            if left <= each:
                del self.running[ticket]
                ended = Ended(TicketId(ticket), Outcome.COMPLETED, Usage(100, 9))
                self._take(self.controller.handle(ended, self.now))

    def _take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Dispatch):
                self.running[effect.ticket] = (str(effect.endpoint), WORK_S / self.times)
                if effect.endpoint not in self.hung:
                    self._take(self.controller.handle(FirstTokenCame(effect.ticket), self.now))
            if isinstance(effect, Abort):
                self.running.pop(effect.ticket, None)
            self.refused += isinstance(effect, Refuse | Evict)


OVER = {"small": 20.0, "large": 30.0}


def test_without_a_group_the_one_with_more_at_once_gets_more() -> None:
    """What the share is against: of 40 requests at the GPU 4 are of the small one."""
    got = Gpu(grouped(4, 36, share=None)).run(60.0, OVER)
    assert got["small"] == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_share_is_kept_under_overload_of_both(share: float) -> None:
    """Within 5 % over a minute, from whatever was before, and the GPU is never idle."""
    gpu = Gpu(grouped(4, 36, share=share))
    gpu.run(20.0, {"large": 30.0})
    gpu.run(10.0, OVER)
    got = gpu.run(60.0, OVER)
    assert got["small"] >= share * 0.95
    assert got["large"] >= (1.0 - share) * 0.95
    assert sum(got.values()) == pytest.approx(1.0, abs=0.01)


def test_the_rest_is_kept_as_well() -> None:
    """A small one that could have nearly everything, having more requests at once, leaves the other its part."""
    got = Gpu(grouped(36, 4)).run(90.0, OVER)
    assert got["large"] >= 0.8 * 0.95


@pytest.mark.parametrize("name", POOLS)
def test_alone_each_has_everything(name: str) -> None:
    """Also at once when the other one, which had its share until now, asks no more."""
    gpu = Gpu(grouped(4, 36))
    gpu.run(30.0, {"small": 3.0, "large": 9.0})
    gpu.run(10.0, {})
    got = gpu.run(30.0, {name: 20.0})
    assert got[name] >= 0.98


def test_what_one_does_not_ask_for_goes_to_the_other() -> None:
    """The small one asks for a tenth: it has that, hardly waits for it, and the large one has the rest."""
    got = Gpu(grouped(4, 36)).run(60.0, {"small": 1.0, "large": 30.0})
    assert got["small"] == pytest.approx(0.1, abs=0.01)
    assert got["large"] >= 0.88


def test_who_can_make_no_use_of_its_part_does_not_slow_the_others_down() -> None:
    """The small one waits all the time, since its engine takes one request, which can use 5 % of the GPU at most."""
    gpu = Gpu(grouped(1, 100), at_most=0.05)
    gpu.run(30.0, OVER)
    got = gpu.run(60.0, OVER)
    assert got["large"] >= 0.8 * 0.95


@pytest.mark.parametrize("before_s", [0.0, 5.0])
def test_a_pool_that_hangs_takes_nothing_from_the_other(before_s: float) -> None:
    """Also in the first seconds, when nothing has been measured: it is known for silent long before it is stalled."""
    gpu = Gpu(grouped(4, 36, share=0.5, law=None), at_most=0.05, hung=("small",))
    gpu.run(before_s, {"large": 9.0})  # nothing has waited for it yet
    first = gpu.run(2.5, {"small": 20.0, "large": 15.0})
    assert first["large"] >= 4 * 0.05, "as many as the other one has in flight, and each can use so much"
    got = gpu.run(5.0, {"small": 20.0, "large": 15.0})
    assert got["large"] >= 0.98


@pytest.mark.parametrize("profile", [False, True])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.5])
@pytest.mark.parametrize("small", [4, 8, 32])
def test_shares_hold_from_the_first_seconds_on(small: int, share: float, profile: bool) -> None:
    """Whoever has more places starts first, and nothing has been measured or all is known: each has its part."""
    gpu = Gpu(grouped(small, 40 - small, share=share, **({} if profile else {"law": None})))
    gpu.run(2.0, OVER)
    for _ in range(4):
        got = gpu.run(2.0, OVER)
        assert got["small"] >= share * 0.9
        assert got["large"] >= (1.0 - share) * 0.9
