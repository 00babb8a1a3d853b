"""Room has appeared: which waiters start now.

Waiters are looked at in order (class rank, then arrival) and dispatched for as long as there is room. One that
does not fit lets later ones pass, until it has used half of its wait budget: then the endpoint with the most room
is kept free for it (`Pool.reserved`) until it fits, so that small requests cannot hold up a large one for ever.

At most `SCANNED_PER_CLASS` waiters of a class are looked at each time, which bounds the cost of an ending with a
long queue. Beyond that many blocked ones at the head of a class, one that would fit is not found until they move.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.placement import place
from forebay.admission.pools import Pool
from forebay.admission.tickets import Ticket

SCANNED_PER_CLASS: Final = 128


def fill(pool: Pool, life: Lifecycle, now: float) -> list[Endpoint]:
    """Dispatch what can start. Returns the endpoints that were given work."""
    given: list[Endpoint] = []
    open_now = [endpoint for endpoint in pool.endpoints.values() if endpoint.is_open(now)]
    if not open_now or not pool.has_place():
        return given
    if pool.reserved is not None and not pool.reserved.is_up:
        pool.reserved.reserved_for = None
        pool.reserved = None
    blocked: Ticket | None = None
    for ticket in list(pool.queues.in_order(per_class=SCANNED_PER_CLASS)):
        endpoint = place(ticket, open_now, now)
        if endpoint is None:
            blocked = blocked or ticket
            continue
        life.dispatch(ticket, endpoint, now)
        given.append(endpoint)
        if not endpoint.is_open(now):
            open_now.remove(endpoint)
        if not open_now or not pool.has_place():
            return given
    if blocked is not None and pool.reserved is None:
        _reserve(pool, blocked, open_now, now)
    return given


def _reserve(pool: Pool, ticket: Ticket, open_now: list[Endpoint], now: float) -> None:
    """Keep an endpoint free for a request that has waited half its budget for room."""
    if now - ticket.queued_s < (ticket.wait_until_s - ticket.queued_s) / 2:
        return
    candidates = [e for e in open_now if e.id not in ticket.tried and e.can_ever_hold(ticket)]
    if candidates:
        best = min(candidates, key=lambda e: e.books.kv_tokens - (e.kv_limit or 0))
        best.reserved_for, pool.reserved = ticket.demand.ticket, best
