"""Who may not be pushed out while it waits: what the core remembers of sessions and of those it displaced."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from forebay.admission.model import Demand, TicketId
from forebay.admission.shedding import DisplacedRetries, Sessions, fingerprint, is_protected
from forebay.admission.tickets import WAITING, Ticket


class Standing:
    """The memory of one controller."""

    __slots__ = ("_class_names", "_displaced", "_sessions", "_tickets")

    def __init__(self, tickets: Mapping[TicketId, Ticket]) -> None:
        """See the class.

        Args:
            tickets: all that are not over, by their ids.
        """
        self._tickets = tickets
        self._displaced = DisplacedRetries()
        self._sessions = Sessions()
        self._class_names: list[str] = []
        """All classes in which a session was ever let in: their numbers stay when others come and go."""

    def is_protected(self, ticket: Ticket, now: float) -> bool:
        """True if nobody may push it out for as long as it waits. Asked once, when it begins to wait."""
        demand = ticket.demand
        if ticket.never_refuse:
            return True
        if not demand.retry_count and demand.session is None:
            return False
        return is_protected(
            never_refuse=False,
            retry_of_displaced=demand.retry_count > 0
            and self._displaced.claim(demand.tenant, fingerprint(demand), now),
            later_call=demand.session is not None and self._stands_for_session(demand, demand.session, now),
        )

    def _stands_for_session(self, demand: Demand, session: str, now: float) -> bool:
        """Is this a later call of it, and the only one that waits protected?

        Calls of a conversation come one after another. If all that name it were left alone, one name would be enough to
        fill a queue with requests that nobody can push out.
        """
        if self._sessions.class_of(demand.tenant, session, now) is None:
            return False
        other = self._tickets.get(TicketId(self._sessions.protected(demand.tenant, session, now)))
        if other is not None and other.phase is WAITING and other.demand.ticket != demand.ticket:
            return False
        self._sessions.protect(demand.tenant, session, demand.ticket, now)
        return True

    def in_its_class(self, demand: Demand, classes: Container[str], now: float) -> Demand:
        """A later call that names no class keeps that of its session, if that is among `classes`.

        Args:
            classes: those that its tenant may use now.
        """
        if demand.session is None or demand.class_claimed:
            return demand
        number = self._sessions.class_of(demand.tenant, demand.session, now)
        if number is None:
            return demand
        name = self._class_names[number]
        return (
            demand if name == demand.class_name or name not in classes else replace(demand, class_name=name)
        )

    def started(self, ticket: Ticket, now: float) -> None:
        """A request was dispatched: later calls of its session are protected."""
        session = ticket.demand.session
        if session is not None:
            # What a rule gives holds for the call that it was asked about.
            ruling = ticket.ruling
            name = (ruling is not None and ruling.class_before) or ticket.demand.class_name
            if name not in self._class_names:
                self._class_names.append(name)
            self._sessions.admitted(ticket.demand.tenant, session, self._class_names.index(name), now)

    def displaced(self, ticket: Ticket, now: float) -> None:
        """A waiter was pushed out: its retry is protected."""
        self._displaced.displaced(ticket.demand.tenant, fingerprint(ticket.demand), now)
