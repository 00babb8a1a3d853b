"""Whoever decides in front of modelled engines, in virtual time: minutes of traffic in seconds, the same every run.

What a driver does is done here as the gateway does it: effects are carried out at once, tokens are reported in batches,
engines are read at intervals, one timer runs for the core. Clients are open: they come when they come, and wait.
Not modelled: the network, clients that leave or come back, what the gateway itself costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count

from forebay.admission.controller import Controller
from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.events import (
    Arrived,
    Described,
    Ended,
    EndpointsChanged,
    Event,
    FirstTokenCame,
    Progressed,
    Sampled,
)
from forebay.admission.model import (
    Demand,
    EndpointId,
    EngineInfo,
    EngineKind,
    EngineSample,
    Refusal,
    Settlement,
    TicketId,
    Usage,
)
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.enginemodel.engine import Engine
from forebay.enginemodel.prefix import chain_keys
from forebay.enginemodel.profile import EngineConfig, EngineProfile
from forebay.enginemodel.sequence import Request
from forebay.enginemodel.step import StepResult
from forebay.load.felt import End, Felt
from forebay.load.workload import Arrival
from forebay.simulate.policy import PolicyMaker

SAMPLE_S = 0.2
PROGRESS_S = 0.1


@dataclass(eq=False)
class Modelled:
    """One engine and what has been told of it."""

    id: EndpointId
    engine: Engine
    busy: bool = False
    tokens: dict[int, int] = field(default_factory=dict)
    """Not yet reported, by request."""
    gaps: list[float] = field(default_factory=list)
    last_step_s: float = 0.0


@dataclass(eq=False)
class Live:
    """One request that is not over."""

    arrival: Arrival
    first_s: float | None = None
    last_s: float = 0.0
    given: int = 0
    place: Modelled | None = None


def slowed(profile: EngineProfile, factor: float) -> EngineProfile:
    """The same engine on a machine on which each step takes `factor` times as long."""
    law = profile.law
    numbers = {f.name: getattr(law, f.name) * factor for f in fields(law) if f.name != "n0"}
    return replace(profile, law=replace(law, **numbers))


class World:
    """A run. `felt` is what each client felt; `settled` what the core says of each; `refusals` what it answered."""

    def __init__(
        self,
        settings: Settings,
        profile: EngineProfile,
        config: EngineConfig,
        *,
        engines: int = 1,
        slow: Sequence[float] = (),  # of each engine: times of its steps over the profile's
        tenants: Sequence[str] = (),  # in turn, by the number of the request
        tenant_of: Callable[[Arrival], str] | None = None,
        mute: bool = False,  # engines that tell nothing of themselves
        usage: bool = True,  # answers carry it
        bytes_per_token: float = 4.0,
        shared: Mapping[str, int] | None = None,  # by class: tokens with which all its prompts begin
        policy: PolicyMaker = Controller,
    ) -> None:
        self.policy = policy(settings, 0.0)
        self.now = 0.0
        self.settings = settings
        self.pool = settings.pools[0].name
        self.tenants = tuple(tenants)
        self.tenant_of = tenant_of or self._in_turn
        self.mute = mute
        self.usage = usage
        self.bytes_per_token = bytes_per_token
        self.shared = dict(shared or {})
        self.felt: list[Felt] = []
        self.settled: list[Settlement] = []
        self.refusals: list[tuple[float, Refusal]] = []
        self.dispatched: list[tuple[float, TicketId]] = []
        """In order."""
        self.held: set[TicketId] = set()
        self.most_held = 0
        self._live: dict[int, Live] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._timer: float | None = None
        self.places = [
            Modelled(EndpointId(f"e{n}"), Engine(slowed(profile, slow[n] if n < len(slow) else 1.0), config))
            for n in range(engines)
        ]
        self._by_id = {place.id: place for place in self.places}
        self._tell(EndpointsChanged(self.pool, tuple(self._by_id)))
        for place in self.places:
            info = EngineInfo(
                EngineKind.VLLM,
                context_tokens=config.context_tokens,
                kv_tokens=config.kv_tokens,
                kv_block_tokens=config.block_size,
                reports_load=True,
                counts_while_running=True,
            )
            if mute:
                info = EngineInfo(EngineKind.OPENAI)
            self._tell(Described(place.id, info))
            self._at(0.0, partial(self._on_sample, place))
            self._at(PROGRESS_S, partial(self._on_progress, place))

    @property
    def controller(self) -> Controller:
        """The policy, where it is the real one."""
        assert isinstance(self.policy, Controller)
        return self.policy

    @property
    def preemptions(self) -> int:
        """By all engines."""
        return sum(place.engine.statistics().preemptions for place in self.places)

    def run(self, arrivals: Sequence[Arrival], until_s: float) -> None:
        """Let these come, and let the time pass. What is unanswered at the end counts at its age."""
        for arrival in arrivals:
            self._at(arrival.at_s, partial(self._on_arrival, arrival))
        while self._events and self._events[0][0] <= until_s:
            at_s, _, happen = heapq.heappop(self._events)
            self.now = max(self.now, at_s)
            happen()
        self.now = until_s
        for live in self._live.values():
            age_s = until_s - live.arrival.at_s
            self._feel(live, End.UNANSWERED, age_s)
        self._live.clear()

    def _in_turn(self, arrival: Arrival) -> str:
        return self.tenants[arrival.index % len(self.tenants)] if self.tenants else "anonymous"

    # What happens

    def _on_arrival(self, arrival: Arrival) -> None:
        ticket = TicketId(arrival.index + 1)
        self._live[ticket] = Live(arrival)
        prompt_bytes = round(arrival.prompt_tokens * self.bytes_per_token)
        demand = Demand(
            ticket=ticket,
            pool=self.pool,
            class_name=arrival.class_name,
            model="m",
            stream=arrival.stream,
            prompt_bytes=prompt_bytes,
            body_bytes=prompt_bytes,
            tenant=self.tenant_of(arrival),
            max_output_tokens=arrival.limit_tokens,
            prefix_hash=self._chain(arrival) or ticket if self.shared else None,
        )
        self._tell(Arrived(demand))

    def _on_step(self, place: Modelled) -> None:
        """A step begins; what it gives is told at its end."""
        result = place.engine.step(self.now)
        if result is None:
            place.busy = False
            return
        place.busy = True
        self._at(self.now + result.duration_s, partial(self._on_step_end, place, result))

    def _on_step_end(self, place: Modelled, result: StepResult) -> None:
        for request in result.first_tokens:
            live = self._live.get(request)
            if live is not None:
                live.first_s = self.now
                if live.arrival.stream:
                    self._tell(FirstTokenCame(TicketId(request)))
        for request in result.tokens:
            live = self._live.get(request)
            if live is not None:
                live.given += 1
                live.last_s = self.now
                if live.arrival.stream:
                    place.tokens[request] = place.tokens.get(request, 0) + 1
        if result.decoding:
            place.gaps.append(self.now - place.last_step_s)
        place.last_step_s = self.now
        for request in result.finished:
            live = self._live.pop(request, None)
            if live is not None:
                place.tokens.pop(request, None)
                self._feel(live, End.COMPLETED, self.now - live.arrival.at_s)
                usage = Usage(live.arrival.prompt_tokens, live.given) if self.usage else None
                self._tell(Ended(TicketId(request), Outcome.COMPLETED, usage, live.given))
        self._on_step(place)

    def _on_sample(self, place: Modelled) -> None:
        stats = place.engine.statistics()
        sample = EngineSample(
            at_s=self.now,
            took_s=0.001,
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            preemptions_total=stats.preemptions,
            prompt_tokens_total=stats.prompt_tokens,
            output_tokens_total=stats.generation_tokens,
            steps_total=stats.iteration_tokens.count,
            step_tokens_total=stats.iteration_tokens.sum,
            cached_tokens_total=stats.prompt_tokens_cached,
        )
        self._tell(Sampled(place.id, EngineSample(self.now) if self.mute else sample))
        self._at(self.now + SAMPLE_S, partial(self._on_sample, place))

    def _on_progress(self, place: Modelled) -> None:
        if place.tokens:
            tokens = tuple((TicketId(request), n) for request, n in place.tokens.items())
            gap = sum(place.gaps) / len(place.gaps) if place.gaps else None
            place.tokens = {}
            self._tell(Progressed(place.id, tokens, gap))
        place.gaps.clear()
        self._at(self.now + PROGRESS_S, partial(self._on_progress, place))

    def _on_wake(self, due_s: float) -> None:
        if due_s == self._timer:
            self._timer = None
            self._carry_out(self.policy.wake(self.now))

    # The driver

    def _tell(self, event: Event) -> None:
        self._carry_out(self.policy.handle(event, self.now))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Dispatch):
                self.held.discard(effect.ticket)
                self.dispatched.append((self.now, effect.ticket))
                live, place = self._live[effect.ticket], self._by_id[effect.endpoint]
                live.place = place
                arrival = live.arrival
                place.engine.submit(self._request(effect.ticket, arrival, place.engine.config.block_size))
                if not place.busy:
                    place.busy = True
                    place.last_step_s = self.now
                    self._at(max(self.now, place.engine.busy_until_s), partial(self._on_step, place))
            elif isinstance(effect, Hold):
                self.held.add(effect.ticket)
                self.most_held = max(self.most_held, len(self.held))
            elif isinstance(effect, Refuse | Evict):
                self.held.discard(effect.ticket)
                live = self._live.pop(effect.ticket)
                self.refusals.append((self.now, effect.refusal))
                self._feel(live, End.REFUSED, self.now - live.arrival.at_s, effect.refusal)
            elif isinstance(effect, Abort):
                live = self._live.pop(effect.ticket)
                if live.place is not None:
                    live.place.engine.abort(effect.ticket)
                self._feel(live, End.FAILED, self.now - live.arrival.at_s)
            elif isinstance(effect, Settle):
                self.settled.append(effect.settlement)
        due_s = self.policy.next_deadline()
        if due_s is not None and (self._timer is None or due_s < self._timer):
            self._timer = max(due_s, self.now)
            self._at(self._timer, partial(self._on_wake, self._timer))

    def _chain(self, arrival: Arrival) -> int:
        """Number of the beginning that its prompt shares with others; 0 if it shares none."""
        names = list(self.shared)
        return -1 - names.index(arrival.class_name) if arrival.class_name in names else 0

    def _request(self, ticket: TicketId, arrival: Arrival, block_size: int) -> Request:
        shared = min(self.shared.get(arrival.class_name, 0), arrival.prompt_tokens)
        keys = chain_keys(-self._chain(arrival), shared, block_size)
        return Request(ticket, arrival.prompt_tokens, arrival.output_tokens, keys)

    def _feel(self, live: Live, end: End, duration_s: float, refusal: Refusal | None = None) -> None:
        arrival = live.arrival
        self.felt.append(
            Felt(
                class_name=arrival.class_name,
                at_s=arrival.at_s,
                stream=arrival.stream,
                end=end,
                duration_s=duration_s,
                first_token_s=None if live.first_s is None else live.first_s - arrival.at_s,
                last_token_s=None if live.first_s is None else live.last_s - arrival.at_s,
                output_tokens=live.given,
                code="" if refusal is None else refusal.outcome.value,
                retry_after_s=None if refusal is None else refusal.retry_after_s,
            )
        )

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happen))
