"""What of a request's body goes to an engine with another value than the client gave: model, priority, output limit."""

from __future__ import annotations

from typing import Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import BodyChange, EngineKind
from forebay.admission.tickets import Ticket

_VLLM: Final = EngineKind.VLLM
_SGLANG: Final = EngineKind.SGLANG


def body_change(ticket: Ticket, endpoint: Endpoint) -> BodyChange | None:
    """What is to be said otherwise when the request goes to this endpoint; None: the body goes as it came."""
    model = None if ticket.demand.asked_model is None else ticket.demand.model
    settings, most = ticket.pool.settings, None
    priority = _priority(ticket, endpoint) if settings.pass_priority else None
    if settings.inject_limit and ticket.demand.generates and ticket.demand.max_output_tokens is None:
        most = settings.max_output_tokens
    if model is None and priority is None and most is None:
        return None
    return BodyChange(model, priority, most)


def _priority(ticket: Ticket, endpoint: Endpoint) -> int | None:
    """The rank of its class as the engine counts: vLLM serves the lowest number first, SGLang the highest.

    What says nothing, on routes that have no such field, must come before nobody: for vLLM that counts as 0, which is
    the least important class here, for SGLang as the lowest number that there is.
    """
    kind = ticket.pool.settings.engine or endpoint.info.kind
    above_last = len(ticket.pool.classes) - 1 - ticket.rank
    if kind is _VLLM:
        return -above_last
    if kind is _SGLANG:
        return above_last
    return None
