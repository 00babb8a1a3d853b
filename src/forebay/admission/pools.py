"""One pool: its endpoints, its queues, what it has learned, and the sums that decisions compare.

Owns everything that belongs to one model's engines. It holds no timers and emits no effects; `controller`
moves tickets, this says what a move would cost and where it could go.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from forebay.admission import cost, wait
from forebay.admission.endpoints import Endpoint
from forebay.admission.ledger import PoolBooks
from forebay.admission.lengths import OutputLengths, PromptRatio
from forebay.admission.model import MICRO, Cost, Demand, EndpointId, EndpointState, Usage
from forebay.admission.queues import ClassQueues
from forebay.admission.retry_after import RetryAfter
from forebay.admission.settings import OPTIMISTIC_LAW, ClassSettings, PoolSettings, Settings
from forebay.admission.tickets import Ticket
from forebay.admission.wait import WaitErrors

_UP: Final = EndpointState.UP
LEARNED_REQUESTS: Final = 30
LEARNED_ERROR: Final = 0.3
"""Median relative error of the predicted wait below which predictions may refuse."""
UNLEARNED_ERROR: Final = 0.6
"""And above which they may not any more."""


class Pool:
    """The endpoints that serve one model, and who waits for them."""

    def __init__(self, settings: PoolSettings, common: Settings, books: PoolBooks) -> None:
        self.settings = settings
        self.common = common
        self.law = settings.law or OPTIMISTIC_LAW
        self.books = books
        self.endpoints: dict[EndpointId, Endpoint] = {}
        self.queues = ClassQueues(tuple(c.name for c in common.classes))
        self.ratio = PromptRatio()
        self.lengths = OutputLengths()
        self.errors = WaitErrors()
        self.retry_after = RetryAfter()
        self.finished = 0
        self.learning = settings.law is None
        self.share = 1.0
        self.reserved: Endpoint | None = None
        """The endpoint kept free for a request that has waited half its budget for room, if any."""
        self.absent_since_s: float | None = None
        """Since when nothing is up; None while something is."""
        self.context_tokens: int | None = None
        """The largest context window of any endpoint; None if one of them does not say."""
        self.kv_limit: int | None = None
        """The largest KV room of any endpoint; None if one of them does not say."""
        self.kv_capacity: int | None = None
        """The same with the whole share: what a refusal for good may rest on."""

    def reconfigure(self, settings: PoolSettings, common: Settings) -> None:
        """Take new settings; what was learned stays."""
        had_law = self.settings.law is not None
        self.settings = settings
        self.common = common
        self.law = settings.law or OPTIMISTIC_LAW
        if settings.law is not None:
            self.learning = False
        elif had_law:
            self.learning = True
            self._learning_may_end()
        for endpoint in self.endpoints.values():
            endpoint.pool_settings = settings
            endpoint.stale_after_s = common.stale_after_s
            endpoint.limit.tightest_s = self.tightest_s()
        self.find_limits()

    def add_endpoint(self, endpoint_id: EndpointId, order: int) -> None:
        """An endpoint was configured or discovered."""
        endpoint = Endpoint(endpoint_id, order, self.settings, self.tightest_s(), self.common.stale_after_s)
        endpoint.share = self.share
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
        """Work drained per second by what is up, on the reference endpoint."""
        return sum(e.meter.speed for e in self.endpoints.values() if e.is_up) * self.share * MICRO

    def find_limits(self) -> None:
        """Work out the largest sizes anew: endpoints, settings, what an engine is, or the share have changed."""
        present = []
        for endpoint in self.endpoints.values():
            endpoint.find_kv_limit()
            # One that cannot be reached and never told its sizes must not make those of the others doubtful.
            unknown = endpoint.state is EndpointState.DOWN and not endpoint.described
            if endpoint.state is not EndpointState.REMOVED and not unknown:
                present.append(endpoint)
        self.context_tokens = _largest([e.info.context_tokens for e in present])
        self.kv_limit = _largest([e.kv_limit for e in present])
        self.kv_capacity = _largest([e.kv_limit_at(1.0) for e in present])

    def has_place(self) -> bool:
        """True if the cap over all endpoints allows one more request."""
        cap = self.settings.max_pool_requests
        return cap is None or self.books.in_flight.requests < int(cap * self.share)

    def max_work_us(self, share: float | None = None) -> int | None:
        """The bound on queued and running work, with headroom and this replica's share, or another."""
        bound = self.settings.max_gpu_s
        if bound is None:
            return None
        return self.settings.to_work_us(
            bound * self.settings.headroom * (self.share if share is None else share)
        )

    # What a request would cost

    def cost_of(self, demand: Demand) -> Cost:
        """Estimate a request."""
        prompt = demand.prompt_tokens
        if prompt is None:
            prompt = self.ratio.estimate(demand.prompt_bytes)
        prompt += demand.extra_prompt_tokens
        room = (self.context_tokens or 2 * self.law.kv_tokens) - prompt
        expected, reserved = self.lengths.expect(demand.class_name, demand.max_output_tokens, room)
        estimate = cost.estimate(
            self.law,
            prompt_tokens=prompt,
            expected_output=expected,
            reserved_output=reserved,
            samples=demand.samples,
            generates=demand.generates,
        )
        limit = self.kv_limit
        if limit is not None and estimate.kv_tokens > limit:
            # It can only run alone, and then it has the whole cache: book exactly that.
            return replace(estimate, kv_tokens=limit)
        return estimate

    def surely_needs(self, demand: Demand) -> int:
        """Prompt tokens that the request has at the very least: what a refusal for size rests on."""
        if demand.prompt_tokens is not None:
            return demand.prompt_tokens
        return self.ratio.at_least(demand.prompt_bytes)

    # How long it would wait

    def ahead_us(self, class_name: str) -> int:
        """Work queued before an arrival of this class."""
        classes = self.books.classes
        return sum(classes[name].work_us for name in self.queues.ahead(class_name))

    def ahead_requests(self, class_name: str) -> int:
        """Requests queued before an arrival of this class."""
        classes = self.books.classes
        return sum(classes[name].requests for name in self.queues.ahead(class_name))

    def predict_wait_s(self, class_name: str) -> float:
        """Predicted wait of an arrival of this class that cannot start at once."""
        return wait.predict_wait_s(
            self.settings.wait_predictor, self.books, self.ahead_us(class_name), self.drain_us_per_s()
        )

    def max_class_work_us(self, settings: ClassSettings) -> float | None:
        """Bound on the work a class may have waiting; None while it is not known what drains."""
        if settings.max_queue_gpu_s is not None:
            return self.settings.to_work_us(settings.max_queue_gpu_s * self.share)
        return None if self.learning else self.drain_us_per_s() * settings.wait_budget_s

    # What it learns

    def learn_end(self, ticket: Ticket, usage: Usage | None) -> None:
        """A request finished whole."""
        self.finished += 1
        demand = ticket.demand
        if usage is not None and demand.prompt_tokens is None:
            self.ratio.observe(demand.prompt_bytes, usage.prompt_tokens - demand.extra_prompt_tokens)
        # Without usage the events stand in: nearly one a token for most engines.
        output = usage.output_tokens if usage is not None else ticket.output_events
        if demand.generates and output:
            samples = demand.samples
            self.lengths.observe(demand.class_name, output // samples if samples > 1 else output)
        if self.learning and self.finished >= LEARNED_REQUESTS:
            self._learning_may_end()

    def learn_wait(self, ticket: Ticket) -> None:
        """A request that had to wait was dispatched."""
        self.errors.observe(ticket.predicted_wait_s, ticket.waited_s)
        if self.learning:
            self._learning_may_end()
        elif self.settings.law is None:
            median = self.errors.median
            self.learning = median is not None and median > UNLEARNED_ERROR

    def _learning_may_end(self) -> None:
        """Whether predictions may refuse from now on (cold start)."""
        if self.finished < LEARNED_REQUESTS:
            return
        for endpoint in self.endpoints.values():
            if endpoint.meter.is_trusted and endpoint.is_up:
                median = self.errors.median
                self.learning = median is None or median >= LEARNED_ERROR
                return


def _largest(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None
