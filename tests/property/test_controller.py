"""The controller under random histories: what must hold whatever happens, and in whatever order."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.admission.events import (
    AttemptFailed,
    ClientLeft,
    Described,
    DrainStarted,
    Ended,
    EndpointsChanged,
    Failure,
    FirstTokenCame,
    Progressed,
    Sampled,
    SampleMissed,
    ShareChanged,
)
from forebay.admission.model import (
    Demand,
    EndpointId,
    EndpointState,
    EngineInfo,
    EngineKind,
    EngineSample,
    TicketId,
    Usage,
)
from forebay.admission.outcomes import Group, Outcome
from forebay.admission.settings import ClassSettings, PoolSettings, Settings, SpeedLaw
from tests.property.driving import Bench, Seen

POOL = "llama"
NAMES = tuple(EndpointId(f"http://engine-{n}:8000") for n in range(4))
LAW = SpeedLaw(c0_s=6.8e-3, c1_s=2e-5, c2_s=5e-5, c3_s=4e-8, c4_s=8e-10, kv_tokens=4000, max_requests=64)
FAILURES = st.sampled_from(list(Failure))
ENDINGS = st.sampled_from([o for o in Outcome if o.group in (Group.SERVED, Group.FAILED)])

pools = st.builds(
    PoolSettings,
    name=st.just(POOL),
    gpus=st.integers(1, 4),
    law=st.sampled_from([None, LAW]),
    max_gpu_s=st.sampled_from([None, None, 0.5, 3.0]),
    max_inflight_requests=st.sampled_from([None, None, 0, 1, 3]),
    max_inflight_tokens=st.sampled_from([None, 1500]),
    max_pool_requests=st.sampled_from([None, None, 2, 5]),
    max_queue=st.sampled_from([None, None, 0, 3]),
    hold_without_endpoints_s=st.sampled_from([0.0, 7.0]),
    wait_predictor=st.sampled_from(["backlog", "plain"]),
)
priorities = st.tuples(
    st.builds(
        ClassSettings,
        name=st.just("realtime"),
        ttft_s=st.just(1.5),
        tpot_s=st.just(0.08),
        wait_budget_s=st.just(1.5),
        max_queue=st.sampled_from([None, 0, 2]),
        max_queue_gpu_s=st.sampled_from([None, 0.2]),
    ),
    st.builds(
        ClassSettings,
        name=st.just("batch"),
        ttft_s=st.just(60.0),
        tpot_s=st.just(0.2),
        wait_budget_s=st.just(60.0),
    ),
)


class Histories(RuleBasedStateMachine):
    """Arrivals, answers, losses, churn and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(Settings(pools=(PoolSettings(POOL),)))
        self.configured: tuple[EndpointId, ...] = ()
        self.next_ticket = 0
        self.share = 1.0
        self.draining = False

    @initialize(pool=pools, classes=priorities, waiting_bytes=st.sampled_from([20_000, 1 << 20, 1 << 20]),
                described=st.sampled_from([True, True, True, False]))  # fmt: skip
    def start(
        self, pool: PoolSettings, classes: tuple[ClassSettings, ...], waiting_bytes: int, described: bool
    ) -> None:
        """Build a controller for these settings, with two endpoints."""
        self.pool = pool
        self.settings = Settings(
            pools=(pool,), classes=classes, default_class="batch", max_waiting_bytes=waiting_bytes
        )
        self.bench = Bench(self.settings)
        self.configured = NAMES[:2]
        self.bench.feed(EndpointsChanged(POOL, self.configured))
        if described:
            for name in self.configured:
                self.bench.feed(
                    Described(name, EngineInfo(EngineKind.VLLM, kv_tokens=6000, context_tokens=4096))
                )

    # What clients do

    @rule(
        class_name=st.sampled_from(["realtime", "batch"]),
        stream=st.booleans(),
        prompt=st.sampled_from([1, 40, 300, 900, 3000]),
        exact=st.booleans(),
        limit=st.sampled_from([None, 1, 50, 2000]),
        samples=st.integers(1, 2),
        deadline_s=st.sampled_from([None, None, None, -1.0, 0.5, 30.0]),
        patience_s=st.sampled_from([None, None, 0.0, 5.0]),
        count=st.integers(1, 4),
    )
    def arrive(
        self,
        class_name: str,
        stream: bool,
        prompt: int,
        exact: bool,
        limit: int | None,
        samples: int,
        deadline_s: float | None,
        patience_s: float | None,
        count: int,
    ) -> None:
        """Several equal requests arrive in the same instant."""
        for _ in range(count):
            self.next_ticket += 1
            now = self.bench.now
            seen = self.bench.arrive(
                Demand(
                    ticket=TicketId(self.next_ticket),
                    pool=POOL,
                    class_name=class_name,
                    model="m",
                    stream=stream,
                    prompt_bytes=prompt * 4,
                    body_bytes=prompt * 4 + 200,
                    prompt_tokens=prompt if exact else None,
                    max_output_tokens=limit,
                    samples=samples,
                    first_token_by_s=None if deadline_s is None else now + deadline_s,
                    patience_until_s=None if patience_s is None else now + patience_s,
                )
            )
            if seen.where != "over":
                self.let_in_within_bounds(seen)

    def let_in_within_bounds(self, seen: Seen) -> None:
        """Whoever was let in just now fits the bounds, together with all who were let in in the same instant."""
        view = self.bench.controller.snapshot()
        pool = view.pools[0]
        if pool.max_gpu_s is not None:
            assert pool.waiting_gpu_s + pool.in_flight_gpu_s <= pool.max_gpu_s + 1e-9
        if seen.where == "waiting":
            assert view.waiting_bytes <= view.max_waiting_bytes
            limits = {c.name: c.max_queue for c in self.settings.classes}
            own = next(c for c in pool.classes if c.name == seen.demand.class_name)
            assert own.waiting_requests <= (limits[own.name] or math.inf)
            assert pool.waiting_requests <= (self.pool.max_queue or math.inf)

    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        """A client goes away, waiting or running, or long after."""
        seen = self.pick(data, lambda s: True)
        if seen is not None:
            self.bench.feed(ClientLeft(seen.demand.ticket, output_events=data.draw(st.integers(0, 5))))

    # What engines do

    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        """A first token comes."""
        seen = self.pick(data, lambda s: s.where == "running")
        if seen is not None:
            self.bench.feed(FirstTokenCame(seen.demand.ticket))

    @rule(data=st.data(), tokens=st.integers(0, 40), gap=st.sampled_from([None, 0.02]))
    def progress(self, data: st.DataObject, tokens: int, gap: float | None) -> None:
        """An endpoint's streams move, with news of a ticket that may be over."""
        seen = self.pick(data, lambda s: s.endpoint is not None)
        if seen is not None and seen.endpoint is not None:
            self.bench.feed(Progressed(seen.endpoint, [(seen.demand.ticket, tokens)], gap))

    @rule(
        data=st.data(),
        outcome=ENDINGS,
        usage=st.booleans(),
        goes_on=st.booleans(),
        output=st.integers(0, 300),
    )
    def end(self, data: st.DataObject, outcome: Outcome, usage: bool, goes_on: bool, output: int) -> None:
        """A request ends."""
        seen = self.pick(data, lambda s: s.where == "running")
        if seen is None:
            return
        counted = Usage(prompt_tokens=seen.demand.prompt_bytes // 3, output_tokens=output) if usage else None
        self.bench.feed(
            Ended(seen.demand.ticket, outcome, counted, output_events=output, engine_goes_on=goes_on)
        )

    @rule(data=st.data(), failure=FAILURES, goes_on=st.booleans())
    def attempt_fails(self, data: st.DataObject, failure: Failure, goes_on: bool) -> None:
        """An attempt fails before its first token."""
        seen = self.pick(data, lambda s: s.where == "running")
        if seen is not None and seen.endpoint is not None:
            self.bench.feed(AttemptFailed(seen.demand.ticket, seen.endpoint, failure, engine_goes_on=goes_on))

    @rule(
        endpoint=st.sampled_from(NAMES),
        running=st.one_of(st.none(), st.integers(0, 9)),
        waiting=st.one_of(st.none(), st.integers(0, 2)),
        kv=st.sampled_from([None, 0.1, 0.95]),
        total=st.one_of(st.none(), st.integers(0, 9)),
    )
    def sample(
        self,
        endpoint: EndpointId,
        running: int | None,
        waiting: int | None,
        kv: float | None,
        total: int | None,
    ) -> None:
        """An engine's metrics are read, consistent or not."""
        reading = EngineSample(
            at_s=self.bench.now - 0.01, running=running, waiting=waiting, kv_usage=kv,
            output_tokens_total=total, preemptions_total=total,
        )  # fmt: skip
        self.bench.feed(Sampled(endpoint, reading))

    @rule(endpoint=st.sampled_from(NAMES), unreachable=st.booleans())
    def sample_missed(self, endpoint: EndpointId, unreachable: bool) -> None:
        """A reading fails."""
        self.bench.feed(SampleMissed(endpoint, unreachable))

    @rule(
        endpoint=st.sampled_from(NAMES),
        kind=st.sampled_from(list(EngineKind)),
        kv=st.sampled_from([None, 2000, 6000]),
        context=st.sampled_from([None, 2048]),
        slots=st.sampled_from([None, 2]),
        aborts=st.booleans(),
    )
    def describe(
        self,
        endpoint: EndpointId,
        kind: EngineKind,
        kv: int | None,
        context: int | None,
        slots: int | None,
        aborts: bool,
    ) -> None:
        """An engine is found out to be this."""
        info = EngineInfo(
            kind, kv_tokens=kv, context_tokens=context, max_requests=slots, aborts_unstreamed=aborts
        )
        self.bench.feed(Described(endpoint, info))

    # What operators do, and time

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=0))
    def endpoints_change(self, names: set[EndpointId]) -> None:
        """Endpoints come and go."""
        self.configured = tuple(name for name in NAMES if name in names)
        self.bench.feed(EndpointsChanged(POOL, self.configured))

    @rule(share=st.sampled_from([0.0, 0.5, 1.0, 1.0]))
    def share_changes(self, share: float) -> None:
        """This replica's part of the limits changes."""
        self.share = share
        self.bench.feed(ShareChanged(POOL, share))

    @precondition(lambda self: self.next_ticket > 20 and not self.draining)
    @rule(grace=st.sampled_from([0.0, 3.0]))
    def drain(self, grace: float) -> None:
        """Shutdown begins."""
        self.draining = True
        self.bench.feed(DrainStarted(self.bench.now + grace))

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.05, 0.2, 0.7, 2.5, 11.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        """The clock moves on."""
        self.bench.advance(seconds)

    # What must hold

    @invariant()
    def books_balance(self) -> None:
        """Totals are the sums of their parts, and of what the effects have said."""
        self.bench.controller.verify()
        view = self.bench.controller.snapshot()
        pool = view.pools[0]
        assert pool.waiting_requests == len(self.bench.where("waiting"))
        assert view.waiting_bytes == sum(seen.demand.body_bytes for seen in self.bench.where("waiting"))
        assert view.tickets == len(self.bench.where("waiting")) + len(self.bench.where("running"))
        running = sum(endpoint.running_requests for endpoint in pool.endpoints)
        assert running == len(self.bench.where("running"))
        for endpoint in pool.endpoints:
            ours = [s for s in self.bench.where("running") if s.endpoint == endpoint.id]
            assert endpoint.running_requests == len(ours)
            assert endpoint.kv_tokens >= sum(seen.kv_tokens for seen in ours)

    @invariant()
    def dispatches_keep_within_limits(self) -> None:
        """What was dispatched by the last call fits every limit, whatever was dispatched with it."""
        pool = self.bench.controller.snapshot().pools[0]
        for endpoint in pool.endpoints:
            if endpoint.id not in self.bench.dispatched_to:
                continue
            assert endpoint.kv_limit is None or endpoint.kv_tokens <= endpoint.kv_limit
            if endpoint.request_limit_is_firm:
                assert endpoint.running_requests + endpoint.draining_requests <= endpoint.request_limit
        if self.bench.dispatched_to and self.pool.max_pool_requests is not None:
            assert pool.in_flight_requests <= self.pool.max_pool_requests * self.share

    @invariant()
    def nobody_waits_beside_room(self) -> None:
        """No waiter is left that an endpoint has room for (work-conserving)."""
        pool = self.bench.controller.snapshot().pools[0]
        for seen in self.bench.where("waiting"):
            for endpoint in pool.endpoints:
                if not endpoint.is_open or endpoint.id in seen.tried:
                    continue
                if endpoint.reserved_for not in (None, seen.demand.ticket):
                    continue
                prompt = seen.demand.prompt_tokens
                if (
                    prompt is not None
                    and endpoint.context_tokens is not None
                    and prompt > endpoint.context_tokens
                ):
                    continue
                # What is booked may be estimated anew while it waits, so it is read where it is kept.
                needs = self.bench.controller._life.tickets[seen.demand.ticket].cost.kv_tokens
                fits = endpoint.kv_limit is None or endpoint.kv_tokens + needs <= endpoint.kv_limit
                assert not fits, f"{seen.demand.ticket} waits beside {endpoint}"

    @invariant()
    def refusals_say_when_to_return(self) -> None:
        """What may pass later carries a time between 1 and 60 s, what cannot carries none."""
        for effect in self.bench.log:
            refusal = getattr(effect, "refusal", None)
            if refusal is not None:
                if refusal.outcome.may_pass_later:
                    assert 1.0 <= refusal.retry_after_s <= 60.0
                else:
                    assert refusal.retry_after_s is None
        self.bench.log.clear()

    def teardown(self) -> None:
        """When everything has ended, nothing is held and every ticket was settled once."""
        for _ in range(50):
            running = self.bench.where("running")
            if not running:
                break
            for seen in running:
                self.bench.feed(Ended(seen.demand.ticket, Outcome.COMPLETED))
        self.bench.advance(2000.0)
        for seen in self.bench.where("running"):
            self.bench.feed(ClientLeft(seen.demand.ticket))
        self.bench.advance(2000.0)
        assert not self.bench.where("running")
        assert not self.bench.where("waiting")
        assert all(seen.settlement is not None for seen in self.bench.tickets.values())
        view = self.bench.controller.snapshot()
        assert (view.tickets, view.waiting_bytes) == (0, 0)
        pool = view.pools[0]
        assert (pool.waiting_requests, pool.in_flight_requests) == (0, 0)
        assert (pool.waiting_gpu_s, pool.in_flight_gpu_s) == (0.0, 0.0)
        assert {e.id for e in pool.endpoints if e.state is not EndpointState.REMOVED} == set(self.configured)

    def pick(self, data: st.DataObject, wanted: Callable[[Seen], bool]) -> Seen | None:
        """One ticket that the test knows of."""
        found = [seen for seen in self.bench.tickets.values() if wanted(seen)]
        return data.draw(st.sampled_from(found)) if found else None


TestHistories = Histories.TestCase
TestHistories.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
