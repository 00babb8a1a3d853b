"""One pool: its endpoints, its queues, what it has learned, and the sums that decisions compare.

Owns everything that belongs to one model's engines. It holds no timers and emits no effects; `controller`
moves tickets, this says what a move would cost and where it could go.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

from forebay.admission.arrival_rates import wait_among_smaller_s
from forebay.admission.capacity import tightest_tpot_s
from forebay.admission.ceilings import Ceilings, ceilings_of
from forebay.admission.class_rules import bursts_s_of, rules_of
from forebay.admission.class_state import ClassState
from forebay.admission.endpoints import Endpoint
from forebay.admission.forecast import Curves
from forebay.admission.gpu_load import GpuLoad
from forebay.admission.groups import Member, own_us_per_s
from forebay.admission.learning import CAUTIOUS, CONFIDENT, Learning
from forebay.admission.ledger import PoolBooks
from forebay.admission.model import ANONYMOUS, Demand, EndpointId, EndpointState, Usage
from forebay.admission.pricing import Price, Pricing, flat_of
from forebay.admission.queues import PoolQueue
from forebay.admission.retry_after import RetryAfter
from forebay.admission.running_work import RunningWork
from forebay.admission.settings import (
    OPTIMISTIC_LAW,
    ClassOrder,
    ClassSettings,
    Order,
    PoolSettings,
    Settings,
)
from forebay.admission.tickets import Ticket
from forebay.admission.wait import (
    Forecast,
    WaitErrors,
    WaitModel,
    backlog_wait_s,
    coverage_in_order,
    plain_wait_s,
)
from forebay.admission.waiter import Waiter

_UP: Final = EndpointState.UP
_STRICT: Final = ClassOrder.STRICT
_SJF: Final = Order.SJF
_LAST: Final = 1 << 62
"""Behind everybody in the order of arrival."""


class Pool:
    """The endpoints that serve one model, and who waits for them."""

    def __init__(self, settings: PoolSettings, common: Settings, books: PoolBooks, now: float) -> None:
        self.settings = settings
        self.common = common
        self.pricing = Pricing(settings.law or OPTIMISTIC_LAW, settings.max_output_tokens, flat_of(settings))
        self.books = books
        self.endpoints: dict[EndpointId, Endpoint] = {}
        self.queue = PoolQueue(rules_of(common), strict=common.class_order is _STRICT)
        self.ceilings: Ceilings | None = ceilings_of(self.queue, common.classes, self.endpoints, books)
        """Shuts classes with `admit_below_utilization` or `max_share`; None if there are none."""
        corrects = settings.wait_predictor != "plain"
        self.classes = {
            c.name: ClassState(c, index, corrects=corrects) for index, c in enumerate(common.classes)
        }
        self.bursts_s = bursts_s_of(common)
        self.has_caps = any(c.max_share < 1.0 for c in common.classes)
        self.errors = WaitErrors()
        self.learning = Learning(speed_known=settings.law is not None, now=now)
        self.retry_after = RetryAfter(len(common.classes))
        self.curves, self.running = Curves(), RunningWork()
        self.fell_back = 0
        """Requests that another pool took in its stead."""
        self.share = 1.0
        self.gpu_load = GpuLoad()
        self.member: Member | None = None
        """Its place among the pools of its group; None without others on its GPUs."""
        self.holds_all = True
        """False if the mode of some class is not to enforce."""
        self.reserved: Endpoint | None = None
        """The endpoint kept free for a request that has waited half its budget for room, if any."""
        self.passed: list[Ticket] = []
        """Those that did not fit in the last look, in their order; some may have gone since."""
        self.absent_since_s: float | None = None
        """Since when nothing is up; None while something is."""
        self.kv_limit: int | None = None
        """The largest KV room of any endpoint; None if one of them does not say."""
        self.kv_capacity: int | None = None
        """The largest whole cache: what a refusal for good may rest on."""
        self.kept_learning: tuple[object, float] | None = None
        """How far an earlier process had learned, and when that was read."""
        self.known_speeds: dict[str, float] = {}
        """Of endpoints that an earlier process has measured; taken up when they are added."""
        self.paced_until_s = inf
        """When pacing first lets a waiter enter that waits for nothing else; infinite if none does."""
        self.pace_armed_s = inf  # when a timer is set for that
        self.guard_armed_s = inf
        """When a timer is set for the guard of what was learned."""
        self.streams_due_s = inf
        """When some stream may have taken as long as it may while others wait; never later than that."""
        self.streams_armed_s = inf  # when a timer is set for that
        self.last_full_s = -inf
        """When the cap over all endpoints was last seen to keep one from starting work."""
        self.law_due_s = now
        """When the learned law is looked at next."""

    @property
    def context_tokens(self) -> int | None:
        """The largest context window of any endpoint; None if one of them does not say."""
        return self.pricing.context_tokens

    def reconfigure(self, settings: PoolSettings, common: Settings, now: float) -> None:
        """Take new settings; what was learned stays."""
        if settings.law is not None:
            self.pricing.law = settings.law
        elif self.settings.law is not None:
            self.pricing.law = OPTIMISTIC_LAW
        self.settings = settings
        self.common = common
        self.pricing.reconfigure(settings)
        if self.learning.set_speed_known(settings.law is not None, now):
            self._unlearned()
        for entry in common.classes:
            self.classes[entry.name].reconfigure(entry, now, corrects=settings.wait_predictor != "plain")
        self.bursts_s = bursts_s_of(common)
        self.has_caps = any(c.max_share < 1.0 for c in common.classes)
        self.queue.reconfigure(rules_of(common), strict=common.class_order is _STRICT)
        self.ceilings = ceilings_of(self.queue, common.classes, self.endpoints, self.books)
        self.streams_due_s = now  # what is due by the new limits is found at the next look
        for endpoint in self.endpoints.values():
            endpoint.pool_settings = settings
            endpoint.stale_after_s = common.stale_after_s
            endpoint.limit.tightest_s = self.tightest_s()
        self.find_limits()

    def add_endpoint(self, endpoint_id: EndpointId, order: int) -> None:
        """An endpoint was configured or discovered."""
        endpoint = Endpoint(
            endpoint_id,
            order,
            self.settings,
            self.tightest_s(),
            self.common.stale_after_s,
            curves=self.curves,
        )
        endpoint.share = self.share
        known_speed, kept = self.known_speeds.get(endpoint_id), self.kept_learning
        if known_speed is not None:
            endpoint.meter.speed = known_speed
            if kept is not None:
                self.learning.restore(*kept)
                self.kept_learning = None
        self.endpoints[endpoint_id] = endpoint
        self.books.endpoints[endpoint_id] = endpoint.books

    def remove_endpoint(self, endpoint: Endpoint) -> None:
        """An endpoint is gone and nothing of ours is left there."""
        if self.reserved is endpoint:
            self.reserved = None
        del self.endpoints[endpoint.id], self.books.endpoints[endpoint.id]

    def set_share(self, share: float) -> None:
        """This replica may use `share` of every limit."""
        self.share = share
        for endpoint in self.endpoints.values():
            endpoint.share = share
        self.find_limits()

    # What the world looks like

    def tightest_s(self) -> float:
        """The tightest wait budget of any class."""
        return min(c.wait_budget_s for c in self.common.classes)

    def has_up(self) -> bool:
        """True if some endpoint may be given work."""
        for endpoint in self.endpoints.values():  # noqa: SIM110 - a generator costs more than the whole loop
            if endpoint.state is _UP:
                return True
        return False

    def count_up(self) -> int:
        """Endpoints that may be given work."""
        up = 0  # a plain loop: this is asked several times for each request, and a generator costs twice as much
        for endpoint in self.endpoints.values():
            if endpoint.state is _UP:
                up += 1
        return up

    def is_stale(self, now: float) -> bool:
        """True if none of the endpoints that are up has told its load lately."""
        return all(endpoint.is_stale(now) for endpoint in self.endpoints.values() if endpoint.is_up)

    def is_starting(self) -> bool:
        """True if nothing is up, but something has not been heard of yet, or is out for a moment only."""
        soon = False
        for endpoint in self.endpoints.values():
            if endpoint.state is EndpointState.UP:
                return False
            soon = soon or endpoint.may_come_soon
        return soon

    def drain_us_per_s(self) -> float:
        """Work drained per second by what is up, on the reference endpoint; its part if others of its group wait."""
        own = own_us_per_s(self)
        return own if self.member is None else self.member.drain_us_per_s(own)

    def fastest(self) -> float:
        """The speed of the fastest endpoint that is up; 1 if none is."""
        fastest = 0.0
        for endpoint in self.endpoints.values():
            if endpoint.state is _UP and endpoint.meter.speed > fastest:
                fastest = endpoint.meter.speed
        return fastest or 1.0

    def find_limits(self) -> bool:
        """Work out the largest sizes anew: endpoints, settings, what an engine is, or the share have changed.

        Returns whether that may change what requests cost.
        """
        before = (self.pricing.context_tokens, self.kv_limit, self.pricing.law)
        present = []
        for endpoint in self.endpoints.values():
            endpoint.find_kv_limit()
            # One that cannot be reached and never told its sizes must not make those of the others doubtful.
            unknown = endpoint.state is EndpointState.DOWN and not endpoint.described
            if endpoint.state is not EndpointState.REMOVED and not unknown:
                present.append(endpoint)
        self.pricing.context_tokens = _largest([e.info.context_tokens for e in present])
        self.kv_limit = _largest([e.kv_limit for e in present])
        self.kv_capacity = _largest([e.kv_tokens for e in present])
        told = _largest([e.info.kv_tokens for e in present])
        room = [e.info.kv_tokens for e in present]
        self.pricing.prefixes.room_tokens = None if None in room else sum(tokens or 0 for tokens in room)
        if told and told != self.pricing.law.kv_tokens:
            self.pricing.law = replace(self.pricing.law, kv_tokens=told)
        return before != (self.pricing.context_tokens, self.kv_limit, self.pricing.law)

    def has_place(self, now: float) -> bool:
        """True if the cap over all endpoints, and the pools that share its GPUs, allow one more request."""
        if self.member is not None and self.member.is_held(now):
            return False
        cap = self.settings.max_pool_requests
        return cap is None or self.books.in_flight.requests < int(cap * self.share)

    def count_passes(self, starting: Ticket) -> None:
        """One starts before others that did not fit: unfair to those of other tenants of its class, if it goes on.

        And to those of other classes where an operator has set how they share (`max_share`).
        """
        for ticket in self.passed:
            if ticket.class_index != starting.class_index:
                ticket.passed_over += self.has_caps
            elif ticket.tenant != starting.tenant:
                ticket.passed_over += 1

    def max_work_us(self, share: float | None = None) -> int | None:
        """The bound on queued and running work, with headroom and this replica's share, or another."""
        bound = self.settings.max_gpu_s
        if bound is None:
            return None
        return self.settings.to_work_us(
            bound * self.settings.headroom * (self.share if share is None else share)
        )

    # What a request would cost

    def price(self, demand: Demand) -> Price:
        """Estimate a request."""
        price = self.pricing.price(demand)
        limit = self.kv_limit
        if limit is not None and price.cost.kv_tokens > limit:
            # It can only run alone, and then it has the whole cache: book exactly that.
            return Price(replace(price.cost, kv_tokens=limit), price.lengths, price.cap)
        return price

    # How long it would wait

    def class_rate_us_per_s(self, class_name: str, now: float) -> float:
        """Work per second that this class gets while all that wait now are waiting.

        In strict order what the higher ranks leave, which while one of them has waiters is the guaranteed floor.
        """
        state, drain = self.classes[class_name], self.drain_us_per_s()
        if self.common.class_order is not _STRICT:
            return drain * state.settings.weight / self.queue.backlogged_weight(with_class=state.index)
        floor = drain * state.settings.weight / sum(c.weight for c in self.common.classes)
        if any(self.queue.classes[index].count for index in range(state.index)):
            return floor
        return max(drain - self.arriving_us_per_s(class_name, now), floor)

    def most_of_class(self, class_name: str) -> tuple[float, float]:
        """The most that this class can get: (work per second, work on top of that at once).

        By weight its share, and what it may have saved of it; in strict order all that the pool gets through.
        """
        if self.common.class_order is _STRICT:
            return self.drain_us_per_s(), 0.0
        state = self.classes[class_name]
        weight = state.settings.weight
        share = self.drain_us_per_s() * weight / self.queue.backlogged_weight(with_class=state.index)
        return share, self.queue.classes[state.index].burst * weight

    def base_wait_s(self, class_name: str, ahead_us: float, waiter: Waiter, now: float) -> float:
        """Wait of a request, before what experience says of such waits.

        Args:
            ahead_us: work queued ahead of it.
            waiter: the request.
        """
        books, rate = self.books.in_flight, self.drain_us_per_s()
        if self.settings.wait_predictor == "plain":
            return plain_wait_s(ahead_us=ahead_us, in_flight_us=books.work_us, drain_us_per_s=rate)
        base_s = backlog_wait_s(
            ahead_us=ahead_us,
            in_engine_us=self.prefill_in_engines_us(),
            drain_us_per_s=rate,
            first_release_s=self.running.first_release_s(books, rate, now),
            arriving_us_per_s=self.arriving_us_per_s(class_name, now),
        )
        state = self.classes[class_name]
        if state.settings.order is not _SJF:
            return base_s
        # Only smaller ones of its own tenant go before it.
        served, waits = self.queue.classes[state.index].parts_of(waiter)
        return wait_among_smaller_s(
            base_s,
            rate_us_per_s=self.class_rate_us_per_s(class_name, now) * served,
            arriving_us_per_s=state.arrivals.per_s(now) * waits,
            sizes=state.sizes,
            work_us=waiter.work_us,
            aging_s=state.settings.aging,
        )

    def prefill_in_engines_us(self) -> int:
        """Prefill that was sent and has not come back."""
        pending_us = 0
        for endpoint in self.endpoints.values():
            pending_us += endpoint.pending_prefill_us
        return pending_us

    def arriving_us_per_s(self, class_name: str, now: float) -> float:
        """Work per second that will arrive in other classes and be served before a request that waits in this one.

        In strict order that of the higher ranks. By weight that of classes which get all they ask for, so that
        nothing of them waits: at most their share. What classes with a backlog take is in the work ahead already.
        """
        own = self.classes[class_name]
        strict = self.common.class_order is _STRICT
        drain, weights = self.drain_us_per_s(), self.queue.backlogged_weight(with_class=own.index)
        arriving = 0.0
        for name, state in self.classes.items():
            if name == class_name:
                if strict:
                    break
                continue
            if strict:
                arriving += state.arrivals.per_s(now)
            elif not self.books.classes[name].requests:
                share = drain * state.settings.weight / (weights + state.settings.weight)
                arriving += min(state.arrivals.per_s(now), share)
        return arriving

    def predict_wait_s(self, class_name: str, now: float) -> float:
        """Predicted wait of a usual request of this class that would come now and could not start at once."""
        state = self.classes[class_name]
        usual = Waiter(
            _LAST,
            state.index,
            ANONYMOUS,
            1.0,
            self.pricing.usual_work_us(),
            0,
            now,
            now + state.settings.wait_budget_s,
            False,
        )
        base_s = self.base_wait_s(class_name, self.queue.work_ahead(usual)[0], usual, now)
        return state.waits.predict(base_s)

    def max_class_work_us(self, settings: ClassSettings, now: float) -> float | None:
        """Bound on the work a class may have waiting; None while what drains is not surely known."""
        if settings.max_queue_gpu_s is not None:
            return self.settings.to_work_us(settings.max_queue_gpu_s * self.share)
        if self.learning.phase is not CONFIDENT or not self.classes[settings.name].waits.trusted:
            return None  # until then the lower quantile of the predicted wait decides alone
        return self.class_rate_us_per_s(settings.name, now) * settings.wait_budget_s

    # What it learns

    def learn_end(
        self, ticket: Ticket, usage: Usage | None, output_tokens: int, now: float, *, whole: bool
    ) -> None:
        """A dispatched request is over.

        Args:
            usage: what the engine said of it.
            output_tokens: of all samples; without usage the events stand in, nearly one a token for most engines.
            whole: True if its answer came to its own end.
        """
        demand = ticket.demand
        if usage is not None:
            self.pricing.learn_usage(demand, usage)
        self.pricing.learn_output(demand, ticket.price, output_tokens, whole=whole)
        if whole:
            self.learned(ticket.endpoint, now)

    def follow(self, endpoint: Endpoint, now: float) -> None:
        """What runs at an endpoint has changed, or how fast it is."""
        self.queue.allow_bursts(self.drain_us_per_s(), self.bursts_s)
        endpoint.follow(self.pricing.law, tightest_tpot_s(endpoint.running.values()), now)

    def learn_wait(self, ticket: Ticket, now: float) -> None:
        """A request that had to wait was dispatched."""
        forecast = ticket.forecast
        if forecast is not None:
            self._judge(ticket, forecast)
            waits = self.classes[ticket.demand.class_name].waits
            waits.served(forecast, ticket.waited_s)
            self.learned(ticket.endpoint, now, waits)

    def _judge(self, ticket: Ticket, forecast: Forecast) -> None:
        """Compare a wait with what was said of it. All that is longer than it may wait is the same: too long.

        And what is far below that is the same too: not too long. So the error is a part of the wait or of half the
        budget, whichever is more.
        """
        longest_s = ticket.usual_end_s - ticket.arrived_s
        self.errors.observe(
            min(forecast.expected_s, longest_s), min(ticket.waited_s, longest_s), least_s=longest_s / 2
        )

    def learn_cut_wait(self, ticket: Ticket, now: float) -> None:
        """A waiting request was turned away or left: it would have waited longer."""
        forecast = ticket.forecast
        if forecast is not None and not ticket.attempts:
            if now >= ticket.deadline_s:
                self._judge(ticket, forecast)
            self.classes[ticket.demand.class_name].waits.cut_short(forecast, ticket.waited_s)

    def refused_on_prediction(self, class_name: str, now: float) -> None:
        """A request was refused at arrival for its predicted wait."""
        self.classes[class_name].waits.refused(self.books.classes[class_name].requests)
        if self.learning.refused_on_prediction(now):
            self._unlearned()

    def learned(self, endpoint: Endpoint | None, now: float, waits: WaitModel | None = None) -> None:
        """Whether predictions may refuse from now on, or may not any more (cold start).

        Args:
            endpoint: the one that something was learned of, if it was one: the steps seen there count from now on.
            waits: what has learned of a wait, which may have come to be in order; None if a request has finished.
        """
        median = self.errors.median
        if self.learning.is_settled(median):
            return
        steps = 0 if endpoint is None else _new_steps(endpoint)
        in_order = waits is not None and self.learning.phase is CAUTIOUS and waits.coverage_in_order
        if in_order:
            in_order = coverage_in_order([state.waits for state in self.classes.values()])
        if self.learning.observed(steps, 1 if waits is None else 0, median, in_order, now):
            self._unlearned()

    def watch_idle(self, now: float) -> None:
        """Which endpoint has been idle for longest may have changed, or the time of the guard has come."""
        longest: float | None = None
        if self.has_place(now):
            for endpoint in self.endpoints.values():
                kept = endpoint.trial or not endpoint.share or endpoint.reserved_for is not None
                since = None if kept or endpoint.state is not _UP else endpoint.idle_since_s
                if since is not None and (longest is None or since < longest):
                    longest = since
        else:
            self.last_full_s = now
        if longest is not None and longest < self.last_full_s:
            longest = self.last_full_s
        if self.learning.endpoint_idle_since(now, longest):
            self._unlearned()

    def _unlearned(self) -> None:
        """The pool went back to learning."""
        self.errors.forget()
        for state in self.classes.values():
            state.waits.doubt()
        for endpoint in self.endpoints.values():
            _new_steps(endpoint)  # those count as what was learned before


def _new_steps(endpoint: Endpoint) -> int:
    return endpoint.sources.learner.new_steps() + endpoint.whole_answers.learner.new_steps()


def _largest(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None
