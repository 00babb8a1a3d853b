"""Why a request must wait: which part of an endpoint's gate keeps it out, for the record of the decision.

The gate itself is `Endpoint.has_room`, which only says yes or no and is asked again and again. This goes through the
same parts, once for each request that is held, and names one that fails, with the numbers compared. Of several
endpoints it speaks of the one that is up and has the least work. A property test holds the two together.
"""

from __future__ import annotations

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import Check, EndpointState
from forebay.admission.pools import Pool
from forebay.admission.settings import OnStale
from forebay.admission.tickets import Ticket


def what_holds(ticket: Ticket, pool: Pool, now: float) -> Check | None:
    """The comparison that keeps this request waiting; None if nothing is up, or nothing keeps it."""
    if pool.member is not None and pool.member.is_held(now):
        return pool.member.what_holds()
    cap = pool.settings.max_pool_requests
    if not pool.has_place(now):
        return Check("pool_requests", pool.books.in_flight.requests + 1, cap, False)
    if pool.ceilings is not None and pool.ceilings.is_shut(ticket.class_index, now):
        return pool.ceilings.what_shuts(ticket.class_index)
    nearest: Endpoint | None = None
    for endpoint in pool.endpoints.values():
        if endpoint.is_up and (nearest is None or endpoint.load_s() < nearest.load_s()):
            nearest = endpoint
    return None if nearest is None else what_holds_at(ticket, nearest, now)


def what_holds_at(ticket: Ticket, endpoint: Endpoint, now: float) -> Check | None:
    """The part of this endpoint's gate that keeps this request out; None if it has room."""
    if endpoint.reserved_for is not None and endpoint.is_kept_from(ticket):
        rank = min(
            endpoint.reserved_rank, ticket.class_index
        )  # it may be kept from more important ones as well
        return Check("endpoint_reserved", ticket.class_index, rank - 1, False)
    if endpoint.is_stale(now):
        on_stale = ticket.on_stale
        if on_stale is OnStale.REFUSE:
            return Check("stale_samples", now - endpoint.heard_s, endpoint.stale_after_s, False)
        if on_stale is OnStale.ADMIT:
            return _state(endpoint) or _context(ticket, endpoint)
        shut = _open(endpoint, now, believe_old=on_stale is OnStale.LAST_KNOWN)
        return shut or _kv(ticket, endpoint) or _context(ticket, endpoint)
    return (
        _kv(ticket, endpoint)
        or _open(endpoint, now, believe_old=False)
        or _pacing(ticket, endpoint, now)
        or _context(ticket, endpoint)
    )


def _state(endpoint: Endpoint) -> Check | None:
    if endpoint.state is not EndpointState.UP:
        return Check("endpoint_down", 1, 0, False)
    return None if endpoint.share else Check("endpoint_share", 1, 0, False)


def _open(endpoint: Endpoint, now: float, *, believe_old: bool) -> Check | None:
    """As `Endpoint.is_open`."""
    if endpoint.is_open(now, believe_old=believe_old):
        return None
    state = _state(endpoint)
    if state is not None:
        return state
    held = endpoint.books.requests
    if endpoint.trial and held:
        return Check("endpoint_trial", held + 1, 1, False)
    if endpoint.entry_limit and held >= endpoint.entry_limit:
        return Check("endpoint_entry", held + 1, endpoint.entry_limit, False)
    # The limit on requests comes last: one that was found yields while the engine is calm.
    target, used = endpoint.pool_settings.target_utilization, endpoint.utilization.value(now)
    if target is not None and held and used >= target:
        return Check("target_utilization", used, target, False)
    under_way_s = endpoint.prefill_under_way_s(now)
    if under_way_s > endpoint.prefill_window_s:
        return Check("prefill_window", under_way_s, endpoint.prefill_window_s, False)
    return Check("endpoint_requests", held + 1, endpoint.request_limit[0], False)


def _kv(ticket: Ticket, endpoint: Endpoint) -> Check | None:
    """As `Endpoint.fits_now`."""
    limit, books = endpoint.kv_limit, endpoint.books
    if endpoint.fits_now(ticket) or limit is None:
        return None
    held_tokens = books.running.kv_tokens + books.draining.kv_tokens
    if held_tokens + ticket.cost.kv_tokens > limit:
        return Check("kv_tokens", held_tokens + ticket.cost.kv_tokens, limit, False)
    price = ticket.price
    peak = endpoint.forecast.peak_with(
        price.cost.prompt_tokens, ticket.demand.samples, price.lengths, price.cap
    )
    room = (endpoint.kv_capacity or 0.0) * endpoint.fill.limit_for(ticket.rank_is_first)
    return Check("kv_forecast", peak, room - books.draining.kv_tokens, False)


def _pacing(ticket: Ticket, endpoint: Endpoint, now: float) -> Check | None:
    prompt_tokens = ticket.price.cost.fresh_tokens
    if not endpoint.decoding or endpoint.pacer.allows(prompt_tokens, now):
        return None
    return Check("prefill_pacing", endpoint.pacer.next_at(prompt_tokens, now) - now, 0.0, False)


def _context(ticket: Ticket, endpoint: Endpoint) -> Check | None:
    if endpoint.can_ever_hold(ticket):
        return None
    return Check("endpoint_context", ticket.cost.prompt_tokens, endpoint.info.context_tokens, False)
