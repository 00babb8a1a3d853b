"""Which endpoint: the least loaded among those with room, load counted as seconds of work at the endpoint's own speed.

Ties go to the earlier one in the configuration, so the choice is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterable

from forebay.admission.endpoints import Endpoint
from forebay.admission.tickets import Ticket


def place(ticket: Ticket, endpoints: Iterable[Endpoint], now: float) -> Endpoint | None:
    """The endpoint to dispatch to now, or None if none has room."""
    best: Endpoint | None = None
    best_load = 0.0
    tried = ticket.tried
    for endpoint in endpoints:
        if (tried and endpoint.id in tried) or not endpoint.has_room(ticket, now):
            continue
        load = endpoint.load_s()
        if best is None or (load, endpoint.order) < (best_load, best.order):
            best, best_load = endpoint, load
    return best
