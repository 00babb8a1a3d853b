"""Room has appeared: which waiters start now.

Waiters are looked at in their order of service (`queues`) and dispatched for as long as there is room. One that
does not fit lets later ones pass, until it has used half of its wait budget: then the endpoint with the most room
is kept free for it (`Pool.reserved`) until it fits, so that small requests cannot hold up a large one for ever. That is
done for the first that was passed over, or else for the oldest of a class. More important classes do not wait for it,
and are tried there once more at the end of a look, however many stand before them who do (`_pass_kept`). Nor do tenants
of its class that come before its own. One whose place others of its class's tenants have taken twice need not wait that
long: small requests of two that ask for much would hold up the large ones of those who ask for little.

At most `SKIPPED_MAX` that do not fit are passed over in their order; after them those with the smallest KV need are
tried, since what hinders a request is nearly always its size. So an ending costs little however many wait. The price:
one that fits only because its answer is foreseen to be shorter than the smallest's, or its class may fill the cache
further, or which stands behind all those that are tried, may wait until the next event.

Pacing opens by time alone, and so does the prefill window where prompts are not streamed. `Pool.paced_until_s` is when
either first lets one of those in that were looked at and wait for nothing else: then `pace_alarm` comes back.
"""

from __future__ import annotations

from math import inf
from typing import Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.placement import place
from forebay.admission.pools import Pool
from forebay.admission.settings import OnStale
from forebay.admission.tickets import Ticket
from forebay.admission.waiter import Waiter

SKIPPED_MAX: Final = 16
PASSED_MAX: Final = 2
"""Requests of other tenants of its class that may start before one that does not fit."""
SMALL_SKIPPED_MAX: Final = 8
"""Of those with the smallest need: hindered by something else than size, such as having failed there before."""


def fill(pool: Pool, life: Lifecycle, now: float) -> list[Ticket]:
    """Dispatch what can start. Returns those that did."""
    started: list[Ticket] = []
    pool.paced_until_s = inf
    if not pool.has_place(now):
        return started
    if pool.ceilings is not None:
        pool.ceilings.look(now)
    if pool.reserved is not None and not _is_kept_rightly(pool, pool.reserved, life):
        pool.reserved.reserved_for = None
        pool.reserved = None
    while not _walk(pool, life, now, started):
        pass
    if len(pool.queue):
        for endpoint in pool.endpoints.values():
            opens_s = endpoint.opens_s(now)
            if opens_s < pool.paced_until_s:
                pool.paced_until_s = opens_s
        if pool.ceilings is not None:
            pool.paced_until_s = min(pool.paced_until_s, pool.ceilings.opens_s(now))
    return started


def _start(pool: Pool, life: Lifecycle, ticket: Ticket, endpoint: Endpoint, now: float) -> None:
    life.dispatch(ticket, endpoint, now)
    if pool.ceilings is not None:
        pool.ceilings.look(now)


def _is_kept_rightly(pool: Pool, endpoint: Endpoint, life: Lifecycle) -> bool:
    """False if the endpoint, or the class that it is kept free for, can start nothing at present."""
    if not endpoint.is_up or endpoint.reserved_for is None:
        return False
    return not pool.queue.classes[life.tickets[endpoint.reserved_for].rank].shut


