"""What every baseline needs and none is about: books of one pool, least-request routing, and each way out once.

A law is a subclass: it says in `arrived` what becomes of a newcomer and in `room` who starts when something may have
been freed, and hears of first tokens, progress, ends and samples if it wants to. It never touches the books itself.

Kept as the controller keeps it: late news is ignored; a failed attempt goes to another endpoint
(`Settings.max_attempts`) if nothing was relayed. Left out for all of them: modes, shares, waiting told to clients,
engines that go on after an abort, `Settle`, costs and predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

from forebay.admission.effects import Abort, Effect
from forebay.admission.events import (
    Arrived,
    AttemptFailed,
    ClientLeft,
    Described,
    DrainStarted,
    Ended,
    EndpointDrained,
    EndpointsChanged,
    Event,
    Failure,
    FirstTokenCame,
    Progressed,
    Sampled,
    SampleMissed,
)
from forebay.admission.model import Check, Demand, EndpointId, EngineInfo, EngineSample, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import ClassSettings, Settings
from forebay.simulate.baselines.waiting import Key, WaitingList
from forebay.simulate.policy import dispatch, evict, hold, refuse

__all__ = ["MOST_WAITING", "Place", "PoolLaw", "Request"]

MOST_WAITING: Final = 50_000
"""Waiting requests of a law whose source bounds none: so many that only a runaway reaches it."""

BYTES_PER_TOKEN: Final = 4
"""What gateways that do not tokenise take a token for (llm-d, AIBrix, VelocityLLM)."""


@dataclass(eq=False, slots=True)
class Place:
    """One endpoint and what is in flight there."""

    id: EndpointId
    running: dict[TicketId, Request] = field(default_factory=dict)
    sample: EngineSample | None = None
    info: EngineInfo | None = None
    up: bool = True
    drained: bool = False
    last_start: int = 0
    """Number of the start that it got last: equal ones take turns."""

    @property
    def usable(self) -> bool:
        """True if it may be given work."""
        return self.up and not self.drained


@dataclass(eq=False, slots=True)
class Request:
    """One request that is not over."""

    demand: Demand
    of_class: ClassSettings
    rank: int
    """Of its class; 0 is the most important."""
    number: int
    """In order of arrival."""
    arrived_s: float
    expires_s: float = inf
    """When it stops waiting."""
    place: Place | None = None
    started_s: float = 0.0
    started_as: int = 0
    """Requests at its endpoint when it started, itself among them."""
    first_s: float | None = None
    is_prefilled: bool = False
    """Its prompt has been worked off, as far as can be told."""
    output_events: int = 0
    attempts: int = 0
    tried: tuple[EndpointId, ...] = ()
    last_place: EndpointId | None = None
    """Where it ran last."""

    @property
    def prompt_tokens(self) -> int:
        """As a gateway knows it without a tokenizer."""
        exact = self.demand.prompt_tokens
        told = self.demand.prompt_bytes // BYTES_PER_TOKEN if exact is None else exact
        return max(told + self.demand.extra_prompt_tokens, 1)


class PoolLaw:
    """The books of one pool, and the hooks of a law."""

    most_waiting = MOST_WAITING

    def __init__(self, pool: str, settings: Settings) -> None:
        self.pool = pool
        self.settings = settings
        self.places: dict[EndpointId, Place] = {}
        self.requests: dict[TicketId, Request] = {}
        self.waiting = WaitingList(self.most_waiting)
        self._classes = {c.name: (rank, c) for rank, c in enumerate(settings.classes)}
        self._draining = False
        self._arrivals = 0
        self._starts = 0
        self._effects: list[Effect] = []

    # What a law says

    def arrived(self, request: Request, now: float) -> None:
        """Start it, let it wait or refuse it."""
        raise NotImplementedError

    def room(self, now: float) -> None:
        """Something has changed that may let waiters start."""

    def order(self, request: Request) -> Key:
        """Who waits before whom."""
        return (request.number,)

    def prefilled(self, request: Request) -> None:
        """Its prompt has been worked off."""

    def progressed(self, request: Request, events: int) -> None:
        """So many more of its tokens came."""

    def unqueued(self, request: Request) -> None:
        """It waits no more, whatever becomes of it."""

    def started(self, request: Request, place: Place) -> None:
        """It runs there."""

    def stopped(self, request: Request, outcome: Outcome | None, usage: Usage | None, now: float) -> None:
        """It runs there no more. None: the attempt failed, and another follows."""

    def sampled(self, place: Place, now: float) -> None:
        """The endpoint was read."""

    def changed(self, now: float) -> None:
        """The pool has other endpoints than before, or knows more of them."""

    def due_s(self, now: float) -> float | None:
        """When the law itself wants `wake`, on top of what its waiters need."""
        return None

    # What happens

    def handle(self, event: Event, now: float) -> None:
        """Take in one event of this pool."""
        match event:
            case Arrived(demand=demand):
                self._arrived(demand, now)
            case Ended():
                self._ended(event, now)
            case Progressed(tokens=tokens, alive=True):
                for ticket, events in tokens:
                    self._progressed(ticket, events, now)
            case FirstTokenCame(ticket=ticket):
                self._first_token(ticket, now)
            case ClientLeft():
                self._client_left(event, now)
            case AttemptFailed():
                self._attempt_failed(event, now)
            case DrainStarted():
                self._draining = True
            case _:
                self._endpoint_event(event, now)

    def wake(self, now: float) -> None:
        """Turn away those whose time is up, and look for room."""
        for ticket in self.waiting.expired(now):
            self._evict(self.requests[ticket], now)
        self.room(now)

    def next_deadline(self, now: float) -> float | None:
        """When `wake` is wanted."""
        times = [at for at in (self.waiting.next_expiry_s(), self.due_s(now)) if at is not None]
        return min(times) if times else None

    def take_effects(self) -> list[Effect]:
        """What is to be done, in order."""
        effects, self._effects = self._effects, []
        return effects

    def verify(self) -> None:
        """Raise AssertionError unless the books balance. For tests."""
        running = [r for r in self.requests.values() if r.place is not None]
        held = [r for r in self.requests.values() if r.demand.ticket in self.waiting]
        if len(running) + len(held) != len(self.requests) or len(held) != len(self.waiting):
            raise AssertionError("a request neither waits nor runs, or does both")
        if len(self.waiting) > self.waiting.most:
            raise AssertionError("more wait than may")
        if any(r.demand.ticket not in r.place.running for r in running if r.place is not None):
            raise AssertionError("a request runs where it is not in the books")

    # What a law can do

    def least_loaded(self, *, without: tuple[EndpointId, ...] = ()) -> Place | None:
        """The usable endpoint with the fewest requests in flight; equal ones take turns."""
        usable = [place for place in self.places.values() if place.usable and place.id not in without]
        return min(usable, key=lambda place: (len(place.running), place.last_start), default=None)

    def start(self, request: Request, place: Place, now: float) -> None:
        """Send it there."""
        ticket = request.demand.ticket
        if ticket in self.waiting:
            self._leave_queue(request)
        self._starts += 1
        place.last_start = self._starts
        place.running[ticket] = request
        request.place, request.last_place = place, place.id
        request.started_s, request.started_as = now, len(place.running)
        request.is_prefilled = False
        request.attempts += 1
        self.started(request, place)
        self._effects.append(
            dispatch(request.demand, place.id, now, came_s=request.arrived_s, attempt=request.attempts)
        )

    def hold(self, request: Request, now: float) -> None:
        """Let it wait; refused if nobody more may."""
        if self.waiting.is_full:
            self.refuse(
                request,
                Outcome.QUEUE_FULL,
                Check("waiting", len(self.waiting), self.waiting.most, False),
                now,
            )
            return
        self.enqueue(request)
        self.tell_held(request, now)

    def enqueue(self, request: Request) -> None:
        """It waits; `tell_held` says so."""
        self.waiting.add(request.demand.ticket, self.order(request), request.expires_s)

    def tell_held(self, request: Request, now: float) -> None:
        """The answer to an arrival that waits."""
        self._effects.append(hold(request.demand, now))

    def refuse(
        self,
        request: Request,
        outcome: Outcome,
        check: Check,
        now: float,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        """Turn it away at once."""
        del self.requests[request.demand.ticket]
        self._effects.append(refuse(request.demand, now, outcome, check, retry_after_s=retry_after_s))

    def first_waiting(self) -> Request | None:
        """Who goes next."""
        ticket = self.waiting.first()
        return None if ticket is None else self.requests[ticket]

    # Steps

    def _arrived(self, demand: Demand, now: float) -> None:
        rank, of_class = self._classes[demand.class_name]
        expires_s = now + of_class.wait_budget_s
        for limit_s in (demand.first_token_by_s, demand.patience_until_s):
            expires_s = min(expires_s, inf if limit_s is None else limit_s)
        self._arrivals += 1
        request = Request(demand, of_class, rank, self._arrivals, now, expires_s)
        self.requests[demand.ticket] = request
        if self._draining:
            self.refuse(request, Outcome.DRAINING, Check("draining", 1, 0, False), now)
        elif self.least_loaded() is None:
            self.refuse(request, Outcome.NO_ENDPOINTS, Check("endpoints", 0, 1, False), now)
        else:
            self.arrived(request, now)

    def _first_token(self, ticket: TicketId, now: float) -> None:
        request = self.requests.get(ticket)
        if request is not None and request.place is not None and request.first_s is None:
            request.first_s = now
            self._prefill_ended(request, request.place)
            self.room(now)

    def _prefill_ended(self, request: Request, place: Place) -> None:
        # Engines work prompts off in order: what started there before has had its turn, also if it tells nothing.
        for earlier in place.running.values():
            if not earlier.is_prefilled and (earlier is request or not earlier.demand.stream):
                earlier.is_prefilled = True
                self.prefilled(earlier)
            if earlier is request:
                return

    def _progressed(self, ticket: TicketId, events: int, now: float) -> None:
        request = self.requests.get(ticket)
        if request is not None and request.place is not None:
            self._first_token(ticket, now)
            request.output_events += events
            self.progressed(request, events)

    def _ended(self, event: Ended, now: float) -> None:
        request = self.requests.get(event.ticket)
        if request is None or request.place is None:
            return
        if event.outcome is Outcome.COMPLETED and request.first_s is None:
            request.first_s = now
        request.output_events = max(request.output_events, event.output_events)
        self._leave_place(request)
        del self.requests[event.ticket]
        self.stopped(request, event.outcome, event.usage, now)
        self.room(now)

    def _client_left(self, event: ClientLeft, now: float) -> None:
        request = self.requests.get(event.ticket)
        if request is None:
            return
        ran = request.place is not None
        if ran:
            request.output_events = max(request.output_events, event.output_events)
            self._leave_place(request)
        else:
            self._leave_queue(request)
        del self.requests[event.ticket]
        if ran:
            self.stopped(request, Outcome.CLIENT_GONE, None, now)
        self.room(now)

    def _attempt_failed(self, event: AttemptFailed, now: float) -> None:
        request = self.requests.get(event.ticket)
        place = request.place if request is not None else None
        if request is None or place is None or place.id != event.endpoint:
            return
        if event.failure is Failure.CONNECT:
            place.up = False
        self._leave_place(request)
        request.tried = (*request.tried, place.id)
        other = self.least_loaded(without=request.tried)
        if request.first_s is not None:
            self._abort(request, Outcome.UPSTREAM_INTERRUPTED, now)
        elif other is None or request.attempts >= self.settings.max_attempts:
            unreached = event.failure is Failure.CONNECT
            self._abort(request, Outcome.NO_ENDPOINTS if unreached else Outcome.UPSTREAM_FAILED, now)
        else:
            self.stopped(request, None, None, now)
            self.start(request, other, now)
        self.room(now)

    def _endpoint_event(self, event: Event, now: float) -> None:
        if isinstance(event, EndpointsChanged):
            kept = {endpoint: self.places.get(endpoint) or Place(endpoint) for endpoint in event.endpoints}
            self.places = kept
        elif isinstance(event, Sampled | SampleMissed | Described | EndpointDrained):
            place = self.places.get(event.endpoint)
            if place is None:
                return
            if isinstance(event, Sampled):
                place.sample, place.up = event.sample, True
                self.sampled(place, now)
                self.room(now)
                return
            if isinstance(event, SampleMissed):
                place.up = place.up and not event.unreachable
            elif isinstance(event, Described):
                place.info, place.up = event.info, True
            else:
                place.drained = event.out
        else:
            return
        self.changed(now)
        self.room(now)

    def _leave_place(self, request: Request) -> None:
        if request.place is not None:
            del request.place.running[request.demand.ticket]
            request.place = None

    def _leave_queue(self, request: Request) -> None:
        self.waiting.remove(request.demand.ticket)
        self.unqueued(request)

    def _evict(self, request: Request, now: float) -> None:
        self._leave_queue(request)
        del self.requests[request.demand.ticket]
        check = Check("wait", now - request.arrived_s, request.expires_s - request.arrived_s, False)
        self._effects.append(
            evict(request.demand, now, Outcome.QUEUE_TIMEOUT, check, came_s=request.arrived_s)
        )

    def _abort(self, request: Request, outcome: Outcome, now: float) -> None:
        del self.requests[request.demand.ticket]
        self._effects.append(Abort(request.demand.ticket, outcome, "The engine failed."))
        self.stopped(request, outcome, None, now)
