"""Who may not be pushed out while it waits: what the core remembers of sessions and of those it displaced."""

from __future__ import annotations

from forebay.admission.shedding import DisplacedRetries, Sessions, fingerprint, is_protected
from forebay.admission.tickets import Ticket


class Standing:
    """The memory of one controller."""

    __slots__ = ("_displaced", "_sessions")

    def __init__(self) -> None:
        self._displaced = DisplacedRetries()
        self._sessions = Sessions()

    def is_protected(self, ticket: Ticket, now: float) -> bool:
        """True if nobody may push it out for as long as it waits. Asked once, when it begins to wait."""
        demand = ticket.demand
        return is_protected(
            never_refuse=ticket.never_refuse,
            retry_of_displaced=demand.retry_count > 0
            and self._displaced.claim(demand.tenant, fingerprint(demand), now),
            later_call=demand.session is not None
            and self._sessions.class_of(demand.tenant, demand.session, now) is not None,
        )

    def started(self, ticket: Ticket, now: float) -> None:
        """A request was dispatched: later calls of its session are protected."""
        session = ticket.demand.session
        if session is not None:
            self._sessions.admitted(ticket.demand.tenant, session, ticket.rank, now)

    def displaced(self, ticket: Ticket, now: float) -> None:
        """A waiter was pushed out: its retry is protected."""
        self._displaced.displaced(ticket.demand.tenant, fingerprint(ticket.demand), now)
