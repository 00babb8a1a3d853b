"""Brings the core's effects to whoever carries them out: the listener of the ticket, then the observers.

Owns which listener belongs to which open ticket. A listener that raises must not leak its ticket: the failure is
logged, counted, and turned into an event that frees what is booked. An observer that raises costs only its own view.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.events import AttemptFailed, ClientLeft, Ended, Event
from forebay.admission.model import DecisionRecord, Demand, Mode, Refusal, Settlement, TicketId
from forebay.admission.outcomes import Outcome
from forebay.gateway.ports import Listener

__all__ = ["Delivery"]

_log = logging.getLogger(__name__)

_COMPLETED: Final = Outcome.COMPLETED
_RETRY_AFTER_FAILURE_S: Final = 5.0
"""What clients are told after a failure of the core: about what it takes to replace the process."""
_RETRY_AFTER_CUT_S: Final = 1.0
"""What clients are told that are cut at the end of a shutdown: others serve, or will."""
_ENFORCE: Final = Mode.ENFORCE
_CLOSED_IDS: Final = 4000
"""Ids of closed tickets that are remembered; the admin API shows up to 2000 decisions."""
_PLAIN_IDS: Final = 400
"""The same of those that were served without having waited, of which it shows 200."""


class Delivery:
    """Listeners of open tickets, and observers of everything."""

    def __init__(self, feed: Callable[[Event], None], on_error: Callable[[str], None]) -> None:
        self._feed = feed
        self._on_error = on_error
        self._listeners: dict[TicketId, Listener] = {}
        # Ordered: the oldest of a plain dict is found by stepping over all that were deleted before it.
        self._closed_ids: OrderedDict[TicketId, bytes] = OrderedDict()
        self._plain_ids: OrderedDict[TicketId, bytes] = OrderedDict()
        self._held: dict[TicketId, DecisionRecord] = {}
        self._on_settlement: tuple[Callable[[Settlement], None], ...] = ()
        self._on_record: tuple[Callable[[DecisionRecord], None], ...] = ()
        self._on_hold: tuple[Callable[[DecisionRecord], None], ...] = ()
        self._on_unenforced: tuple[Callable[[DecisionRecord], None], ...] = ()

    @property
    def open_tickets(self) -> int:
        """Tickets that are not settled."""
        return len(self._listeners)

    def register(self, ticket: TicketId, listener: Listener) -> None:
        """Effects for this ticket go to `listener` until it is settled."""
        self._listeners[ticket] = listener

    def request_id_of(self, ticket: TicketId) -> str | None:
        """The client's `x-request-id`, of an open ticket or one of the last closed; None if it sent none."""
        listener = self._listeners.get(ticket)
        if listener is not None:
            request_id = listener.request_id
        else:
            request_id = self._plain_ids.get(ticket) or self._closed_ids.get(ticket)
        return None if request_id is None else request_id.decode("ascii")

    def observe(
        self,
        settlements: Sequence[Callable[[Settlement], None]],
        records: Sequence[Callable[[DecisionRecord], None]],
        holds: Sequence[Callable[[DecisionRecord], None]] = (),
        unenforced: Sequence[Callable[[DecisionRecord], None]] = (),
    ) -> None:
        """Also tell these about every closed ticket and every decision.

        Args:
            holds: told of decisions to let a request wait.
            unenforced: told of decisions whose mode is not to enforce them.
        """
        self._on_settlement += tuple(settlements)
        self._on_record += tuple(records)
        self._on_hold += tuple(holds)
        self._on_unenforced += tuple(unenforced)

    def watch(
        self,
        on_record: Callable[[DecisionRecord], None],
        on_settlement: Callable[[Settlement], None] | None = None,
    ) -> Callable[[], None]:
        """Tell these about every decision, and every end, from now on, until what is returned is called."""
        ends = () if on_settlement is None else (on_settlement,)
        self._on_record += (on_record,)
        self._on_settlement += ends

        def stop() -> None:
            self._on_record = tuple(observer for observer in self._on_record if observer is not on_record)
            self._on_settlement = tuple(observer for observer in self._on_settlement if observer not in ends)

        return stop

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """All of them, in order. Never raises."""
        for effect in effects:
            try:
                self._one(effect)
            except Exception:  # noqa: BLE001 - one ticket's trouble must not become another's
                _log.exception("carrying out %s failed", type(effect).__name__)
                self._on_error(f"listener.{type(effect).__name__.lower()}")
                self._free(effect)

    def _one(self, effect: Effect) -> None:
        if type(effect) is Settle:
            settled = effect.settlement.ticket
            listener = self._listeners.get(settled)
            if listener is not None:
                del self._listeners[settled]
                if listener.request_id is not None:
                    self._remember(effect.settlement, listener.request_id)
            if self._held:
                # Its client has left: nobody was told anything that would have ended the wait.
                self._held.pop(effect.settlement.ticket, None)
            self._tell_settled(effect.settlement)
        elif type(effect) is Dispatch:
            if self._held:
                self._held.pop(effect.ticket, None)
            self._tell(self._on_record, effect.record)
            if effect.record.mode is not _ENFORCE:
                self._tell(self._on_unenforced, effect.record)
            self._listeners[effect.ticket].on_dispatch(effect)
        elif type(effect) is Hold:
            self._held[effect.ticket] = effect.record
            self._tell(self._on_record, effect.record)
            self._tell(self._on_hold, effect.record)
            self._listeners[effect.ticket].on_hold(effect)
        elif type(effect) is Refuse or type(effect) is Evict:
            self._held.pop(effect.ticket, None)
            self._tell(self._on_record, effect.refusal.record)
            self._listeners[effect.ticket].on_refuse(effect.refusal, type(effect) is Evict)
        elif type(effect) is Abort:
            if effect.record is not None:
                self._tell(self._on_record, effect.record)
            self._listeners[effect.ticket].on_abort(effect)

    def _remember(self, settlement: Settlement, request_id: bytes) -> None:
        plain = settlement.outcome is _COMPLETED and not settlement.waited_s
        ids = self._plain_ids if plain else self._closed_ids
        if len(ids) >= (_PLAIN_IDS if plain else _CLOSED_IDS):
            ids.popitem(last=False)
        ids[settlement.ticket] = request_id

    def _free(self, effect: Effect) -> None:
        """Make the core let go of a ticket whose listener could not do its part; the engine is not to blame."""
        if isinstance(effect, Dispatch | Hold):
            listener = self._listeners.get(effect.ticket)
            if listener is not None:
                self._abort(listener, _failed(effect.ticket, "The gateway could not send the request."))
            if isinstance(effect, Dispatch):
                # It may have been sent in part: its room stays booked until the engine shows that it is gone.
                self._feed(Ended(effect.ticket, Outcome.UPSTREAM_FAILED, engine_goes_on=True))
            else:
                self._feed(ClientLeft(effect.ticket))

    def _abort(self, listener: Listener, effect: Abort) -> None:
        try:
            listener.on_abort(effect)
        except Exception:  # noqa: BLE001 - as in `carry_out`
            _log.exception("telling a listener of its end failed")
            self._on_error("listener.abort")

    def _tell_settled(self, settlement: Settlement) -> None:
        try:
            for on_settlement in self._on_settlement:
                on_settlement(settlement)
        except Exception:  # noqa: BLE001 - watching must not disturb what is watched
            self._observer_failed()

    def _tell(self, observers: tuple[Callable[[DecisionRecord], None], ...], record: DecisionRecord) -> None:
        try:
            for observer in observers:
                observer(record)
        except Exception:  # noqa: BLE001 - watching must not disturb what is watched
            self._observer_failed()

    def _observer_failed(self) -> None:
        _log.exception("an observer failed; the request is not affected")
        self._on_error("observer")

    # Ends that are not the core's decision

    def cut_all(self, detail: str) -> None:
        """End every running request: its client is told, its engine left at work is the next process's concern."""
        for ticket, listener in list(self._listeners.items()):
            if ticket not in self._held:
                self._abort(listener, Abort(ticket, Outcome.DRAINING, detail, _RETRY_AFTER_CUT_S))
                self._feed(Ended(ticket, Outcome.DRAINING, engine_goes_on=True))

    def refuse_arrival(self, demand: Demand, at_s: float, outcome: Outcome, detail: str) -> None:
        """Answer a request that the core cannot decide about."""
        record = DecisionRecord(
            ticket=demand.ticket,
            at_s=at_s,
            pool=demand.pool,
            class_name=demand.class_name,
            tenant=demand.tenant,
            model=demand.model,
            action="refuse",
            outcome=outcome,
            decided_by="driver",
            checks=(),
            cost_gpu_s=0.0,
            kv_tokens=0,
            predicted_wait_s=0.0,
            wait_budget_s=0.0,
            waited_s=0.0,
            position=0,
            endpoint=None,
            learning=False,
            detail=detail,
        )
        self._end_without_core(demand.ticket, record, outcome, evicted=False)

    def evict_all_held(self, outcome: Outcome, detail: str) -> None:
        """Answer everybody who waits."""
        for ticket, record in list(self._held.items()):
            evicted = replace(record, action="evict", outcome=outcome, decided_by="driver", detail=detail)
            self._end_without_core(ticket, evicted, outcome, evicted=True)

    def end_without_core(self, event: Event) -> None:
        """What a running request reports once the core is gone: there is nothing left to book, only to forget."""
        if isinstance(event, AttemptFailed):
            listener = self._listeners.pop(event.ticket, None)
            if listener is not None:
                self._abort(listener, _failed(event.ticket, "The engine failed before its first token."))
        elif isinstance(event, Ended | ClientLeft):
            self._listeners.pop(event.ticket, None)

    def _end_without_core(
        self, ticket: TicketId, record: DecisionRecord, outcome: Outcome, *, evicted: bool
    ) -> None:
        refusal = Refusal(outcome, _RETRY_AFTER_FAILURE_S, 0.0, record)
        effect = Evict(ticket, refusal) if evicted else Refuse(ticket, refusal)
        self.carry_out((effect,))
        self._listeners.pop(ticket, None)


def _failed(ticket: TicketId, detail: str) -> Abort:
    return Abort(ticket, Outcome.UPSTREAM_FAILED, detail)
