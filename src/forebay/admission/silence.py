"""How long an endpoint has been silent, and how long it may be.

Signs of life are bytes on a stream, a finished request, or token counters that move. That a scrape or a
health check answers is none: a hung engine goes on answering those.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import MICRO, EndpointState

STALLED_AFTER_S: Final = 10.0
STALL_FACTOR: Final = 20.0
"""An engine may be silent for 20 times the longest prefill it has in hand, and for 20 times its usual step."""


def stands_still(endpoint: Endpoint, now: float) -> bool:
    """True if it is stalled and says so itself: it answers its metrics, and its counters do not move."""
    return (
        endpoint.state is EndpointState.STALLED
        and endpoint.info.counts_while_running
        and endpoint.sample is not None
        and now - endpoint.sample.at_s <= endpoint.stale_after_s
    )


def silent_since_s(endpoint: Endpoint) -> float:
    """Since when silence counts: the last sign of life, or the dispatch of the first stream that could give one."""
    if endpoint.info.counts_while_running:
        return endpoint.last_life_s
    first = min((t.dispatched_s for t in endpoint.running.values() if t.demand.stream), default=0.0)
    return max(endpoint.last_life_s, first)


def silence_limit_s(endpoint: Endpoint) -> float | None:
    """How long it may be silent before it counts as stalled; None if silence proves nothing.

    Non-streamed answers give no byte until they are whole, so they prove something only where the
    engine's counters move while it works.
    """
    if not endpoint.running:
        return None
    longest_us = 0
    telling = endpoint.info.counts_while_running
    for ticket in endpoint.running.values():
        telling = telling or ticket.demand.stream
        if ticket.first_token_s is None:
            longest_us = max(longest_us, ticket.cost.prefill_us)
    if not telling:
        return None
    longest_s = max(longest_us / MICRO / endpoint.meter.speed, endpoint.step_gap_s or 0.0)
    return max(STALLED_AFTER_S, STALL_FACTOR * longest_s)
