"""Records as the core gives them out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forebay.admission.model import DecisionRecord, EndpointId, Settlement, TicketId
from forebay.admission.outcomes import Outcome

ENDPOINT = EndpointId("http://10.0.0.1:8000")

_RECORD = DecisionRecord(
    ticket=TicketId(1),
    at_s=100.0,
    pool="p",
    class_name="standard",
    tenant="acme",
    model="m",
    action="dispatch",
    outcome=None,
    decided_by="passed",
    checks=(),
    cost_gpu_s=1.0,
    kv_tokens=100,
    predicted_wait_s=0.0,
    wait_budget_s=5.0,
    waited_s=0.0,
    position=0,
    endpoint=ENDPOINT,
    learning=False,
)
_SETTLEMENT = Settlement(
    ticket=TicketId(1),
    at_s=101.0,
    pool="p",
    class_name="standard",
    tenant="acme",
    model="m",
    outcome=Outcome.COMPLETED,
    endpoint=ENDPOINT,
    waited_s=0.0,
    predicted_wait_s=0.0,
    ttft_s=0.3,
    duration_s=2.0,
    estimated_gpu_s=1.0,
    charged_gpu_s=1.5,
    prompt_tokens=100,
    output_tokens=20,
    attempts=1,
    met_objective=True,
)


def record(**changes: Any) -> DecisionRecord:
    """A dispatch, but for these changes."""
    return replace(_RECORD, **changes)


def refusal_record(outcome: Outcome = Outcome.QUEUE_FULL, **changes: Any) -> DecisionRecord:
    """A refusal, but for these changes."""
    return record(action="refuse", outcome=outcome, decided_by="class_requests", endpoint=None, **changes)


def settlement(**changes: Any) -> Settlement:
    """A completed request, but for these changes."""
    return replace(_SETTLEMENT, **changes)


def refused(outcome: Outcome = Outcome.QUEUE_FULL, **changes: Any) -> Settlement:
    """A request that was never dispatched, but for these changes."""
    unserved = {"endpoint": None, "ttft_s": None, "charged_gpu_s": 0.0, "met_objective": False, "attempts": 0}
    return settlement(outcome=outcome, **{**unserved, **changes})
