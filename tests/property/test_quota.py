"""No history lets a tenant use more than rate × time + burst, but for what estimates of its requests were wrong by.

Two references: a sum that knows nothing of buckets, held against the accounts at every decision; and, over the whole
core, who is in flight and what each of those who ended had to pay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.events import (
    AttemptFailed,
    ClientLeft,
    Described,
    Ended,
    EndpointsChanged,
    Failure,
    FirstTokenCame,
)
from forebay.admission.model import MICRO, Demand, EndpointId, EngineInfo, EngineKind, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.quota import GPU_SECONDS, Account, Debit, Quota
from forebay.admission.settings import PlanSettings, PoolSettings, Settings
from tests.property.driving import Bench, Seen, close

ROUNDING: Final = 1e-3
RATES: Final = (0.0, 0.5, 7.3, 100.0)
BURSTS: Final = (1, 50, 200, 1000)

a_plan = st.builds(
    lambda rate, burst, requests, requests_burst, inflight, gpu_us: PlanSettings(
        "p",
        tokens_per_s=rate,
        tokens_capacity=0 if rate == 0 else burst,
        requests_per_s=requests,
        requests_capacity=0 if requests == 0 else requests_burst,
        max_inflight=inflight,
        max_inflight_gpu_us=gpu_us,
    ),
    st.sampled_from(RATES),
    st.sampled_from(BURSTS),
    st.sampled_from([0.0, 0.1, 3.0, 50.0]),
    st.integers(1, 5),
    st.none() | st.integers(0, 4),
    st.sampled_from([None, None, 0, 300, 2_000]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.sampled_from([0.0, 1e-4, 0.013, 0.7, 5.0, 300.0])),
        st.tuples(st.just("arrive"), st.sampled_from([0, 1, 10, 49, 50, 180, 700, 5000])),
        st.tuples(st.just("end"), st.sampled_from([0.0, 0.3, 1.0, 2.5])),  # true cost ÷ estimate
        st.tuples(st.just("give back"), st.just(0.0)),
        st.tuples(st.just("reload"), a_plan),
    ),
    max_size=80,
)


@settings(max_examples=400)
@given(a_plan, steps)
def test_nobody_uses_more_than_was_granted(plan: PlanSettings, history: list[tuple[str, object]]) -> None:
    """At each request let in, with it: what was used is at most what was granted, and the largest burst or request.

    So what comes on top before the next is let in is only what those in flight take over their estimates. And whatever
    the sum says there is room for is let in.
    """
    quota, now = Quota(), 0.0
    tokens = tokens_granted = requests = requests_granted = 0.0
    most_tokens, most_requests = float(plan.tokens_capacity or 0), float(plan.requests_capacity or 0)
    in_flight: list[Debit] = []
    for what, value in history:
        account = quota.account("acme", plan, now)
        if what == "time":
            assert isinstance(value, float)
            now += value
            tokens_granted += value * (plan.tokens_per_s or 0.0)
            requests_granted += value * (plan.requests_per_s or 0.0)
        elif what == "reload":
            assert isinstance(value, PlanSettings)
            plan = value
            quota.reconfigure({"p": plan}, now)
            most_tokens = max(most_tokens, plan.tokens_capacity or 0)
            most_requests = max(most_requests, plan.requests_capacity or 0)
        elif what == "arrive":
            assert isinstance(value, int)
            debit = Debit(account, tokens=value, input_tokens=0, gpu_us=3 * value, key=1 + value % 3)
            if not all(check.passed for check in debit.checks(now)):
                assert _has_reason(debit, account, now)
                wait_s = debit.wait_s(now)
                told_s = quota.retry_after_s(debit, wait_s, now)
                assert told_s is None or min(wait_s, 46.0) <= told_s <= 60.0
                continue
            debit.book(now)
            in_flight.append(debit)
            tokens, requests = tokens + value, requests + 1
            most_tokens = max(most_tokens, value)
            assert 0 not in (
                plan.tokens_per_s,
                plan.requests_per_s,
                plan.max_inflight,
                plan.max_inflight_gpu_us,
            )
            assert tokens <= tokens_granted + most_tokens + ROUNDING
            assert requests <= requests_granted + most_requests + ROUNDING
            assert plan.max_inflight is None or len(in_flight) <= plan.max_inflight
            most_us = plan.max_inflight_gpu_us
            assert most_us is None or len(in_flight) == 1 or sum(d.gpu_us for d in in_flight) <= most_us
        elif in_flight:
            assert isinstance(value, float)
            debit = in_flight.pop(0)
            paid = round(debit.tokens * value)
            debit.close(paid, now, was_request=what == "end")
            tokens += paid - debit.tokens
            requests -= what != "end"
        assert account.in_flight == len(in_flight)
        assert account.in_flight_gpu_us == sum(d.gpu_us for d in in_flight)


def _has_reason(debit: Debit, account: Account, now: float) -> bool:
    """A refusal says when it would pass, and it does then, as far as buckets can say."""
    wait_s, plan = debit.wait_s(now), account.plan
    if wait_s == float("inf"):
        return 0 in (plan.tokens_per_s, plan.requests_per_s, plan.max_inflight, plan.max_inflight_gpu_us)
    then = Account(plan, now)  # another one: time does not go back
    for bucket, known in ((then.tokens, account.tokens), (then.requests, account.requests)):
        bucket.spent, bucket.at_s = known.spent, known.at_s
    again = Debit(then, tokens=debit.tokens, input_tokens=0, gpu_us=debit.gpu_us)
    if account.promise.left_for_it(debit.key, plan.tokens_per_s or 0.0, now + wait_s):
        return True  # behind one that has a promise and may not come
    later = {check.name for check in again.checks(now + wait_s) if not check.passed}
    return later <= {"quota_inflight_requests", GPU_SECONDS}


SCARCE: Final = PlanSettings(
    "p",
    tokens_per_s=1e-9,  # nothing that comes back: all that was used can be seen
    tokens_capacity=10**9,
    requests_per_s=1e-9,
    requests_capacity=10**6,
    max_inflight=6,
    max_inflight_gpu_us=40_000_000,
)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.sampled_from([0.0, 0.5, 4.0, 20.0]), st.just(0)),
        st.tuples(st.just("arrive"), st.sampled_from(["realtime", "standard", "batch"]), st.integers(1, 500)),
        st.tuples(st.just("first"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("end"), st.sampled_from(list(Outcome)), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("reload"), st.just(""), st.integers(1, 3)),
    ),
    max_size=60,
)
ENDINGS: Final = (
    Outcome.COMPLETED, Outcome.ENGINE_REJECTED, Outcome.UPSTREAM_INTERRUPTED, Outcome.SLOW_READER,
)  # fmt: skip


@given(st.booleans(), moves)
def test_who_ends_pays_for_what_it_got(bills_cap: bool, history: list[tuple[str, object, int]]) -> None:
    """Over every way through the core: what is spent is what those in flight hold and those that ended had to pay."""
    plan = replace(SCARCE, bills_cap=bills_cap)
    pool = PoolSettings("p", max_inflight_requests=2, gpus=2)
    bench = Bench(Settings((pool,), plans=(plan,)))
    endpoints = (EndpointId("x"), EndpointId("y"))
    bench.feed(EndpointsChanged("p", endpoints))
    for endpoint in endpoints:
        bench.feed(Described(endpoint, EngineInfo(EngineKind.VLLM)))
    debits: dict[TicketId, Debit] = {}
    for what, value, number in history:
        running = bench.where("running")
        some = running[number % len(running)].demand.ticket if running else None
        if what == "time":
            assert isinstance(value, float)
            bench.advance(value)
        elif what == "arrive":
            ticket = TicketId(len(bench.tickets) + 1)
            demand = Demand(
                ticket, "p", str(value), "m", True, 4 * number, 9, "acme", number, 0, 50 + number, plan="p"
            )
            bench.arrive(demand)
            live = bench.controller._life.tickets.get(ticket)
            if live is not None:
                assert live.debit is not None
                debits[ticket] = live.debit
        elif what == "reload":
            bench.reconfigure(replace(bench.settings, plans=(replace(plan, max_inflight=3 * number),)))
        elif some is None:
            continue
        elif what == "first":
            bench.feed(FirstTokenCame(some))
        elif what == "leave":
            bench.feed(ClientLeft(some, number))
        elif what == "fail":
            endpoint_id = bench.tickets[some].endpoint
            assert endpoint_id is not None
            bench.feed(AttemptFailed(some, endpoint_id, Failure.CLOSED))
        elif value in ENDINGS:
            assert isinstance(value, Outcome)
            usage = Usage(number + 3, number) if value is Outcome.COMPLETED else None
            bench.feed(Ended(some, value, usage, number))
        _balance(bench, debits, bills_cap=bills_cap)
    close(bench)
    _balance(bench, debits, bills_cap=bills_cap)


def _balance(bench: Bench, debits: dict[TicketId, Debit], *, bills_cap: bool) -> None:
    """The account is the sum of its parts."""
    account = bench.controller._life.quota.account("acme", bench.controller._reception._plans["p"], bench.now)
    open_ones = {ticket for ticket in debits if bench.tickets[ticket].settlement is None}
    endpoints = bench.controller._pools["p"].endpoints.values()
    lingering_us = [d.debit.gpu_us for e in endpoints for d in e.draining if d.debit is not None]
    assert account.in_flight == len(open_ones) + len(lingering_us)
    assert account.in_flight_gpu_us == sum(debits[ticket].gpu_us for ticket in open_ones) + sum(lingering_us)
    tokens = sum(debits[ticket].tokens for ticket in open_ones)
    requests = len(open_ones)
    for ticket, debit in debits.items():
        paid, was_request = _paid(bench.tickets[ticket], debit, bills_cap=bills_cap)
        tokens += paid
        requests += was_request
    assert abs(account.tokens.spent - tokens * MICRO) <= 10  # what came back meanwhile
    assert abs(account.requests.spent - requests * MICRO) <= 10


def _paid(seen: Seen, debit: Debit, *, bills_cap: bool) -> tuple[int, bool]:
    """What a request that ended has to pay, by what was said of it."""
    settlement = seen.settlement
    if settlement is None:
        return 0, False
    is_rejected = settlement.outcome is Outcome.ENGINE_REJECTED
    left_engine = settlement.outcome is Outcome.CLIENT_GONE
    if is_rejected or (settlement.ttft_s is None and not left_engine):
        return 0, is_rejected
    output = debit.output_cap if bills_cap and debit.output_cap is not None else settlement.output_tokens
    return settlement.prompt_tokens + output, True