def _walk(pool: Pool, life: Lifecycle, now: float, started: list[Ticket]) -> bool:
    """Look at the waiters in their order, once. False if an endpoint that was kept free for one is not any more.

    Then those that were passed over for its sake are to be looked at again.
    """
    open_now = [endpoint for endpoint in pool.endpoints.values() if _may_take_some(endpoint, now)]
    queue = pool.queue
    was_kept = pool.reserved is not None
    skipped = 0
    pool.passed.clear()
    until_s = inf
    while open_now and pool.has_place(now):
        by_size = skipped >= SKIPPED_MAX
        waiter = queue.smallest_kv_waiter() if by_size else queue.first()
        if waiter is None:
            break
        ticket = _ticket(waiter)
        endpoint = place(ticket, open_now, now)
        if endpoint is None:
            until_s = _paced_until_s(ticket, open_now, now, until_s)
            if skipped >= SKIPPED_MAX + SMALL_SKIPPED_MAX:
                break
            if not by_size:
                pool.passed.append(ticket)
            if not skipped and _is_full_for_all(pool, ticket, open_now, now):
                break
            queue.skip(ticket)
            skipped += 1
            continue
        pool.count_passes(ticket)
        _start(pool, life, ticket, endpoint, now)
        started.append(ticket)
        if skipped and was_kept and pool.reserved is None:
            queue.restore()
            return False
        if not _may_take_some(endpoint, now):
            open_now.remove(endpoint)
    if skipped >= SKIPPED_MAX + SMALL_SKIPPED_MAX:
        until_s = min(until_s, _pass_kept(pool, life, now, started))
    if skipped:
        queue.restore()
    started_kept = was_kept and _start_kept(pool, life, now, started)
    if started_kept or _reserve_for_tenant(pool, open_now, now):
        return False
    _reserve(pool, open_now, now)
    pool.paced_until_s = min(until_s, _kept_until_s(pool, life, now))
    return True


def _pass_kept(pool: Pool, life: Lifecycle, now: float, started: list[Ticket]) -> float:
    """Start those of more important classes that fit where an endpoint is kept, however many wait for it before them.

    Returns:
        When pacing lets in one of them that it alone keeps out.
    """
    until_s, kept = inf, pool.reserved
    if kept is None:
        return until_s
    skipped = 0
    for queue in pool.queue.classes[: kept.reserved_rank]:
        while (
            queue.head is not None and not queue.shut and skipped < SMALL_SKIPPED_MAX and pool.has_place(now)
        ):
            ticket = _ticket(queue.head)
            if kept.id in ticket.tried or not kept.has_room(ticket, now):
                until_s = min(until_s, kept.paced_until_s(ticket, now))
                pool.queue.skip(ticket)
                skipped += 1
            else:
                _start(pool, life, ticket, kept, now)
                started.append(ticket)
    return until_s


def _start_kept(pool: Pool, life: Lifecycle, now: float, started: list[Ticket]) -> bool:
    """Start the one for whom an endpoint is kept if it fits: where many wait the walk may not have come to it."""
    endpoint = pool.reserved
    if endpoint is None or endpoint.reserved_for is None or not pool.has_place(now):
        return False
    ticket = life.tickets[endpoint.reserved_for]
    if pool.queue.classes[ticket.rank].shut or not endpoint.has_room(ticket, now):
        return False
    _start(pool, life, ticket, endpoint, now)
    started.append(ticket)
    return True


def _kept_until_s(pool: Pool, life: Lifecycle, now: float) -> float:
    """When pacing lets in the one for whom an endpoint is kept, if nothing else hinders it: it may not be looked at."""
    kept = pool.reserved
    if kept is None or kept.reserved_for is None:
        return inf
    return kept.paced_until_s(life.tickets[kept.reserved_for], now)


def _may_take_some(endpoint: Endpoint, now: float) -> bool:
    """True if there may be room for somebody. Of a stale engine the class of each request says what to believe."""
    return endpoint.is_open(now) or (endpoint.is_up and endpoint.share > 0 and endpoint.is_stale(now))


def _is_full_for_all(pool: Pool, blocked: Ticket, open_now: list[Endpoint], now: float) -> bool:
    """True if nobody can start. What is full is nearly always full for all.

    The smallest tells, and the first of the most important class, which may fill the KV cache further than others.
    """
    if pool.reserved is not None or blocked.tried:
        return False  # then it may be something else that hinders them
    smallest, first = pool.queue.smallest_kv_waiter(), pool.queue.classes[0].head
    prompt_tokens = blocked.price.cost.fresh_tokens
    if smallest is not None:
        prompt_tokens = max(prompt_tokens, _ticket(smallest).price.cost.fresh_tokens)
    for endpoint in open_now:
        if endpoint.is_stale(now) or _is_paced(endpoint, prompt_tokens, now):
            return False
    if smallest is not None and not _fits_nowhere(_ticket(smallest), open_now, now):
        return False
    return first is None or first is blocked or _fits_nowhere(_ticket(first), open_now, now)


