"""One endpoint as the core sees it: its state, what it holds, whether it has room, and signs of life.

Owns the endpoint's part of the books (through the ledger), its running tickets and its draining bookings.
It decides nothing about requests: `controller` does, by asking here.

Signs of life are bytes on a stream, a finished request, or token counters that move. That a scrape or a
health check answers is none: a hung engine goes on answering those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forebay.admission.capacity import KV_CALM, ConcurrencyLimit
from forebay.admission.ledger import Booking, EndpointBooks
from forebay.admission.model import (
    MICRO,
    EndpointId,
    EndpointState,
    EngineInfo,
    EngineKind,
    EngineSample,
    TicketId,
)
from forebay.admission.settings import OnStale, PoolSettings
from forebay.admission.speed import DrainMeter
from forebay.admission.tickets import Ticket

STALLED_AFTER_S: Final = 10.0
STALL_FACTOR: Final = 20.0
"""An engine may be silent for 20 times the longest prefill it has in hand, and for 20 times its usual step."""
PREFILL_WINDOW_S: Final = 0.35
"""Prefill sent whose first token has not come back: enough to keep the engine busy, little enough that the
order of what follows is decided here (`capacity` of the engine's own queue)."""
DOUBTS: Final = 5
"""Failed attempts in a row, with no good answer between them, that take an endpoint out."""
BACK_OFF_FIRST_S: Final = 0.25
BACK_OFF_LONGEST_S: Final = 10.0

_UP: Final = EndpointState.UP
_STALLED: Final = EndpointState.STALLED

UNDESCRIBED = EngineInfo(EngineKind.OPENAI)


@dataclass(slots=True, eq=False)
class DrainingBooking:
    """Room of a request that we gave up while the engine was still at it."""

    booking: Booking
    since_s: float
    until_s: float
    armed: bool = False
    """True once a timer is set for `until_s`."""


class Endpoint:
    """One addressable engine."""

    __slots__ = (
        "books",
        "described",
        "doubts",
        "draining",
        "failures",
        "heard_s",
        "id",
        "info",
        "kv_limit",
        "last_life_s",
        "limit",
        "meter",
        "order",
        "pending_prefill_us",
        "pool_settings",
        "reserved_for",
        "running",
        "sample",
        "sampled_since",
        "share",
        "stale_after_s",
        "state",
        "step_gap_s",
        "trial",
        "up_again_at_s",
        "watch_due_s",
    )

    def __init__(
        self,
        endpoint_id: EndpointId,
        order: int,
        settings: PoolSettings,
        tightest_s: float,
        stale_after_s: float,
    ) -> None:
        self.id = endpoint_id
        self.order = order
        """Position in the configuration: breaks ties."""
        self.pool_settings = settings
        self.stale_after_s = stale_after_s
        self.state = EndpointState.STARTING
        self.described = False
        self.info = UNDESCRIBED
        self.books = EndpointBooks()
        self.limit = ConcurrencyLimit(tightest_s)
        self.meter = DrainMeter()
        self.running: dict[TicketId, Ticket] = {}
        self.draining: list[DrainingBooking] = []
        self.sample: EngineSample | None = None
        self.heard_s = 0.0
        """When the engine last told its load, or was found to be one that does."""
        self.sampled_since = 0
        """Dispatches since the last sample."""
        self.pending_prefill_us = 0
        self.step_gap_s: float | None = None
        """Decayed mean time between tokens of a stream."""
        self.last_life_s = 0.0
        self.failures = 0
        """Times in a row that it could not be reached."""
        self.doubts = 0
        """Attempts in a row that reached it and failed."""
        self.up_again_at_s = 0.0
        self.trial = False
        """After a stall: one request at a time until a byte moves."""
        self.reserved_for: TicketId | None = None
        self.share = 1.0
        self.kv_limit: int | None = None
        """KV tokens that may be booked; None if nobody knows the capacity."""
        self.find_kv_limit()
        self.watch_due_s: float | None = None
        """When the controller next looks at this endpoint's silence; None while it is not watched."""

    @property
    def is_up(self) -> bool:
        """True if it may be given new work at all."""
        return self.state is EndpointState.UP

    @property
    def may_come_soon(self) -> bool:
        """True if it is not up and the next reading may well change that."""
        if self.state is EndpointState.DOWN:
            return self.doubts >= DOUBTS
        return self.state is EndpointState.STARTING

    def find_kv_limit(self) -> None:
        """Work out `kv_limit` anew: the settings, the engine or the share have changed."""
        self.kv_limit = self.kv_limit_at(self.share)

    def kv_limit_at(self, share: float) -> int | None:
        """KV tokens that might be booked with this share of the endpoint; None if nobody knows the capacity."""
        settings = self.pool_settings
        if settings.max_inflight_tokens is not None:
            return int(settings.max_inflight_tokens * share)
        capacity = self.info.kv_tokens
        if capacity is None and settings.law is not None:
            capacity = settings.law.kv_tokens
        return None if capacity is None else int(capacity * settings.headroom * share)

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
        if self.trial and held:
            return False
        limit, firm = self.request_limit
        if held >= limit and (firm or self.sampled_since >= limit or not self._is_calm(now, believe_old)):
            return False
        pending_us = self.pending_prefill_us
        return not pending_us or pending_us <= PREFILL_WINDOW_S * MICRO * self.meter.speed

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
        if self.reserved_for is not None and self.reserved_for != ticket.demand.ticket:
            return False
        if self.is_stale(now):
            return self._has_room_unseen(ticket, now)
        return self.fits_now(ticket) and self.is_open(now) and self.can_ever_hold(ticket)

    def _has_room_unseen(self, ticket: Ticket, now: float) -> bool:
        """The same for an engine whose samples are too old: the request's class says what to believe."""
        on_stale = ticket.settings.on_stale
        if on_stale is OnStale.REFUSE:
            return False
        if on_stale is OnStale.ADMIT:
            return self.is_up and self.share > 0 and self.can_ever_hold(ticket)
        is_open = self.is_open(now, believe_old=on_stale is OnStale.LAST_KNOWN)
        return is_open and self.fits_now(ticket) and self.can_ever_hold(ticket)

    def fits_now(self, ticket: Ticket) -> bool:
        """True if its KV tokens can be booked beside what is held."""
        limit, books = self.kv_limit, self.books
        if limit is None:
            return True
        return books.running.kv_tokens + books.draining.kv_tokens + ticket.cost.kv_tokens <= limit

    def can_ever_hold(self, ticket: Ticket) -> bool:
        """False if the prompt alone is beyond this engine's context window."""
        context = self.info.context_tokens
        if context is None or ticket.cost.prompt_tokens <= context:
            return True
        return ticket.pool.surely_needs(ticket.demand) <= context

    def load_s(self) -> float:
        """Seconds of work held, at this endpoint's own speed: what least-load placement compares."""
        return self.books.work_us / (self.meter.speed * MICRO)

    def take_sample(self, sample: EngineSample, now: float) -> None:
        """A reading came in. Older readings than the last are ignored."""
        last = self.sample
        if last is not None and sample.at_s < last.at_s:
            return
        if last is not None and _moved(last, sample):
            self.show_life(now)
        self.sample = sample
        self.heard_s = sample.at_s
        self.sampled_since = sum(1 for ticket in self.running.values() if ticket.dispatched_s > sample.at_s)
        self.limit.sampled(sample)

    def come_up(self, now: float) -> None:
        """There is evidence that requests can be sent: a reading later than the last failure's back-off."""
        if self.state is EndpointState.STARTING or (
            self.state is EndpointState.DOWN and now >= self.up_again_at_s
        ):
            self.state = EndpointState.UP
            self.last_life_s = now

    def show_life(self, now: float) -> None:
        """A byte or a counter moved: whatever was held against this endpoint is over."""
        self.last_life_s = now
        self.failures = self.doubts = 0
        self.trial = False
        if self.state is _STALLED:
            self.state = EndpointState.UP

    def fail(self, now: float) -> None:
        """The engine cannot be reached: out of rotation until a later sample says that it is there."""
        if self.state is not EndpointState.DOWN:
            # What was in flight when it went down fails by the same cause: one incident, one step of back-off.
            self.failures += 1
        if self.state is not EndpointState.REMOVED:
            self.state = EndpointState.DOWN
        self.doubts = 0
        self.up_again_at_s = now + min(BACK_OFF_FIRST_S * 2 ** min(self.failures - 1, 10), BACK_OFF_LONGEST_S)

    def doubt(self, now: float) -> None:
        """An attempt reached the engine and failed. The request may be at fault, so it takes several in a row.

        And then the time out is short and does not grow: somebody whose requests break engines must not be able
        to keep an endpoint away from everybody else. Any good answer in between clears it.
        """
        self.doubts += 1
        if self.doubts >= DOUBTS and self.state is EndpointState.UP:
            self.state = EndpointState.DOWN
            self.up_again_at_s = now + BACK_OFF_FIRST_S

    def stands_still(self, now: float) -> bool:
        """True if it is stalled and says so itself: it answers its metrics, and its counters do not move."""
        return (
            self.state is EndpointState.STALLED
            and self.info.counts_while_running
            and self.sample is not None
            and now - self.sample.at_s <= self.stale_after_s
        )

    def silent_since_s(self) -> float:
        """Since when silence counts: the last sign of life, or the dispatch of the first stream that could give one."""
        if self.info.counts_while_running:
            return self.last_life_s
        first = min((t.dispatched_s for t in self.running.values() if t.demand.stream), default=0.0)
        return max(self.last_life_s, first)

    def silence_limit_s(self) -> float | None:
        """How long it may be silent before it counts as stalled; None if silence proves nothing.

        Non-streamed answers give no byte until they are whole, so they prove something only where the
        engine's counters move while it works.
        """
        if not self.running:
            return None
        longest_us = 0
        telling = self.info.counts_while_running
        for ticket in self.running.values():
            telling = telling or ticket.demand.stream
            if ticket.first_token_s is None:
                longest_us = max(longest_us, ticket.cost.prefill_us)
        if not telling:
            return None
        longest_s = max(longest_us / MICRO / self.meter.speed, self.step_gap_s or 0.0)
        return max(STALLED_AFTER_S, STALL_FACTOR * longest_s)


def _moved(before: EngineSample, after: EngineSample) -> bool:
    """True if any counter of work done changed (a fall is a restart, which is life too)."""
    return (
        before.output_tokens_total != after.output_tokens_total
        or before.prompt_tokens_total != after.prompt_tokens_total
        or before.steps_total != after.steps_total
    )
