"""VTC: the Virtual Token Counter, fairness of served tokens between clients (Sheng et al., OSDI 2024).

Read in the authors' artifact (`slora/server/router/vtc_req_queue.py`), the linear cost with its prices:

- a tenant's counter grows by one for each prompt token when a request of it starts, and by two for each output token
  as it comes, both divided by the tenant's weight;
- the tenant with the smallest counter among those that have requests waiting goes next, its own in order of arrival;
- a tenant that had nothing waiting is lifted to the smallest counter of those that have, so nobody saves up;
- a request starts if the worst case fits: all that run there and it, each up to the limit that its client states, must
  at no time hold more than the KV cache, and at most `running_max_req_size` may run. If the one whose turn it is does
  not fit, nobody starts. Prompts not yet worked off may come to `batch_max_tokens` at once, one of them may be more.

There is no deadline and no refusal: a request waits until its client leaves.

Not faithful: the artifact decides between steps inside the engine, and knows every token at once; here tokens come in
reports. It serves one engine; here the one with the fewest in flight is tried first. A client that states no limit
counts with `DEFAULT_OUTPUT`, and what could never fit starts on an idle engine. Answers that are not streamed are
charged at their end, and their prompts are in work until a later stream's at the same engine is not.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from forebay.admission.model import TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.simulate.baselines.pool_law import Place, PoolLaw, Request

__all__ = ["VirtualTokenCounter", "peak_tokens"]

INPUT_PRICE: Final = 1
OUTPUT_PRICE: Final = 2
RUNNING_MAX_REQ_SIZE: Final = 1_000
"""The artifact's default; an engine that tells of fewer slots is believed."""
BATCH_MAX_TOKENS: Final = 8_192
"""The artifact takes 10,000 and less by GPU; this is the token budget of a step in vLLM."""
DEFAULT_OUTPUT: Final = 1_024
MOST_IDLE: Final = 10_000
"""Tenants without a request whose counters are kept; beyond that the lowest go, which a lift gives back."""


def peak_tokens(requests: list[tuple[int, int]]) -> int:
    """The most KV cache that requests will hold at once, each (tokens now, tokens still to come at most)."""
    held = most = 0
    for count, (now, to_come) in enumerate(sorted(requests, key=lambda request: -request[1]), 1):
        held += now
        most = max(most, held + count * to_come)
    return most


class VirtualTokenCounter(PoolLaw):
    """One counter for each tenant, one queue for each that has requests waiting."""

    def __init__(self, pool: str, settings: Settings) -> None:
        super().__init__(pool, settings)
        self.served: dict[str, float] = {}
        self._queues: dict[str, deque[TicketId]] = {}
        self._weights = {plan.name: plan.weight for plan in settings.plans}
        self._charged: dict[TicketId, int] = {}
        """Output tokens paid for, of what runs."""

    # The hooks of a law

    def arrived(self, request: Request, now: float) -> None:
        """It joins its tenant's queue."""
        patience_s = request.demand.patience_until_s
        request.expires_s = inf if patience_s is None else patience_s
        if self.waiting.is_full:
            self.hold(request, now)  # which refuses it
            return
        tenant, ticket = request.demand.tenant, request.demand.ticket
        queue = self._queues.get(tenant)
        if queue is None:
            self._lift(tenant)
            queue = self._queues[tenant] = deque()
        queue.append(ticket)
        self.enqueue(request)
        self.room(now)
        if request.place is None:
            self.tell_held(request, now)

    def room(self, now: float) -> None:
        """Serve the one with the smallest counter, until its request does not fit."""
        while (request := self._next()) is not None:
            place = self._place_for(request)
            if place is None:
                return
            self.start(request, place, now)

    def unqueued(self, request: Request) -> None:
        """Empty queues are forgotten: the next request of that tenant is a return."""
        tenant = request.demand.tenant
        queue = self._queues[tenant]
        queue.remove(request.demand.ticket)
        if not queue:
            del self._queues[tenant]

    def started(self, request: Request, place: Place) -> None:
        """The prompt is paid for."""
        if request.attempts == 1:
            self._charge(request, request.prompt_tokens * INPUT_PRICE)
        self._charged[request.demand.ticket] = 0

    def progressed(self, request: Request, events: int) -> None:
        """So is each token."""
        self._pay(request, self._charged[request.demand.ticket] + events)

    def stopped(self, request: Request, outcome: Outcome | None, usage: Usage | None, now: float) -> None:
        """What was not seen as it came is paid for now."""
        self._pay(request, request.output_events if usage is None else usage.output_tokens)
        del self._charged[request.demand.ticket]

    # Counters

    def _charge(self, request: Request, amount: float) -> None:
        weight = self._weights.get(request.demand.plan, 1.0)
        tenant = request.demand.tenant
        self.served[tenant] = self.served.get(tenant, 0.0) + amount / weight

    def _pay(self, request: Request, output_tokens: int) -> None:
        paid = self._charged[request.demand.ticket]
        if output_tokens > paid:
            self._charge(request, (output_tokens - paid) * OUTPUT_PRICE)
            self._charged[request.demand.ticket] = output_tokens

    def _lift(self, tenant: str) -> None:
        """A tenant comes back: idling has earned it nothing."""
        counter = self.served.get(tenant, 0.0)
        if self._queues:
            counter = max(counter, min(self.served[other] for other in self._queues))
        self.served[tenant] = counter
        if len(self.served) > MOST_IDLE + len(self.requests):
            busy = {request.demand.tenant for request in self.requests.values()}
            idle = sorted((name for name in self.served if name not in busy), key=self.served.__getitem__)
            for name in idle[: len(idle) // 2]:
                del self.served[name]

    def _next(self) -> Request | None:
        if not self._queues:
            return None
        tenant = min(self._queues, key=self.served.__getitem__)
        return self.requests[self._queues[tenant][0]]

    # Room

    def _place_for(self, request: Request) -> Place | None:
        usable = [place for place in self.places.values() if place.usable]
        for place in sorted(usable, key=lambda place: (len(place.running), place.last_start)):
            if not place.running or self._fits(request, place):
                return place
        return None

    def _fits(self, request: Request, place: Place) -> bool:
        most = RUNNING_MAX_REQ_SIZE
        if place.info is not None and place.info.max_requests is not None:
            most = min(most, place.info.max_requests)
        if len(place.running) >= most:
            return False
        in_work = sum(running.prompt_tokens for running in place.running.values() if not running.is_prefilled)
        if in_work and in_work + request.prompt_tokens > BATCH_MAX_TOKENS:
            return False
        kv_tokens = None if place.info is None else place.info.kv_tokens
        if kv_tokens is None:
            return True
        held = [_held(running) for running in place.running.values()]
        return peak_tokens([*held, _held(request)]) < kv_tokens


def _held(request: Request) -> tuple[int, int]:
    limit = request.demand.max_output_tokens or DEFAULT_OUTPUT
    return request.prompt_tokens + request.output_events, max(limit - request.output_events - 1, 0)
