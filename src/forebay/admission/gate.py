"""The decision about one arrival: can it start, must it wait, or is it refused.

The checks run in one fixed order; all that apply are made and recorded, the first that fails decides, and
nothing is booked here:

    rules that routed it → endpoints → size → the tenant's own limits → rules that refuse → (room now?)
        → predicted wait → pool's GPU-seconds → bytes, class and pool bounds on waiting

and of a request that must wait, what it waits for (`holding`).

A request that can start at once is held to the pool's GPU-seconds only: the rest bounds waiting, and it does not
wait. While the pool is learning, a predicted wait is recorded but refuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

from forebay.admission.cost import prefill_us
from forebay.admission.endpoints import Endpoint
from forebay.admission.holding import what_holds
from forebay.admission.ledger import Ledger
from forebay.admission.model import MICRO, Amount, Check, EndpointState
from forebay.admission.outcomes import Outcome
from forebay.admission.placement import place
from forebay.admission.pools import Pool
from forebay.admission.quota import GPU_SECONDS, IN_FLIGHT, INPUT, REQUESTS, TOKENS, Debit
from forebay.admission.retry_after import LONGEST_S
from forebay.admission.rules import Ruling
from forebay.admission.settings import OnStale, Settings
from forebay.admission.tickets import Ticket
from forebay.admission.wait import Forecast

WITHIN_SHARE_MOST: Final = 4.0
"""Times what is predicted that one of a tenant with less waiting than its share may be taken to wait."""
PASSED: Final = "passed"
PREDICTED_WAIT: Final = "predicted_wait"
HOPELESS: Final = "deadline_hopeless"
POOL_BOUNDS: Final = ("pool_gpu_seconds", "waiting_bytes", "pool_queue_requests")
"""Checks that the going of any waiter can mend."""
CLASS_BOUNDS: Final = ("class_queue_requests", "class_queue_gpu_seconds")
"""Checks that only the going of one of the same class can mend."""

_QUOTA_DETAILS: Final = {
    INPUT: "The input alone is larger than all that may be used at once: shorten it.",
    TOKENS: "The tokens of your plan are used up.",
    REQUESTS: "The requests of your plan are used up.",
    IN_FLIGHT: "You have as many requests in flight as your plan allows.",
    GPU_SECONDS: "You have as much work in flight as your plan allows.",
}

# As plain names: up to Python 3.11, looking a member up in its enum costs as much as a call.
_QUEUE_FULL: Final = Outcome.QUEUE_FULL
_TOO_LARGE: Final = Outcome.REQUEST_TOO_LARGE
_RATE_LIMIT: Final = Outcome.RATE_LIMIT_EXCEEDED
_EXCEEDS_QUOTA: Final = Outcome.REQUEST_EXCEEDS_QUOTA
_REFUSE_STALE: Final = OnStale.REFUSE
_DRAINED: Final = EndpointState.DRAINED


@dataclass(slots=True)
class Verdict:
    """What the gate found."""

    checks: list[Check] = field(default_factory=list)
    outcome: Outcome | None = None
    decided_by: str = PASSED
    detail: str = ""
    endpoint: Endpoint | None = None
    """Where it can start now; None if it must wait or is refused."""
    predicted_wait_s: float = 0.0
    position: int = 0
    forecast: Forecast | None = None
    """What is said of its wait; None if it need not wait, or nobody can say."""
    retry_after_s: float | None = None
    """When to come back, where whoever refused has said it."""
    takes_over: bool = False
    """It is let in above a bound of the pool, for it may not be refused."""

    def check(
        self, name: str, value: Amount, limit: Amount | None, outcome: Outcome, detail: str = ""
    ) -> None:
        """Record that `value` may be at most `limit`; the first failure decides."""
        passed = limit is None or value <= limit
        self.checks.append(Check(name, value, limit, passed))
        if not passed and self.outcome is None:
            self.outcome, self.decided_by, self.detail = outcome, name, detail

    def check_bound(
        self, ticket: Ticket, name: str, value: Amount, limit: Amount | None, detail: str
    ) -> None:
        """The same of a bound of the pool, which some requests take over."""
        if ticket.never_refuse and limit is not None and value > limit:
            self.checks.append(Check(name, value, limit, False))
            self.takes_over = True
        else:
            self.check(name, value, limit, _QUEUE_FULL, detail)


def examine(ticket: Ticket, ledger: Ledger, settings: Settings, now: float, *, draining: bool) -> Verdict:
    """Decide about an arrival. Changes nothing."""
    verdict = Verdict()
    pool = ticket.pool
    if draining:
        verdict.check("draining", 1, 0, Outcome.DRAINING, "The gateway is shutting down.")
        return verdict
    ruling = ticket.ruling
    if ruling is not None:
        verdict.checks.extend(ruling.checks)
    _check_endpoints(verdict, pool)
    if ticket.on_stale is _REFUSE_STALE and pool.has_up():
        stale = pool.is_stale(now)
        verdict.check(
            "stale_samples",
            int(stale),
            0,
            Outcome.STALE_ENGINE,
            "No engine of this pool has told its load lately.",
        )
    _check_size(verdict, ticket)
    _check_hopeless(verdict, ticket, now)
    if ticket.debit is not None:
        _check_quota(verdict, ticket.debit, now)
    if ruling is not None:
        _check_rules(verdict, ruling, ticket)
    bound_us, with_it_us = pool.max_work_us(), pool.books.work_us + ticket.cost.work_us
    is_within = bound_us is None or with_it_us <= bound_us or ticket.never_refuse
    place_now = None
    may_start = is_within and pool.has_place(now)
    if may_start and (pool.ceilings is None or not pool.ceilings.is_shut(ticket.class_index, now)):
        place_now = place(ticket, pool.endpoints.values(), now)
    if verdict.outcome is None:
        verdict.endpoint = place_now
    if place_now is None:  # also of one that is refused: what it would not have met is no part of the reason
        _check_wait(verdict, ticket, now)
    verdict.check_bound(
        ticket,
        "pool_gpu_seconds",
        pool.settings.to_gpu_s(with_it_us),
        None if bound_us is None else _gpu_s(pool, bound_us),
        "The pool's bound on queued and running work is reached.",
    )
    if place_now is None:
        _check_waiting_bounds(verdict, ticket, ledger, settings, now)
        held_by = None if verdict.outcome is not None else what_holds(ticket, pool, now)
        if held_by is not None:
            verdict.checks.append(held_by)
            verdict.decided_by = held_by.name
    return verdict


def _check_endpoints(verdict: Verdict, pool: Pool) -> None:
    up = pool.count_up()
    may_come = up or pool.is_starting() or pool.settings.hold_without_endpoints_s > 0
    verdict.checks.append(Check("endpoints_up", up, None, bool(may_come)))
    if not may_come:
        verdict.outcome, verdict.decided_by = Outcome.NO_ENDPOINTS, "endpoints_up"
        drained = [e for e in pool.endpoints.values() if e.state is _DRAINED]
        why = "can be reached" + (", but those that an operator has taken out of use" if drained else "")
        verdict.detail = f"No engine of pool {pool.settings.name!r} {why}."


def _check_size(verdict: Verdict, ticket: Ticket) -> None:
    pool = ticket.pool
    needs = pool.pricing.surely_needs(ticket.demand)
    verdict.check(
        "context_window",
        needs,
        pool.context_tokens,
        _TOO_LARGE,
        "The prompt is longer than the model's context window: shorten it.",
    )
    most = pool.settings.max_output_tokens
    if most is not None and ticket.demand.max_output_tokens is not None:
        verdict.check(
            "max_output_tokens",
            ticket.demand.max_output_tokens,
            most,
            _TOO_LARGE,
            "The output limit is above what is generated here: lower it.",
        )
    if ticket.demand.generates:
        verdict.check(
            "kv_cache",
            needs,
            pool.kv_capacity,
            _TOO_LARGE,
            "The prompt does not fit the engine's KV cache: shorten it.",
        )
    # What is only guessed may not refuse it for good: then its prompt alone counts.
    surely_us, bound_us = ticket.cost.work_us, pool.max_work_us(1.0)
    if bound_us is not None and not pool.learning.may_refuse:
        surely_us = min(prefill_us(pool.pricing.law, needs) * ticket.demand.prompts, surely_us)
    verdict.check(
        "request_gpu_seconds",
        pool.settings.to_gpu_s(surely_us),
        _gpu_s(pool, bound_us),
        _TOO_LARGE,
        "The request alone is above the pool's bound on work. Shorten the prompt, lower the output limit, or ask for "
        "fewer samples.",
    )


def _check_quota(verdict: Verdict, debit: Debit, now: float) -> None:
    """The tenant's own limits: all are compared, and nothing is charged."""
    for check in debit.checks(now):
        verdict.checks.append(check)
        if not check.passed and verdict.outcome is None:
            verdict.outcome = _EXCEEDS_QUOTA if check.name == INPUT else _RATE_LIMIT
            verdict.decided_by, verdict.detail = check.name, _QUOTA_DETAILS[check.name]
            wait_s = debit.wait_s(now)
            if wait_s == inf:
                verdict.detail += " It allows none."
            elif wait_s > LONGEST_S and verdict.outcome is _RATE_LIMIT:
                verdict.detail += f" There is room for this request in {wait_s:.0f} s."


