"""A driver for the controller that knows nothing of its insides: it obeys the contract and checks what comes back.

`Bench` keeps its own naive account of every ticket from the effects alone, so that a test can compare. `audit` does
look inside: every account that the core keeps twice must say the same twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import log
from typing import Final

from forebay.admission.controller import Controller
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
    ShareChanged,
)
from forebay.admission.fairness import WINDOW_S
from forebay.admission.filling import SKIPPED_MAX, SMALL_SKIPPED_MAX
from forebay.admission.gate import PREDICTED_WAIT
from forebay.admission.holding import what_holds_at
from forebay.admission.ledger import Account
from forebay.admission.model import DecisionRecord, Demand, EndpointId, Settlement, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.placement import place
from forebay.admission.pools import Pool
from forebay.admission.settings import Displace, OnStale, Settings
from forebay.admission.tickets import RUNNING, WAITING, Ticket
from forebay.admission.triage import VICTIMS_MAX
from forebay.admission.waiter import Waiter

ROUNDING: Final = 1e-6
SESSION_S: Final = 600.0
RETRY_S: Final = 120.0
"""How long a session and a displaced request are remembered, as documented."""
FILLING: Final = (Progressed, FirstTokenCame, Ended, Sampled, Described, EndpointsChanged, ShareChanged)
"""Events after which nobody is left who can start."""


@dataclass
class Seen:
    """What the effects have said about one ticket."""

    demand: Demand
    where: str = "new"
    """new, waiting, running or over."""
    endpoint: EndpointId | None = None
    kv_tokens: int = 0
    tried: set[EndpointId] = field(default_factory=set)
    settlement: Settlement | None = None
    held_s: float = 0.0
    """When its present wait began."""
    budget_s: float = 0.0
    """How long that may last."""
    held_absent: bool = False
    """That was set for a pool without engines."""
    work_gpu_s: float = 0.0
    protected: bool = False
    """It is the retry of a displaced request, the protected call of an admitted session, or was dispatched before."""


@dataclass
class Displacement:
    """One waiter that was pushed out, and what was known of both at that moment."""

    victim: Seen
    newcomer: Demand
    waited_s: float
    record: DecisionRecord


class Bench:
    """One controller, its clock, and the naive account."""

    def __init__(self, settings: Settings, now: float = 100.0) -> None:
        self.now = now
        self.settings = settings
        self.controller = Controller(settings, now)
        self.tickets: dict[TicketId, Seen] = {}
        self.log: list[Effect] = []
        self.dispatched_to: set[EndpointId] = set()
        """Endpoints that were given work by the last call."""
        self.displaced: list[Displacement] = []
        """By the last call."""
        self.share = 1.0
        """The part of the pool's limits that may be used."""
        self.told = False
        """The last thing was an event, and no time has passed since."""
        self.has_filled = False
        """The last call was one after which nobody is left who can start."""
        self._sessions: dict[tuple[str, str], float] = {}
        self._of_session: dict[tuple[str, str], tuple[Seen, float]] = {}
        """The call of each session that is protected, or was the last one, and since when."""
        self._retries: Counter[tuple[str, int, int, int | None]] = Counter()
        self._forgets_s: dict[tuple[str, int, int, int | None], float] = {}

    def arrive(self, demand: Demand) -> Seen:
        """Send one request in."""
        seen = self.tickets[demand.ticket] = Seen(demand)
        self.feed(Arrived(demand))
        assert seen.where != "new", "an arrival is answered at once"
        return seen

    def feed(self, event: Event) -> None:
        """Tell the controller what happened."""
        newcomer = event.demand if isinstance(event, Arrived) else None
        self.has_filled, self.told = isinstance(event, FILLING), True
        if isinstance(event, ShareChanged):
            self.share = event.share
        self._carry_out(self.controller.handle(event, self.now), newcomer)

    def advance(self, seconds: float) -> None:
        """Let time pass, waking the controller exactly when it asked for it."""
        end = self.now + seconds
        self.has_filled = self.told = False
        for _ in range(10_000):
            due = self.controller.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self._carry_out(self.controller.wake(self.now))
        else:
            raise AssertionError("the controller asks to be woken again and again without time passing")
        self.now = end

    def reconfigure(self, settings: Settings) -> None:
        """Give the controller other settings."""
        self.settings = settings
        self.has_filled = True
        self._carry_out(self.controller.reconfigure(settings, self.now))

    def where(self, place: str) -> list[Seen]:
        """Tickets that are waiting, running or over."""
        return [seen for seen in self.tickets.values() if seen.where == place]

    def rank(self, class_name: str) -> int:
        """Place of a class in the settings, 0 is the most important."""
        return [c.name for c in self.settings.classes].index(class_name)

    def _carry_out(self, effects: list[Effect], newcomer: Demand | None = None) -> None:
        self.dispatched_to = set()
        self.displaced = []
        for effect in effects:
            self.log.append(effect)
            if isinstance(effect, Settle):
                seen = self.tickets[effect.settlement.ticket]
                assert seen.settlement is None, "a ticket is settled once"
                seen.settlement, seen.where = effect.settlement, "over"
                continue
            seen = self.tickets[effect.ticket]
            assert seen.where != "over", "nothing is said of a ticket that is over"
            if isinstance(effect, Dispatch):
                assert seen.where in ("new", "waiting"), f"dispatched while {seen.where}"
                seen.where, seen.endpoint = "running", effect.endpoint
                seen.kv_tokens, seen.work_gpu_s = effect.record.kv_tokens, effect.record.cost_gpu_s
                self.dispatched_to.add(effect.endpoint)
                if seen.demand.session is not None:
                    self._sessions[seen.demand.tenant, seen.demand.session] = self.now
            elif isinstance(effect, Hold):
                assert seen.where in ("new", "running")
                self._held(seen, effect.record)
            elif isinstance(effect, Refuse):
                assert seen.where == "new", "only what never waited is refused"
            elif isinstance(effect, Evict):
                assert seen.where == "waiting", "only what waits is evicted"
                if effect.refusal.outcome is Outcome.DISPLACED:
                    record = effect.refusal.record
                    # Of a set that cannot be on time four go at a time, the others without another newcomer.
                    is_of_set = record.decided_by == "set_on_time"
                    assert newcomer is not None or is_of_set, "only a newcomer pushes others out"
                    self._displaced(seen, newcomer or seen.demand, record)
            elif isinstance(effect, Abort):
                assert seen.where == "running", "only what runs is aborted"

    def _held(self, seen: Seen, record: DecisionRecord) -> None:
        demand, now = seen.demand, self.now
        again = seen.endpoint is not None
        if seen.endpoint is not None:
            seen.tried.add(seen.endpoint)
        seen.where, seen.kv_tokens, seen.work_gpu_s = "waiting", record.kv_tokens, record.cost_gpu_s
        seen.held_s = now
        hold_s = next(p for p in self.settings.pools if p.name == demand.pool).hold_without_endpoints_s
        seen.held_absent = hold_s > record.wait_budget_s
        seen.budget_s = max(record.wait_budget_s, hold_s)
        if demand.patience_until_s is not None:
            seen.budget_s = min(seen.budget_s, max(demand.patience_until_s - now, 0.0))
        is_retry = not again and demand.retry_count > 0 and self._claims_a_retry(demand)
        later_call = not again and self._stands_for_session(seen)
        seen.protected = again or later_call or is_retry

    def _stands_for_session(self, seen: Seen) -> bool:
        key = seen.demand.tenant, seen.demand.session or ""
        admitted_s = self._sessions.get(key)
        if admitted_s is None or self.now >= admitted_s + SESSION_S:
            return False
        other, since_s = self._of_session.get(key, (seen, self.now))
        if other is not seen and other.where == "waiting" and self.now < since_s + SESSION_S:
            return False
        self._of_session[key] = seen, self.now
        return True

    def _displaced(self, seen: Seen, newcomer: Demand, record: DecisionRecord) -> None:
        key = _sizes(seen.demand)
        if self.now >= self._forgets_s.get(key, 0.0):
            self._retries[key] = 0
        self._retries[key] += 1
        self._forgets_s[key] = self.now + RETRY_S
        self.displaced.append(Displacement(seen, newcomer, self.now - seen.held_s, record))

    def _claims_a_retry(self, demand: Demand) -> bool:
        key = _sizes(demand)
        if self._retries[key] <= 0 or self.now >= self._forgets_s[key]:
            return False
        self._retries[key] -= 1
        return True


