"""The core's own record of one request, from arrival to outcome."""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

from forebay.admission.ledger import Booking
from forebay.admission.model import Check, Cost, Demand, EndpointId
from forebay.admission.pricing import Price
from forebay.admission.quota import Debit
from forebay.admission.settings import ClassSettings, OnStale
from forebay.admission.victims import Entry
from forebay.admission.wait import Forecast
from forebay.admission.waiter import Waiter

if TYPE_CHECKING:
    from forebay.admission.endpoints import Endpoint
    from forebay.admission.pools import Pool
    from forebay.admission.rules import Ruling


class Phase(Enum):
    """Where a ticket is. Legal moves: NEW → WAITING | RUNNING | ENDED, WAITING ⇄ RUNNING, both → ENDED."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


NEW: Final = Phase.NEW
WAITING: Final = Phase.WAITING
RUNNING: Final = Phase.RUNNING
ENDED: Final = Phase.ENDED
"""The same as plain names: up to Python 3.11, looking a member up in its enum costs as much as a call."""
_NONE: Final[frozenset[EndpointId]] = frozenset()


class Ticket(Waiter):
    """Mutable; owned by the controller, filed in a queue while waiting and at an endpoint while running."""

    __slots__ = (
        "alarm_s",
        "attempts",
        "booking",
        "checks",
        "credited_us",
        "debit",
        "demand",
        "dispatched_s",
        "endpoint",
        "entry",
        "first_token_s",
        "forecast",
        "gone_us",
        "last_byte_s",
        "look_up_at",
        "never_refuse",
        "output_events",
        "passed_over",
        "phase",
        "pool",
        "position",
        "predicted_wait_s",
        "price",
        "queued_s",
        "ruling",
        "settings",
        "tried",
        "waited_s",
    )

    def __init__(  # noqa: PLR0917 - by position: one is built for each request
        self,
        demand: Demand,
        pool: Pool,
        settings: ClassSettings,
        price: Price,
        booking: Booking,
        arrived_s: float,
        rank: int = 0,
    ) -> None:
        """A request that has just come; `rank` is that of its class, 0 the most important."""
        super().__init__(
            demand.ticket,
            rank,
            demand.tenant,
            1.0,
            booking.work_us,
            booking.kv_tokens,
            arrived_s,
            0.0,
            price.cost.output_tokens < settings.short_tokens,
        )
        self.demand = demand
        self.debit: Debit | None = None
        """What it takes from its tenant's account; None if nothing of that is limited."""
        self.pool = pool
        self.settings = settings
        self.never_refuse = settings.never_refuse
        """It waits for as long as it takes: only what its client said may end that."""
        self.price = price
        self.booking = booking
        self.phase = NEW
        self.queued_s = 0.0
        """When the present wait began."""
        self.alarm_s = 0.0
        """When it is looked at next, while it waits."""
        self.waited_s = 0.0
        """Queue time so far: it ends at dispatch."""
        self.forecast: Forecast | None = None
        """What was said of its wait when it began; None if it need not wait."""
        self.entry: Entry | None = None
        """Its place among the deadlines of its class, while it waits."""
        self.checks: tuple[Check, ...] = ()
        """What was compared when it came to wait: later records of it go on from there."""
        self.endpoint: Endpoint | None = None
        """Where it runs, or ran last."""
        self.dispatched_s = self.last_byte_s = self.predicted_wait_s = 0.0
        self.first_token_s: float | None = None
        self.output_events = self.attempts = self.position = self.passed_over = 0
        self.credited_us = 0
        """Part of the work already credited to the endpoint's speed."""
        self.gone_us = self.look_up_at = 0
        """Part that is not expected any more, and at how many tokens that is looked up again (`RunningWork`)."""
        self.ruling: Ruling | None = None
        """What the operator's rules say of it, where they say something."""
        self.tried: frozenset[EndpointId] = _NONE
        """Endpoints that failed it. Only ever asked for membership, never iterated."""

    @property
    def rank(self) -> int:
        """Of its class, 0 is the most important."""
        return self.class_index

    @property
    def rank_is_first(self) -> bool:
        """True for the most important class, which may use a little more of what is scarce."""
        return not self.class_index

    @property
    def accepted(self) -> bool:
        """True if an operator's rule lets it in whatever its wait and the bounds of its class."""
        return self.ruling is not None and self.ruling.accepted

    @property
    def usual_end_s(self) -> float:
        """The end of its wait; where there is none, that of others of its class."""
        return self.deadline_s if self.deadline_s < inf else self.queued_s + self.settings.wait_budget_s

    @property
    def on_stale(self) -> OnStale:
        """What to do at an engine that no longer tells its load."""
        own = self.settings.on_stale
        return self.pool.settings.on_stale if own is None else own

    @property
    def cost(self) -> Cost:
        """What it is expected to take."""
        return self.price.cost

    def book_as(self, price: Price, booking: Booking) -> None:
        """It was estimated anew. Not while it is filed in a queue."""
        self.price = price
        self.booking = booking
        self.work_us = booking.work_us
        self.kv_tokens = booking.kv_tokens

    def by_new_law_us(self, done_us: int, *, ended: bool) -> int:
        """What was done beyond `credited_us` if the law has changed: priced by the old one, it ends by the new."""
        credited_us = int(self.credited_us * self.law_factor)
        return done_us - credited_us if ended else int(done_us * self.law_factor) - credited_us
