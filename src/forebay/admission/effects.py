"""What to do, in the imperative: the only way the core reaches the world.

The driver carries effects out in the order given. If carrying one out fails, that is a new event, never an
exception into the core.

Who must finish a ticket: until the core gives `Settle` for it, the core; the driver's part is to tell
`Ended`, `ClientLeft` or `AttemptFailed` exactly once for each `Dispatch` that it carried out.
"""

from __future__ import annotations

from forebay.admission.model import BodyChange, DecisionRecord, EndpointId, Refusal, Settlement, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.record import record


@record
class Dispatch:
    """Send the request to this endpoint now; its room is booked."""

    ticket: TicketId
    endpoint: EndpointId
    attempt: int
    """1 for the first. A later attempt means: give up the one before, if it is still open."""
    record: DecisionRecord
    change: BodyChange | None = None
    """What of the body is to be said otherwise; None: it goes out as it came."""


@record
class Hold:
    """Keep the request waiting. Nothing is to be sent to the client yet.

    Of a request that was dispatched: give up the attempt, if it is still open.
    """

    ticket: TicketId
    record: DecisionRecord


@record
class Refuse:
    """Answer at once with this refusal; the request never waited."""

    ticket: TicketId
    refusal: Refusal


@record
class Evict:
    """Answer with this refusal; the request had been waiting."""

    ticket: TicketId
    refusal: Refusal


@record
class Abort:
    """End a dispatched request: close its engine connection if one is open, and tell the client."""

    ticket: TicketId
    outcome: Outcome
    detail: str
    retry_after_s: float | None = None
    record: DecisionRecord | None = None
    """Why; None only where a driver ends a request that its core cannot."""


@record
class Settle:
    """The ticket is closed; nothing more will be said of it. For observers: metrics, log, recorder."""

    settlement: Settlement


Effect = Dispatch | Hold | Refuse | Evict | Abort | Settle