def _sizes(demand: Demand) -> tuple[str, int, int, int | None]:
    """What a retry has in common with the request that was displaced."""
    return demand.tenant, demand.body_bytes, demand.prompt_bytes, demand.max_output_tokens


# What every call must keep to


def check_displacements(bench: Bench) -> None:
    """Whoever was pushed out by the last call was neither protected, nor past half its budget, nor more important."""
    displace = bench.settings.displace
    for gone in bench.displaced:
        victim, newcomer = gone.victim, bench.tickets[gone.newcomer.ticket]
        above = bench.rank(newcomer.demand.class_name) - bench.rank(victim.demand.class_name)
        assert displace is not Displace.OFF
        assert above <= (0 if displace is Displace.SAME else -1), "a more important one was pushed out"
        assert not victim.protected
        assert gone.waited_s <= victim.budget_s / 2 + ROUNDING, "one past half its budget was pushed out"
        if gone.record.learning:
            assert newcomer.where in ("waiting", "running"), "pushed out for nothing"
            other_tenant = victim.demand.tenant != newcomer.demand.tenant  # then shares may have decided
            assert above < 0 or other_tenant or gone.record.cost_gpu_s >= newcomer.work_gpu_s - ROUNDING
            assert len(bench.displaced) <= VICTIMS_MAX


