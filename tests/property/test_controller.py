"""The controller under random histories: what must hold whatever happens, and in whatever order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.admission.effects import Evict, Refuse
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
from forebay.admission.gate import PREDICTED_WAIT
from forebay.admission.learning import LearningPhase
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
from forebay.admission.settings import (
    ZERO_CONFIGURATION_CLASSES,
    ClassOrder,
    ClassSettings,
    Displace,
    OnStale,
    Order,
    PoolSettings,
    Settings,
    SpeedLaw,
)
from tests.property.driving import ROUNDING, Bench, Seen, audit, check_displacements

POOL = "llama"
NAMES = tuple(EndpointId(f"http://engine-{n}:8000") for n in range(4))
LAW = SpeedLaw(c0_s=6.8e-3, c1_s=2e-5, c2_s=5e-5, c3_s=4e-8, c4_s=8e-10, kv_tokens=4000, max_requests=64)
SLOW = replace(LAW, c1_s=4e-4, kv_tokens=200_000)
"""Prompts take long here, so it is their pace that holds requests up, and not the cache."""
FAILURES = st.sampled_from(list(Failure))
ENDINGS = st.sampled_from([o for o in Outcome if o.group in (Group.SERVED, Group.FAILED)])
TENANTS = st.sampled_from(["one", "two", "three"])
PHASES = st.sampled_from(list(LearningPhase))

INFOS = st.one_of(
    st.builds(
        EngineInfo,
        kind=st.just(EngineKind.VLLM),
        kv_tokens=st.sampled_from([6000, 200_000]),
        context_tokens=st.just(4096),
        reports_load=st.booleans(),
    ),
    st.none(),
)

pools = st.builds(
    PoolSettings,
    name=st.just(POOL),
    gpus=st.integers(1, 4),
    law=st.sampled_from([None, LAW, SLOW]),
    max_gpu_s=st.sampled_from([None, None, None, 0.5, 3.0]),
    max_inflight_requests=st.sampled_from([None, None, None, 0, 1, 3]),
    max_inflight_tokens=st.sampled_from([None, None, 1500]),
    max_pool_requests=st.sampled_from([None, None, None, 2, 5]),
    max_queue=st.sampled_from([None, None, None, 0, 3]),
    hold_without_endpoints_s=st.sampled_from([0.0, 7.0]),
    wait_predictor=st.sampled_from(["backlog", "plain"]),
    target_utilization=st.sampled_from([None, None, 0.7]),
)


def priority(name: str, ttft_s: float, tpot_s: float, value: float) -> st.SearchStrategy[ClassSettings]:
    """A class with these objectives, served and bounded in any way."""
    return st.builds(
        ClassSettings,
        name=st.just(name),
        ttft_s=st.just(ttft_s),
        tpot_s=st.just(tpot_s),
        wait_budget_s=st.just(ttft_s),
        value=st.just(value),
        weight=st.sampled_from([1.0, 3.0]),
        max_queue=st.sampled_from([None, None, None, None, 0, 2]),
        max_queue_gpu_s=st.sampled_from([None, None, None, None, 0.2]),
        order=st.sampled_from(list(Order)),
        short_tokens=st.sampled_from([0, 100]),
        short_weight=st.sampled_from([1.0, 4.0]),
        max_share=st.sampled_from([1.0, 1.0, 0.5]),
        confidence=st.sampled_from([0.5, 0.9]),
        # `ADMIT` passes whatever the books say, so it has tests of its own.
        on_stale=st.sampled_from([OnStale.OWN_COUNT, OnStale.LAST_KNOWN, OnStale.REFUSE]),
    )


priorities = st.tuples(
    priority("realtime", 1.5, 0.08, 3.0),
    priority("standard", 5.0, 0.12, 2.0),
    priority("batch", 60.0, 0.2, 1.0),
)
rules = st.builds(
    Settings,
    pools=st.tuples(pools),
    classes=priorities,
    class_order=st.sampled_from(list(ClassOrder)),
    displace=st.sampled_from(list(Displace)),
    max_waiting_bytes=st.sampled_from([20_000, 1 << 20, 1 << 20]),
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

    @initialize(settings=rules, phase=PHASES, info=INFOS)
    def start(self, settings: Settings, phase: LearningPhase, info: EngineInfo | None) -> None:
        """Build a controller for these settings, with two endpoints, that has learned so much."""
        self.bench = Bench(settings)
        trust(self.bench, phase)
        self.configured = NAMES[:2]
        self.bench.feed(EndpointsChanged(POOL, self.configured))
        if info is not None:
            for name in self.configured:
                self.bench.feed(Described(name, info))

    # What clients do

    @rule(
        class_name=st.sampled_from(["realtime", "standard", "batch"]),
        tenant=TENANTS,
        session=st.sampled_from([None, None, "a session"]),
        stream=st.booleans(),
        generates=st.sampled_from([True, True, True, False]),
        prompt=st.sampled_from([1, 40, 300, 900, 3000]),
        exact=st.booleans(),
        limit=st.sampled_from([None, 1, 50, 2000]),
        samples=st.integers(1, 2),
        deadline_s=st.sampled_from([None, None, None, -1.0, 0.5, 30.0]),
        patience_s=st.sampled_from([None, None, 0.0, 5.0]),
        count=st.sampled_from([1, 1, 2, 4, 10]),
    )
    def arrive(
        self,
        class_name: str,
        tenant: str,
        session: str | None,
        stream: bool,
        generates: bool,
        prompt: int,
        exact: bool,
        limit: int | None,
        samples: int,
        deadline_s: float | None,
        patience_s: float | None,
        count: int,
    ) -> None:
        """Several equal requests arrive in the same instant."""
        now = self.bench.now
        for _ in range(count):
            self.come(
                Demand(
                    ticket=TicketId(0),
                    pool=POOL,
                    class_name=class_name,
                    model="m",
                    stream=stream,
                    prompt_bytes=prompt * 4,
                    body_bytes=prompt * 4 + 200,
                    tenant=tenant,
                    prompt_tokens=prompt if exact else None,
                    max_output_tokens=limit,
                    samples=samples,
                    generates=generates,
                    first_token_by_s=None if deadline_s is None else now + deadline_s,
                    patience_until_s=None if patience_s is None else now + patience_s,
                    session=session,
                )
            )

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A client that was turned away sends the same again."""
        seen = self.pick(
            data, lambda s: s.settlement is not None and s.settlement.outcome.group is Group.CONTENDED
        )
        if seen is not None:
            self.come(replace(seen.demand, retry_count=1, first_token_by_s=None, patience_until_s=None))

    def come(self, demand: Demand) -> None:
        """One request arrives, under the next number."""
        self.next_ticket += 1
        seen = self.bench.arrive(replace(demand, ticket=TicketId(self.next_ticket)))
        check_displacements(self.bench)
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
            rules = next(c for c in self.bench.settings.classes if c.name == seen.demand.class_name)
            own = next(c for c in pool.classes if c.name == seen.demand.class_name)
            assert rules.max_queue is None or own.waiting_requests <= rules.max_queue
            if rules.max_queue_gpu_s is not None:
                assert own.waiting_gpu_s <= rules.max_queue_gpu_s * self.share + 1e-5
            assert self.pool.max_queue is None or pool.waiting_requests <= self.pool.max_queue

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
        kv=st.sampled_from([None, 2000, 6000, 200_000]),
        context=st.sampled_from([None, 2048]),
        slots=st.sampled_from([None, 2]),
        aborts=st.booleans(),
        reports=st.booleans(),
    )
    def describe(
        self,
        endpoint: EndpointId,
        kind: EngineKind,
        kv: int | None,
        context: int | None,
        slots: int | None,
        aborts: bool,
        reports: bool,
    ) -> None:
        """An engine is found out to be this."""
        info = EngineInfo(
            kind, kv_tokens=kv, context_tokens=context, max_requests=slots, aborts_unstreamed=aborts,
            reports_load=reports,
        )  # fmt: skip
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

    @rule(settings=rules)
    def settings_change(self, settings: Settings) -> None:
        """The operator loads another configuration."""
        self.bench.reconfigure(settings)

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
        audit(self.bench)
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
    def refusals_are_honest(self) -> None:
        """What may pass later carries a time between 1 and 60 s, what cannot carries none; learning refuses nobody."""
        for effect in self.bench.log:
            if isinstance(effect, Refuse | Evict):
                refusal = effect.refusal
                if refusal.outcome.may_pass_later:
                    assert refusal.retry_after_s is not None
                    assert 1.0 <= refusal.retry_after_s <= 60.0
                else:
                    assert refusal.retry_after_s is None
                if refusal.record.learning:
                    self.no_prediction_decided(effect)
        self.bench.log.clear()

    def no_prediction_decided(self, effect: Refuse | Evict) -> None:
        """While learning only what is counted and measured turns anybody away."""
        record = effect.refusal.record
        assert record.decided_by != PREDICTED_WAIT
        if record.decided_by == "class_queue_gpu_seconds":
            own = next(c for c in self.bench.settings.classes if c.name == record.class_name)
            assert own.max_queue_gpu_s is not None
        if isinstance(effect, Evict) and effect.refusal.outcome is Outcome.QUEUE_TIMEOUT:
            seen = self.bench.tickets[effect.ticket]
            if seen.endpoint is None and not seen.held_absent:
                assert record.at_s >= seen.held_s + seen.budget_s - ROUNDING

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
        audit(self.bench)

    @property
    def pool(self) -> PoolSettings:
        """As configured now."""
        return self.bench.settings.pools[0]

    def pick(self, data: st.DataObject, wanted: Callable[[Seen], bool]) -> Seen | None:
        """One ticket that the test knows of."""
        found = [seen for seen in self.bench.tickets.values() if wanted(seen)]
        return data.draw(st.sampled_from(found)) if found else None


