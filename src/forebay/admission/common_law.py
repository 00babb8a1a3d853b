"""The law by which a pool counts, and how its endpoints differ from it.

Without a profile the law is that of the endpoint that was seen most: the pool's reference. Other endpoints differ from
it by their speed. That is measured where an endpoint is saturated (`speed`); until it has been, an endpoint whose own
law is known is as fast as a usual request is cheaper there. So a slow endpoint is known for one at low load too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.pools import Pool
from forebay.admission.settings import SpeedLaw

TAKEN_EVERY_S: Final = 1.0
ANOTHER_LAW: Final = 1.5
"""Times by which the cost of a usual request may change before predictions start anew."""


def learn_law(pool: Pool, now: float) -> bool:
    """Count by what was learned of the engines' steps. True if that changed what requests cost."""
    if now < pool.law_due_s:
        return False
    pool.law_due_s = now + TAKEN_EVERY_S
    best = None if pool.settings.law is not None else _best_known(pool)
    factor = None if best is None else pool.pricing.take_law(_law_of(best))
    if factor is not None:
        _count_anew(pool, factor)
    _compare_speeds(pool, best)
    return factor is not None


def _best_known(pool: Pool) -> Endpoint | None:
    """The endpoint of which most steps were seen, among those whose law is trusted."""
    best: Endpoint | None = None
    for endpoint in pool.endpoints.values():
        learner = endpoint.learner
        if learner.is_trusted and (best is None or learner.steps > best.learner.steps):
            best = endpoint
    return best


def _law_of(endpoint: Endpoint) -> SpeedLaw:
    """Its law, for each token where a step gives each sequence several."""
    slots, firm = endpoint.request_limit
    law = endpoint.learner.law(kv_tokens=endpoint.info.kv_tokens, max_requests=slots if firm else None)
    per_step = endpoint.sources.pace.tokens_per_step
    if per_step > 1.0 and endpoint.sources.pace.is_known:
        law = replace(law, c0_s=law.c0_s / per_step, c2_s=law.c2_s / per_step, c3_s=law.c3_s / per_step)
    return law


def _count_anew(pool: Pool, factor: float) -> None:
    """A usual request costs `factor` times as much by the law as before."""
    measured = all(endpoint.meter.windows or not endpoint.is_up for endpoint in pool.endpoints.values())
    for endpoint in pool.endpoints.values():
        endpoint.meter.rescale(factor)
        for ticket in endpoint.running.values():  # priced by the old law, and settled by this one
            ticket.law_factor *= factor
    if pool.member is not None:
        pool.member.rescale(factor)
    for state in pool.classes.values():
        state.arrivals.scale(factor)
    if not measured and not 1.0 / ANOTHER_LAW < factor < ANOTHER_LAW:
        # What was learned of waits was learned of another engine's. (Measured speeds are in step with any law.)
        pool.errors.forget()
        for state in pool.classes.values():
            state.forget_waits()


def _compare_speeds(pool: Pool, best: Endpoint | None) -> None:
    """Speeds of the endpoints that were never saturated. What whole answers teach is a place in line, and no speed."""
    usual_us = pool.pricing.usual_work_us()
    for endpoint in pool.endpoints.values():
        if endpoint is best or endpoint.meter.windows or not endpoint.sources.learner.is_trusted:
            continue
        # With the sizes of the pool's law: an empty step is shared by as many as there.
        own = replace(
            _law_of(endpoint),
            kv_tokens=pool.pricing.law.kv_tokens,
            max_requests=pool.pricing.law.max_requests,
        )
        own_us = pool.pricing.usual_work_us(own)
        if own_us > 0:
            endpoint.meter.suppose(usual_us / own_us)