def check_bounds(bench: Bench, seen: Seen) -> None:
    """Whoever was let in by the last call fits the bounds, with all who were let in in the same instant."""
    view = bench.controller.snapshot()
    pool, settings = view.pools[0], bench.settings.pools[0]
    if seen.where == "over":
        return
    if pool.max_gpu_s is not None:
        assert pool.waiting_gpu_s + pool.in_flight_gpu_s <= pool.max_gpu_s + ROUNDING
    if seen.where == "waiting":
        own = next(c for c in pool.classes if c.name == seen.demand.class_name)
        bounds = bench.settings.classes[bench.rank(own.name)]
        assert view.waiting_bytes <= view.max_waiting_bytes
        assert bounds.max_queue is None or own.waiting_requests <= bounds.max_queue
        if bounds.max_queue_gpu_s is not None:
            assert own.waiting_gpu_s <= bounds.max_queue_gpu_s * bench.share + ROUNDING * settings.gpus
        assert settings.max_queue is None or pool.waiting_requests <= settings.max_queue


def check_limits(bench: Bench) -> None:
    """What was dispatched by the last call fits every limit, whatever was dispatched with it."""
    pool, settings = bench.controller.snapshot().pools[0], bench.settings.pools[0]
    if bench.dispatched_to and settings.max_pool_requests is not None:
        assert pool.in_flight_requests <= settings.max_pool_requests * bench.share
    if any(c.on_stale is OnStale.ADMIT for c in bench.settings.classes):
        return  # which passes whatever the books say
    for endpoint in pool.endpoints:
        if endpoint.id in bench.dispatched_to:
            assert endpoint.kv_limit is None or endpoint.kv_tokens <= endpoint.kv_limit
            if endpoint.request_limit_is_firm:
                assert endpoint.running_requests + endpoint.draining_requests <= endpoint.request_limit


def check_what_was_said(bench: Bench) -> None:
    """What may pass later carries 1 to 60 s and the rest no time, and while learning no prediction refuses anybody."""
    for effect in bench.log:
        if not isinstance(effect, Refuse | Evict):
            continue
        refusal = effect.refusal
        if refusal.outcome.may_pass_later:
            assert refusal.retry_after_s is not None
            assert 1.0 <= refusal.retry_after_s <= 60.0
        else:
            assert refusal.retry_after_s is None
        if refusal.record.learning:
            _check_no_prediction_decided(bench, effect)
    bench.log.clear()


def _check_no_prediction_decided(bench: Bench, effect: Refuse | Evict) -> None:
    """While learning only what is counted and measured turns anybody away."""
    record, seen = effect.refusal.record, bench.tickets[effect.ticket]
    assert record.decided_by != PREDICTED_WAIT
    if record.decided_by == "class_queue_gpu_seconds":
        assert bench.settings.classes[bench.rank(record.class_name)].max_queue_gpu_s is not None
    is_first_wait = seen.endpoint is None and not seen.held_absent
    if isinstance(effect, Evict) and effect.refusal.outcome is Outcome.QUEUE_TIMEOUT and is_first_wait:
        assert record.at_s >= seen.held_s + seen.budget_s - ROUNDING, "given up before its time"


