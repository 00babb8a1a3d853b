"""What the tests of the core are made of: demands and settings with round numbers, a site, and a scenario.

Costs are exact on purpose. Under `LAW` a prompt token takes 0.1 ms and an output token 10 ms, and nothing else
costs anything, so the default request (100 prompt tokens, 99 output tokens) is one endpoint-second of work, 10 ms
of it prefill, and books 199 KV tokens.

`Site` is one pool without a controller, for the parts below it. `Scenario` drives a real controller as a driver
would and keeps the promises of the contract in view: legal effects in a legal order, one `Settle` a ticket, books
that balance, no dispatch above a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from forebay.admission import ClassSettings, Controller, PoolSettings, Settings, SpeedLaw
from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.endpoints import Endpoint
from forebay.admission.events import (
    Arrived,
    ClientLeft,
    Described,
    Ended,
    EndpointsChanged,
    Event,
    FirstTokenCame,
    Progressed,
    Sampled,
)
from forebay.admission.gate import Verdict
from forebay.admission.ledger import PoolBooks, booking_for
from forebay.admission.length_law import BINS, LengthLaw
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.model import (
    Demand,
    EndpointId,
    EndpointState,
    EngineInfo,
    EngineKind,
    EngineSample,
    Mode,
    Settlement,
    TicketId,
    Usage,
)
from forebay.admission.outcomes import Outcome
from forebay.admission.pools import Pool
from forebay.admission.settings import OPTIMISTIC_LAW
from forebay.admission.snapshot import EndpointView, PoolView
from forebay.admission.tickets import Ticket

LAW: Final = SpeedLaw(c0_s=0.0, c1_s=1e-4, c2_s=1e-2, c3_s=0.0, c4_s=0.0, kv_tokens=100_000, max_requests=100)
"""Round numbers: see the head of this file."""

VLLM: Final = EngineInfo(
    EngineKind.VLLM, models=("llama",), reports_load=True, counts_while_running=True, linger_s=1.0
)
LLAMACPP: Final = EngineInfo(EngineKind.LLAMACPP, linger_s=1.0, aborts_unstreamed=False, reports_load=True)


def demand(number: int, **changes: Any) -> Demand:
    """One endpoint-second of streamed work in class `standard`, 199 KV tokens, with `changes`."""
    usual = Demand(
        ticket=TicketId(number),
        pool="llama",
        class_name="standard",
        model="llama",
        stream=True,
        prompt_bytes=400,
        body_bytes=1000,
        prompt_tokens=100,
        max_output_tokens=99,
    )
    return replace(usual, **changes)


def pool_settings(**changes: Any) -> PoolSettings:
    """A pool with `LAW` as its profile, so nothing has to be learned, and no headroom to reckon with."""
    return replace(PoolSettings("llama", law=LAW, headroom=1.0), **changes)


def settings_for(pool: PoolSettings | None = None, **changes: Any) -> Settings:
    """Settings with one pool."""
    return replace(Settings(pools=(pool or pool_settings(),)), **changes)


def with_class(name: str, settings: Settings, **changes: Any) -> Settings:
    """The same settings, one class changed."""
    classes = tuple(replace(c, **changes) if c.name == name else c for c in settings.classes)
    return replace(settings, classes=classes)


def reading(at_s: float, **fields: Any) -> EngineSample:
    """A sample of an engine that is calm unless `fields` say otherwise."""
    return replace(EngineSample(at_s, running=0, waiting=0, kv_usage=0.0), **fields)


AS_LONG_AS_MAY_BE: Final = LengthLaw([1.0] * BINS + [0.0], [1.0] * BINS + [0.0], 1000.0)
"""Every answer ends at its limit: what is expected is what was asked for."""


def know_lengths(pool: Pool) -> None:
    """Let a pool expect every answer to be as long as its limit, so that costs are exact."""
    key = pool.pricing.lengths._pool
    key.law, key.left = AS_LONG_AS_MAY_BE, 1 << 60


SLOW: SpeedLaw = replace(
    OPTIMISTIC_LAW,
    c0_s=10 * OPTIMISTIC_LAW.c0_s,
    c1_s=10 * OPTIMISTIC_LAW.c1_s,
    c2_s=10 * OPTIMISTIC_LAW.c2_s,
    c3_s=10 * OPTIMISTIC_LAW.c3_s,
    c4_s=10 * OPTIMISTIC_LAW.c4_s,
)
"""An engine ten times as slow as is assumed where nothing is known."""


def run_steps(endpoint: Endpoint, law: SpeedLaw, observations: int = 60) -> None:
    """Steps of an engine of this law are learned from, sixteen in each mean."""
    for number in range(observations):
        sequences, prefill = 8.0 * (1 + number % 5), 512.0 * (number % 3)
        kv_tokens, attention = 400.0 * sequences, prefill * 600.0
        endpoint.sources.learner.observe(
            law.c0_s
            + law.c1_s * prefill
            + law.c2_s * sequences
            + law.c3_s * kv_tokens
            + law.c4_s * attention,
            steps=16,
            prefill_tokens=prefill,
            prefill_steps=16.0 if prefill else 0.0,
            sequences=sequences,
            kv_tokens=kv_tokens,
            attention=attention,
        )


class Site:
    """One pool, its books and its lifecycle; endpoints are up unless told otherwise."""

    def __init__(
        self,
        pool: PoolSettings | None = None,
        *,
        endpoints: Sequence[str] = ("a",),
        settings: Settings | None = None,
        up: bool = True,
    ) -> None:
        self.settings = settings or settings_for(pool)
        self.life = Lifecycle(self.settings)
        own = self.settings.pools[0]
        books = self.life.ledger.pools[own.name] = PoolBooks(tuple(c.name for c in self.settings.classes))
        self.pool = Pool(own, self.settings, books, 0.0)
        know_lengths(self.pool)
        for order, name in enumerate(endpoints):
            self.pool.add_endpoint(EndpointId(name), order)
            if up:
                self.endpoint(name).state = EndpointState.UP
        self.pool.find_limits()

    def describe(self, name: str = "a", **facts: Any) -> Endpoint:
        """These facts are found out about an endpoint."""
        endpoint = self.endpoint(name)
        endpoint.info = replace(endpoint.info, **facts)
        self.pool.find_limits()
        return endpoint

    def endpoint(self, name: str = "a") -> Endpoint:
        """One of its endpoints."""
        return self.pool.endpoints[EndpointId(name)]

    def class_settings(self, name: str) -> ClassSettings:
        """One of its classes."""
        return next(c for c in self.settings.classes if c.name == name)

    def ticket(self, number: int, now: float = 0.0, **changes: Any) -> Ticket:
        """A new ticket, filed nowhere."""
        wanted = demand(number, **changes)
        price = self.pool.price(wanted)
        own = self.class_settings(wanted.class_name)
        rank = self.pool.classes[wanted.class_name].index
        ticket = Ticket(wanted, self.pool, own, price, booking_for(wanted, price.cost), now, rank)
        ticket.deadline_s = now + own.wait_budget_s
        return ticket

    def queued(self, number: int, now: float = 0.0, predicted_wait_s: float = 0.0, **changes: Any) -> Ticket:
        """A ticket that waits from `now`."""
        ticket = self.ticket(number, now, **changes)
        self.life.hold(ticket, Verdict(predicted_wait_s=predicted_wait_s), now)
        return ticket

    def running(self, number: int, endpoint: str = "a", now: float = 0.0, **changes: Any) -> Ticket:
        """A ticket that runs from `now`."""
        ticket = self.ticket(number, now, **changes)
        self.life.dispatch(ticket, self.endpoint(endpoint), now, Verdict())
        return ticket

    def price_again(self, now: float) -> None:
        """All that wait are estimated and booked anew."""
        for waiter in list(self.pool.queue):
            self.life.price_again(self.life.tickets[TicketId(waiter.sequence)], now)

    def effects(self) -> list[Effect]:
        """What the lifecycle has said since the last call."""
        effects, self.life.effects = self.life.effects, []
        return effects

    def settlement(self) -> Settlement:
        """The settlement among the effects since the last call; there must be exactly one."""
        (settle,) = [effect for effect in self.effects() if isinstance(effect, Settle)]
        return settle.settlement


class Scenario:
    """A controller with one pool, driven by hand at literal times."""

    def __init__(
        self,
        pool: PoolSettings | None = None,
        *,
        endpoints: Sequence[str] = ("a",),
        settings: Settings | None = None,
        up: bool = True,
        info: EngineInfo = VLLM,
    ) -> None:
        self.controller = Controller(settings or settings_for(pool), 0.0)
        for live in self.controller._pools.values():
            know_lengths(live)
        self.now = 0.0
        self.said: list[Effect] = []
        """Every effect so far."""
        self.settlements: dict[int, Settlement] = {}
        self.demands: dict[int, Demand] = {}
        """Every request that came."""
        self.waiting: dict[int, None] = {}
        self.running: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        if endpoints:
            self.tell(EndpointsChanged("llama", tuple(EndpointId(name) for name in endpoints)), 0.0)
        if up:
            for name in endpoints:
                self.tell(Described(EndpointId(name), info), 0.0)

    # Driving

    def tell(self, event: Event, now: float) -> list[Effect]:
        """`handle`, with the contract checked."""
        return self._checked(self.controller.handle(event, now), now)

    def wake(self, now: float) -> list[Effect]:
        """`wake`, with the contract checked."""
        return self._checked(self.controller.wake(now), now)

    def reconfigure(self, settings: Settings, now: float) -> list[Effect]:
        """`reconfigure`, with the contract checked."""
        return self._checked(self.controller.reconfigure(settings, now), now)

    def run_until(self, until: float) -> list[Effect]:
        """Wake at every deadline up to `until`, as a driver's timer would."""
        effects: list[Effect] = []
        for _ in range(10_000):
            due = self.controller.next_deadline()
            if due is None or due > until:
                return effects
            effects += self.wake(max(due, self.now))
        raise AssertionError(f"deadlines at {self.now} never end")

    def arrive(self, number: int, now: float, **changes: Any) -> list[Effect]:
        """A request comes in."""
        self.demands[number] = demand(number, **changes)
        return self.tell(Arrived(self.demands[number]), now)

    def arrive_many(self, numbers: Iterable[int], now: float, **changes: Any) -> list[Effect]:
        """Several requests come in at the same instant."""
        return [effect for number in numbers for effect in self.arrive(number, now, **changes)]

    def first_token(self, number: int, now: float) -> list[Effect]:
        """The first token of a request comes."""
        return self.tell(FirstTokenCame(TicketId(number)), now)

    def progress(self, endpoint: str, now: float, *numbers: int, gap_s: float | None = None) -> list[Effect]:
        """One token comes on each of these streams of an endpoint."""
        tokens = [(TicketId(number), 1) for number in numbers]
        return self.tell(Progressed(EndpointId(endpoint), tokens, gap_s), now)

    def end(self, number: int, now: float, outcome: Outcome = Outcome.COMPLETED) -> list[Effect]:
        """A dispatched request is over, and its engine is done with it. A whole answer turns out as was asked for."""
        usage = None
        if outcome is Outcome.COMPLETED:
            asked = self.demands[number]
            usage = Usage(asked.prompt_tokens or 0, (asked.max_output_tokens or 0) if asked.generates else 0)
        return self.tell(Ended(TicketId(number), outcome, usage), now)

    def leave(self, number: int, now: float) -> list[Effect]:
        """A client goes away."""
        return self.tell(ClientLeft(TicketId(number)), now)

    def sample(self, endpoint: str, now: float, at_s: float | None = None, **fields: Any) -> list[Effect]:
        """An engine's metrics were read."""
        taken = reading(now if at_s is None else at_s, **fields)
        return self.tell(Sampled(EndpointId(endpoint), taken), now)

    # Looking

    def pool_view(self) -> PoolView:
        """The pool as the snapshot shows it."""
        return self.controller.snapshot().pools[0]

    def endpoint_view(self, name: str = "a") -> EndpointView:
        """One endpoint as the snapshot shows it."""
        return next(view for view in self.pool_view().endpoints if view.id == name)

    def state(self, name: str = "a") -> EndpointState:
        """The state of one endpoint."""
        return self.endpoint_view(name).state

    def outcome(self, number: int) -> Outcome:
        """How a ticket ended."""
        return self.settlements[number].outcome

    # The contract

    def _checked(self, effects: list[Effect], now: float) -> list[Effect]:
        self.now = now
        self.said += effects
        for index, effect in enumerate(effects):
            self._check_move(effect, effects[index + 1 :], now)
        self.controller.verify()
        given = {effect.endpoint for effect in effects if isinstance(effect, Dispatch)}
        let_through = {
            effect.endpoint
            for effect in self.said
            if isinstance(effect, Dispatch) and effect.record.mode is not Mode.ENFORCE
        }
        pool = self.pool_view()
        for view in pool.endpoints:
            if view.id not in given or view.id in let_through:
                continue
            held = view.running_requests + view.draining_requests
            assert view.kv_limit is None or view.kv_tokens <= view.kv_limit, "KV booked above the limit"
            assert not view.request_limit_is_firm or held <= view.request_limit, "requests above the limit"
        takes_over = any(ticket.never_refuse for ticket in self.controller._life.tickets.values())
        if pool.max_gpu_s is not None and not takes_over and any(isinstance(e, Hold) for e in effects):
            assert pool.waiting_gpu_s + pool.in_flight_gpu_s <= pool.max_gpu_s, "work above the pool's bound"
        assert self.controller.snapshot().tickets == len(self.waiting) + len(self.running)
        return effects

    def _check_move(self, effect: Effect, rest: list[Effect], now: float) -> None:
        """The effect is legal for where its ticket stands, and an ending is followed by its settlement."""
        number = effect.settlement.ticket if isinstance(effect, Settle) else effect.ticket
        assert number in self.demands, "an effect for a ticket that never came"
        assert number not in self.settlements, "an effect after the settlement"
        is_new = number not in self.waiting and number not in self.running
        match effect:
            case Dispatch(endpoint=endpoint, attempt=attempt, record=record):
                assert number not in self.running, "dispatched while it runs"
                assert self.attempts.get(number, 0) + 1 == attempt
                assert (now, endpoint) == (record.at_s, record.endpoint)
                self.attempts[number] = attempt
                self.waiting.pop(number, None)
                self.running[number] = endpoint
            case Hold(record=record):
                assert number not in self.waiting, "held while it waits"
                assert now == record.at_s
                self.running.pop(number, None)
                self.waiting[number] = None
            case Refuse():
                assert is_new, "refused after it was let in"
                assert isinstance(rest[0], Settle)
            case Evict():
                del self.waiting[number]
                assert isinstance(rest[0], Settle)
            case Abort():
                assert number in self.running, "aborted though it does not run"
                assert isinstance(rest[0], Settle)
            case Settle(settlement=settlement):
                assert now == settlement.at_s
                self.waiting.pop(number, None)
                self.running.pop(number, None)
                self.settlements[number] = settlement

    def close(self) -> None:
        """Let everything end, and see that each ticket was settled once and nothing is left on the books."""
        for _ in range(10_000):
            if self.running:
                self.end(next(iter(self.running)), self.now)
            elif self.waiting:
                self.leave(next(iter(self.waiting)), self.now)
            else:
                break
        for _ in range(10_000):
            due = self.controller.next_deadline()
            if due is None:
                break
            self.wake(max(due, self.now))
        assert self.controller.next_deadline() is None, "something is due for ever"
        assert sorted(self.demands) == sorted(self.settlements)
        snapshot = self.controller.snapshot()
        assert (0, 0) == (snapshot.tickets, snapshot.waiting_bytes)
        for pool in snapshot.pools:
            assert (0, 0) == (pool.waiting_requests, pool.in_flight_requests)
            assert (0.0, 0.0) == (pool.waiting_gpu_s, pool.in_flight_gpu_s)
            assert [0] * len(pool.endpoints) == [view.kv_tokens for view in pool.endpoints]
        for live in self.controller._pools.values():
            assert [0] * len(live.endpoints) == [e.pending_prefill_us for e in live.endpoints.values()]


# Reading effects


def dispatched(effects: Iterable[Effect]) -> list[tuple[int, str]]:
    """(ticket, endpoint) of every dispatch, in order."""
    return [(effect.ticket, effect.endpoint) for effect in effects if isinstance(effect, Dispatch)]


def held(effects: Iterable[Effect]) -> list[int]:
    """Tickets of every hold, in order."""
    return [effect.ticket for effect in effects if isinstance(effect, Hold)]


def turned_away(effects: Iterable[Effect]) -> list[tuple[int, Outcome]]:
    """(ticket, outcome) of every refusal, eviction and abort, in order."""
    found: list[tuple[int, Outcome]] = []
    for effect in effects:
        if isinstance(effect, Refuse | Evict):
            found.append((effect.ticket, effect.refusal.outcome))
        elif isinstance(effect, Abort):
            found.append((effect.ticket, effect.outcome))
    return found
