"""One endpoint as the core sees it: what it holds and whether it has room; `rotation` says whether it is there at all.

Owns the endpoint's part of the books (through the ledger), its running tickets and its draining bookings.
It decides nothing about requests: `controller` does, by asking here.
"""

from __future__ import annotations

from math import inf
from typing import Final

from forebay.admission.capacity import KV_CALM, ConcurrencyLimit, PrefillPacer, prefill_window_s
from forebay.admission.counted_prompts import PromptCount
from forebay.admission.fill_factor import FillFactor
from forebay.admission.forecast import Curves, KvForecast
from forebay.admission.ledger import DrainingBooking, EndpointBooks
from forebay.admission.model import (
    MICRO,
    EndpointId,
    EndpointState,
    EngineInfo,
    EngineKind,
    EngineSample,
    TicketId,
)
from forebay.admission.rotation import Rotation
from forebay.admission.settings import OPTIMISTIC_LAW, OnStale, PoolSettings, SpeedLaw
from forebay.admission.speed import DrainMeter
from forebay.admission.steplaw import StepLearner
from forebay.admission.steps import CHUNK_TOKENS, StepSources
from forebay.admission.tickets import Ticket
from forebay.admission.utilization import Utilization, rho_of
from forebay.admission.whole_answers import WholeAnswers

_UP: Final = EndpointState.UP
_ROUNDING_S: Final = 1e-9
"""At the moment that `opens_s` names, rounding must not say no again."""

UNDESCRIBED = EngineInfo(EngineKind.OPENAI)


