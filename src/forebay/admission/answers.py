"""What an answer came to, and what its end teaches about its endpoint.

For: `lifecycle`, which ends requests. Where an engine tells no counts, or such as cannot be, events stand for tokens,
and of an answer that is not streamed and that nobody waited for, the clock.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import MICRO, Usage
from forebay.admission.tickets import Ticket
from forebay.admission.unstreamed import generated_by_clock

LARGEST_CONTEXT: Final = 1 << 24
"""Tokens: no engine's context window is larger, where it does not say how large it is."""


def believed(ticket: Ticket, usage: Usage) -> Usage | None:
    """The same, or None if it is more than can have been: tenants pay by it, and estimates learn from it.

    No sample is longer than the limit that the engine was told, by more than the end token that some engines count
    as well; and nothing is longer than the context window.
    """
    demand, settings, endpoint = ticket.demand, ticket.pool.settings, ticket.endpoint
    context = None if endpoint is None else endpoint.info.context_tokens
    if context is None:
        context = LARGEST_CONTEXT
    most = demand.max_output_tokens
    if most is None and settings.inject_limit:
        most = settings.max_output_tokens
    if most is None or most > context:
        most = context
    if usage.output_tokens <= (most + 1) * demand.samples and usage.prompt_tokens <= context * demand.prompts:
        return usage
    if endpoint is not None:
        endpoint.count("usage")
    return None


def tokens_of_events(ticket: Ticket) -> int:
    """Output tokens by the events that came: those of one engine hold about as many tokens each."""
    events, endpoint = ticket.output_events, ticket.endpoint
    return events if endpoint is None else int(events * endpoint.sources.pace.tokens_per_event)


def own_prefill_s(ticket: Ticket, endpoint: Endpoint) -> float:
    """What its own prompt takes there: a long one is not late for that."""
    return ticket.cost.prefill_us / (MICRO * endpoint.meter.speed)


def output_at_end(
    ticket: Ticket, usage: Usage | None, now: float, *, completed: bool, unseen: Endpoint | None
) -> int:
    """Output tokens of all samples when a request is over.

    Args:
        unseen: where it ran, if its client left before it saw anything.
    """
    if usage is not None:
        return usage.output_tokens
    if unseen is not None and not ticket.demand.stream:
        return generated_by_clock(ticket, unseen, now)  # it was worked on all the same
    output = tokens_of_events(ticket)
    if not output and completed:
        return ticket.cost.output_tokens  # nobody counted: no evidence that it was other than expected
    return output


def learn_from_answer(
    ticket: Ticket, endpoint: Endpoint, usage: Usage | None, output: int, now: float
) -> None:
    """A whole answer came: what it says of its endpoint."""
    demand = ticket.demand
    endpoint.show_life(now)
    endpoint.rejections_in_row = 0
    endpoint.sources.ended(None if usage is None else output, ticket.output_events)
    if demand.stream:
        return
    if endpoint.whole_answers.counts:
        endpoint.whole_answers.answered(ticket, usage, now, goes_on=endpoint.goes_on)
    waited_s = _unseen_wait_s(ticket, endpoint, output, now)
    endpoint.limit.first_token(waited_s, in_flight=len(endpoint.running), seen=False)


def _unseen_wait_s(ticket: Ticket, endpoint: Endpoint, output: int, now: float) -> float:
    """How long an answer that came as a whole waited inside its engine for its first token, which nobody saw.

    No time where the engine tells how many wait there: that is better evidence than what is reckoned here. Else the
    time that is left over if its tokens came at the pace its class asks for.
    """
    sample = endpoint.sample
    if sample is not None and sample.waiting is not None and not endpoint.is_stale(now):
        return 0.0
    own_s = ticket.settings.tpot_s * (output / ticket.demand.samples) + own_prefill_s(ticket, endpoint)
    return now - ticket.dispatched_s - own_s
