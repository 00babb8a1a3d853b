"""A waiter's place among the deadlines of its class: filed as its wait begins, its cost changes, or it is protected."""

from __future__ import annotations

from math import inf

from forebay.admission.model import MICRO
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


def start_by_s(ticket: Ticket) -> float:
    """When one whose answer is not streamed must start for the whole of it to be there in time.

    By its class's objective or its client's timeout, as fast as an engine is that has nothing else to do. Infinite if
    neither says anything; not before it came, or what can never be in time would always be first.
    """
    demand, whole_s = ticket.demand, ticket.settings.whole_answer_s
    by_s = inf if whole_s is None else ticket.arrived_s + whole_s
    if demand.patience_until_s is not None and demand.patience_until_s < by_s:
        by_s = demand.patience_until_s
    if by_s == inf:
        return by_s
    law, cost = ticket.pool.pricing.law, ticket.cost
    takes_s = cost.prefill_us / MICRO + cost.output_tokens / demand.samples * (law.c0_s + law.c2_s)
    return max(by_s - takes_s / ticket.pool.fastest(), ticket.arrived_s)


def unfile(ticket: Ticket) -> None:
    """It waits no more, or is to be filed anew. Does nothing if it is not filed."""
    entry = ticket.entry
    if entry is None:
        return
    ticket.pool.classes[ticket.demand.class_name].deadlines.remove(entry)
    ticket.entry = None