def _fits_nowhere(ticket: Ticket, open_now: list[Endpoint], now: float) -> bool:
    """True if all of them are too full for this one."""
    if ticket.tried or not all(endpoint.can_ever_hold(ticket) for endpoint in open_now):
        return False  # it is not for its size that it does not fit
    return place(ticket, open_now, now) is None


def _is_paced(endpoint: Endpoint, prompt_tokens: int, now: float) -> bool:
    return endpoint.decoding > 0 and not endpoint.pacer.allows(prompt_tokens, now)


def _paced_until_s(ticket: Ticket, open_now: list[Endpoint], now: float, until_s: float) -> float:
    """The earlier of `until_s` and when pacing, if nothing else hinders this one, lets it enter somewhere."""
    for endpoint in open_now:
        if endpoint.pacer.paces:
            until_s = min(until_s, endpoint.paced_until_s(ticket, now, before_s=until_s))
    return until_s


def _reserve_for_tenant(pool: Pool, open_now: list[Endpoint], now: float) -> bool:
    """Keep an endpoint free for one before which `PASSED_MAX` of other tenants of its class were served.

    It takes the place of one that is kept for a tenant behind it. True if another endpoint is not kept any more.
    """
    kept = pool.reserved
    for ticket in pool.passed:
        if ticket.passed_over < PASSED_MAX or (kept is not None and kept.is_kept_from(ticket)):
            continue
        if kept is not None and kept.reserved_for == ticket.demand.ticket:
            return False
        if _keep_for(pool, ticket, open_now, now):
            return kept is not None
    return False


def _reserve(pool: Pool, open_now: list[Endpoint], now: float) -> None:
    """Keep an endpoint free for one that has waited half its budget for room: who was next in line, or the oldest."""
    if not pool.passed or not open_now or pool.reserved is not None:
        return
    blocked = pool.passed[0]
    if _has_waited_half(blocked, now) and _keep_for(pool, blocked, open_now, now):
        return
    for queue in pool.queue.classes:
        oldest = queue.oldest()
        if oldest is None or oldest is blocked or queue.shut:
            continue
        ticket = _ticket(oldest)
        if (
            _has_waited_half(ticket, now)
            and place(ticket, open_now, now) is None
            and _keep_for(pool, ticket, open_now, now)
        ):
            return


def _has_waited_half(ticket: Ticket, now: float) -> bool:
    return now - ticket.queued_s >= (ticket.usual_end_s - ticket.queued_s) / 2


def _keep_for(pool: Pool, ticket: Ticket, open_now: list[Endpoint], now: float) -> bool:
    """Keep the endpoint with the most room, of those where it may start. False if there is none."""
    refuses_stale = ticket.on_stale is OnStale.REFUSE
    best: Endpoint | None = None
    for endpoint in open_now:
        if endpoint.id in ticket.tried or not endpoint.can_ever_hold(ticket):
            continue
        if endpoint.is_stale(now) and (refuses_stale or not endpoint.is_open(now)):
            continue
        if best is None or _fullness(endpoint) < _fullness(best):
            best = endpoint
    if best is None:
        return False
    if pool.reserved is not None:
        pool.reserved.reserved_for = None
    best.reserved_for, best.reserved_rank = ticket.demand.ticket, ticket.rank
    own = pool.queue.classes[ticket.rank]
    best.reserved_class_tag = own.finish + ticket.work_us / own.weight if pool.has_caps else inf
    best.reserved_tenant = ticket.tenant
    best.reserved_tag = pool.queue.classes[ticket.rank].tag_of(ticket)
    pool.reserved = best
    return True


def _fullness(endpoint: Endpoint) -> int:
    return endpoint.books.kv_tokens - (endpoint.kv_limit or 0)


def _ticket(waiter: Waiter) -> Ticket:
    assert isinstance(waiter, Ticket)
    return waiter