def close(bench: Bench) -> None:
    """Let everything end: then nothing is held, and every ticket was settled once."""
    for _ in range(50):
        running = bench.where("running")
        if not running:
            break
        for seen in running:
            bench.feed(Ended(seen.demand.ticket, Outcome.COMPLETED))
    bench.advance(2000.0)
    for seen in bench.where("running"):
        bench.feed(ClientLeft(seen.demand.ticket))
    bench.advance(2000.0)
    assert {"over"} >= {seen.where for seen in bench.tickets.values()}
    assert all(seen.settlement is not None for seen in bench.tickets.values())
    view = bench.controller.snapshot()
    assert (view.tickets, view.waiting_bytes) == (0, 0)
    for pool in view.pools:
        assert (pool.waiting_requests, pool.in_flight_requests) == (0, 0)
        assert (pool.waiting_gpu_s, pool.in_flight_gpu_s) == (0.0, 0.0)
    audit(bench)


# The core's own accounts


def audit(bench: Bench) -> None:
    """Whatever the core has counted or filed twice is the same twice, and nobody waits beside room."""
    controller = bench.controller
    audit_books(controller)
    tickets = list(controller._life.tickets.values())
    for pool in controller._pools.values():
        waiting = [ticket for ticket in tickets if ticket.pool is pool and ticket.phase is WAITING]
        _audit_reservation(pool, waiting, bench)
        _audit_reasons(pool, waiting, bench)
        if not _audit_group(pool, waiting, bench):
            _audit_work_conservation(pool, waiting, bench)


def audit_books(controller: Controller) -> None:
    """Whatever the core has counted or filed twice is the same twice."""
    controller.verify()
    tickets = list(controller._life.tickets.values())
    assert all(ticket.phase in (WAITING, RUNNING) for ticket in tickets), "what is over is forgotten"
    waiting_bytes = sum(t.booking.body_bytes for t in tickets if t.phase is WAITING)
    assert waiting_bytes == controller._life.ledger.waiting_bytes
    for pool in controller._pools.values():
        own = [ticket for ticket in tickets if ticket.pool is pool]
        waiting = [ticket for ticket in own if ticket.phase is WAITING]
        running = [ticket for ticket in own if ticket.phase is RUNNING]
        _audit_queue(pool, waiting, running)
        _audit_deadlines(pool, waiting)
        _audit_account(pool.books.waiting, waiting)
        for name, account in pool.books.classes.items():
            _audit_account(account, [t for t in waiting if t.demand.class_name == name])
        for endpoint in pool.endpoints.values():
            _audit_endpoint(endpoint, [ticket for ticket in running if ticket.endpoint is endpoint])


def _audit_account(account: Account, tickets: list[Ticket]) -> None:
    assert account.requests == len(tickets)
    assert account.work_us == sum(ticket.booking.work_us for ticket in tickets)
    assert account.kv_tokens == sum(ticket.booking.kv_tokens for ticket in tickets)


def _audit_queue(pool: Pool, waiting: list[Ticket], running: list[Ticket]) -> None:
    """Whoever waits is filed, whoever runs is charged, with the cost that is booked."""
    queue = pool.queue
    filed = [waiter.sequence for waiter in queue]
    assert sorted(filed) == sorted(ticket.sequence for ticket in waiting)
    assert len(queue) == len(waiting)
    assert all(t.waiting and not t.charged for t in waiting)
    assert all(t.charged and not t.waiting and t.charged_us == t.booking.work_us for t in running)
    assert all((t.work_us, t.kv_tokens) == (t.booking.work_us, t.booking.kv_tokens) for t in waiting)
    smallest = queue.smallest_kv_waiter()
    assert (smallest.kv_tokens if smallest is not None else None) == min(
        (ticket.kv_tokens for ticket in waiting if not queue.classes[ticket.rank].shut), default=None
    )
    for of_class in queue.classes:
        own = [ticket for ticket in waiting if ticket.rank == of_class.index]
        assert (of_class.count, of_class.work_us) == (len(own), sum(ticket.work_us for ticket in own))
        assert (of_class.head is None) == (not own), "a class with waiters has a first one"
        in_flight = Counter(t.demand.tenant for t in running if t.rank == of_class.index)
        theirs = Counter(ticket.demand.tenant for ticket in own)
        for name, tenant in of_class.tenants.items():
            assert tenant.waiters.count == theirs[name]
            assert tenant.waiters.work_us == sum(t.work_us for t in own if t.demand.tenant == name)
            assert tenant.in_flight == in_flight[name]
            owes = tenant.finish > of_class.time.now
            assert tenant.waiters.count or tenant.in_flight or owes or tenant.parked, "an idle tenant is kept"
        assert {*in_flight, *theirs} <= {*of_class.tenants}


