"""The core's own record of one request, from arrival to outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from forebay.admission.ledger import Booking
from forebay.admission.model import Cost, Demand, EndpointId
from forebay.admission.settings import ClassSettings

if TYPE_CHECKING:
    from forebay.admission.endpoints import Endpoint
    from forebay.admission.pools import Pool


class Phase(Enum):
    """Where a ticket is. Legal moves: NEW → WAITING | RUNNING | ENDED, WAITING ⇄ RUNNING, both → ENDED."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


NEW, WAITING, RUNNING, ENDED = Phase
"""The same as plain names: up to Python 3.11, looking a member up in its enum costs as much as a call."""


@dataclass(slots=True, eq=False)
class Ticket:
    """Mutable; owned by the controller, filed in a queue while waiting and at an endpoint while running."""

    demand: Demand
    pool: Pool
    settings: ClassSettings
    cost: Cost
    booking: Booking
    arrived_s: float
    phase: Phase = Phase.NEW
    queued_s: float = 0.0
    """When the present wait began."""
    wait_until_s: float = 0.0
    waited_s: float = 0.0
    """Queue time so far: it ends at dispatch."""
    predicted_wait_s: float = 0.0
    position: int = 0
    endpoint: Endpoint | None = None
    """Where it runs, or ran last."""
    dispatched_s: float = 0.0
    first_token_s: float | None = None
    last_byte_s: float = 0.0
    output_events: int = 0
    credited_us: int = 0
    """Part of the work already credited to the endpoint's speed."""
    attempts: int = 0
    tried: set[EndpointId] = field(default_factory=set)
    """Endpoints that failed it. Only ever asked for membership, never iterated."""
