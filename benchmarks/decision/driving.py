"""Drives the real controller through virtual time, and takes the time of every call.

Owns the loop, what the benchmark knows of waiting and running requests (from effects alone, as a gateway would),
and the times. The core is reached by its contract only: `handle`, `wake`, `next_deadline`, `snapshot`, `verify`.

A call is `handle` or `wake` with the `next_deadline` that a driver asks for after it. Building the event before it
and carrying the effects out after it are the driver's and not in its time.

While measuring, the next arrival is of the sort of which there were fewest: one that finds room, one that must
wait, one that finds the queue at its bound. For the second a running request ends first, which gives its room to a
waiter and so a place in the queue. What an arrival counts as is told by its effects, whatever it was meant to be.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

from benchmarks.decision.workload import (
    CLASS_NAMES,
    FILLING_PER_S,
    RATE_PER_S,
    SPARE_KEPT,
    Lane,
    Plan,
    Request,
    Requests,
    engines_of,
    opening,
    settings_for,
)
from forebay.admission import Controller, Outcome
from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.events import Arrived, Ended, Event, FirstTokenCame, Progressed, Sampled
from forebay.admission.model import EndpointId, EngineSample, TicketId, Usage

FIRST_TOKEN_AFTER_S: Final = 0.15
PROGRESS_EVERY_S: Final = 0.1
TOKENS_PER_REPORT: Final = 5
READING_EVERY_S: Final = 1.0
IMPATIENT: Final = 0.05
"""Part of those that must wait whose client gives up within seconds: the core's own timer turns them away."""
ENDS_WHILE_FILLING: Final = round(FILLING_PER_S / (RATE_PER_S / 3))
"""Arrivals per end while the queue is filled, so that engines drain then as fast as later, and are found to."""
ENDS_FOR_A_PLACE: Final = 64
CALLS_AT_ONCE: Final = 10_000

DISPATCHED, HELD, REFUSED, DISPLACING = "dispatched", "held", "refused", "displacing"
ARRIVAL, END, TIMER = "arrival", "end", "timer"


class WentWrong(Exception):
    """The run is not what the benchmark is for; the message says why."""


@dataclass(eq=False)
class Running:
    """A request at an engine."""

    request: Request
    endpoint: EndpointId
    place: int
    """In its lane's list."""
    begun: bool = False
    """True once the first token was told."""
    events: int = 0


