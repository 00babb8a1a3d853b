"""The machine that decides. One object, four ways to drive it (gateway, Envoy, simulator, your own code).

The contract:

- `handle(event, now)` for everything that happens, `wake(now)` when a deadline that it asked for has come,
  `reconfigure(settings, now)` for new settings. Each returns the effects to carry out, in order. Nothing else
  changes anything. After calling any of them: carry the effects out, then arm one timer for `next_deadline()`.
- `now` is seconds on the caller's monotonic clock and never goes back. One call reads one `now`.
- No I/O, no clock, no randomness, no await: a capacity check and its booking are one step, so two requests
  decided in the same instant can never both take the last room.
- A refusal is a value. Every ticket ends in exactly one `Settle`.
- Late news about tickets and endpoints that are gone is ignored; see `events`.

A request is dispatched the moment an endpoint has room for it; `filling` looks for waiters whenever room may have
appeared: a request ended, a first token came, an engine was sampled or came back.
"""

from __future__ import annotations

from math import inf
from typing import Final

from forebay.admission.displacing import Displacing
from forebay.admission.effects import Effect
from forebay.admission.endpoints import Endpoint
from forebay.admission.errors import ConfigRefused, MisuseError
from forebay.admission.events import (
    Arrived,
    AttemptFailed,
    ClientLeft,
    DrainStarted,
    Ended,
    Event,
    Failure,
    FirstTokenCame,
    ModeChanged,
    Progressed,
    Sampled,
    WaitTold,
)
from forebay.admission.fallback import Fallback
from forebay.admission.filling import fill
from forebay.admission.gate import Verdict, examine, rests_on_prediction, wait_budget_s
from forebay.admission.groups import Groups
from forebay.admission.idle_guard import IdleGuard
from forebay.admission.keeping import export_pool, restore_pool
from forebay.admission.ledger import PoolBooks
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.model import Check, Demand, EndpointState, Exhausted, Mode, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.outliers import speak_against
from forebay.admission.pace_alarm import PaceAlarm
from forebay.admission.patience import Patience
from forebay.admission.pools import Pool
from forebay.admission.reception import Reception
from forebay.admission.reclassing import change_classes
from forebay.admission.repricing import Repricing
from forebay.admission.roster import Roster
from forebay.admission.settings import Settings
from forebay.admission.snapshot import Snapshot, TicketView
from forebay.admission.standing import Standing
from forebay.admission.stream_limits import StreamLimits
from forebay.admission.tickets import RUNNING, WAITING, Ticket
from forebay.admission.timers import Timers
from forebay.admission.unenforced import Unenforced
from forebay.admission.views import pool_view, ticket_view
from forebay.admission.watch import Watch

# As plain names: up to Python 3.11, looking a member up in its enum costs as much as a call.
_UP: Final = EndpointState.UP
_INTERRUPTED: Final = Outcome.UPSTREAM_INTERRUPTED
_QUEUE_FULL: Final = Outcome.QUEUE_FULL
_ENFORCE: Final = Mode.ENFORCE


