"""The moves of a ticket, each with its books, its record and its effect.

    NEW ──hold──► WAITING ──dispatch──► RUNNING ──finish | give_up──► ENDED
     │                 │  ▲                │
     │                 │  └────take_back───┘  (a failed attempt)
     └─refuse──► ENDED └─evict | drop──► ENDED

Every path into ENDED goes through `_settle`, which emits the one `Settle` of a ticket. Nothing here chooses
which move to make: that is the controller's part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from forebay.admission import cost
from forebay.admission.answers import (
    believed,
    learn_from_answer,
    output_at_end,
    own_prefill_s,
    tokens_of_events,
)
from forebay.admission.billing import close_debit
from forebay.admission.body_changes import body_change
from forebay.admission.deadlines import file_waiter, unfile
from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.endpoints import Endpoint
from forebay.admission.errors import invariant
from forebay.admission.gate import Verdict, rests_on_prediction, wait_budget_s
from forebay.admission.ledger import DrainingBooking, Ledger, booking_for
from forebay.admission.model import MICRO, Check, DecisionRecord, Mode, Refusal, Settlement, TicketId, Usage
from forebay.admission.outcomes import Group, Outcome
from forebay.admission.quota import Quota
from forebay.admission.settings import Settings
from forebay.admission.tickets import ENDED, NEW, RUNNING, WAITING, Phase, Ticket
from forebay.admission.unstreamed import linger_s

_COMPLETED: Final = Outcome.COMPLETED
_GONE: Final = Outcome.CLIENT_GONE
_REJECTED: Final = Outcome.ENGINE_REJECTED
_ENFORCE: Final = Mode.ENFORCE
_SHADOW: Final = Mode.SHADOW
_RATE_LIMIT: Final = Outcome.RATE_LIMIT_EXCEEDED


class Lifecycle:
    """Tickets, books and the effects of the call in progress."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ledger = Ledger()
        self.quota = Quota()
        self.tickets: dict[TicketId, Ticket] = {}
        self.effects: list[Effect] = []
        self.fall_back: Callable[[Ticket, Outcome, Check, float], bool] | None = None
        """Asked whether another pool takes a waiter that is to be turned away."""

    # Ways in

    def hold(self, ticket: Ticket, verdict: Verdict, now: float) -> None:
        """The request must wait."""
        self._move(ticket, NEW, WAITING)
        self.tickets[ticket.demand.ticket] = ticket
        ticket.queued_s = now
        ticket.predicted_wait_s, ticket.position = verdict.predicted_wait_s, verdict.position
        ticket.forecast = verdict.forecast
        ticket.checks = tuple(verdict.checks)
        self.ledger.wait(ticket.booking)
        if ticket.debit is not None:
            ticket.debit.book(now)
        ticket.pool.queue.add(ticket)
        self.effects.append(Hold(ticket.demand.ticket, self._record(ticket, "hold", now, verdict)))

    def refuse(self, ticket: Ticket, verdict: Verdict, outcome: Outcome, now: float) -> None:
        """The request never waits."""
        self._move(ticket, NEW, ENDED)
        ticket.predicted_wait_s, ticket.position = verdict.predicted_wait_s, verdict.position
        record = self._record(ticket, "refuse", now, verdict, outcome)
        predicted_s = verdict.predicted_wait_s
        if outcome is _RATE_LIMIT and ticket.debit is not None:
            predicted_s = ticket.debit.wait_s(now)
        if verdict.retry_after_s is None:
            retry = self._retry_after_s(ticket, outcome, predicted_s, now)
        else:
            retry = ticket.pool.retry_after.ruled_s(verdict.retry_after_s)
        if rests_on_prediction(verdict, ticket):
            ticket.pool.refused_on_prediction(ticket.demand.class_name, now)
        self.effects.append(Refuse(ticket.demand.ticket, Refusal(outcome, retry, predicted_s, record)))
        self._settle(ticket, outcome, now)

    def price_again(self, ticket: Ticket, now: float) -> None:
        """What requests take or engines can hold has changed: a waiter is estimated and booked anew."""
        pool = ticket.pool
        price = pool.price(ticket.demand)
        booking = booking_for(ticket.demand, price.cost)
        self.ledger.leave(ticket.booking)
        self.ledger.wait(booking)
        pool.queue.recost(ticket, booking.work_us, booking.kv_tokens)
        ticket.book_as(price, booking)
        if ticket.entry is not None:
            protected = ticket.entry.protected
            unfile(ticket)
            file_waiter(ticket, now, protected=protected)

    def protect(self, ticket: Ticket, now: float) -> None:
        """A waiter is not pushed out for others any more."""
        if ticket.entry is not None and not ticket.entry.protected:
            unfile(ticket)
            file_waiter(ticket, now, protected=True)

    # To and from an endpoint

    def dispatch(
        self,
        ticket: Ticket,
        endpoint: Endpoint,
        now: float,
        verdict: Verdict | None = None,
        mode: Mode = _ENFORCE,
    ) -> None:
        """The request starts; with `mode`, whatever the verdict says."""
        demand = ticket.demand
        if ticket.phase is WAITING:
            ticket.pool.queue.take(ticket, now)
            self._stop_waiting(ticket, now)
            if not ticket.attempts:
                ticket.pool.learn_wait(ticket, now)
            if not ticket.pool.learning.may_refuse:
                ticket.pool.learning.starts.started(now, others_wait=len(ticket.pool.queue) > 0)
        else:
            if ticket.pool.passed:
                ticket.pool.count_passes(ticket)
            ticket.pool.queue.charge(ticket, now)
            if ticket.debit is not None and verdict is not None and verdict.outcome is None:
                ticket.debit.book(now)  # in shadow, what would have been refused pays nothing
        if ticket.pool.member is not None:
            ticket.pool.member.charge(ticket, now)
        ticket.phase = RUNNING
        self.tickets[demand.ticket] = ticket
        ticket.endpoint = endpoint
        ticket.attempts += 1
        ticket.dispatched_s = ticket.last_byte_s = now
        most_s = ticket.settings.max_stream_s
        if most_s is not None and now + most_s < ticket.pool.streams_due_s:
            ticket.pool.streams_due_s = now + most_s
        ticket.first_token_s = None
        ticket.output_events = ticket.credited_us = 0
        endpoint.take_on(ticket, now)
        ticket.pool.running.start(ticket)
        if len(ticket.pool.endpoints) > 1:
            ticket.pool.pricing.prefixes.homes.sent(
                demand.prefix_hash, endpoint.id, ticket.cost.prompt_tokens
            )
        self.ledger.start(ticket.booking, endpoint.id)
        action, outcome = "dispatch", None
        if mode is _SHADOW and verdict is not None and verdict.endpoint is None:
            ticket.predicted_wait_s, ticket.position = verdict.predicted_wait_s, verdict.position
            outcome = verdict.outcome
            action = "hold" if outcome is None else "refuse"
        record = self._record(ticket, action, now, verdict, outcome, mode)
        change = None
        settings = ticket.pool.settings
        if demand.asked_model is not None or settings.pass_priority or settings.inject_limit:
            change = body_change(ticket, endpoint)
        self.effects.append(Dispatch(demand.ticket, endpoint.id, ticket.attempts, record, change))

    def take_back(self, ticket: Ticket, now: float, *, engine_goes_on: bool, detail: str) -> None:
        """An attempt failed before its first token; the request waits again, before all others of its class."""
        self._leave_endpoint(ticket, now, engine_goes_on=engine_goes_on)
        self._move(ticket, RUNNING, WAITING)
        ticket.queued_s = now
        price = ticket.pool.price(ticket.demand)
        ticket.book_as(price, booking_for(ticket.demand, price.cost))
        self.ledger.wait(ticket.booking)
        ticket.pool.queue.put_back(ticket)
        verdict = Verdict(decided_by="attempt_failed", detail=detail)
        self.effects.append(Hold(ticket.demand.ticket, self._record(ticket, "hold", now, verdict)))

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The engine has worked off the prompt."""
        endpoint = ticket.endpoint
        if endpoint is None or ticket.first_token_s is not None:
            return
        ticket.first_token_s = ticket.last_byte_s = now
        endpoint.prefilled(ticket, now)
        if ticket.demand.stream:
            took_s = now - ticket.dispatched_s - own_prefill_s(ticket, endpoint)
            endpoint.limit.first_token(took_s, in_flight=len(endpoint.running))
            self._credit(ticket, ticket.cost.prefill_us, now)
            ticket.pool.running.advance(ticket, 0)
        endpoint.show_life(now)

    def progress(self, ticket: Ticket, output_events: int, now: float) -> None:
        """Tokens came."""
        if ticket.first_token_s is None:
            self.first_token(ticket, now)
        ticket.last_byte_s = now
        ticket.output_events += output_events
        if ticket.endpoint is not None:
            ticket.endpoint.advance(ticket)
        decode = ticket.cost.work_us - ticket.cost.prefill_us
        if (tokens := tokens_of_events(ticket)) >= ticket.look_up_at:
            ticket.pool.running.advance(ticket, tokens)
        share = min(tokens / max(ticket.cost.output_tokens, 1), 1.0)
        self._credit(ticket, ticket.cost.prefill_us + int(decode * share), now)

    # Ways out

    def finish(
        self, ticket: Ticket, outcome: Outcome, usage: Usage | None, now: float, *, engine_goes_on: bool
    ) -> None:
        """A dispatched request is over."""
        if outcome is _REJECTED:
            self._reject(ticket, now)
            return
        if usage is not None:
            usage = believed(ticket, usage)
        demand = ticket.demand
        completed = outcome is _COMPLETED
        unseen = ticket.endpoint if outcome is _GONE and ticket.first_token_s is None else None
        output = output_at_end(ticket, usage, now, completed=completed, unseen=unseen)
        prompt, cached = ticket.cost.prompt_tokens, ticket.cost.cached_tokens
        if usage is not None:
            prompt, cached = usage.prompt_tokens, ticket.pool.pricing.cached_at_end(usage, cached)
        true_us = (
            ticket.cost.work_us
            if demand.flat
            else cost.true_work_us(
                ticket.pool.pricing.law,
                prompt_tokens=prompt,
                cached_tokens=cached,
                output_tokens=output if demand.generates else 0,
                samples=demand.samples,
                prompts=demand.prompts,
            )
        )
        if completed and ticket.first_token_s is None:
            # The end of an answer whose first token was not told of stands for it, in the prefill window as well.
            if ticket.endpoint is not None:
                ticket.endpoint.alone = None  # and says nothing about how long the prompt took
                ticket.endpoint.prefilled(ticket, now)
            ticket.first_token_s = now
        if ticket.first_token_s is not None:
            self._credit(ticket, true_us, now, ended=True)
        if ticket.first_token_s is not None:
            counted = usage is not None or ticket.output_events > 0
            ticket.pool.learn_end(ticket, usage, output if counted else 0, now, whole=completed)
        if completed and ticket.endpoint is not None:
            learn_from_answer(ticket, ticket.endpoint, usage, output, now)
        self._leave_endpoint(ticket, now, engine_goes_on=engine_goes_on)
        if (
            engine_goes_on
            and ticket.debit is not None
            and ticket.endpoint is not None
            and ticket.debit.linger()
        ):
            ticket.endpoint.draining[-1].debit = ticket.debit
        self._move(ticket, RUNNING, ENDED)
        charged_us = true_us if ticket.first_token_s is not None else ticket.credited_us
        if unseen is not None:
            charged_us = min(true_us, int((now - ticket.dispatched_s) * MICRO * unseen.meter.speed))
        ticket.pool.queue.settle(ticket, charged_us)
        self._settle(ticket, outcome, now, charged_us, prompt, output, usage)

    def _reject(self, ticket: Ticket, now: float) -> None:
        """The engine answered with an error of its own: no work was done, and nothing is to be learned but that."""
        self._credit(ticket, 0, now)
        if ticket.endpoint is not None:
            ticket.endpoint.rejected(now)
        self._leave_endpoint(ticket, now, engine_goes_on=False)
        self._move(ticket, RUNNING, ENDED)
        ticket.pool.queue.settle(ticket, 0)
        self._settle(ticket, _REJECTED, now)

    def give_up(
        self, ticket: Ticket, outcome: Outcome, now: float, check: Check, detail: str, *, engine_goes_on: bool
    ) -> None:
        """A dispatched request is ended by us: the driver is told to close it."""
        retry = self._retry_after_s(ticket, outcome, 0.0, now)
        verdict = Verdict([check], outcome, check.name, detail)
        record = self._record(ticket, "abort", now, verdict, outcome)
        self.effects.append(Abort(ticket.demand.ticket, outcome, detail, retry, record))
        self.finish(ticket, outcome, None, now, engine_goes_on=engine_goes_on)

    def evict(self, ticket: Ticket, outcome: Outcome, now: float, check: Check, detail: str) -> None:
        """A waiting request is turned away, unless another pool takes it."""
        takes = None if ticket.pool.settings.fallback is None else self.fall_back
        if takes is not None and takes(ticket, outcome, check, now):
            return
        self._leave_queue(ticket, now)
        self._move(ticket, WAITING, ENDED)
        verdict = Verdict(
            [check], outcome, check.name, detail, None, ticket.predicted_wait_s, ticket.position
        )
        record = self._record(ticket, "evict", now, verdict, outcome)
        ticket.pool.learn_cut_wait(ticket, now)
        predicted = ticket.pool.predict_wait_s(ticket.demand.class_name, now)
        retry = self._retry_after_s(ticket, outcome, predicted, now)
        self.effects.append(Evict(ticket.demand.ticket, Refusal(outcome, retry, predicted, record)))
        self._settle(ticket, outcome, now)

    def move_on(self, ticket: Ticket, guest: Ticket, now: float) -> None:
        """A waiter leaves for another pool, where it is `guest`: the same request, which has waited."""
        self._leave_queue(ticket, now)
        self._move(ticket, WAITING, ENDED)
        ticket.pool.learn_cut_wait(ticket, now)
        del self.tickets[ticket.demand.ticket]
        guest.debit = ticket.debit
        guest.arrived_s, guest.waited_s = ticket.arrived_s, ticket.waited_s
        guest.attempts, guest.tried = ticket.attempts, ticket.tried
        guest.predicted_wait_s, guest.position = ticket.predicted_wait_s, ticket.position

    def drop(self, ticket: Ticket, now: float) -> None:
        """The client of a waiting request has left: nobody is to be answered."""
        self._leave_queue(ticket, now)
        self._move(ticket, WAITING, ENDED)
        ticket.pool.learn_cut_wait(ticket, now)
        self._settle(ticket, Outcome.CLIENT_GONE, now)

    def release_draining(self, endpoint: Endpoint, draining: DrainingBooking) -> None:
        """The engine has let go of an abandoned request, or must have by now."""
        endpoint.draining.remove(draining)
        draining.release()
        self.ledger.release_draining(draining.booking, endpoint.id)

    # Steps of the moves

    def _move(self, ticket: Ticket, start: Phase, end: Phase) -> None:
        if ticket.phase is not start:
            invariant(False, f"ticket {ticket.demand.ticket} is {ticket.phase.value}, not {start.value}")
        ticket.phase = end

    def _leave_queue(self, ticket: Ticket, now: float) -> None:
        ticket.pool.queue.remove(ticket)
        self._stop_waiting(ticket, now)

    def _stop_waiting(self, ticket: Ticket, now: float) -> None:
        """It is out of the queue."""
        unfile(ticket)
        self.ledger.leave(ticket.booking)
        ticket.waited_s += now - ticket.queued_s
        self._drop_reservation(ticket)

    def _drop_reservation(self, ticket: Ticket) -> None:
        reserved = ticket.pool.reserved
        if reserved is not None and reserved.reserved_for == ticket.demand.ticket:
            reserved.reserved_for = None
            ticket.pool.reserved = None

    def _leave_endpoint(self, ticket: Ticket, now: float, *, engine_goes_on: bool) -> None:
        endpoint = ticket.endpoint
        if endpoint is None:
            invariant(False, f"running ticket {ticket.demand.ticket} has no endpoint")
            return
        endpoint.let_go(ticket, now)
        ticket.pool.running.end(ticket)
        if not engine_goes_on:
            self.ledger.release(ticket.booking, endpoint.id)
            return
        self.ledger.abandon(ticket.booking, endpoint.id)
        endpoint.draining.append(
            DrainingBooking(ticket.booking, now, now + linger_s(ticket, endpoint, now), ticket.demand.samples)
        )

    def _credit(self, ticket: Ticket, done_us: int, now: float, *, ended: bool = False) -> None:
        """Bring the work credited for this ticket to `done_us`."""
        change_us = done_us - ticket.credited_us
        if ticket.law_factor != 1.0:
            change_us = ticket.by_new_law_us(done_us, ended=ended)
        if ticket.endpoint is not None:
            ticket.endpoint.meter.credit(change_us, ended=ended)
        if ticket.pool.member is not None:
            ticket.pool.member.serve(change_us, now)
        ticket.credited_us = done_us

    def _retry_after_s(
        self, ticket: Ticket, outcome: Outcome, predicted_s: float, now: float
    ) -> float | None:
        if not outcome.may_pass_later:
            return None
        if outcome is _RATE_LIMIT and ticket.debit is not None:
            return self.quota.retry_after_s(ticket.debit, predicted_s, now)
        pool = ticket.pool
        if outcome.group is Group.ABSENT:
            return pool.retry_after.absent(self.settings.connect_timeout_s)
        # By then the wait is what the class may ask of it.
        base_s = predicted_s - wait_budget_s(ticket, ticket.arrived_s)
        return pool.retry_after.promise_s(
            ticket.rank,
            base_s,
            ticket.cost.work_us,
            pool.class_rate_us_per_s(ticket.demand.class_name, now),
            now,
        )

    def _record(  # noqa: PLR0917 - by position, as below
        self,
        ticket: Ticket,
        action: str,
        now: float,
        verdict: Verdict | None,
        outcome: Outcome | None = None,
        mode: Mode = _ENFORCE,
    ) -> DecisionRecord:
        demand, pool = ticket.demand, ticket.pool
        endpoint = ticket.endpoint
        goes_there = action in ("dispatch", "abort") or mode is not _ENFORCE
        return DecisionRecord(  # by position: by name costs three times as much
            demand.ticket,
            now,
            demand.pool,
            demand.class_name,
            demand.tenant,
            demand.model,
            action,
            outcome,
            verdict.decided_by if verdict is not None else "room",
            ticket.checks if verdict is None else _checks_of(ticket, action, verdict),
            pool.settings.to_gpu_s(ticket.cost.work_us),
            ticket.cost.kv_tokens,
            ticket.predicted_wait_s,
            wait_budget_s(ticket, ticket.arrived_s),
            ticket.waited_s,
            ticket.position,
            endpoint.id if goes_there and endpoint is not None else None,
            not pool.learning.may_refuse,
            verdict.detail if verdict is not None else "",
            mode,
            None if ticket.debit is None else ticket.debit.account.view(now),
        )

    def _settle(  # noqa: PLR0917 - by position: it is called for each request
        self,
        ticket: Ticket,
        outcome: Outcome,
        now: float,
        charged_us: int = 0,
        prompt_tokens: int | None = None,
        output_tokens: int = 0,
        usage: Usage | None = None,
    ) -> None:
        demand, settings = ticket.demand, ticket.settings
        if demand.ticket in self.tickets:
            del self.tickets[demand.ticket]
        if ticket.debit is not None:
            close_debit(ticket.debit, ticket, outcome, prompt_tokens, output_tokens, now)
        to_gpu_s = ticket.pool.settings.to_gpu_s
        duration_s = now - ticket.arrived_s
        ttft_s = None if ticket.first_token_s is None else ticket.first_token_s - ticket.arrived_s
        met = outcome is _COMPLETED and ttft_s is not None
        if met and ttft_s is not None:
            each = output_tokens / demand.samples  # samples are generated side by side
            if demand.stream:
                in_time = ttft_s <= settings.ttft_s
                met = in_time and duration_s <= ttft_s + settings.tpot_s * max(each - 1, 1)
            else:
                met = duration_s <= settings.answer_s(each)
        self.effects.append(
            Settle(
                Settlement(  # by position, as above
                    demand.ticket,
                    now,
                    demand.pool,
                    demand.class_name,
                    demand.tenant,
                    demand.model,
                    outcome,
                    ticket.endpoint.id if ticket.endpoint is not None else None,
                    ticket.waited_s,
                    ticket.predicted_wait_s,
                    ttft_s,
                    duration_s,
                    to_gpu_s(ticket.cost.work_us),
                    to_gpu_s(charged_us),
                    ticket.cost.prompt_tokens if prompt_tokens is None else prompt_tokens,
                    output_tokens,
                    ticket.attempts,
                    met,
                    demand,
                    ticket.cost,
                    usage,
                )
            )
        )


def _checks_of(ticket: Ticket, action: str, verdict: Verdict) -> tuple[Check, ...]:
    """What the record of a move shows: of a waiter that is turned away, also what was compared when it came."""
    checks = tuple(verdict.checks)
    return ticket.checks + checks if action == "evict" else checks
