"""From what a body asks for and its headers claim to the demand that the core is told of."""

from __future__ import annotations

from forebay.admission.model import Demand, TicketId
from forebay.gateway.asks import Ask
from forebay.gateway.headers import Claims

__all__ = ["demand_of"]


def demand_of(  # noqa: PLR0917 - by position: for each request
    ticket: TicketId,
    ask: Ask,
    given: str | None,
    pool_name: str,
    body_bytes: int,
    claims: Claims,
    arrived_s: float,
) -> Demand:
    """What is told the core. `given`: the model that the plan gives, where the client names none."""
    within_s, patience_s = claims.first_token_within_s, claims.patience_s
    return Demand(  # by position: by name costs three times as much
        ticket,
        pool_name,
        claims.class_name,
        given or ask.model or "",
        ask.stream,
        ask.prompt_bytes,
        body_bytes,
        claims.tenant.name,
        ask.prompt_tokens,
        ask.extra_prompt_tokens,
        ask.max_output_tokens,
        ask.samples,
        ask.generates,
        None if within_s is None else arrived_s + within_s,
        None if patience_s is None else arrived_s + patience_s,
        claims.session,
        claims.retry_count,
        ask.prefix_hash,
        ask.prompts,
        ask.cut_output_tokens,
        "" if claims.tenant.plan is None else claims.tenant.plan.name,
        None if given is None else "",
        claims.class_claimed,
        ask.flat,
    )