class Controller:
    """Admission control for any number of pools."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._now = now
        self._settings = settings
        self._timers = Timers()
        self._life = Lifecycle(settings)
        self._standing = Standing(self._life.tickets)
        self._patience = Patience(self._life, self._timers, self._fill)
        self._displacing = Displacing(
            self._life, self._standing, self._patience, self._timers, self._examine, self._fill
        )
        self._guard = IdleGuard(self._timers)
        self._pace = PaceAlarm(self._timers, self._fill)
        self._watch = Watch(self._life, self._timers, self._after_leaving, self._place_again)
        self._streams = StreamLimits(self._life, self._timers, self._after_leaving, self._fill)
        self._repricing = Repricing(self._life, self._timers, self._fill)
        self._roster = Roster(self._repricing, self._watch, self._patience, self._guard, self._fill)
        self._pools = self._roster.pools
        self._unenforced = Unenforced(self._life, self._timers, self._patience, self._pools, self._started)
        self._reception = Reception(settings, self._pools, self._life.quota, now)
        self._fallback = Fallback(
            self._life,
            self._pools,
            self._received,
            self._examine,
            self._begin,
            granted=self._reception.granted,
        )
        self._groups = Groups()
        for pool in settings.pools:
            self._add_pool(pool.name, settings)
        self._groups.apply(settings, self._pools)
        self._unenforced.apply(now)

    # The contract

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event. Raises: MisuseError if the contract is broken, InvariantError for our own bugs."""
        self._advance(now)
        match event:  # the frequent ones first
            case Arrived():
                self._arrived(event, now)
            case Ended():
                self._ended(event, now)
            case Progressed():
                self._progressed(event, now)
            case FirstTokenCame():
                self._first_token_came(event, now)
            case ClientLeft():
                self._client_left(event, now)
            case Sampled():
                self._sampled(event, now)
            case AttemptFailed():
                self._attempt_failed(event, now)
            case DrainStarted():
                self._drain_started(event, now)
            case ModeChanged():
                self._unenforced.mode_changed(event, now)
            case WaitTold():
                self._patience.told(event, now)
            case _:
                self._roster.heard(event, now)
        return self._take_effects()

    def wake(self, now: float) -> list[Effect]:
        """Do what has become due."""
        self._advance(now)
        self._timers.run_due(now)
        return self._take_effects()

    def next_deadline(self) -> float | None:
        """When `wake` is wanted next; None if nothing is due however long it takes."""
        return self._timers.next_s()

    def reconfigure(self, settings: Settings, now: float) -> list[Effect]:
        """Replace the settings. Books, queues and what was learned stay.

        Raises:
            ConfigRefused: a pool or class that still has requests is missing; nothing was changed.
        """
        self._advance(now)
        names = {pool.name: pool for pool in settings.pools}
        classes = {c.name: c for c in settings.classes}
        for ticket in self._life.tickets.values():
            if ticket.demand.pool not in names or ticket.demand.class_name not in classes:
                raise ConfigRefused(
                    f"pool {ticket.demand.pool!r} with class {ticket.demand.class_name!r} still has requests; "
                    "keep both until they have ended"
                )
        self._settings = self._life.settings = settings
        for ticket in self._life.tickets.values():
            ticket.settings = classes[ticket.demand.class_name]  # budgets that run are left as they are
        self._reception.reconfigure(settings, now)
        self._watch.reconfigure()
        for name in [name for name in self._pools if name not in names]:
            self._roster.drop_pool(name)
            del self._life.ledger.pools[name]
        for name, pool_settings in names.items():
            if name in self._pools:
                change_classes(self._pools[name], settings)
                self._pools[name].reconfigure(pool_settings, settings, now)
            else:
                self._add_pool(name, settings)
        self._groups.apply(settings, self._pools)
        self._unenforced.reconfigure(settings, now)
        for pool in self._pools.values():
            self._repricing.begin(pool, now)
            self._fill(pool, now)
        return self._take_effects()

    def classes_in_use(self) -> tuple[str, ...]:
        """Classes that have requests: those that `reconfigure` refuses to take away."""
        used = {ticket.demand.class_name for ticket in self._life.tickets.values()}
        return tuple(c.name for c in self._settings.classes if c.name in used)

    def snapshot(self) -> Snapshot:
        """A frozen view of now."""
        return Snapshot(
            at_s=self._now,
            draining=self._patience.drain_until_s is not None,
            tickets=len(self._life.tickets),
            waiting_bytes=self._life.ledger.waiting_bytes,
            max_waiting_bytes=self._settings.max_waiting_bytes,
            pools=tuple(pool_view(pool, self._now) for pool in self._pools.values()),
            mode=self._unenforced.modes.general,
            live_modes=self._unenforced.modes.live(),
            rules=self._reception.rule_views(),
        )

    def look_up(self, ticket_id: TicketId, now: float) -> TicketView | None:
        """A frozen view of one request; None if it is over, or never came. Changes nothing."""
        ticket = self._life.tickets.get(ticket_id)
        return None if ticket is None else ticket_view(ticket, max(now, self._now))

    def export_learned(self) -> dict[str, object]:
        """What was learned of each pool, as plain data (JSON), for `restore_learned` of a later process."""
        return {name: export_pool(pool) for name, pool in self._pools.items()}

    def restore_learned(self, learned: dict[str, object], now: float) -> list[str]:
        """Take up what an earlier process learned; call it before the first event. Returns what could not be used."""
        return [
            f"pool {name!r}: {fault}"
            for name, pool in self._pools.items()
            if name in learned
            for fault in restore_pool(pool, learned[name], now)
        ]

    def exhausted(self, tenant: str, plan: str, now: float) -> Exhausted | None:
        """What a tenant has used up, so that its request need not be read; None if it may ask. Changes nothing."""
        if not self._unenforced.enforces_all():
            return None  # then it depends on what it asks for
        known = self._reception.plan(plan)
        return None if known is None else self._life.quota.exhausted(tenant, known, max(now, self._now))

    def verify(self) -> None:
        """Check that the books balance. Raises: InvariantError. For tests, dumps and the simulator."""
        self._life.ledger.verify()

    # Requests

    def _arrived(self, event: Arrived, now: float) -> None:
        demand = event.demand
        if demand.ticket in self._life.tickets:
            raise MisuseError(f"ticket {demand.ticket} is in use")
        if demand.session is not None:
            demand = self._standing.in_its_class(demand, self._reception.classes_of(demand.plan), now)
        ticket = self._reception.arrived(demand, now)
        demand, pool = ticket.demand, ticket.pool
        state = pool.classes[demand.class_name]
        if demand.retry_count:
            pool.retry_after.returned(state.index)
        ticket.deadline_s = self._patience.until_s(ticket, wait_budget_s(ticket, now), now)
        self._fill(pool, now)  # room that time alone has made is for those who wait
        if state.mode is not _ENFORCE and self._unenforced.let_through(ticket, state, now):
            return
        verdict = self._examine(ticket, now)
        if verdict.outcome is _QUEUE_FULL or (verdict.outcome is None and verdict.takes_over):
            verdict = self._displacing.make_room(ticket, verdict, now)
        if verdict.outcome is not None:
            if pool.settings.fallback is not None and self._fallback.of_arrival(ticket, verdict, now):
                return
            self._life.refuse(ticket, verdict, verdict.outcome, now)
            if rests_on_prediction(verdict, ticket):
                self._guard.look(pool, now)
        else:
            self._begin(ticket, verdict, now)

    def _begin(self, ticket: Ticket, verdict: Verdict, now: float) -> None:
        """The gate has let it in: it starts, or waits."""
        if verdict.endpoint is not None:
            self._life.dispatch(ticket, verdict.endpoint, now, verdict)
            self._started(ticket, verdict.endpoint, now)
        else:
            self._life.hold(ticket, verdict, now)
            self._pace.held(ticket, now)
            self._patience.begin(ticket, now, protected=self._standing.is_protected(ticket, now))
            self._displacing.thin_out(ticket, now)
        # What was refused takes nobody's time.
        ticket.pool.classes[ticket.demand.class_name].arrived(ticket.cost.work_us, now)

    def _received(self, demand: Demand, host: Ticket, now: float) -> Ticket:
        """The ticket of a request at a pool that it falls back to."""
        ticket = self._reception.guest(demand, host, now)
        ticket.deadline_s = self._patience.until_s(ticket, wait_budget_s(ticket, now), now)
        self._fill(ticket.pool, now)
        return ticket

    def _sampled(self, event: Sampled, now: float) -> None:
        self._roster.sampled(event, now)
        self._reception.sampled(event, self._roster.of(event.endpoint)[0])

    def _started(self, ticket: Ticket, endpoint: Endpoint, now: float) -> None:
        self._standing.started(ticket, now)
        self._watch.arm(endpoint, ticket.pool, now)
        if len(endpoint.running) == 1:
            self._guard.look(ticket.pool, now)

    def _examine(self, ticket: Ticket, now: float) -> Verdict:
        draining = self._patience.drain_until_s is not None
        return examine(ticket, self._life.ledger, self._settings, now, draining=draining)

    def _first_token_came(self, event: FirstTokenCame, now: float) -> None:
        ticket = self._life.tickets.get(event.ticket)
        if ticket is not None and ticket.phase is RUNNING:
            self._life.first_token(ticket, now)
            if ticket.pool.absent_since_s is not None:
                self._roster.check_absence(ticket.pool, now)
            self._fill(ticket.pool, now)

    def _progressed(self, event: Progressed, now: float) -> None:
        pool, endpoint = self._roster.of(event.endpoint)
        if pool is None or endpoint is None:
            return
        if not event.alive:
            for ticket_id, _ in event.tokens:
                ticket = endpoint.running.get(ticket_id)
                if ticket is not None:
                    ticket.last_byte_s = now
            return
        most = 0
        for ticket_id, output_events in event.tokens:
            ticket = endpoint.running.get(ticket_id)
            if ticket is not None:
                self._life.progress(ticket, output_events, now)
                if output_events > most:
                    most = output_events
        endpoint.progressed(most, event.mean_gap_s, now)
        if pool.settings.max_output_tokens is not None:
            self._streams.cut_long(endpoint, pool, now)
        self._roster.follow(pool, endpoint, now)
        self._watch.arm(endpoint, pool, now)
        if pool.absent_since_s is not None:
            self._roster.check_absence(pool, now)
        endpoint.meter.observe(now, saturated=_is_saturated(pool))
        self._fill(pool, now)

    def _ended(self, event: Ended, now: float) -> None:
        ticket = self._life.tickets.get(event.ticket)
        if ticket is None or ticket.phase is not RUNNING or ticket.endpoint is None:
            return
        endpoint = ticket.endpoint
        if event.output_events > ticket.output_events:
            ticket.output_events = event.output_events
        self._life.finish(ticket, event.outcome, event.usage, now, engine_goes_on=event.engine_goes_on)
        if event.outcome is _INTERRUPTED:
            endpoint.count("interrupted")
            speak_against(endpoint, ticket.pool, now)
        endpoint.meter.observe(now, saturated=_is_saturated(ticket.pool))
        self._after_leaving(endpoint, ticket.pool, now)

    def _client_left(self, event: ClientLeft, now: float) -> None:
        ticket = self._life.tickets.get(event.ticket)
        if ticket is None:
            return
        if ticket.phase is WAITING:
            self._life.drop(ticket, now)
            self._fill(ticket.pool, now)
        elif ticket.endpoint is not None:
            ticket.output_events = max(ticket.output_events, event.output_events)
            self._life.finish(ticket, Outcome.CLIENT_GONE, None, now, engine_goes_on=True)
            self._after_leaving(ticket.endpoint, ticket.pool, now)

    def _attempt_failed(self, event: AttemptFailed, now: float) -> None:
        ticket = self._life.tickets.get(event.ticket)
        endpoint = ticket.endpoint if ticket is not None else None
        if ticket is None or endpoint is None or ticket.phase is not RUNNING or endpoint.id != event.endpoint:
            return
        self._roster.attempt_failed(endpoint, ticket.pool, event.failure, now)
        ticket.tried |= {endpoint.id}
        if ticket.first_token_s is not None:
            # Something was relayed: a second attempt would say it twice.
            detail = f"The engine failed in mid-answer ({event.failure.value})."
            check = Check("answer_begun", 1, 0, False)
            self._life.give_up(
                ticket, Outcome.UPSTREAM_INTERRUPTED, now, check, detail, engine_goes_on=event.engine_goes_on
            )
            self._after_leaving(endpoint, ticket.pool, now)
            return
        detail = f"The engine failed before its first token ({event.failure.value})."
        self._place_again(
            ticket,
            now,
            detail,
            unreached=event.failure is Failure.CONNECT,
            engine_goes_on=event.engine_goes_on,
        )
        self._after_leaving(endpoint, ticket.pool, now)

    def _place_again(
        self, ticket: Ticket, now: float, detail: str, *, unreached: bool, engine_goes_on: bool
    ) -> None:
        """Send a request whose attempt failed to another endpoint, or end it if there is none."""
        others = [e for e in ticket.pool.endpoints.values() if e.is_up and e.id not in ticket.tried]
        most = self._settings.max_attempts
        if not others or ticket.attempts >= most:
            check = Check("other_endpoints", 0, None, False)
            if others:
                check = Check("attempts", ticket.attempts + 1, most, False)
            # Nothing was started on an engine that could not be reached: absent, not failed.
            outcome = Outcome.NO_ENDPOINTS if unreached else Outcome.UPSTREAM_FAILED
            self._life.give_up(ticket, outcome, now, check, detail, engine_goes_on=engine_goes_on)
            return
        left = wait_budget_s(ticket, now)
        if not ticket.never_refuse:
            left = min(left, ticket.settings.wait_budget_s - ticket.waited_s)
        ticket.deadline_s = self._patience.until_s(ticket, left, now)
        self._life.take_back(ticket, now, engine_goes_on=engine_goes_on, detail=detail)
        if self._unenforced.let_go(ticket, now):
            return
        self._patience.begin(ticket, now, protected=True)
        self._fill(ticket.pool, now)

    def _drain_started(self, event: DrainStarted, now: float) -> None:
        self._patience.drain(event.until_s)

    # Room that appears

    def _fill(self, pool: Pool, now: float) -> None:
        if pool.books.waiting.requests:
            if not pool.holds_all:
                self._unenforced.let_waiters_go(pool, now)
            for ticket in fill(pool, self._life, now):
                if ticket.endpoint is not None:
                    self._started(ticket, ticket.endpoint, now)
            self._pace.arm(pool, pool.paced_until_s)
            if pool.streams_due_s < inf and pool.books.waiting.requests:
                self._streams.look(pool, now)

    def _after_leaving(self, endpoint: Endpoint, pool: Pool, now: float) -> None:
        """Something left an endpoint: its room may serve another."""
        self._watch.arm(endpoint, pool, now)
        if not endpoint.running:
            self._guard.look(pool, now)
        if endpoint.state is not _UP or pool.absent_since_s is not None:
            self._roster.forget_if_removed(endpoint, pool)
            self._roster.check_absence(pool, now)
        self._fill(pool, now)

    def _add_pool(self, name: str, settings: Settings) -> None:
        pool_settings = next(p for p in settings.pools if p.name == name)
        books = self._life.ledger.pools[name] = PoolBooks(tuple(c.name for c in settings.classes))
        self._pools[name] = Pool(pool_settings, settings, books, self._now)

    def _advance(self, now: float) -> None:
        if now < self._now:
            raise MisuseError(f"time went back from {self._now} to {now}")
        self._now = now

    def _refill_groups(self, now: float) -> None:
        """Pools that were held for the sake of others of their group may not be any more."""
        while True:
            pool = self._groups.opened(now)
            if pool is None:
                break
            self._fill(pool, now)
        for member in self._groups.members:
            if member.held and member.pool.books.waiting.requests:
                self._pace.arm(member.pool, member.opens_s(now))

    def _take_effects(self) -> list[Effect]:
        if self._groups.members:
            self._refill_groups(self._now)
        effects, self._life.effects = self._life.effects, []
        return effects


def _is_saturated(pool: Pool) -> bool:
    """True if it gets through as much as its engines can: some wait, and not for others of its group."""
    return pool.books.waiting.requests > 0 and (pool.member is None or not pool.member.held)
