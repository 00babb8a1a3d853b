"""A waiter's place among the deadlines of its class: filed as its wait begins, its cost changes, or it is protected."""

from __future__ import annotations

from forebay.admission.shedding import firm_from_s
from forebay.admission.tickets import Ticket
from forebay.admission.victims import Entry
from forebay.admission.work_ahead import weight_units


def file_waiter(ticket: Ticket, now: float, *, protected: bool) -> None:
    """A request waits, with a known deadline, and with this cost from now on."""
    state = ticket.pool.classes[ticket.demand.class_name]
    entry = ticket.entry = Entry(
        ticket.deadline_s,
        ticket.booking.work_us,
        ticket.settings.value,
        ticket.demand.ticket,
        protected,
        ticket.tenant,
        ticket,
        firm_from_s(ticket.queued_s, ticket.deadline_s - ticket.queued_s),
        weight_units(ticket.weight),
    )
    state.deadlines.add(entry, now)
    if protected and not ticket.never_refuse:
        state.spared += 1
        state.spared_us += entry.work_us


def unfile(ticket: Ticket) -> None:
    """It waits no more, or is to be filed anew. Does nothing if it is not filed."""
    entry = ticket.entry
    if entry is None:
        return
    state = ticket.pool.classes[ticket.demand.class_name]
    state.deadlines.remove(entry)
    if entry.protected and not ticket.never_refuse:
        state.spared -= 1
        state.spared_us -= entry.work_us
    ticket.entry = None