TestHistories = Histories.TestCase
TestHistories.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)


# Crowds: histories in which room is always short


@pytest.mark.parametrize("phase", list(LearningPhase))
@pytest.mark.parametrize("class_order", list(ClassOrder))
@pytest.mark.parametrize("displace", list(Displace))
def test_displacement_keeps_its_rules_in_a_crowd(
    displace: Displace, class_order: ClassOrder, phase: LearningPhase
) -> None:
    """With room always short, only those go who may, each for a newcomer that is let in; and all books balance."""
    pairs: set[int] = set()
    for seed in range(3):
        crowd = Crowd(f"{displace}-{class_order}-{phase}-{seed}", displace, class_order, phase)
        for _ in range(150):
            crowd.step()
            audit(crowd.bench)
        pairs |= crowd.pairs
    own = {0} if displace is Displace.SAME else set()
    assert pairs == (set() if displace is Displace.OFF else {1, 2} | own)


class Crowd:
    """Two engines of two places, and more requests than they can serve."""

    def __init__(self, seed: str, displace: Displace, class_order: ClassOrder, phase: LearningPhase) -> None:
        self.draw = random.Random(seed)
        classes = tuple(
            replace(c, order=order, max_share=share)
            for c, order, share in zip(ZERO_CONFIGURATION_CLASSES, Order, (0.6, 1.0, 1.0), strict=True)
        )
        pool = PoolSettings(POOL, law=LAW, max_inflight_requests=2, max_queue=6)
        self.bench = Bench(Settings((pool,), classes=classes, displace=displace, class_order=class_order))
        trust(self.bench, phase)
        self.bench.feed(EndpointsChanged(POOL, NAMES[:2]))
        for name in NAMES[:2]:
            self.bench.feed(Described(name, EngineInfo(EngineKind.VLLM, kv_tokens=6000)))
        self.pairs: set[int] = set()
        """By how many ranks those who went were less important than the newcomer."""
        self.number = 0

    def step(self) -> None:
        """One thing happens."""
        what, running = self.draw.random(), self.bench.where("running")
        if what < 0.5 or not running:
            gone = [s for s in self.bench.where("over") if s.settlement is not None
                    and s.settlement.outcome is Outcome.DISPLACED]  # fmt: skip
            self.arrive(self.draw.choice(gone) if gone and what < 0.15 else None)
        elif what < 0.6:
            seen = self.draw.choice(running)
            self.bench.feed(
                Ended(seen.demand.ticket, Outcome.COMPLETED, Usage(100, self.draw.randint(1, 400)))
            )
        elif what < 0.7:
            seen = self.draw.choice(running)
            assert seen.endpoint is not None
            self.bench.feed(AttemptFailed(seen.demand.ticket, seen.endpoint, Failure.REFUSED))
        elif what < 0.75:
            self.bench.feed(
                Described(self.draw.choice(NAMES[:2]), EngineInfo(EngineKind.VLLM, kv_tokens=6000))
            )
        else:
            self.bench.advance(self.draw.choice([0.0, 0.1, 0.5, 3.0]))

    def arrive(self, before: Seen | None) -> None:
        """A new request comes, or one that was displaced comes again."""
        draw = self.draw
        self.number += 1
        demand = Demand(
            TicketId(self.number), POOL, draw.choice(["realtime", "standard", "batch"]), "m", draw.random() < 0.7,
            prompt_bytes=draw.choice([40, 400, 4000]), body_bytes=self.number, tenant=draw.choice("ab"),
            max_output_tokens=draw.choice([20, 200, 800]), session=draw.choice([None, None, None, "x", "y"]),
        )  # fmt: skip
        if before is not None:
            demand = replace(before.demand, ticket=TicketId(self.number), retry_count=1)
        self.bench.arrive(demand)
        check_displacements(self.bench)
        for gone in self.bench.displaced:
            self.pairs.add(
                self.bench.rank(gone.victim.demand.class_name) - self.bench.rank(demand.class_name)
            )


def trust(bench: Bench, phase: LearningPhase) -> None:
    """Let the pool have learned so much."""
    learned = {"phase": phase.value, "steps": 300, "finished": 300, "error_jumps": 0, "guard_trips": 0}
    assert bench.controller._pools[POOL].learning.restore(learned, bench.now)
