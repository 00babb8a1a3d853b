"""How far answers that are not streamed have come: nobody sees their tokens, so they advance on the clock.

    generated = (time since dispatch - own prefill) ÷ step

by the engine's learned step (or its profile's), at most what it may generate. Without this the KV forecast would take
each of them, until it ends, for one that has just begun. Not by a guessed law: an engine slower than the guess would
be taken for full.
"""

from __future__ import annotations

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import MICRO


def advance_unstreamed(endpoint: Endpoint, now: float) -> None:
    """Tell the forecast. Call it with each reading of the engine."""
    learner, profile = endpoint.learner, endpoint.pool_settings.law
    if not endpoint.running:
        return
    sequences, kv_tokens, step_s = float(len(endpoint.running)), endpoint.forecast.held_tokens, 0.0
    if learner.is_trusted:
        step_s = learner.step_s(prefill_tokens=0.0, sequences=sequences, kv_tokens=kv_tokens, attention=0.0)
        step_s /= endpoint.sources.pace.tokens_per_step
    elif profile is not None:
        step_s = profile.c0_s + profile.c2_s * sequences + profile.c3_s * kv_tokens
        step_s /= endpoint.meter.speed
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
