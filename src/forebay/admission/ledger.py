"""The books: what is waiting, running and draining, per pool, class and endpoint. Integers only.

A request is booked once when it starts to wait or to run, and exactly what was booked is released: the
`Booking` is kept with the ticket, and nothing here is ever recomputed. An account that would go negative
is an `InvariantError`, since it means that something was released twice.

    waiting ──start──► running ──abandon──► draining ──release_draining──► (gone)
       │                  │
       └─leave            └─release

The ledger knows no limits and no time; `capacity` compares, `controller` decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.admission.errors import invariant
from forebay.admission.model import Cost, Demand, EndpointId
from forebay.admission.quota import Debit
from forebay.admission.record import record


@record
class Booking:
    """What one request holds, wherever it is booked."""

    pool: str
    class_name: str
    work_us: int
    kv_tokens: int
    body_bytes: int


def booking_for(demand: Demand, cost: Cost) -> Booking:
    """The booking of a request with this cost."""
    return Booking(demand.pool, demand.class_name, cost.work_us, cost.kv_tokens, demand.body_bytes)


@dataclass(slots=True, eq=False)
class DrainingBooking:
    """Room of a request that we gave up while the engine was still at it."""

    booking: Booking
    since_s: float
    until_s: float
    samples: int = 1
    """Answers that the engine may be at: it counts each by itself."""
    armed: bool = False
    """True once a timer is set for `until_s`."""
    released: bool = False
    """True once the room is given back."""
    debit: Debit | None = None
    """Of its tenant, which has one less at a time until then; None where that is not limited."""

    def release(self) -> None:
        """The engine has let go of it, or is gone itself."""
        self.released = True
        if self.debit is not None:
            self.debit.leave()


class Account:
    """A running total of bookings."""

    __slots__ = ("kv_tokens", "requests", "work_us")

    def __init__(self) -> None:
        self.requests = 0
        self.work_us = 0
        self.kv_tokens = 0

    def add(self, booking: Booking) -> None:
        """Book one request."""
        self.requests += 1
        self.work_us += booking.work_us
        self.kv_tokens += booking.kv_tokens

    def remove(self, booking: Booking) -> None:
        """Release one request. Raises: InvariantError if that was not held."""
        self.requests -= 1
        self.work_us -= booking.work_us
        self.kv_tokens -= booking.kv_tokens
        if self.requests < 0 or self.work_us < 0 or self.kv_tokens < 0:
            invariant(False, f"released more than was booked: {self!r} after {booking}")

    def __repr__(self) -> str:
        return f"Account(requests={self.requests}, work_us={self.work_us}, kv_tokens={self.kv_tokens})"


class EndpointBooks:
    """What one endpoint holds."""

    __slots__ = ("draining", "running")

    def __init__(self) -> None:
        self.running = Account()
        self.draining = Account()

    @property
    def requests(self) -> int:
        """Requests that occupy the engine, draining ones included."""
        return self.running.requests + self.draining.requests

    @property
    def kv_tokens(self) -> int:
        """KV tokens reserved, draining ones included."""
        return self.running.kv_tokens + self.draining.kv_tokens

    @property
    def work_us(self) -> int:
        """Work in the engine, draining work included."""
        return self.running.work_us + self.draining.work_us


class PoolBooks:
    """What one pool holds: totals, and the same by class (waiting) and by endpoint (running, draining)."""

    __slots__ = ("classes", "endpoints", "in_flight", "waiting")

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self.waiting = Account()
        self.in_flight = Account()
        """Running and draining, over all endpoints."""
        self.classes = {name: Account() for name in class_names}
        self.endpoints: dict[EndpointId, EndpointBooks] = {}

    @property
    def work_us(self) -> int:
        """Queued and running work."""
        return self.waiting.work_us + self.in_flight.work_us


class Ledger:
    """All books of one controller."""

    __slots__ = ("pools", "waiting_bytes")

    def __init__(self) -> None:
        self.pools: dict[str, PoolBooks] = {}
        self.waiting_bytes = 0

    def wait(self, booking: Booking) -> None:
        """A request starts to wait."""
        pool = self.pools[booking.pool]
        pool.waiting.add(booking)
        pool.classes[booking.class_name].add(booking)
        self.waiting_bytes += booking.body_bytes

    def leave(self, booking: Booking) -> None:
        """A waiting request is gone: to an endpoint, or for good."""
        pool = self.pools[booking.pool]
        pool.waiting.remove(booking)
        pool.classes[booking.class_name].remove(booking)
        self.waiting_bytes -= booking.body_bytes
        if self.waiting_bytes < 0:
            invariant(False, "more waiting bytes released than booked")

    def start(self, booking: Booking, endpoint: EndpointId) -> None:
        """A request is dispatched to an endpoint."""
        pool = self.pools[booking.pool]
        pool.in_flight.add(booking)
        pool.endpoints[endpoint].running.add(booking)

    def release(self, booking: Booking, endpoint: EndpointId) -> None:
        """A running request is over and the engine is done with it."""
        pool = self.pools[booking.pool]
        pool.in_flight.remove(booking)
        pool.endpoints[endpoint].running.remove(booking)

    def abandon(self, booking: Booking, endpoint: EndpointId) -> None:
        """A running request is over for us, but the engine still holds its room."""
        books = self.pools[booking.pool].endpoints[endpoint]
        books.running.remove(booking)
        books.draining.add(booking)

    def release_draining(self, booking: Booking, endpoint: EndpointId) -> None:
        """The engine has let go of an abandoned request."""
        pool = self.pools[booking.pool]
        pool.in_flight.remove(booking)
        pool.endpoints[endpoint].draining.remove(booking)

    def verify(self) -> None:
        """Check that the totals are the sums of their parts. Raises: InvariantError. For tests and dumps."""
        for name, pool in self.pools.items():
            for field in ("requests", "work_us", "kv_tokens"):
                by_class = sum(getattr(account, field) for account in pool.classes.values())
                invariant(
                    by_class == getattr(pool.waiting, field),
                    f"{name}: waiting {field} is not the sum of its classes",
                )
                by_endpoint = sum(getattr(books, field) for books in pool.endpoints.values())
                invariant(
                    by_endpoint == getattr(pool.in_flight, field),
                    f"{name}: in-flight {field} is not the sum of its endpoints",
                )
