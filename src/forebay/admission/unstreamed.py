"""How far answers that are not streamed have come: nobody sees their tokens, so they advance on the clock.

    generated = (time since dispatch - own prefill) ÷ step

by the engine's learned step (or its profile's), at most what it may generate. Without this the KV forecast would take
each of them, until it ends, for one that has just begun. Not by a guessed law: an engine slower than the guess would
be taken for full.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import MICRO
from forebay.admission.settings import SpeedLaw
from forebay.admission.tickets import Ticket

LONGEST_LINGER_S: Final = 600.0


def advance_unstreamed(endpoint: Endpoint, now: float) -> None:
    """Tell the forecast. Call it with each reading of the engine."""
    if not endpoint.running:
        return
    step_s = _token_s(endpoint, endpoint.pool_settings.law)
    if step_s <= 0.0:
        return
    for ticket in endpoint.running.values():
        demand, price = ticket.demand, ticket.price
        if demand.stream or not demand.generates:
            continue
        decoding_s = now - ticket.dispatched_s - price.cost.prefill_us / (MICRO * endpoint.meter.speed)
        if decoding_s > step_s:
            endpoint.forecast.advance(demand.ticket, int(min(decoding_s / step_s, price.cap - 1)))
    endpoint.forecast.refresh(now)


def generated_by_clock(ticket: Ticket, endpoint: Endpoint, now: float) -> int:
    """Output tokens of all samples that an answer has made by now: what one owes that nobody waited for.

    Here the pool's law may be a guess: to charge nothing would be a worse one.
    """
    step_s = _token_s(endpoint, ticket.pool.pricing.law)
    price, demand = ticket.price, ticket.demand
    decoding_s = now - ticket.dispatched_s - price.cost.prefill_us / (MICRO * endpoint.meter.speed)
    if not demand.generates or step_s <= 0.0 or decoding_s <= 0.0:
        return 0
    return int(min(decoding_s / step_s, price.cap)) * demand.samples


def _token_s(endpoint: Endpoint, law: SpeedLaw | None) -> float:
    """Seconds per token of each answer there: by its own law once that is trusted, else by this one; 0 without any."""
    sequences, kv_tokens = float(len(endpoint.running)), endpoint.forecast.held_tokens
    learner = endpoint.learner
    if learner.is_trusted:
        step_s = learner.step_s(prefill_tokens=0.0, sequences=sequences, kv_tokens=kv_tokens, attention=0.0)
        return step_s / endpoint.sources.pace.tokens_per_step
    if law is None:
        return 0.0
    return (law.c0_s + law.c2_s * sequences + law.c3_s * kv_tokens) / endpoint.meter.speed


def linger_s(ticket: Ticket, endpoint: Endpoint, now: float) -> float:
    """How long the engine may go on with a request whose client is gone."""
    info = endpoint.info
    if ticket.demand.stream or info.aborts_unstreamed:
        return info.linger_s
    gap = endpoint.step_gap_s
    by_books_s = ticket.cost.work_us / MICRO / endpoint.meter.speed
    whole_s = by_books_s if gap is None else ticket.cost.output_tokens * gap
    left_s = ticket.dispatched_s + whole_s - now
    return min(max(left_s, info.linger_s), LONGEST_LINGER_S)