def _audit_deadlines(pool: Pool, waiting: list[Ticket]) -> None:
    """Each waiter has its place among the deadlines of its class, and half of its budget makes it firm."""
    for state in pool.classes.values():
        own = [ticket for ticket in waiting if ticket.rank == state.index]
        state.deadlines.verify()
        assert (len(own), sum(t.work_us for t in own)) == (len(state.deadlines), state.deadlines.work_us)
        shares, tenants = state.deadlines.shares, pool.queue.classes[state.index].tenants
        for name in {ticket.demand.tenant for ticket in own}:
            share, tenant = shares._tenants[name], tenants[name]
            assert (share.work_us, share.count) == (tenant.waiters.work_us, tenant.waiters.count)
            assert share.units == tenant.weight_units
        assert pool.queue.classes[state.index].backlogs.units == shares._units
        for ticket in own:
            entry = ticket.entry
            assert entry is not None
            assert entry.bucket is not None
            assert entry.owner is ticket
            assert (entry.work_us, entry.value) == (ticket.work_us, ticket.settings.value)
            assert entry.start_by_s >= ticket.deadline_s
            half_s = (entry.start_by_s - ticket.queued_s) / 2
            assert entry.firm_from_s <= ticket.queued_s + max(half_s, 0.0) + ROUNDING


def _audit_endpoint(endpoint: Endpoint, running: list[Ticket]) -> None:
    assert sorted(endpoint.running) == sorted(ticket.demand.ticket for ticket in running)
    assert sorted(endpoint.forecast._running) == sorted(
        t.demand.ticket for t in running if t.demand.generates
    )
    before_first = [ticket for ticket in running if ticket.first_token_s is None]
    assert endpoint.pending == len(before_first)
    assert endpoint.pending_prefill_us == sum(t.cost.prefill_us for t in before_first if t.demand.stream)
    _audit_account(endpoint.books.running, running)
    draining = [draining.booking for draining in endpoint.draining]
    assert endpoint.books.draining.requests == len(draining)
    assert endpoint.books.draining.work_us == sum(booking.work_us for booking in draining)
    assert endpoint.books.draining.kv_tokens == sum(booking.kv_tokens for booking in draining)
    assert (endpoint.idle_since_s is None) == bool(running)


def _audit_reasons(pool: Pool, waiting: list[Ticket], bench: Bench) -> None:
    """What a record says of why somebody waits is what the gate says, and its numbers show it."""
    for ticket in waiting[:5]:
        for endpoint in pool.endpoints.values():
            reason = what_holds_at(ticket, endpoint, bench.now)
            assert (reason is None) == endpoint.has_room(ticket, bench.now), f"{reason} of {endpoint.state}"
            if reason is not None and reason.name != "kv_forecast":
                assert reason.limit is not None
                assert reason.value > reason.limit or reason.name == "prefill_pacing"


def _audit_reservation(pool: Pool, waiting: list[Ticket], bench: Bench) -> None:
    """At most one endpoint is kept free, for one who waits, and who starts once it has room."""
    kept = [endpoint for endpoint in pool.endpoints.values() if endpoint.reserved_for is not None]
    assert kept == ([] if pool.reserved is None else [pool.reserved])
    for endpoint in kept:
        (ticket,) = [ticket for ticket in waiting if ticket.demand.ticket == endpoint.reserved_for]
        if bench.has_filled and pool.has_place(bench.now):
            is_shut = pool.ceilings is not None and pool.ceilings.is_shut(ticket.rank, bench.now)
            assert is_shut or not endpoint.has_room(ticket, bench.now), (
                "an endpoint is kept for one who could start"
            )


def _audit_group(pool: Pool, waiting: list[Ticket], bench: Bench) -> bool:
    """A pool is held for the sake of another of its group that has less and waits, and not for ever. True if it is."""
    member = pool.member
    if member is None:
        return False
    group = member.group
    assert group.members[member.index] is member
    assert sum(other.part for other in group.members) <= 1.0 + ROUNDING
    was_held = member.held
    is_held = member.is_held(bench.now)
    member.held = was_held  # looking changes nothing
    if is_held:
        assert pool.books.in_flight.requests, "nothing of it runs that could make way"
        assert group.contended.is_above(member.index, member.part)
        others = [other.pool for other in group.members if other is not member]
        assert any(_has_less_than_its_part(other, bench.now) for other in others), "it is held for nobody"
    if waiting and was_held:
        assert is_held or not bench.told, "it is not held any more, and nobody has looked"
        rate, part = group.served.per_s(member.index, bench.now), member.part * member.drain()
        if 0.0 < part < rate:
            opens_s = bench.now + WINDOW_S * log(rate / part)
            due_s = bench.controller.next_deadline()
            assert due_s is not None
            assert due_s <= opens_s + 0.02, "nobody will look when time has opened it"
    return was_held or is_held