def _check_rules(verdict: Verdict, ruling: Ruling, ticket: Ticket) -> None:
    """An operator's rule may refuse what all limits would let in, but for what is never refused."""
    rule = ruling.refused_by
    if rule is None:
        return
    verdict.checks.append(Check(rule.check, 1, None, False))
    if verdict.outcome is None and not ticket.never_refuse:
        verdict.outcome, verdict.decided_by = Outcome.RULE_REFUSED, rule.check
        verdict.detail = f"It is rule {rule.name!r}."
        verdict.retry_after_s = rule.retry_after_s


def _check_wait(verdict: Verdict, ticket: Ticket, now: float) -> None:
    """May a request that cannot start at once wait for as long as it would have to?"""
    pool, demand = ticket.pool, ticket.demand
    ahead_us, verdict.position = pool.queue.work_ahead(ticket)
    if not pool.has_up():
        return
    waits = pool.classes[demand.class_name].waits
    base_s = pool.base_wait_s(demand.class_name, ahead_us, ticket, now)
    forecast = verdict.forecast = waits.forecast(base_s)
    verdict.predicted_wait_s = forecast.expected_s
    if not pool.learning.may_refuse:
        seen_s = pool.learning.starts.wait_s(verdict.position, now)
        if seen_s is not None:
            verdict.predicted_wait_s = seen_s  # what is told; what is learned from goes on to be the forecast
    budget = wait_budget_s(ticket, now)
    if budget <= 0:
        # The client's own deadline has passed: no prediction is needed for that.
        verdict.check(
            "deadline", -budget, 0.0, Outcome.DEADLINE_UNREACHABLE, "The client's deadline has passed."
        )
    if pool.learning.may_refuse and not ticket.accepted:
        quantile = pool.learning.quantile_for(ticket.settings.confidence, waits.trusted)
        wait_s = waits.at_quantile(base_s, quantile)
        served, own_waits = pool.queue.classes[ticket.class_index].parts_of(ticket)
        if own_waits < served:
            # What the class has learned is of those with more waiting than their share: they wait for each other.
            wait_s = min(wait_s, WITHIN_SHARE_MOST * waits.predict(base_s))
        verdict.check(PREDICTED_WAIT, wait_s, None if budget == inf else budget, Outcome.DEADLINE_UNREACHABLE)
        if verdict.decided_by == PREDICTED_WAIT:
            verdict.detail = (
                f"Expected are {forecast.expected_s:.3g} s; compared is the {quantile:g} quantile."
            )
    else:
        verdict.checks.append(Check(PREDICTED_WAIT, verdict.predicted_wait_s, None, True))


