"""Which endpoint: of those with room, the one where the request is predicted to finish first.

    finish = (prefill under way there + its own) ÷ speed + expected output × step
    step   = (c0 + c2·(n + 1) + c3·(K + own KV)) ÷ speed
    own    = less by what of its beginning is cached there; where another endpoint has it, in full

with n sequences and K KV tokens there, by the law of the reference endpoint and this one's own speed. Chosen when the
request starts, not when it arrives: by then it is known what has ended. Ties go to the earlier one in the
configuration, so the choice is the same in every run. An endpoint whose last answers were all errors of its own comes
after all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.homes import LOAD
from forebay.admission.model import MICRO, EndpointState
from forebay.admission.tickets import Ticket


def place(ticket: Ticket, endpoints: Iterable[Endpoint], now: float) -> Endpoint | None:
    """The endpoint to dispatch to now, or None if none has room."""
    best: Endpoint | None = None
    best_s = -1.0  # not reckoned: with one endpoint there is nothing to compare
    tried = ticket.tried
    for endpoint in endpoints:
        if (tried and endpoint.id in tried) or not endpoint.has_room(ticket, now):
            continue
        if best is None:
            best = endpoint
            continue
        if best_s < 0.0:
            best_s = finish_s(ticket, best, now)
        own_s = finish_s(ticket, endpoint, now)
        if endpoint.only_rejects is not best.only_rejects:
            if best.only_rejects:
                best, best_s = endpoint, own_s
        elif own_s < best_s or (own_s == best_s and endpoint.order < best.order):
            best, best_s = endpoint, own_s
    return best


_LAST_RESORTS: Final = (
    EndpointState.UP,
    EndpointState.STARTING,
    EndpointState.STALLED,
    EndpointState.UNREADY,
    EndpointState.DOWN,
)


def place_anyway(ticket: Ticket, endpoints: Iterable[Endpoint], now: float) -> Endpoint | None:
    """The endpoint that is soonest done, with room or without; with none up one that may be. None if there is none."""
    best: Endpoint | None = None
    best_key = (0, False, 0.0, 0)
    for endpoint in endpoints:
        if endpoint.id in ticket.tried or endpoint.state not in _LAST_RESORTS:
            continue
        key = (
            _LAST_RESORTS.index(endpoint.state),
            endpoint.only_rejects,
            finish_s(ticket, endpoint, now),
            endpoint.order,
        )
        if best is None or key < best_key:
            best, best_key = endpoint, key
    return best


def finish_s(ticket: Ticket, endpoint: Endpoint, now: float) -> float:
    """Seconds from now until this request would be done there."""
    law, cost = ticket.pool.pricing.law, ticket.price.cost
    prefill_s = endpoint.prefill_under_way_s(now) * endpoint.meter.speed + cost.prefill_us / MICRO
    prefix_hash = ticket.demand.prefix_hash
    if prefix_hash is not None:
        prefill_s += law.c1_s * _cold_tokens(ticket, endpoint, prefix_hash)
    step_s = (
        law.c0_s
        + law.c2_s * (endpoint.books.requests + 1)
        + law.c3_s * (endpoint.forecast.held_tokens + endpoint.books.draining.kv_tokens + cost.prompt_tokens)
    )
    return (prefill_s + cost.output_tokens * step_s) / endpoint.meter.speed


def _cold_tokens(ticket: Ticket, endpoint: Endpoint, prefix_hash: int) -> int:
    """Tokens of its beginning that are worked out here and would not be at another endpoint, which has them."""
    pool = ticket.pool
    prefixes = pool.pricing.prefixes
    if not prefixes.homes.knows(prefix_hash):
        return 0
    if prefixes.homes.are_at(prefix_hash, endpoint.id, endpoint.kv_tokens):
        part_us = pool.books.in_flight.work_us / len(pool.endpoints)
        # And one request more than its part: with few there the part is less than one.
        if endpoint.books.work_us <= LOAD * part_us + 2 * ticket.work_us:
            return 0
    return prefixes.worth(prefix_hash, ticket.price.cost.prompt_tokens)
