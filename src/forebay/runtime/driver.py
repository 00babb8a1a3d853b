"""Drives the core: feeds it events, carries its effects out in order, and arms one timer for its next deadline.

Owns the controller, the clock and who listens for which ticket. Never decides anything, never waits.

- One event at a time. What is fed from inside a listener or an observer is queued and handled after the effects at
  hand, so the core is never entered twice and the call depth does not grow.
- A listener that raises must not leak its ticket: the failure becomes an event that frees what is booked.
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
from collections.abc import Callable, Sequence
from typing import Final

from forebay.admission.controller import Controller
from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.errors import MisuseError
from forebay.admission.events import Arrived, AttemptFailed, ClientLeft, Event, Failure
from forebay.admission.model import DecisionRecord, Demand, Refusal, Settlement, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.admission.snapshot import Snapshot
from forebay.gateway.ports import Listener

__all__ = ["Driver"]

_log = logging.getLogger(__name__)

RECENT_EVENTS: Final = 1000
"""Kept for the dump after a failure of the core."""
_RETRY_AFTER_FAILURE_S: Final = 5.0


class Driver:
    """One controller on one event loop."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_broken: Callable[[BaseException], None] = lambda _: None,
        on_error: Callable[[str], None] = lambda _: None,
        on_decided: Callable[[float], None] | None = None,
    ) -> None:
        """See the module.

        Args:
            settings: of the core.
            loop: where timers run.
            clock: monotonic seconds. Not the loop's own: uvloop's stands still during a turn and has milliseconds.
            on_broken: told once, when the core has failed.
            on_error: told the place of each failure of a listener or observer.
            on_decided: told the seconds that the core took over each arrival.
        """
        self.now = clock
        self._loop = loop
        self._on_broken = on_broken
        self._on_error = on_error
        self._on_decided = on_decided
        self._now_s = clock()
        self._controller = Controller(settings, self._now_s)
        self._numbers = itertools.count(1)
        self._listeners: dict[TicketId, Listener] = {}
        self._held: set[TicketId] = set()
        """Asked for membership, and iterated only when the core has failed and order means nothing."""
        self._pending: deque[Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self.recent_events: deque[tuple[float, Event]] = deque(maxlen=RECENT_EVENTS)
        self.broken: BaseException | None = None
        self._on_settlement: tuple[Callable[[Settlement], None], ...] = ()
        self._on_record: tuple[Callable[[DecisionRecord], None], ...] = ()

    def observe(
        self,
        *,
        settlements: Sequence[Callable[[Settlement], None]] = (),
        records: Sequence[Callable[[DecisionRecord], None]] = (),
    ) -> None:
        """Also tell these about every closed ticket, and about every decision."""
        self._on_settlement += tuple(settlements)
        self._on_record += tuple(records)

    # What the gateway sees (`gateway.ports.Core`)

    def new_ticket(self) -> TicketId:
        """A number never used before in this process."""
        return TicketId(next(self._numbers))

    def register(self, ticket: TicketId, listener: Listener) -> None:
        """Effects for this ticket go to `listener` until it is settled."""
        self._listeners[ticket] = listener

    def feed(self, event: Event) -> None:
        """Something happened. Effects are carried out before this returns, unless it is called from inside one."""
        if self._handling:
            self._pending.append(event)
            return
        self._handling = True
        try:
            self._handle(event)
            while self._pending:
                self._handle(self._pending.popleft())
        finally:
            self._handling = False
        self._arm()

    # What the runtime sees

    def reconfigure(self, settings: Settings) -> None:
        """Replace the core's settings. Raises: ConfigRefused, before anything was changed."""
        self._carry_out(self._controller.reconfigure(settings, self._read_clock()))
        self._arm()

    def snapshot(self) -> Snapshot | None:
        """The core as it is; None once it has failed."""
        return None if self.broken is not None else self._controller.snapshot()

    @property
    def open_tickets(self) -> int:
        """Requests that a listener still waits for."""
        return len(self._listeners)

    def stop(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The turn

    def _read_clock(self) -> float:
        # A timer may fire a little early, and `_wake` then says that its time has come: never go back behind that.
        self._now_s = max(self._now_s, self.now())
        return self._now_s

    def _handle(self, event: Event) -> None:
        if self.broken is not None:
            self._turn_away(event)
            return
        now = self._read_clock()
        self.recent_events.append((now, event))
        try:
            effects = self._controller.handle(event, now)
        except MisuseError as error:
            # Refused before anything was changed: the event is at fault, the books are not.
            _log.exception("the core refused %s", type(event).__name__)
            self._on_error("driver.misuse")
            if isinstance(event, Arrived):
                self._refuse(event.demand.ticket, self._refusal(Outcome.NO_ENDPOINTS, event.demand, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the books are no longer sure
            self._fail(error)
            self._turn_away(event)
        else:
            if self._on_decided is not None and type(event) is Arrived:
                self._on_decided(self.now() - now)
            self._carry_out(effects)

    def _wake(self) -> None:
        self._timer = None
        if self.broken is None:
            self._handling = True
            try:
                now = max(self._timer_s, self._read_clock())
                self._now_s = now
                self._carry_out(self._controller.wake(now))
                while self._pending:
                    self._handle(self._pending.popleft())
            except Exception as error:  # noqa: BLE001 - as in `_handle`
                self._fail(error)
            finally:
                self._handling = False
        self._arm()

    def _arm(self) -> None:
        """One timer. It is moved only to an earlier time: most deadlines recede, and waking early costs less."""
        due_s = None if self.broken is not None else self._controller.next_deadline()
        if due_s is None:
            return
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_later(max(0.0, due_s - self.now()), self._wake)