def _check_hopeless(verdict: Verdict, ticket: Ticket, now: float) -> None:
    """Could an idle endpoint meet the client's deadline? If not that is recorded, and refused where it is wished."""
    pool, by_s = ticket.pool, ticket.demand.first_token_by_s
    if by_s is None:
        return
    prefill_s = ticket.cost.prefill_us / MICRO / pool.fastest()
    if prefill_s <= by_s - now:
        return
    if pool.common.refuse_hopeless:
        detail = "Not even an idle engine could meet the client's deadline."
        verdict.check(HOPELESS, prefill_s, by_s - now, Outcome.DEADLINE_HOPELESS, detail)
    else:
        verdict.checks.append(Check(HOPELESS, prefill_s, by_s - now, False))


def _check_waiting_bounds(
    verdict: Verdict, ticket: Ticket, ledger: Ledger, settings: Settings, now: float
) -> None:
    """The bounds on what waits."""
    pool, demand = ticket.pool, ticket.demand
    verdict.check(
        "waiting_bytes",
        ledger.waiting_bytes + demand.body_bytes,
        settings.max_waiting_bytes,
        _QUEUE_FULL,
        "Waiting requests hold as many bytes as they may.",
    )
    if not ticket.never_refuse:
        _check_class_bounds(verdict, ticket, now)
    verdict.check_bound(
        ticket,
        "pool_queue_requests",
        pool.books.waiting.requests + 1,
        pool.settings.max_queue,
        "The pool has as many requests waiting as it may.",
    )


