"""Drives the core: feeds it events, has its effects carried out in order, and arms one timer for its next deadline.

Owns the controller and the clock. Never decides anything, never waits.

- One event at a time. What is fed while effects are being carried out is queued and handled after them, so the
  core is never entered twice and the call depth does not grow.
- An exception out of the core is our own bug, and its books can no longer be trusted. The driver fails closed: it
  decides nothing more, answers whoever waits and whoever comes with 503, and lets running answers end by themselves.
  Failing open would put unbounded load on engines in the very moment when nothing is known about them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from forebay.admission.controller import Controller
from forebay.admission.errors import ConfigRefused, MisuseError
from forebay.admission.events import Arrived, DrainStarted, Event
from forebay.admission.model import Exhausted, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.admission.snapshot import Snapshot, TicketView
from forebay.gateway.ports import Listener
from forebay.runtime.delivery import Delivery

__all__ = ["Driver"]

_log = logging.getLogger(__name__)

RECENT_EVENTS: Final = 400
"""Kept for the dump after a failure of the core."""
_FAILED: Final = "The gateway has failed and is being replaced."


class Driver:
    """One controller on one event loop; what the gateway sees of it is `gateway.ports.Core`."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_broken: Callable[[BaseException], None] = lambda _: None,
        on_error: Callable[[str], None] = lambda _: None,
        on_decided: Callable[[float], None] = lambda _: None,
    ) -> None:
        """See the class.

        Args:
            settings: of the core.
            loop: where timers run.
            clock: monotonic seconds. Not the loop's own: uvloop's stands still during a turn and has milliseconds.
            on_broken: told once, when the core has failed.
            on_error: told the place of each failure of a listener, an observer or a caller.
            on_decided: told the seconds that the core took over each arrival.
        """
        self.now = clock
        self.new_ticket: Callable[[], TicketId] = map(TicketId, itertools.count(1)).__next__
        self.delivery = Delivery(self.feed, on_error)
        self.register: Callable[[TicketId, Listener], None] = self.delivery.register
        self.recent_events: deque[tuple[float, Event]] = deque(maxlen=RECENT_EVENTS)
        self.broken: BaseException | None = None
        self._loop = loop
        self._on_broken = on_broken
        self._on_error = on_error
        self._on_decided = on_decided
        self._now_s = clock()
        self._controller = Controller(settings, self._now_s)
        self._pending: deque[Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def feed(self, event: Event) -> None:
        """Something happened. Effects are carried out before this returns, unless some are being carried out."""
        if self._handling:
            self._pending.append(event)
        else:
            self._run(event)

    def reconfigure(self, settings: Settings, then: Callable[[], None]) -> None:
        """Replace the core's settings.

        Args:
            then: brings everything else over to them. Called before the first effect is carried out: that may let a
                client's next request in, which must not come with the classes and plans of before.

        Raises:
            ConfigRefused: before anything was changed; `then` was not called.
        """
        try:
            effects = self._controller.reconfigure(settings, self._read_clock())
        except ConfigRefused:
            raise
        except Exception as error:
            self._fail(error)
            raise
        self._handling = True
        try:
            then()
        finally:  # whatever became of it, the core has decided
            self.delivery.carry_out(effects)
            self._run()

    def snapshot(self) -> Snapshot | None:
        """The core as it is; None once it has failed."""
        return None if self.broken is not None else self._controller.snapshot()

    def classes_in_use(self) -> tuple[str, ...]:
        """Classes that have requests."""
        return () if self.broken is not None else self._controller.classes_in_use()

    def look_up(self, ticket: TicketId) -> TicketView | None:
        """One request as it is now; None if it is over, or the core has failed."""
        return None if self.broken is not None else self._controller.look_up(ticket, self.now())

    def exhausted(self, tenant: str, plan: str) -> Exhausted | None:
        """What a tenant has used up, if that is clear before its request was read."""
        return (
            None if self.broken is not None else self._controller.exhausted(tenant, plan, self._read_clock())
        )

    def export_learned(self) -> dict[str, object]:
        """What the core has learned of the engines; empty once it has failed."""
        return {} if self.broken is not None else self._controller.export_learned()

    def restore_learned(self, learned: dict[str, object]) -> list[str]:
        """Begin with what an earlier process learned. Returns what of it could not be used."""
        return self._controller.restore_learned(learned, self._read_clock())

    def cut_all(self, detail: str) -> None:
        """The time to drain is over: who still waits is turned away, who still runs is told and ended."""
        if self.broken is None:
            self.feed(DrainStarted(until_s=self._read_clock()))
        if self.broken is None:
            self._run_due()
        self.delivery.cut_all(detail)

    def stop(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self, event: Event | None = None) -> None:
        """Handle this event, and what is fed meanwhile."""
        self._handling = True
        try:
            if event is not None:
                self._handle(event)
            while self._pending:
                self._handle(self._pending.popleft())
        finally:
            self._handling = False
        self._arm()

    def _handle(self, event: Event) -> None:
        now = self._read_clock()
        if self.broken is not None:
            self._handle_without_core(event)
            return
        self.recent_events.append((now, event))
        try:
            effects = self._controller.handle(event, now)
        except MisuseError as misuse:
            # Refused before anything was changed: the event is at fault, the books are not.
            _log.exception("the core refused %s", type(event).__name__)
            self._on_error("driver.misuse")
            if isinstance(event, Arrived):
                self.delivery.refuse_arrival(event.demand, now, Outcome.NO_ENDPOINTS, str(misuse))
        except Exception as error:  # noqa: BLE001 - whatever it is, the books are no longer sure
            self._fail(error)
            self._handle_without_core(event)
        else:
            if type(event) is Arrived:
                self._on_decided(self.now() - now)
            self.delivery.carry_out(effects)

    def _handle_without_core(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self.delivery.refuse_arrival(event.demand, self._now_s, Outcome.DRAINING, _FAILED)
        else:
            self.delivery.end_without_core(event)

    def _fail(self, error: Exception) -> None:
        self.broken = error
        _log.critical("the decision core has failed; no more requests are served", exc_info=error)
        self._on_error("core")
        self.delivery.evict_all_held(Outcome.DRAINING, _FAILED)
        self._on_broken(error)

    def _read_clock(self) -> float:
        # A timer may fire a little early, and `_wake` says then that its time has come: never go back behind that.
        now = self.now()
        if now > self._now_s:
            self._now_s = now
        return self._now_s

    def _wake(self) -> None:
        self._timer = None
        if self.broken is not None:
            return
        self._now_s = max(self._timer_s, self._read_clock())
        self._run_due()

    def _run_due(self) -> None:
        self._handling = True
        try:
            effects = self._controller.wake(self._now_s)
        except Exception as error:  # noqa: BLE001 - as in `_handle`
            self._fail(error)
        else:
            self.delivery.carry_out(effects)
        self._run()

    def _arm(self) -> None:
        """One timer. It is moved only to an earlier time: most deadlines recede, and waking early costs less."""
        due_s = None if self.broken is not None else self._controller.next_deadline()
        if due_s is None or (self._timer is not None and self._timer_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_later(max(0.0, due_s - self.now()), self._wake)