class Endpoint(Rotation):
    """One addressable engine."""

    def __init__(
        self,
        endpoint_id: EndpointId,
        order: int,
        settings: PoolSettings,
        tightest_s: float,
        stale_after_s: float,
        *,
        curves: Curves,
    ) -> None:
        super().__init__()
        self.id = endpoint_id
        self.order = order
        """Position in the configuration: breaks ties."""
        self.pool_settings = settings
        self.stale_after_s = stale_after_s
        self.described = False
        self.info = UNDESCRIBED
        self.books = EndpointBooks()
        self.limit = ConcurrencyLimit(tightest_s)
        self.meter = DrainMeter()
        self.running: dict[TicketId, Ticket] = {}
        self.sequences = 0
        """Answers of what runs: one for each sample."""
        self.draining: list[DrainingBooking] = []
        self.sample: EngineSample | None = None
        self.heard_s = 0.0
        """When the engine last told its load, or was found to be one that does."""
        self.sampled_since = 0
        """Dispatches since the last sample."""
        self._begin_learning(settings, curves)
        self.fresh_gap_s: float | None = None
        """The last mean time between tokens, until the limit has looked at it."""
        self.step_gap_s: float | None = None
        """Decayed mean time between tokens of a stream."""
        self.reserved_for: TicketId | None = None
        self.reserved_rank = 0
        """Its class's rank: more important classes do not wait for it."""
        self.reserved_tenant = ""
        self.reserved_tag = 0.0
        """Its finish tag: other tenants of its class that come before it do not wait for it either."""
        self.reserved_class_tag = inf
        """That of its class: more important classes that come after it wait for it. Infinite if none does."""
        self.share = 1.0
        self.kv_limit: int | None = None
        """KV tokens that may be booked; None if nobody knows the capacity."""
        self.find_kv_limit()
        self.watch_due_s: float | None = None
        """When the controller next looks at this endpoint's silence; None while it is not watched."""

    def _begin_learning(self, settings: PoolSettings, curves: Curves) -> None:
        self.pending = 0
        """Requests without a first token."""
        self.pending_streams = 0
        """The streams among them."""
        self.alone: TicketId | None = None
        """The one whose prefill nothing else has met so far, if there is one."""
        self.pending_prefill_us = 0
        """Prefill of the streams among them."""
        self.unstreamed_until_s = 0.0
        """When the prompts of the others will have been worked off, one after the other: nobody tells."""
        self.prompt_count = PromptCount()
        self.forecast = KvForecast(curves)
        self.fill = FillFactor()
        self.pacer = PrefillPacer()
        self.sources = StepSources(settings.law or OPTIMISTIC_LAW)
        self.whole_answers = WholeAnswers(self.sources, settings.law or OPTIMISTIC_LAW)
        self.utilization = Utilization()
        self.prefill_window_s = prefill_window_s(0.0)
        self.idle_since_s: float | None = 0.0
        """Since when nothing of ours is here; None while something is."""
        self.was_idle = True
        """Something of the time since the last sample it had nothing to do."""
        self.was_loud = True
        """Since the last batch of progress something was dispatched, or waited for its first token."""

    def come_up(self, now: float) -> bool:
        came = super().come_up(now)
        if came and not self.running:
            self.idle_since_s = now
        return came

    def find_kv_limit(self) -> None:
        """Work out `kv_limit` anew: the settings, the engine or the share have changed."""
        tokens, settings = self.kv_tokens, self.pool_settings
        headroom = settings.headroom if settings.max_inflight_tokens is None else 1.0
        self.kv_limit = None if tokens is None else int(tokens * headroom * self.share)
        self.forecast.block_tokens = float(self.info.kv_block_tokens)

    @property
    def kv_tokens(self) -> int | None:
        """KV tokens of the engine, or as many as were configured; None if nobody knows."""
        settings = self.pool_settings
        if settings.max_inflight_tokens is not None:
            return settings.max_inflight_tokens
        return self.info.kv_tokens or (settings.law.kv_tokens if settings.law is not None else None)

    @property
    def kv_capacity(self) -> float | None:
        """This replica's share of them."""
        tokens = self.kv_tokens
        return None if tokens is None else tokens * self.share

    @property
    def request_limit(self) -> tuple[int, bool]:
        """(requests that may be held, True if the limit is firm and not merely found)."""
        settings = self.pool_settings
        if settings.max_inflight_requests is not None:
            return int(settings.max_inflight_requests * self.share), True
        if self.info.max_requests is not None:
            return max(int(self.info.max_requests * self.share), 1), True
        return self.limit.limit, False

    def is_stale(self, now: float) -> bool:
        """True if this engine tells its load, and has not for too long."""
        return self.info.reports_load and now - self.heard_s > self.stale_after_s

    def is_open(self, now: float, *, believe_old: bool = False) -> bool:
        """The part of the gate that is the same for every request.

        Args:
            now: this moment.
            believe_old: take a sample for true however old it is.
        """
        if self.state is not _UP or not self.share:
            return False
        books = self.books
        held = books.running.requests + books.draining.requests
        if held and (self.trial or (self.entry_limit and held >= self.entry_limit)):
            return False
        limit, firm = self.request_limit
        if held >= limit and (
            firm
            or self.sampled_since >= limit
            or self.limit.holds_when_calm
            or not self._is_calm(now, believe_old)
        ):
            return False
        target = self.pool_settings.target_utilization
        if target is not None and held and self.utilization.value(now) >= target:
            return False
        return self.prefill_under_way_s(now) <= self.prefill_window_s + _ROUNDING_S

    def prefill_under_way_s(self, now: float) -> float:
        """Seconds of prefill that were sent and have not come back, as far as anybody can tell."""
        pending_us, unseen_s = self.pending_prefill_us, self.unstreamed_until_s - now
        pending_s = pending_us / (MICRO * self.meter.speed) if pending_us else 0.0
        return pending_s + unseen_s if unseen_s > 0.0 else pending_s

    def opens_s(self, now: float) -> float:
        """When its prefill window opens by itself; infinite if an event will open it, or it is open."""
        if self.unstreamed_until_s <= now or self.state is not _UP:
            return inf
        pending_s = self.pending_prefill_us / (MICRO * self.meter.speed)
        until_s = self.unstreamed_until_s + pending_s - self.prefill_window_s
        # The rest of the window is that of the streams: not before their prompts have come back.
        return until_s if now < until_s <= self.unstreamed_until_s else inf

    def _is_calm(self, now: float, believe_old: bool) -> bool:
        """The last sample is fresh and shows an engine with nothing waiting and KV to spare."""
        sample = self.sample
        return (
            sample is not None
            and sample.waiting == 0
            and (believe_old or now - sample.at_s <= self.stale_after_s)
            and (sample.kv_usage is None or sample.kv_usage < KV_CALM)
        )

    def has_room(self, ticket: Ticket, now: float) -> bool:
        """True if this request may be dispatched here now."""
        if self.reserved_for is not None and self.is_kept_from(ticket):
            return False
        if self.is_stale(now):
            return self._has_room_unseen(ticket, now)
        return (
            self.fits_now(ticket)
            and self.is_open(now)
            and (not self.decoding or self.pacer.allows(ticket.price.cost.fresh_tokens, now))
            and self.can_ever_hold(ticket)
        )

    def is_kept_from(self, ticket: Ticket) -> bool:
        """True if it is kept free for another one, of a class that is not less important, or of a tenant before it."""
        if self.reserved_for == ticket.demand.ticket:
            return False
        own = ticket.pool.queue.classes[ticket.class_index]
        if ticket.class_index < self.reserved_rank:
            return own.finish + ticket.work_us / own.weight >= self.reserved_class_tag
        if ticket.class_index > self.reserved_rank or ticket.tenant == self.reserved_tenant:
            return True
        return own.tag_of(ticket) >= self.reserved_tag

    def paced_until_s(self, ticket: Ticket, now: float, *, before_s: float = inf) -> float:
        """When pacing lets this request enter; infinite if it waits for something else, or not before `before_s`."""
        if not self.pacer.paces or not self.decoding or self.id in ticket.tried or self.is_stale(now):
            return inf
        until_s = self.pacer.next_at(ticket.price.cost.fresh_tokens, now)
        if not now < until_s < before_s or (self.reserved_for is not None and self.is_kept_from(ticket)):
            return inf
        passes = self.fits_now(ticket) and self.is_open(now) and self.can_ever_hold(ticket)
        return until_s if passes else inf

    def _has_room_unseen(self, ticket: Ticket, now: float) -> bool:
        """The same for an engine whose samples are too old: the request's class says what to believe."""
        on_stale = ticket.on_stale
        if on_stale is OnStale.REFUSE:
            return False
        if on_stale is OnStale.ADMIT:
            return self.is_up and self.share > 0 and self.can_ever_hold(ticket)
        is_open = self.is_open(now, believe_old=on_stale is OnStale.LAST_KNOWN)
        return is_open and self.fits_now(ticket) and self.can_ever_hold(ticket)

    def fits_now(self, ticket: Ticket) -> bool:
        """True if its KV tokens can be booked beside what is held, and the cache is not foreseen to run over."""
        limit, books = self.kv_limit, self.books
        if limit is None:
            return True
        held_tokens = books.running.kv_tokens + books.draining.kv_tokens
        if held_tokens + ticket.cost.kv_tokens > limit:
            return False
        if not held_tokens or not ticket.demand.generates:
            return True  # alone it has the whole cache
        capacity = self.kv_capacity
        if capacity is None:
            return True
        price = ticket.price
        room = capacity * self.fill.limit_for(ticket.rank_is_first) - books.draining.kv_tokens
        return self.forecast.fits(
            price.cost.prompt_tokens, ticket.demand.samples, price.lengths, price.cap, room
        )

    def can_ever_hold(self, ticket: Ticket) -> bool:
        """False if the prompt alone is beyond this engine's context window."""
        context = self.info.context_tokens
        if context is None or ticket.cost.prompt_tokens <= context * ticket.demand.prompts:
            return True
        return ticket.pool.pricing.surely_needs(ticket.demand) <= context

    def load_s(self) -> float:
        """Seconds of work held, at this endpoint's own speed."""
        return self.books.work_us / (self.meter.speed * MICRO)

    def take_sample(self, sample: EngineSample, now: float) -> None:
        """A reading came in. Older readings than the last are ignored."""
        last = self.sample
        if last is not None and sample.at_s < last.at_s:
            return
        if last is not None and sample.differs_from(last):
            self.show_life(now)
        self.sample = sample
        self.heard_s = sample.at_s
        self.sampled_since = sum(1 for ticket in self.running.values() if ticket.dispatched_s > sample.at_s)
        if sample.waiting:
            self.whole_answers.queue_seen(sample.waiting, sample.at_s)
        if self.limit.sampled(sample, expected_waiting=self.pending_streams):
            self.fill.preempted(now)
            self.whole_answers.doubt()
        else:
            self.fill.tick(now)
        self._learn_steps(sample)

    def _learn_steps(self, sample: EngineSample) -> None:
        """What the engine's counters say about its speed."""
        # The prompt of an answer that is not streamed is through when it should be: its first token is its last.
        chunk_tokens = self.sources.clock.chunk_tokens
        half_done = any(
            ticket.first_token_s is None
            and ticket.cost.fresh_tokens > chunk_tokens
            and (ticket.demand.stream or sample.at_s < self.unstreamed_until_s)
            for ticket in self.running.values()
        )
        self.sources.sampled(
            sample,
            was_idle=self.was_idle,
            half_done=half_done,
            sequences=float(len(self.running)),
            kv_tokens=self.forecast.held_tokens,
            kv_capacity=self.info.kv_tokens,
        )
        self.was_idle = not self.running

    # What runs here

    def take_on(self, ticket: Ticket, now: float) -> None:
        """A request starts here."""
        if not self.running:
            self.last_life_s = now
            self.idle_since_s = None
        demand, price = ticket.demand, ticket.price
        self.running[demand.ticket] = ticket
        self.sampled_since += 1
        self.sequences += demand.samples
        self.prompt_count.dispatched(self.sequences_in_flight)
        self.was_loud = True
        self.alone = None if self.pending or self.draining else demand.ticket
        self.pending += 1
        if demand.stream:
            self.pending_streams += 1
            self.pending_prefill_us += price.cost.prefill_us
        else:
            took_s = price.cost.prefill_us / (MICRO * self.meter.speed)
            self.unstreamed_until_s = max(self.unstreamed_until_s, now) + took_s
        if demand.generates:
            self.forecast.add(
                demand.ticket, price.cost.prompt_tokens, demand.samples, price.lengths, price.cap
            )
        self.pacer.spend(price.cost.fresh_tokens, now)
        if now >= self.sources.taught_until_s and now >= self.whole_answers.rests_until_s:
            slots = self.info.max_requests
            self.whole_answers.dispatched(
                ticket,
                self.running,
                now,
                slots=inf if slots is None else slots * self.share,
                goes_on=self.goes_on,
            )
        elif self.whole_answers.counts:
            self.whole_answers.stop()

    @property
    def goes_on(self) -> bool:
        """True if the engine may still be at work on something that was given up: it does not stop when told to."""
        return bool(self.draining) and not self.info.aborts_unstreamed

    def prefilled(self, ticket: Ticket, now: float) -> None:
        """Its prompt has been worked off. Once for each ticket."""
        self.pending -= 1
        if self.entry_limit:
            self.enter()
        prompt_tokens, cached_tokens = ticket.cost.prompt_tokens, ticket.cost.cached_tokens
        self.sources.prompt_done(prompt_tokens, cached_tokens)
        if self.info.counts_while_running:
            self.prompt_count.prompt_done(ticket.demand, prompt_tokens, now)
        if not ticket.demand.stream:
            self._unseen_done(now)
            return
        self.pending_streams -= 1
        self.pending_prefill_us -= ticket.cost.prefill_us
        if self.alone == ticket.demand.ticket and self.queues_nothing:
            self.sources.learn_first_token(
                now - ticket.dispatched_s,
                now,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                sequences=float(len(self.running) - 1),
                kv_tokens=self.forecast.held_tokens - prompt_tokens,
            )
        self.alone = None

    def _unseen_done(self, now: float) -> None:
        """A prompt that is not streamed is not under way any more. With none left, what was thought of them is over."""
        if self.pending == self.pending_streams and self.unstreamed_until_s > now:
            self.unstreamed_until_s = now

    @property
    def sequences_in_flight(self) -> int:
        """Sequences that are there, or may still be: an engine counts each answer to a request by itself."""
        count = self.sequences
        for draining in self.draining:
            count += draining.samples
        return count

    @property
    def decoding(self) -> int:
        """Requests that generate."""
        return len(self.running) - self.pending

    @property
    def queues_nothing(self) -> bool:
        """True if the engine does not say that requests wait inside it."""
        return self.sample is None or not self.sample.waiting

    def progressed(self, most_events: int, gap_s: float | None, now: float) -> None:
        """A batch of progress was reported, and each ticket has been told."""
        if gap_s is not None:
            self.fresh_gap_s = gap_s
            last = self.step_gap_s
            self.step_gap_s = gap_s if last is None else last + 0.1 * (gap_s - last)
            self.sources.learn_gap(
                gap_s,
                now,
                events=most_events,
                quiet=not self.was_loud and not self.pending and self.queues_nothing,
                sequences=float(len(self.running)),
                kv_tokens=self.forecast.held_tokens,
            )
        self.was_loud = self.pending > 0
        self.forecast.refresh(now)
        self.show_life(now)

    def advance(self, ticket: Ticket) -> None:
        """More of its answer has come."""
        if ticket.demand.generates:
            samples = ticket.demand.samples
            tokens = ticket.output_events * self.sources.pace.tokens_per_event
            self.forecast.advance(ticket.demand.ticket, int(tokens / samples if samples > 1 else tokens))

    def let_go(self, ticket: Ticket, now: float) -> None:
        """It is not here any more; what it leaves behind is booked as draining."""
        del self.running[ticket.demand.ticket]
        self.sequences -= ticket.demand.samples
        if ticket.first_token_s is None:
            self.pending -= 1
            if ticket.demand.stream:
                self.pending_streams -= 1
                self.pending_prefill_us -= ticket.cost.prefill_us
            else:
                self._unseen_done(now)
        if ticket.demand.generates:
            self.forecast.remove(ticket.demand.ticket)
        if self.whole_answers.counts:
            self.whole_answers.gone(ticket, now)
        if not self.running:
            self.was_idle = True
            self.idle_since_s = now
            self.utilization.observe(now, 0.0, 0.0, 0.0)

    @property
    def learner(self) -> StepLearner:
        """The law to count costs by: that of counters and streams, or while it is not trusted that of whole answers."""
        own, other = self.sources.learner, self.whole_answers.learner
        return other if other.is_trusted and not own.is_trusted else own

    def follow(self, law: SpeedLaw, tightest_tpot_s: float, now: float) -> None:
        """What runs here has changed, or how fast it is: the pace of prompts, and what is in use."""
        speed = self.meter.speed
        self.prefill_window_s = prefill_window_s(CHUNK_TOKENS * law.c1_s / speed)
        # Paced only by steps that were seen: a guess would throttle an engine for being unlike the guess.
        learner = self.sources.learner
        known = learner.is_trusted or self.pool_settings.law is not None
        self.pacer.follow(
            now,
            learner.law() if learner.is_trusted else law,
            decoding=self.decoding,
            kv_tokens=self.forecast.held_tokens,
            tightest_tpot_s=tightest_tpot_s if known else inf,
        )
        gap_s, self.fresh_gap_s = self.fresh_gap_s, None
        if gap_s is not None and known:
            self.limit.observe_step(
                gap_s / self.sources.pace.steps_per_event,
                tightest_tpot_s,
                in_flight=len(self.running),
                empty_step_s=law.c0_s / speed,
            )
        limit, _ = self.request_limit
        capacity = self.kv_capacity
        self.utilization.observe(
            now,
            self.books.requests / limit if limit else 1.0,
            self.forecast.peak() / capacity if capacity else 0.0,
            # As for pacing: a guessed law would call an engine busy for being slower than the guess.
            rho_of((self.step_gap_s or 0.0) / self.sources.pace.steps_per_event, law.c0_s / speed)
            if self.running and known
            else 0.0,
        )
