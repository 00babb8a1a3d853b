"""Whoever decides in front of modelled engines, in virtual time: hours of traffic in minutes, the same every run.

What a driver does is done here as the gateway does it: effects are carried out at once, what happens meanwhile is told
after them, tokens are reported in batches, engines are read at intervals, one timer runs for the policy. Clients come
when they come; they leave when they have had nothing for too long, and come back once when they were refused.
Not modelled: the network, and what the gateway itself costs.

A run breaks off with `BrokenPolicy` if the policy breaks the contract: a request has one outcome, and is somewhere
until then. `end` closes what is open and says what was left in the books.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from math import ceil, inf
from typing import Any, Final

from forebay.admission.controller import Controller
from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.events import (
    Arrived,
    AttemptFailed,
    ClientLeft,
    Described,
    Ended,
    EndpointsChanged,
    Event,
    Failure,
    FirstTokenCame,
    Progressed,
    Sampled,
    SampleMissed,
)
from forebay.admission.model import Demand, EndpointId, Refusal, Settlement, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.enginemodel.prefix import chain_keys
from forebay.enginemodel.sequence import Request
from forebay.enginemodel.step import Submission
from forebay.load.felt import End, Felt
from forebay.load.workload import request_work_s
from forebay.simulate.faults import Fault, MetricsLost, ReplicaLost, ReplicaSlow
from forebay.simulate.place import EngineSetup, Place
from forebay.simulate.policy import PolicyMaker
from forebay.simulate.request import Habits, Planned
from forebay.simulate.service_gap import ServiceGap
from forebay.simulate.tries import Try

SAMPLE_S: Final = 0.2
PROGRESS_S: Final = 0.1
TICK_S: Final = 10.0
"""Of the run, between two reports of its progress."""
LONGEST_RETRY_S: Final = 60.0
"""As the gateway tells clients."""
CLOSING_S: Final = 30.0
"""In which engines are seen to be empty after the last request was ended: aborted work is booked until then."""
_PREDICTED_WAIT: Final = "predicted_wait"


class BrokenPolicy(Exception):
    """The policy did what the contract does not allow."""


class World:
    """A run. `tries` says what became of each request, in order of arrival."""

    def __init__(
        self,
        settings: Settings,
        fleet: Sequence[EngineSetup],
        *,
        policy: PolicyMaker = Controller,
        habits: Habits | None = None,
        faults: Sequence[Fault] = (),
        usage: bool = True,  # answers carry it
        seed: int = 1,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.settings = settings
        self.policy = policy(settings, 0.0)
        self.now = 0.0
        self.tries: list[Try] = []
        self.settled: list[Settlement] = []
        """What the policy says of each."""
        self.refusals: list[tuple[float, Refusal]] = []
        self.dispatched: list[tuple[float, TicketId]] = []
        """In order."""
        self.most_held = 0
        self.gaps = ServiceGap()
        self._habits = habits or Habits(come_back=False)
        self._usage = usage
        self._stream = random.Random(f"{seed}/clients")
        self._live: dict[TicketId, Try] = {}
        self._at_place: dict[TicketId, Place] = {}
        self._held: dict[TicketId, None] = {}
        self._returning = 0
        self._pending: deque[Event] = deque()
        self._telling = False
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = count()
        self._timer: float | None = None
        gpus = {pool.name: pool.gpus for pool in settings.pools}
        self.places = [
            Place(EndpointId(f"e{number}"), setup, gpus[setup.pool]) for number, setup in enumerate(fleet)
        ]
        self._by_id = {place.id: place for place in self.places}
        self._default_pool = settings.pools[0].name
        self._weights = {plan.name: plan.weight for plan in settings.plans}
        for pool in settings.pools:
            ids = tuple(place.id for place in self.places if place.setup.pool == pool.name)
            self._tell(EndpointsChanged(pool.name, ids))
        for place in self.places:
            self._tell(Described(place.id, place.info()))
            self._at(0.0, self._on_sample, place)
            self._at(PROGRESS_S, self._on_progress, place)
        if on_progress is not None:
            self._at(0.0, self._on_tick, on_progress)
        for fault in faults:
            self._at(fault.at_s, self._on_fault, fault)

    @property
    def controller(self) -> Controller:
        """The policy, where it is the real one."""
        assert isinstance(self.policy, Controller)
        return self.policy

    @property
    def preemptions(self) -> int:
        """By all engines."""
        return sum(place.preemptions for place in self.places)

    @property
    def felt(self) -> list[Felt]:
        """What each client felt, in the order in which they were done."""
        return [one.felt() for one in sorted(self.tries, key=lambda one: one.ended_s)]

    def run(self, requests: Sequence[Planned], until_s: float, *, stop_when_done: bool = False) -> None:
        """Let these come (in order of time), and let the time pass. What is unanswered at the end counts at its age."""
        self.advance(requests, until_s, stop_when_done=stop_when_done)
        for one in self._live.values():
            one.ended_s = self.now
            self._take_stock(one)

    def advance(self, requests: Sequence[Planned], until_s: float, *, stop_when_done: bool = False) -> None:
        """Let these come, and let the time pass."""
        events, number, come = self._events, len(requests), 0
        while True:
            came_s = requests[come].at_s if come < number else inf
            at_s = events[0][0]  # engines are read for ever
            if min(came_s, at_s) > until_s:
                break
            if came_s <= at_s:
                self.now = max(self.now, came_s)
                self._come(requests[come])
                come += 1
                continue
            at_s, _, happen, what = heapq.heappop(events)
            if at_s > self.now:
                self.now = at_s
            happen(what)
            if stop_when_done and came_s == inf and not self._live and not self._returning:
                return
        self.now = until_s

    def end(self) -> list[str]:
        """Clients that are left go away, and engines come to rest. Returns what is wrong in the books then."""
        self._habits = replace(self._habits, come_back=False)
        for ticket in list(self._live):
            self._leave(ticket)
        self.advance((), self.now + CLOSING_S)
        wrong = [f"{one.ticket}: no outcome" for one in self.tries if one.outcome is None]
        wrong += [f"{place.id}: the engine still has work" for place in self.places if place.engine.has_work]
        if self._held or self._at_place:
            wrong.append(
                f"{len(self._held)} held, {len(self._at_place)} dispatched: the driver's books are not empty"
            )
        if isinstance(self.policy, Controller):
            wrong += self._controller_faults(self.policy)
        return wrong

    def _controller_faults(self, controller: Controller) -> list[str]:
        controller.verify()
        seen = controller.snapshot()
        wrong = []
        if seen.tickets or seen.waiting_bytes:
            wrong.append(f"{seen.tickets} tickets and {seen.waiting_bytes} bytes are in the books at the end")
        for pool in seen.pools:
            left = (pool.waiting_requests, pool.in_flight_requests, pool.waiting_gpu_s, pool.in_flight_gpu_s)
            if any(left):
                wrong.append(f"pool {pool.name}: waiting and in flight at the end are {left}")
        settled = {one.ticket for one in self.settled}
        if len(settled) != len(self.settled) or len(settled) != len(self.tries):
            wrong.append(
                f"{len(self.tries)} requests, {len(self.settled)} settlements of {len(settled)} tickets"
            )
        return wrong

    # What clients do

    def _come(self, planned: Planned) -> None:
        ticket = TicketId(len(self.tries) + 1)
        self.tries.append(one := Try(ticket, planned, ended_s=self.now))
        self._live[ticket] = one
        if planned.patience_s is not None:
            self._at(self.now + planned.patience_s, self._on_patience, ticket)
        demand = Demand(
            ticket=ticket,
            pool=planned.pool or self._default_pool,
            class_name=planned.class_name,
            model=planned.model,
            stream=planned.stream,
            prompt_bytes=planned.prompt_bytes,
            body_bytes=planned.prompt_bytes,
            tenant=planned.tenant,
            plan=planned.plan,
            max_output_tokens=planned.limit_tokens,
            first_token_by_s=None if planned.deadline_s is None else self.now + planned.deadline_s,
            retry_count=int(planned.returned),
            prefix_hash=-planned.prefix if planned.prefix else None,
        )
        self._tell(Arrived(demand))
        if ticket in self._live and ticket not in self._held and ticket not in self._at_place:
            raise BrokenPolicy(f"request {ticket} arrived, and was neither dispatched, held nor refused")

    def _on_patience(self, ticket: TicketId) -> None:
        one = self._live.get(ticket)
        if one is not None and one.first_s is None:
            self._leave(ticket)

    def _leave(self, ticket: TicketId) -> None:
        one = self._live[ticket]
        self._take_stock(one)
        self._close(ticket, End.UNANSWERED, Outcome.CLIENT_GONE)
        self._tell(ClientLeft(ticket, one.given_tokens))

    def _on_return(self, planned: Planned) -> None:
        self._returning -= 1
        self._come(replace(planned, at_s=self.now, returned=True))

    def _refused(self, ticket: TicketId, refusal: Refusal) -> None:
        one, habits = self._live[ticket], self._habits
        self.refusals.append((self.now, refusal))
        one.retry_after_s = refusal.retry_after_s
        self._close(ticket, End.REFUSED, refusal.outcome)
        if refusal.retry_after_s is None or one.planned.returned or not habits.come_back:
            return
        wait_s = ceil(1000.0 * min(refusal.retry_after_s, LONGEST_RETRY_S)) / 1000.0
        if not habits.heed_retry_after:
            wait_s = habits.own_wait_s * (0.5 + self._stream.random())
        self._returning += 1
        self._at(self.now + wait_s, self._on_return, one.planned)

    # What engines do

    def _on_step(self, place: Place) -> None:
        """A step may begin; what it gives is told at its end."""
        if place.result is not None or not place.up:
            return
        result = place.engine.step(self.now, list_tokens=False)
        if result is None:
            return
        place.result = result
        place.ends_s = self.now + result.duration_s
        self._at(place.ends_s, self._on_step_end, place)

    def _on_step_end(self, place: Place) -> None:
        result = place.result
        if result is None or place.ends_s != self.now:
            return  # of a process that is gone
        place.result = None
        for request in result.first_tokens:
            one = self._live.get(TicketId(request))
            if one is None:
                continue
            if one.planned.prefix:
                one.cached_tokens = place.engine.cached_tokens(request) or 0
            if one.planned.stream:
                one.first_s = self.now
                place.streams[request] = 0
                self._tell(FirstTokenCame(one.ticket))
        if result.decoding:
            place.gap_s += self.now - place.last_step_s
            place.gaps += 1
        place.last_step_s = self.now
        for request in result.finished:
            self._answered(place, TicketId(request))
        self._on_step(place)

    def _answered(self, place: Place, ticket: TicketId) -> None:
        """An answer is whole."""
        place.streams.pop(ticket, None)
        one = self._live.get(ticket)
        if one is None:
            return
        planned = one.planned
        one.given_tokens = planned.output_tokens
        one.work_s = request_work_s(place.law, planned.prompt_tokens, planned.output_tokens)
        if one.first_s is None:
            one.first_s = self.now
        self._close(ticket, End.COMPLETED, Outcome.COMPLETED)
        usage = None
        if self._usage:
            cached = one.cached_tokens if planned.prefix else None
            usage = Usage(planned.prompt_tokens, planned.output_tokens, cached)
        self._tell(Ended(ticket, Outcome.COMPLETED, usage, planned.output_tokens))

    def _on_sample(self, place: Place) -> None:
        if place.up and place.heard:
            self._tell(Sampled(place.id, place.sample(self.now)))
        else:
            self._tell(SampleMissed(place.id, unreachable=not place.up))
        self._at(self.now + SAMPLE_S, self._on_sample, place)

    def _on_progress(self, place: Place) -> None:
        if place.streams:
            moved = place.progress()
            gap_s = place.mean_gap_s()
            if moved:
                self._tell(Progressed(place.id, moved, gap_s))
        place.gap_s, place.gaps = 0.0, 0
        self._at(self.now + PROGRESS_S, self._on_progress, place)

    def _on_tick(self, told: Callable[[float], None]) -> None:
        told(self.now)
        self._at(self.now + TICK_S, self._on_tick, told)

    # What goes wrong

    def _on_fault(self, fault: Fault) -> None:
        place = self.places[fault.endpoint]
        self._at(fault.until_s, self._on_mended, fault)
        match fault:
            case ReplicaLost():
                for ticket in place.running:
                    one = self._live[ticket]
                    self._take_stock(one)
                    one.lost_work_s += one.work_s
                    one.work_s, one.given_tokens = 0.0, 0
                for ticket in place.die():
                    self._tell(AttemptFailed(ticket, place.id, Failure.CLOSED))
            case ReplicaSlow():
                place.slow_down(fault.factor)
            case MetricsLost():
                place.heard = False

    def _on_mended(self, fault: Fault) -> None:
        place = self.places[fault.endpoint]
        match fault:
            case ReplicaLost():
                place.up = True
                self._tell(Described(place.id, place.info(), restarted=True))
            case ReplicaSlow():
                place.slow_down(1.0)
            case MetricsLost():
                place.heard = True

    # The driver

    def _on_wake(self, due_s: float) -> None:
        if due_s == self._timer:
            self._timer = None
            self._telling = True
            self._carry_out(self.policy.wake(self.now))
            self._tell_pending()

    def _tell(self, event: Event) -> None:
        """Tell the policy; what happens while its effects are carried out is told after them, as the driver does it."""
        self._pending.append(event)
        if not self._telling:
            self._telling = True
            self._tell_pending()

    def _tell_pending(self) -> None:
        pending = self._pending
        while pending:
            self._carry_out(self.policy.handle(pending.popleft(), self.now))
        self._telling = False
        due_s = self.policy.next_deadline()
        if due_s is not None and (self._timer is None or due_s < self._timer):
            self._timer = max(due_s, self.now)
            self._at(self._timer, self._on_wake, self._timer)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Settle):
                self.settled.append(effect.settlement)
                continue
            ticket = effect.ticket
            if ticket not in self._live:
                raise BrokenPolicy(
                    f"{type(effect).__name__} of request {ticket}, which is over or never came"
                )
            if isinstance(effect, Dispatch):
                self._dispatch(effect)
            elif isinstance(effect, Hold):
                self._hold(effect)
            elif isinstance(effect, Refuse | Evict):
                if ticket in self._at_place:
                    raise BrokenPolicy(f"request {ticket} runs and is turned away; that is Abort")
                self._refused(ticket, effect.refusal)
            elif isinstance(effect, Abort):
                self._take_stock(self._live[ticket])
                self._close(ticket, End.FAILED, effect.outcome)

    def _dispatch(self, effect: Dispatch) -> None:
        ticket = effect.ticket
        one, place = self._live[ticket], self._by_id[effect.endpoint]
        if ticket in self._at_place:
            if effect.attempt < 2:
                raise BrokenPolicy(f"request {ticket} is dispatched a second time")
            self._take_away(ticket)
        self.dispatched.append((self.now, ticket))
        if one.dispatched_s is None:
            one.dispatched_s = self.now
            planned = one.planned
            own_s = request_work_s(place.law, planned.prompt_tokens, planned.output_tokens)
            weight = self._weights.get(planned.plan, 1.0)
            self.gaps.served(planned.class_name, planned.tenant, own_s * place.gpus, weight)
        self._release(one)
        self._at_place[ticket] = place
        place.running[ticket] = None
        if not place.up:
            self._tell(AttemptFailed(ticket, place.id, Failure.CONNECT))
            return
        if place.engine.submit(self._request(one, place)) is Submission.TOO_LONG:
            self._close(ticket, End.FAILED, Outcome.ENGINE_REJECTED)
            self._tell(Ended(ticket, Outcome.ENGINE_REJECTED))
            return
        if place.result is None:
            place.last_step_s = self.now
            self._at(self.now, self._on_step, place)  # together with what else is sent there now

    def _hold(self, effect: Hold) -> None:
        one = self._live[effect.ticket]
        self._take_away(effect.ticket)
        if one.held_s is None:
            record = effect.record
            one.held_s = self.now
            one.predicted_wait_s, one.budget_s = record.predicted_wait_s, record.wait_budget_s
            one.learning = record.learning
            stated = next((check for check in record.checks if check.name == _PREDICTED_WAIT), None)
            if stated is not None and stated.limit is not None:
                one.stated_wait_s = stated.value
        self._held[effect.ticket] = None
        self.most_held = max(self.most_held, len(self._held))
        self.gaps.waits(one.planned.class_name, one.planned.tenant)

    def _release(self, one: Try) -> None:
        """It waits no longer, if it did."""
        if one.ticket in self._held:
            del self._held[one.ticket]
            self.gaps.waits_no_more(one.planned.class_name, one.planned.tenant)

    def _take_stock(self, one: Try) -> None:
        """Note what an engine has done for a request that is not answered."""
        place = self._at_place.get(one.ticket)
        if place is None or place.engine.state(one.ticket) is None:
            return
        one.given_tokens = place.given(one.ticket)
        prefilled = place.engine.prefilled(one.ticket) or 0
        one.work_s = request_work_s(place.law, prefilled, one.given_tokens) if prefilled else 0.0

    def _take_away(self, ticket: TicketId) -> None:
        """No engine has it any more."""
        place = self._at_place.pop(ticket, None)
        if place is not None:
            place.running.pop(ticket, None)
            place.streams.pop(ticket, None)
            place.engine.abort(ticket)

    def _close(self, ticket: TicketId, end: End, outcome: Outcome) -> None:
        one = self._live.pop(ticket)
        one.end, one.outcome, one.ended_s = end, outcome, self.now
        self._release(one)
        self._take_away(ticket)

    def _request(self, one: Try, place: Place) -> Request:
        planned = one.planned
        keys = chain_keys(planned.prefix, planned.shared_tokens, place.engine.config.block_size)
        return Request(one.ticket, planned.prompt_tokens, planned.output_tokens, keys)

    def _at(self, at_s: float, happen: Callable[[Any], None], what: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happen, what))