class Drive:
    """One controller, its engines and its clients."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.controller = Controller(settings_for(plan), 0.0)
        self.now = 0.0
        self.times_ns: dict[tuple[str, str], list[int]] = {}
        """Of each kind of call and sort within it."""
        self.waiting: dict[TicketId, Request] = {}
        self.running: dict[TicketId, Running] = {}
        self._stream = random.Random(plan.seed)
        self._requests = Requests(plan, self._stream)
        self._levels = dict.fromkeys(CLASS_NAMES, 0)
        """Requests that wait, by class."""
        self._lanes: dict[Lane, list[Running]] = {Lane.FULL: [], Lane.SPARE: []}
        self._engines = [engine for engines in engines_of(plan).values() for engine in engines]
        self._at: dict[EndpointId, dict[TicketId, Running]] = {engine: {} for engine in self._engines}
        self._tokens: dict[EndpointId, int] = dict.fromkeys(self._engines, 0)
        self._agenda: list[tuple[float, int, str, EndpointId | TicketId]] = []
        self._planned = 0
        self._due: float | None = None
        self._sorts = dict.fromkeys((DISPATCHED, HELD, REFUSED, DISPLACING), 0)
        for event in opening(plan):
            self._tell(event, "opening")
        for number, engine in enumerate(self._engines):
            spread = number / len(self._engines)
            self._plan(READING_EVERY_S * spread, "reading", engine)
            self._plan(PROGRESS_EVERY_S * spread, "progress", engine)
            self._read(engine)

    # The two phases

    def fill(self, level: int | None = None) -> None:
        """Arrivals until the engines are full and this many wait (as a rule, as many as the plan says)."""
        wanted = self.plan.waiting if level is None else level
        arrivals = 0
        while len(self.waiting) < wanted:
            arrivals += 1
            self._pass_time(FILLING_PER_S)
            if self.waiting and arrivals % ENDS_WHILE_FILLING == 0:
                self._end_one(Lane.FULL)
            self._arrive(self._requests.draw(Lane.FULL, self._emptiest()))
            if arrivals > 2 * wanted + 5_000:
                raise WentWrong(f"the queue stops at {len(self.waiting)} of {wanted}")

    def go(self, arrivals: int) -> None:
        """So many arrivals, a third of each sort, with all else that happens meanwhile."""
        self.times_ns = {}
        self._sorts = dict.fromkeys(self._sorts, 0)
        for _ in range(arrivals):
            self._pass_time(RATE_PER_S)
            turned_away = self._sorts[REFUSED] + self._sorts[DISPLACING]
            fewest = min(self._sorts[DISPATCHED], self._sorts[HELD], turned_away)
            if self._sorts[DISPATCHED] == fewest:
                self._arrive_where_there_is_room()
            elif self._sorts[HELD] == fewest or len(self.waiting) < self.plan.waiting:
                self._arrive_and_wait()
            else:
                # Of a high class and of the lowest: only the former could take the place of another.
                self._arrive(self._requests.draw(Lane.FULL, self._stream.choice(CLASS_NAMES[::7])))

    def verify(self) -> None:
        """The core's books balance, and it knows of the same requests as we do."""
        self.controller.verify()
        snapshot = self.controller.snapshot()
        held = sum(pool.waiting_requests for pool in snapshot.pools)
        theirs = (held, snapshot.tickets - held, snapshot.waiting_bytes)
        body_bytes = sum(request.demand.body_bytes for request in self.waiting.values())
        ours = (len(self.waiting), len(self.running), body_bytes)
        if theirs != ours:
            raise WentWrong(
                f"(waiting, running, waiting bytes) are {theirs} in the core, by its effects {ours}"
            )

    def hold_untimed(self, count: int) -> int:
        """So many more arrivals into the queue of which nothing is kept here; returns how many wait of them."""
        before = sum(pool.waiting_requests for pool in self.controller.snapshot().pools)
        for number in range(count):
            class_name = CLASS_NAMES[number % len(CLASS_NAMES)]
            self.controller.handle(Arrived(self._requests.draw(Lane.FULL, class_name).demand), self.now)
        return sum(pool.waiting_requests for pool in self.controller.snapshot().pools) - before

    # Arrivals and ends

    def _arrive_where_there_is_room(self) -> None:
        while len(self._lanes[Lane.SPARE]) >= SPARE_KEPT:
            self._end_one(Lane.SPARE)
        self._arrive(self._requests.draw(Lane.SPARE, self._stream.choice(CLASS_NAMES)))

    def _arrive_and_wait(self) -> None:
        for _ in range(ENDS_FOR_A_PLACE):
            if len(self.waiting) < self.plan.waiting:
                break
            self._end_one(Lane.FULL)
        patience_until_s = None
        if self._stream.random() < IMPATIENT:
            patience_until_s = self.now + self._stream.uniform(1.0, 5.0)
        self._arrive(self._requests.draw(Lane.FULL, self._emptiest(), patience_until_s))

    def _arrive(self, request: Request) -> None:
        ticket = request.demand.ticket
        event = Arrived(request.demand)
        began = perf_counter_ns()
        effects = self.controller.handle(event, self.now)
        self._due = self.controller.next_deadline()
        took = perf_counter_ns() - began
        sort = _sort_of_arrival(ticket, effects)
        self._sorts[sort] += 1
        self._note(ARRIVAL, sort, took)
        self._carry_out(effects, request)

    def _end_one(self, lane: Lane) -> None:
        """One of the lane's running requests is over, whichever."""
        those = self._lanes[lane]
        if not those:
            raise WentWrong(f"nothing runs in lane {lane.value}")
        running = those[int(self._stream.random() * len(those))]
        request = running.request
        ticket = request.demand.ticket
        if request.demand.stream and not running.begun:
            self._begin(running)
        self._leave(ticket)
        usage = Usage(request.prompt_tokens, request.output_tokens)
        self._tell(Ended(ticket, Outcome.COMPLETED, usage, running.events), END)

    def _begin(self, running: Running) -> None:
        running.begun = True
        self._tell(FirstTokenCame(running.request.demand.ticket), "first token")

    # Time

    def _pass_time(self, rate_per_s: float) -> None:
        """Until the next arrival: what engines have to tell, and what the core wants to be woken for, in order."""
        until = self.now + self._stream.expovariate(rate_per_s)
        for _ in range(CALLS_AT_ONCE):
            due = self._due
            planned_s = self._agenda[0][0]
            if due is not None and due <= until and due <= planned_s:
                self._wake(max(due, self.now))
            elif planned_s <= until:
                at_s, _, what, subject = heapq.heappop(self._agenda)
                self.now = max(at_s, self.now)
                self._happen(what, subject)
            else:
                self.now = until
                return
        raise WentWrong(f"something is due again and again at {self.now} s")

    def _wake(self, now: float) -> None:
        self.now = now
        began = perf_counter_ns()
        effects = self.controller.wake(now)
        self._due = self.controller.next_deadline()
        took = perf_counter_ns() - began
        self._note(TIMER, _sort_of_timer(effects), took)
        self._carry_out(effects)

    def _happen(self, what: str, subject: EndpointId | TicketId) -> None:
        if what == "first token":
            running = self.running.get(subject)  # type: ignore[arg-type] # a ticket, with these words
            if running is not None and not running.begun:
                self._begin(running)
            return
        engine: EndpointId = subject  # type: ignore[assignment] # an engine, with the others
        if what == "reading":
            self._plan(self.now + READING_EVERY_S, what, engine)
            self._read(engine)
            return
        self._plan(self.now + PROGRESS_EVERY_S, what, engine)
        streams = [r for r in self._at[engine].values() if r.begun]
        if streams:
            tokens = []
            for running in streams:
                running.events += TOKENS_PER_REPORT
                tokens.append((running.request.demand.ticket, TOKENS_PER_REPORT))
            self._tokens[engine] += TOKENS_PER_REPORT * len(streams)
            self._tell(Progressed(engine, tokens, PROGRESS_EVERY_S / TOKENS_PER_REPORT), "progress")

    def _read(self, engine: EndpointId) -> None:
        sample = EngineSample(
            self.now,
            running=len(self._at[engine]),
            waiting=0,
            kv_usage=0.5,
            output_tokens_total=self._tokens[engine],
        )
        self._tell(Sampled(engine, sample), "reading")

    def _plan(self, at_s: float, what: str, subject: EndpointId | TicketId) -> None:
        self._planned += 1
        heapq.heappush(self._agenda, (at_s, self._planned, what, subject))

    # Calls and effects

    def _tell(self, event: Event, kind: str) -> None:
        began = perf_counter_ns()
        effects = self.controller.handle(event, self.now)
        self._due = self.controller.next_deadline()
        took = perf_counter_ns() - began
        self._note(kind, _sort_of_other(effects), took)
        self._carry_out(effects)

    def _note(self, kind: str, sort: str, took_ns: int) -> None:
        times = self.times_ns.get((kind, sort))
        if times is None:
            times = self.times_ns[kind, sort] = []
        times.append(took_ns)

    def _carry_out(self, effects: Sequence[Effect], arriving: Request | None = None) -> None:
        for effect in effects:
            match effect:
                case Dispatch(ticket=ticket, endpoint=endpoint):
                    request = self._stop_waiting(ticket) or arriving
                    if request is None:
                        raise WentWrong(f"dispatch of request {ticket}, which does not wait")
                    self._start(request, endpoint)
                case Hold() if arriving is not None:
                    self.waiting[effect.ticket] = arriving
                    self._levels[arriving.demand.class_name] += 1
                case Evict(ticket=ticket):
                    self._stop_waiting(ticket)
                case Abort() | Hold():
                    raise WentWrong(f"the core took request {effect.ticket} back from an engine that works")
                case Refuse() | Settle():
                    pass

    def _start(self, request: Request, endpoint: EndpointId) -> None:
        ticket = request.demand.ticket
        lane = self._lanes[request.lane]
        running = self.running[ticket] = self._at[endpoint][ticket] = Running(request, endpoint, len(lane))
        lane.append(running)
        if request.demand.stream:
            self._plan(self.now + FIRST_TOKEN_AFTER_S, "first token", ticket)

    def _leave(self, ticket: TicketId) -> None:
        running = self.running.pop(ticket)
        del self._at[running.endpoint][ticket]
        lane = self._lanes[running.request.lane]
        last = lane.pop()
        if last is not running:
            lane[running.place] = last
            last.place = running.place

    def _stop_waiting(self, ticket: TicketId) -> Request | None:
        request = self.waiting.pop(ticket, None)
        if request is not None:
            self._levels[request.demand.class_name] -= 1
        return request

    def _emptiest(self) -> str:
        """The class with the fewest waiting: all are held at the same level, whichever the core serves first."""
        return min(self._levels, key=self._levels.__getitem__)


def _sort_of_arrival(ticket: TicketId, effects: Sequence[Effect]) -> str:
    sort = REFUSED
    displaces = False
    for effect in effects:
        if isinstance(effect, Evict):
            displaces = True
        elif isinstance(effect, Dispatch | Hold) and effect.ticket == ticket:
            sort = DISPATCHED if isinstance(effect, Dispatch) else HELD
    return DISPLACING if displaces and sort != REFUSED else sort


def _sort_of_timer(effects: Sequence[Effect]) -> str:
    if any(isinstance(effect, Evict) for effect in effects):
        return "evicting"
    return _sort_of_other(effects)


def _sort_of_other(effects: Sequence[Effect]) -> str:
    return "with dispatch" if any(isinstance(effect, Dispatch) for effect in effects) else "without"