def _has_less_than_its_part(pool: Pool, now: float) -> bool:
    """And waits for its engines alone."""
    member = pool.member
    assert member is not None
    waits = any(of_class.count and not of_class.shut for of_class in pool.queue.classes)
    cap = pool.settings.max_pool_requests
    engines = [
        e for e in pool.endpoints.values() if e.is_up and e.share and not e.trial and not e.is_stale(now)
    ]
    return (
        waits
        and bool(engines)
        and (cap is None or pool.books.in_flight.requests < cap)
        and _group_part(pool) < member.part
    )


def _group_part(pool: Pool) -> float:
    """Its part of what was charged lately."""
    assert pool.member is not None
    return pool.member.group.contended.share_of(pool.member.index)


def _audit_work_conservation(pool: Pool, waiting: list[Ticket], bench: Bench) -> None:
    """Nobody waits who passes the whole gate of some endpoint.

    `filling` looks at the first `SKIPPED_MAX` and then at the smallest: with fewer waiting than that it misses nobody
    but one that `_is_hidden`, and with more nobody who is first in a class that need not wait for a kept endpoint.
    Where time alone opens the gate that is seen when it does (pacing), or with the next event at the latest (the
    ceiling of utilisation, samples that get too old). Classes that start only while the pool is used little wait for
    that, and hold up nobody else.
    """
    waiting = [ticket for ticket in waiting if not _is_shut(ticket, pool, bench)]
    if not pool.has_place(bench.now):
        return
    by_events = pool.settings.target_utilization is None
    looked_at = [
        e for e in pool.endpoints.values() if bench.has_filled or (by_events and not e.is_stale(bench.now))
    ]
    if len(waiting) > SKIPPED_MAX + SMALL_SKIPPED_MAX:
        _audit_kept_from_others(pool, looked_at, bench.now)
        return
    left = [ticket for ticket in waiting if _could_start(ticket, looked_at, bench.now)]
    smallest = pool.queue.smallest_kv_waiter()
    hidden = [ticket for ticket in left if _is_hidden(ticket, smallest, looked_at, bench.now)]
    assert left == hidden, "somebody waits beside room"


def _is_shut(ticket: Ticket, pool: Pool, bench: Bench) -> bool:
    """True if its class may not start now, or if nobody has looked since that has changed."""
    if pool.ceilings is None or not pool.queue.classes[ticket.rank].rules.may_shut:
        return False
    return not bench.has_filled or pool.ceilings.is_shut(ticket.rank, bench.now)


def _audit_kept_from_others(pool: Pool, endpoints: list[Endpoint], now: float) -> None:
    """However many wait, the first of a more important class starts where an endpoint is kept if it fits there."""
    kept = pool.reserved
    if kept is not None and kept in endpoints:
        for of_class in pool.queue.classes[: kept.reserved_rank]:
            if of_class.head is not None:
                assert isinstance(of_class.head, Ticket)
                assert not _could_start(of_class.head, [kept], now), "kept from one that need not wait for it"


def _could_start(ticket: Ticket, endpoints: list[Endpoint], now: float) -> bool:
    """True if it has room somewhere, and not only by the rounding with which pacing lets prompts in early."""
    return any(
        not endpoint.decoding
        or not endpoint.pacer.paces
        or endpoint.pacer._level_at(now) >= endpoint.pacer._needed(ticket.cost.prompt_tokens)
        for endpoint in endpoints
        if place(ticket, [endpoint], now) is not None
    )


def _is_hidden(ticket: Ticket, smallest: Waiter | None, endpoints: list[Endpoint], now: float) -> bool:
    """One that books no less than the smallest, which does not fit: what is foreseen of both differs in the tail.

    Not if it is something else than size that hinders the smallest: its class where samples are too old, or its prompt.
    """
    assert isinstance(smallest, Ticket)
    for endpoint in endpoints:
        if endpoint.is_stale(now) and smallest.on_stale is not ticket.on_stale:
            return False
        if endpoint.decoding and not endpoint.pacer.allows(smallest.cost.prompt_tokens, now):
            return False
    return smallest is not ticket and smallest.demand.generates and smallest.kv_tokens <= ticket.kv_tokens
