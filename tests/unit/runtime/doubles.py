"""A clock that stands still, a loop that only has timers, and listeners that keep what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from forebay.admission.effects import Abort, Dispatch, Hold
from forebay.admission.events import Arrived, Described, EndpointsChanged
from forebay.admission.model import Demand, EndpointId, EngineInfo, EngineKind, Refusal, TicketId
from forebay.admission.settings import PoolSettings, Settings
from forebay.runtime.driver import Driver

ENGINE = EndpointId("http://10.0.0.1:8000")


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Handle:
    """A timer."""

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """As much of an event loop as the driver uses."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.handles: list[Handle] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        self.handles.append(Handle(self.clock.now_s + delay_s, callback))
        return self.handles[-1]

    @property
    def armed(self) -> list[Handle]:
        """Timers that will fire."""
        return [handle for handle in self.handles if not handle.cancelled]

    def fire(self, at_s: float | None = None) -> None:
        """Let the only timer fire, at its time unless told otherwise."""
        (handle,) = self.armed
        self.clock.now_s = handle.due_s if at_s is None else at_s
        self.handles.remove(handle)
        handle.callback()


class Kept:
    """A listener that keeps what it is told and does what a test says."""

    def __init__(self, request_id: bytes | None = None) -> None:
        self.request_id = request_id
        self.told: list[str] = []
        self.refusals: list[Refusal] = []
        self.aborts: list[Abort] = []
        self.act: Callable[[str], None] = lambda _: None

    def on_dispatch(self, effect: Dispatch) -> None:
        self._keep(f"dispatch {effect.attempt}")

    def on_hold(self, effect: Hold) -> None:
        self._keep("hold")

    def on_refuse(self, refusal: Refusal, evicted: bool) -> None:
        self.refusals.append(refusal)
        self._keep(f"{'evict' if evicted else 'refuse'} {refusal.outcome.value}")

    def on_abort(self, effect: Abort) -> None:
        self.aborts.append(effect)
        self._keep(f"abort {effect.outcome.value}")

    def _keep(self, what: str) -> None:
        self.told.append(what)
        self.act(what)


class Bench:
    """A driver with one pool of one engine that runs one request at a time."""

    def __init__(self, **pool: int) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.errors: list[str] = []
        self.broken: list[BaseException] = []
        self.decided: list[float] = []
        self.driver = Driver(
            Settings((PoolSettings("p", **{"max_inflight_requests": 1, **pool}),)),  # type: ignore[arg-type]
            cast(asyncio.AbstractEventLoop, self.timers),
            clock=self.clock,
            on_broken=self.broken.append,
            on_error=self.errors.append,
            on_decided=self.decided.append,
        )
        self.driver.feed(EndpointsChanged("p", (ENGINE,)))
        self.driver.feed(Described(ENGINE, EngineInfo(EngineKind.VLLM)))

    def arrive(self, listener: Kept | None = None, class_name: str = "standard") -> tuple[TicketId, Kept]:
        """A request."""
        listener = listener or Kept()
        ticket = self.driver.new_ticket()
        self.driver.register(ticket, listener)
        self.driver.feed(Arrived(demand(ticket, class_name)))
        return ticket, listener


def demand(ticket: TicketId, class_name: str = "standard") -> Demand:
    """A small streamed chat."""
    return Demand(
        ticket=ticket,
        pool="p",
        class_name=class_name,
        model="m",
        stream=True,
        prompt_bytes=400,
        body_bytes=500,
    )
