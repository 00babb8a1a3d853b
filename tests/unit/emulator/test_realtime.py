from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from forebay.emulator.realtime import LAG_MAX_S, RealTimeEngine
from forebay.enginemodel import Engine, EngineConfig, EngineProfile, Request, StepLaw, StepResult

LAW = StepLaw(10.0, 8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # every step takes 10 ms
PROFILE = EngineProfile("toy", "toy", "none", 1, "bf16", "bf16", LAW, 400, 4, 8, 16, 200, "made up")


class Call:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeLoop:
    """An event loop whose clock is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._number = 0
        self._calls: list[tuple[float, int, Call]] = []

    def clock(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], object], /) -> Call:
        return self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Call:
        call = Call(callback)
        self._number += 1
        heapq.heappush(self._calls, (self.now_s + delay, self._number, call))
        return call

    @property
    def pending(self) -> int:
        return sum(call.callback is not None for _, _, call in self._calls)

    def run_until(self, end_s: float, *, late_s: float = 0.0) -> None:
        """Run what is due up to `end_s`, each call `late_s` after its time."""
        for _ in range(100_000):
            if not self._calls or self._calls[0][0] + late_s > end_s:
                break
            due_s, _, call = heapq.heappop(self._calls)
            self.now_s = max(self.now_s, due_s + late_s)
            if call.callback is not None:
                call.callback()
        self.now_s = max(self.now_s, end_s)


class Rig:
    def __init__(self, speed: float = 1.0) -> None:
        self.loop = FakeLoop()
        self.steps: list[tuple[float, StepResult]] = []
        self.on_step: Callable[[StepResult], None] = lambda _: None
        self.engine = RealTimeEngine(
            Engine(PROFILE, EngineConfig.from_profile(PROFILE)),
            speed=speed,
            on_step=self._take,
            loop=self.loop,
            clock=self.loop.clock,
        )

    def _take(self, result: StepResult) -> None:
        self.steps.append((self.loop.now_s - 100.0, result))
        self.on_step(result)


def test_steps_are_handed_over_when_they_end() -> None:
    """Five tokens at 10 ms a step come at 10, 20, … 50 ms, and then nothing is scheduled any more."""
    rig = Rig()
    rig.engine.submit(Request(1, 4, 5))
    assert rig.steps == []
    rig.loop.run_until(101.0)
    assert [when for when, _ in rig.steps] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert rig.loop.pending == 0
    assert rig.engine.statistics.running == 0


def test_speed_shortens_the_waits_and_nothing_else() -> None:
    """At ten times the speed the same five steps take 5 ms; their model durations are the profile's."""
    rig = Rig(speed=10.0)
    rig.engine.submit(Request(1, 4, 5))
    rig.loop.run_until(101.0)
    assert [when for when, _ in rig.steps] == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005], abs=0.0005)
    assert {round(result.duration_s, 9) for _, result in rig.steps} == {0.01}
    assert rig.engine.to_real_s(0.01) == pytest.approx(0.001)


def test_late_timers_do_not_add_up() -> None:
    """With every timer 3 ms late, a hundred steps still end 3 ms after their time."""
    rig = Rig()
    rig.engine.submit(Request(1, 4, 100))
    rig.loop.run_until(102.0, late_s=0.003)
    assert rig.steps[-1][0] == pytest.approx(1.0 + 0.003, abs=0.004)
    assert rig.engine.lag_s == 0.0


def test_a_stall_is_forgiven_and_counted() -> None:
    """After a stall of five seconds the engine goes on at its pace instead of giving everything at once."""
    rig = Rig()
    rig.engine.submit(Request(1, 4, 100))
    rig.loop.run_until(100.055)
    done_before = len(rig.steps)
    rig.loop.now_s += 5.0
    rig.loop.run_until(rig.loop.now_s + 0.1)
    done_in_100_ms = len(rig.steps) - done_before
    assert 10 <= done_in_100_ms <= 10 + LAG_MAX_S / 0.01 + 2
    assert 4.5 < rig.engine.lag_s <= 5.1


def test_requests_of_one_moment_share_the_first_step() -> None:
    """An idle engine starts in the next turn of the loop, with all that was submitted by then."""
    rig = Rig()
    for request_id in (1, 2, 3):
        rig.engine.submit(Request(request_id, 2, 2))
    rig.loop.run_until(101.0)
    assert (1, 2, 3) == rig.steps[0][1].first_tokens


def test_a_request_submitted_while_a_step_is_handed_over_starts_no_second_clock() -> None:
    """Submitting from within the hand-over, as a pipelining client makes happen, keeps one timer."""
    rig = Rig()

    def submit_next(result: StepResult) -> None:
        if result.finished and len(rig.steps) < 10:
            rig.engine.submit(Request(100 + len(rig.steps), 2, 2))
            assert rig.loop.pending == 0

    rig.on_step = submit_next
    rig.engine.submit(Request(1, 2, 2))
    rig.loop.run_until(101.0)
    assert [when for when, _ in rig.steps] == pytest.approx([0.01 * (step + 1) for step in range(10)])


def test_gauges_stand_still_during_a_step() -> None:
    """What was submitted during a step is counted at the step's end."""
    rig = Rig()
    rig.engine.submit(Request(1, 2, 50))
    rig.loop.run_until(100.015)
    rig.engine.submit(Request(2, 2, 50))
    assert (1, 0) == (rig.engine.statistics.running, rig.engine.statistics.waiting)
    rig.loop.run_until(100.021)
    assert (1, 1) == (rig.engine.statistics.running, rig.engine.statistics.waiting)
    rig.loop.run_until(100.031)
    assert (2, 0) == (rig.engine.statistics.running, rig.engine.statistics.waiting)


def test_an_abort_shows_within_a_step_and_stops_the_clock() -> None:
    """After the last request is aborted the running step ends, the gauges fall to 0 and no timer is left."""
    rig = Rig()
    rig.engine.submit(Request(1, 2, 50))
    rig.loop.run_until(100.015)
    assert rig.engine.abort(1)
    rig.loop.run_until(100.03)
    assert (0, 0) == (rig.engine.statistics.running, rig.loop.pending)
    rig.engine.submit(Request(2, 2, 1))
    rig.loop.run_until(100.2)
    assert (2,) == rig.steps[-1][1].finished


def test_nothing_happens_after_close() -> None:
    """A closed engine hands nothing over, whether it had work or gets more."""
    rig = Rig()
    rig.engine.submit(Request(1, 2, 50))
    rig.loop.run_until(100.015)
    rig.engine.close()
    rig.engine.submit(Request(2, 2, 50))
    rig.loop.run_until(101.0)
    assert (1, 0) == (len(rig.steps), rig.loop.pending)


def test_an_owner_that_fails_does_not_stop_the_engine() -> None:
    """An exception in the hand-over reaches the loop, and the next step comes all the same."""
    rig = Rig()
    rig.engine.submit(Request(1, 2, 3))

    def fail(_: StepResult) -> None:
        rig.on_step = lambda _: None
        raise ValueError("owner")

    rig.on_step = fail
    with pytest.raises(ValueError, match="owner"):
        rig.loop.run_until(101.0)
    rig.loop.run_until(101.0)
    assert (1,) == rig.steps[-1][1].finished
