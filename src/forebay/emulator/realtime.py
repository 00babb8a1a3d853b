"""Runs the engine model in real time, or a multiple of it, on the event loop.

One timer: it fires when the step under way ends, hands its result to the owner, and starts the next step where the
last one ended, so that lateness of the timer does not add up. While the engine is idle nothing runs.

If this process cannot keep up, a few steps are made up for per turn of the loop; what is still late beyond
`LAG_MAX_S` is forgiven (the model's clock is set back) and counted in `lag_s`: the engine then is slower than its
profile, and whoever measures can see it. Owns the model's clock and the timer; never touches a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from forebay.enginemodel import Engine, EngineStatistics, Request, StepResult, Submission

LAG_MAX_S: Final = 0.25
"""Lateness that is still made up for, in real seconds."""
STEPS_PER_TURN_MAX: Final = 8
"""Steps handed over in one turn of the event loop; sockets are served between turns."""
EARLY_S: Final = 0.0005
"""A step may be handed over this much early: timers of the event loop have whole milliseconds."""


class Timer(Protocol):
    """A call that has been scheduled."""

    def cancel(self) -> None: ...


class TimerLoop(Protocol):
    """What is needed of an event loop."""

    def call_soon(self, callback: Callable[[], object], /) -> Timer: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer: ...


class RealTimeEngine:
    """An engine whose steps take real time."""

    __slots__ = (
        "_clock",
        "_closed",
        "_engine",
        "_in_turn",
        "_loop",
        "_on_step",
        "_origin_s",
        "_result",
        "_speed",
        "_timer",
        "lag_s",
        "statistics",
    )

    def __init__(
        self,
        engine: Engine,
        *,
        speed: float,
        on_step: Callable[[StepResult], None],
        loop: TimerLoop,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._speed = speed
        self._on_step = on_step
        self._loop = loop
        self._clock = clock
        self._origin_s = clock()
        self._result: StepResult | None = None
        self._timer: Timer | None = None
        self._in_turn = False
        self._closed = False
        self.lag_s = 0.0
        """Real seconds by which steps took longer than the profile says."""
        self.statistics: EngineStatistics = engine.statistics()
        """The engine at the end of the last step: like a real engine's gauges it stands still during a step."""

    def submit(self, request: Request) -> Submission:
        """Queue a request; an idle engine starts a step in the next turn of the loop, with all that came by then."""
        outcome = self._engine.submit(request)
        idle = self._timer is None and not self._in_turn and not self._closed
        if outcome is Submission.QUEUED and idle:
            self._timer = self._loop.call_soon(self._turn)
        return outcome

    def abort(self, request_id: int) -> bool:
        """End a request. The gauges show it at the end of the step under way."""
        return self._engine.abort(request_id)

    def close(self) -> None:
        """Stop the clock; what is in the engine stays there."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._result = None

    def to_real_s(self, model_s: float) -> float:
        """A duration of the model in real seconds."""
        return model_s / self._speed

    def _model_now(self) -> float:
        return (self._clock() - self._origin_s) * self._speed

    def _turn(self) -> None:
        """Hand over what has ended, start what can start, arm the timer."""
        self._timer = None
        self._in_turn = True
        try:
            for _ in range(STEPS_PER_TURN_MAX):
                if not self._start() or not self._hand_over():
                    break
        finally:
            self._in_turn = False
            self._arm()

    def _start(self) -> bool:
        """Start a step unless one is under way. False if there is nothing to do."""
        if self._result is None and not self._closed:
            start_s = self._engine.next_step_at(self._model_now())
            if start_s is not None:
                self._result = self._engine.step(start_s)
            else:
                self.statistics = self._engine.statistics()
        return self._result is not None

    def _hand_over(self) -> bool:
        """Hand over the step under way and start the next where it ended. False if it has not ended."""
        result = self._result
        if result is None or result.end_s > self._model_now() + EARLY_S * self._speed:
            return False
        self._result = None
        self.statistics = self._engine.statistics()
        self._on_step(result)
        if self._engine.has_work and not self._closed:
            self._forgive(self._model_now() - result.end_s)
            self._result = self._engine.step(result.end_s)
        return True

    def _forgive(self, late_s: float) -> None:
        """Set the model's clock back if it is too far ahead of the engine."""
        late_real_s = late_s / self._speed
        if late_real_s > LAG_MAX_S:
            self._origin_s += late_real_s
            self.lag_s += late_real_s

    def _arm(self) -> None:
        if self._closed:
            return
        if self._result is not None:
            wait_s = (self._result.end_s - self._model_now()) / self._speed
            self._timer = self._loop.call_later(max(wait_s, 0.0), self._turn)
        elif self._engine.has_work:
            self._timer = self._loop.call_soon(self._turn)