def _check_class_bounds(verdict: Verdict, ticket: Ticket, now: float) -> None:
    pool, own = ticket.pool, ticket.settings
    waiting = pool.books.classes[own.name]
    # The bound that follows from the drain rate is a wait, drain rate x budget, and its own service is no part of that.
    work_us = waiting.work_us + (ticket.cost.work_us if own.max_queue_gpu_s is not None else 0)
    if own.max_queue_gpu_s is None and work_us:
        # What follows from the drain rate is shared by the tenants: as if each had as much waiting, for its weight.
        served, waits = pool.queue.classes[ticket.class_index].parts_of(ticket)
        work_us = min(work_us, int(work_us * waits / served))
    verdict.check(
        "class_queue_requests",
        waiting.requests + 1,
        None if ticket.accepted else own.max_queue,
        _QUEUE_FULL,
        f"Class {own.name!r} has as many requests waiting as it may.",
    )
    verdict.check(
        "class_queue_gpu_seconds",
        pool.settings.to_gpu_s(work_us),
        None if ticket.accepted else _gpu_s(pool, pool.max_class_work_us(own, now)),
        _QUEUE_FULL,
        f"Class {own.name!r} has as much work waiting as it may.",
    )


def wait_budget_s(ticket: Ticket, now: float) -> float:
    """How long this request may wait from now: its class's budget or the client's stated deadline, the tighter.

    Infinite where neither holds.
    """
    budget = inf if ticket.never_refuse else ticket.settings.wait_budget_s
    stated = ticket.demand.first_token_by_s
    return budget if stated is None else min(budget, stated - now)


def rests_on_prediction(verdict: Verdict, ticket: Ticket) -> bool:
    """True if what was learned decided: the predicted wait, or a class's bound that follows from the drain rate."""
    if verdict.decided_by == "class_queue_gpu_seconds":
        return ticket.settings.max_queue_gpu_s is None
    return verdict.decided_by == PREDICTED_WAIT


def _gpu_s(pool: Pool, work_us: float | None) -> float | None:
    return None if work_us is None else pool.settings.to_gpu_s(int(work_us))
