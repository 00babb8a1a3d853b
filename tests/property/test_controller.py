"""The controller under random histories: what must hold whatever happens, and in whatever order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.admission.errors import ConfigRefused
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
from tests.property.driving import (
    Bench,
    Seen,
    audit,
    check_bounds,
    check_displacements,
    check_limits,
    check_what_was_said,
    close,
)

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
        admit_below_utilization=st.sampled_from([None, None, None, 0.1, 0.6]),
        max_stream_s=st.sampled_from([None, 20.0]),
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
        """One request arrives, under the next number, if its class is there."""
        if demand.class_name not in [c.name for c in self.bench.settings.classes]:
            return
        self.next_ticket += 1
        seen = self.bench.arrive(replace(demand, ticket=TicketId(self.next_ticket)))
        check_displacements(self.bench)
        check_bounds(self.bench, seen)

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
        self.bench.feed(ShareChanged(POOL, share))

    @rule(
        settings=rules,
        order=st.one_of(
            st.just((0, 1, 2)), st.permutations([0, 1, 2]), st.permutations([0, 1, 2]).map(lambda o: o[:2])
        ),
    )
    def settings_change(self, settings: Settings, order: Sequence[int]) -> None:
        """The operator loads another configuration, at times with other ranks, or with a class less."""
        settings = replace(settings, classes=tuple(settings.classes[index] for index in order))
        names = {c.name for c in settings.classes}
        if all(
            seen.demand.class_name in names for seen in self.bench.tickets.values() if seen.where != "over"
        ):
            self.bench.reconfigure(settings)
            return
        views = []
        for _ in range(2):  # the first brings the core's time up to now, which is in a snapshot as well
            with pytest.raises(ConfigRefused):
                self.bench.controller.reconfigure(settings, self.bench.now)
            views.append(self.bench.controller.snapshot())
        assert views[0] == views[1]

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
        check_limits(self.bench)

    @invariant()
    def refusals_are_honest(self) -> None:
        """Each says when to return if that is of use, and while learning none rests on a prediction."""
        check_what_was_said(self.bench)

    def teardown(self) -> None:
        """When everything has ended, nothing is held and every ticket was settled once."""
        close(self.bench)
        pool = self.bench.controller.snapshot().pools[0]
        assert {e.id for e in pool.endpoints if e.state is not EndpointState.REMOVED} == set(self.configured)

    def pick(self, data: st.DataObject, wanted: Callable[[Seen], bool]) -> Seen | None:
        """One ticket that the test knows of."""
        found = [seen for seen in self.bench.tickets.values() if wanted(seen)]
        return data.draw(st.sampled_from(found)) if found else None


TestHistories = Histories.TestCase
TestHistories.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)


# Crowds: histories in which room is always short


class Crowd:
    """Two or three engines, and more requests than they can serve; all is drawn from one seed."""

    def __init__(self, seed: str, settings: Settings, phase: LearningPhase) -> None:
        self.draw = random.Random(seed)
        self.bench = Bench(settings)
        trust(self.bench, phase)
        self.names = list(NAMES[:2])
        self.bench.feed(EndpointsChanged(POOL, tuple(self.names)))
        for name in self.names:
            self.bench.feed(Described(name, any_info(self.draw)))
        self.number = 0
        self.reconfigures = True
        """False keeps the settings."""
        self.pairs: set[int] = set()
        """By how many ranks those who were pushed out were less important than the newcomer."""
        self.seen_states: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        """So many things happen, and after each one every promise is kept."""
        for _ in range(steps):
            self.step()
            audit(self.bench)
            check_limits(self.bench)
            check_what_was_said(self.bench)
            pool = self.bench.controller._pools[POOL]
            self.seen_states["reserved"] += pool.reserved is not None
            for endpoint in pool.endpoints.values():
                self.seen_states["pacing"] += endpoint.pacer.paces
                self.seen_states["stale"] += endpoint.is_stale(self.bench.now)
        close(self.bench)

    def step(self) -> None:
        """One thing happens: mostly arrivals, answers and time, sometimes losses and changes."""
        draw, bench = self.draw, self.bench
        what, running = draw.random(), bench.where("running")
        if what < 0.4 or not running:
            for _ in range(draw.choice([1, 1, 2, 8])):
                self.arrive()
        elif what < 0.9:
            self.happen_to(draw.choice(running), what)
        elif what < 0.97:
            bench.advance(draw.choice([0.0, 0.02, 0.05, 0.2, 0.2, 0.7, 3.0]))
        else:
            self.change()

    def arrive(self) -> None:
        """A new request comes, or one that was turned away comes again."""
        draw, now = self.draw, self.bench.now
        self.number += 1
        prompt = draw.choice([10, 100, 400, 900, 3000])
        demand = Demand(
            TicketId(self.number), POOL, draw.choice(["realtime", "standard", "standard", "batch"]), "m",
            draw.random() < 0.8, prompt_bytes=prompt * 4, body_bytes=prompt * 4 + 200, tenant=draw.choice("abc"),
            prompt_tokens=draw.choice([prompt, None]), max_output_tokens=draw.choice([None, 1, 50, 2000]),
            samples=draw.choice([1, 1, 1, 2]), generates=draw.random() < 0.9,
            first_token_by_s=draw.choice([None] * 5 + [now + 0.5, now + 20.0]),
            patience_until_s=draw.choice([None] * 5 + [now, now + 3.0]), session=draw.choice([None, None, "s"]),
        )  # fmt: skip
        gone = [s.demand for s in self.bench.where("over") if _may_return(s)]
        if gone and draw.random() < 0.3:
            demand = replace(
                draw.choice(gone), ticket=TicketId(self.number), retry_count=1,
                first_token_by_s=None, patience_until_s=None,
            )  # fmt: skip
        seen = self.bench.arrive(demand)
        check_displacements(self.bench)
        check_bounds(self.bench, seen)
        for displacement in self.bench.displaced:
            victim = displacement.victim.demand.class_name
            self.pairs.add(self.bench.rank(victim) - self.bench.rank(demand.class_name))

    def happen_to(self, seen: Seen, what: float) -> None:
        """An engine says something of a request, or of itself, or a client leaves."""
        draw, bench, ticket = self.draw, self.bench, seen.demand.ticket
        assert seen.endpoint is not None
        if what < 0.58:
            outcome = draw.choice(
                [Outcome.COMPLETED] * 6 + [Outcome.UPSTREAM_INTERRUPTED, Outcome.SLOW_READER]
            )
            usage = draw.choice([None, Usage(seen.demand.prompt_bytes // 4, draw.randint(1, 400))])
            goes_on = draw.random() < 0.2
            bench.feed(Ended(ticket, outcome, usage, draw.randint(0, 300), engine_goes_on=goes_on))
        elif what < 0.68:
            bench.feed(FirstTokenCame(ticket))
        elif what < 0.78:
            there = [s.demand.ticket for s in bench.where("running") if s.endpoint == seen.endpoint]
            tokens = [(other, draw.randint(0, 20)) for other in there]
            bench.feed(Progressed(seen.endpoint, tokens, draw.choice([None, 0.02, 0.1])))
        elif what < 0.81:
            failure = draw.choice([Failure.REFUSED] * 3 + list(Failure))
            bench.feed(AttemptFailed(ticket, seen.endpoint, failure, engine_goes_on=draw.random() < 0.3))
        elif what < 0.83:
            live = [s for s in bench.tickets.values() if s.where in {"waiting", "running"}]
            bench.feed(ClientLeft(draw.choice(live).demand.ticket, 3))
        else:
            reading = EngineSample(
                bench.now - 0.01, running=draw.choice([None, len(bench.where("running"))]),
                waiting=draw.choice([0, 0, 0, 2, None]), kv_usage=draw.choice([0.1, 0.1, 0.9, None]),
                output_tokens_total=draw.choice([None, self.number]), preemptions_total=self.number // 30,
            )  # fmt: skip
            bench.feed(Sampled(draw.choice(self.names or list(NAMES)), reading))

    def change(self) -> None:
        """Something around the requests changes."""
        draw, bench = self.draw, self.bench
        what = draw.random()
        if what < 0.3:
            bench.feed(SampleMissed(draw.choice(NAMES), draw.random() < 0.3))
        elif what < 0.6:
            bench.feed(Described(draw.choice(self.names or list(NAMES)), any_info(draw)))
        elif what < 0.7:
            self.names = [name for name in NAMES[:3] if draw.random() < 0.8]
            bench.feed(EndpointsChanged(POOL, tuple(self.names)))
        elif what < 0.85:
            bench.feed(ShareChanged(POOL, draw.choice([0.5, 1.0, 1.0, 0.0])))
        elif self.reconfigures:
            bench.reconfigure(any_settings(draw))


def _may_return(seen: Seen) -> bool:
    return seen.settlement is not None and seen.settlement.outcome.group is Group.CONTENDED


def any_settings(draw: random.Random) -> Settings:
    """Settings under which many wait, for many reasons."""
    pool = PoolSettings(
        POOL, gpus=draw.choice([1, 3]), law=draw.choice([None, LAW, SLOW]), max_gpu_s=draw.choice([None] * 4 + [3.0]),
        max_inflight_requests=draw.choice([None, None, 1, 3, 6]), max_inflight_tokens=draw.choice([None, None, 3000]),
        max_pool_requests=draw.choice([None, None, None, 5]), max_queue=draw.choice([None, None, 6, 30]),
        hold_without_endpoints_s=draw.choice([0.0, 7.0]), target_utilization=draw.choice([None, None, 0.7]),
    )  # fmt: skip
    stale = draw.choice(
        [[OnStale.OWN_COUNT, OnStale.LAST_KNOWN, OnStale.REFUSE], [OnStale.OWN_COUNT, OnStale.ADMIT]]
    )
    classes = tuple(
        replace(
            c, weight=draw.choice([1.0, 3.0]), max_queue=draw.choice([None, None, None, 4]),
            order=draw.choice(list(Order)), short_tokens=draw.choice([0, 100]), short_weight=draw.choice([1.0, 4.0]),
            max_share=draw.choice([1.0, 1.0, 0.5]), on_stale=draw.choice(stale),
        )
        for c in ZERO_CONFIGURATION_CLASSES
    )  # fmt: skip
    return Settings(
        (pool,), classes=classes, class_order=draw.choice(list(ClassOrder)), displace=draw.choice(list(Displace)),
        max_waiting_bytes=draw.choice([20_000, 1 << 20, 1 << 20]),
    )  # fmt: skip


def any_info(draw: random.Random) -> EngineInfo:
    """Some engine."""
    return EngineInfo(
        draw.choice([EngineKind.VLLM, EngineKind.LLAMACPP]), kv_tokens=draw.choice([6000, 6000, 20_000, 200_000, None]),
        context_tokens=draw.choice([None, 8192, 4096]), max_requests=draw.choice([None, None, None, 4]),
        reports_load=draw.choice([True, False]), aborts_unstreamed=draw.choice([True, False]),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("series", range(5))
def test_in_a_crowd_every_promise_is_kept(series: int) -> None:
    """Whoever is served, refused, pushed out or left waiting, and however the pool changes: by the rules, each time."""
    states: Counter[str] = Counter()
    for number in range(60):
        draw = random.Random(f"settings {series} {number}")
        crowd = Crowd(f"crowd {series} {number}", any_settings(draw), draw.choice(list(LearningPhase)))
        crowd.run(80)
        states += crowd.seen_states
        states["displaced"] += len(crowd.pairs)
    assert {"pacing", "stale", "displaced"} <= {*states}, "the crowds are too tame"


class LongQueue(Crowd):
    """Many more wait than one look tries: a large one, for which an endpoint is kept, and a flood of small ones."""

    def arrive(self) -> None:
        """One that is large, or small; few are of the most important class, and those are of a middling size."""
        draw = self.draw
        self.number += 1
        class_name = draw.choice(["realtime"] + ["standard"] * 4 + ["batch"])
        prompt = 300 if class_name == "realtime" else draw.choice([10] * 9 + [2400])
        self.bench.arrive(
            Demand(
                TicketId(self.number), POOL, class_name, "m", True, prompt_bytes=prompt * 4, tenant=draw.choice("ab"),
                body_bytes=prompt * 4 + 200, prompt_tokens=prompt, max_output_tokens=draw.choice([100, 300]),
            )
        )  # fmt: skip

    def step(self) -> None:
        """Mostly arrivals; what runs ends now and then, and time passes."""
        draw, bench = self.draw, self.bench
        what, running = draw.random(), bench.where("running")
        if what < 0.5 or not running:
            for _ in range(draw.choice([1, 2, 4])):
                self.arrive()
        elif what < 0.8:
            seen = draw.choice(running)
            bench.feed(FirstTokenCame(seen.demand.ticket))
            bench.feed(Ended(seen.demand.ticket, Outcome.COMPLETED))
        else:
            bench.advance(draw.choice([0.05, 0.1, 0.3]))
        waiting = len(bench.where("waiting"))
        self.seen_states["long"] += waiting > 24 and bench.controller._pools[POOL].reserved is not None


class Paced(Crowd):
    """Streams decode at engines whose prompts take long, so that requests wait for nothing but their pace."""

    def step(self) -> None:
        """A prompt of any length comes; a stream begins, moves on or ends; mostly, a little time passes."""
        draw, bench = self.draw, self.bench
        running = bench.where("running")
        what = draw.random()
        if what < 0.25 or not running:
            self.number += 1
            prompt = draw.choice([50, 300, 900, 2000])
            self.bench.arrive(
                Demand(
                    TicketId(self.number), POOL, draw.choice(["realtime", "standard", "batch"]), "m", True,
                    prompt_bytes=prompt * 4, body_bytes=prompt * 4 + 200, prompt_tokens=prompt,
                    max_output_tokens=draw.choice([50, 2500]),
                )
            )  # fmt: skip
        elif what < 0.4:
            seen = draw.choice(running)
            assert seen.endpoint is not None
            bench.feed(Progressed(seen.endpoint, [(seen.demand.ticket, 1)], 0.02))
        elif what < 0.45:
            bench.feed(Ended(draw.choice(running).demand.ticket, Outcome.COMPLETED))
        else:
            bench.advance(draw.choice([0.01, 0.03, 0.1]))


@pytest.mark.parametrize("class_order", list(ClassOrder))
def test_whoever_waits_for_the_pace_of_prompts_only_starts_when_it_lets_it(class_order: ClassOrder) -> None:
    """No event says that it does: after each moment nobody is left who may enter, be it the first, another or new."""
    pool = PoolSettings(POOL, law=SLOW, max_inflight_tokens=6000)
    settings = Settings((pool,), class_order=class_order, displace=Displace.OFF)
    states: Counter[str] = Counter()
    for number in range(12):
        crowd = Paced(f"paced {class_order} {number}", settings, LearningPhase.LEARNING)
        crowd.run(120)
        states += crowd.seen_states
    assert states["pacing"] > 300, "too little is paced"


@pytest.mark.parametrize("class_order", list(ClassOrder))
def test_in_a_long_queue_a_kept_endpoint_is_kept_from_its_own_and_lower_classes_only(
    class_order: ClassOrder,
) -> None:
    """However many wait before it, the first of a more important class starts there as soon as it fits."""
    pool = PoolSettings(POOL, law=LAW, max_inflight_requests=64, max_inflight_tokens=3000)
    settings = Settings((pool,), class_order=class_order, displace=Displace.OFF)
    states: Counter[str] = Counter()
    for number in range(12):
        crowd = LongQueue(f"long {class_order} {number}", settings, LearningPhase.LEARNING)
        crowd.reconfigures = False
        crowd.run(120)
        states += crowd.seen_states
    assert states["long"] > 50, "the queues are too short"


@pytest.mark.parametrize("phase", list(LearningPhase))
@pytest.mark.parametrize("class_order", list(ClassOrder))
@pytest.mark.parametrize("displace", list(Displace))
def test_only_those_are_displaced_who_may_be(
    displace: Displace, class_order: ClassOrder, phase: LearningPhase
) -> None:
    """With `off` nobody goes, with `lower` only less important ones, with `same` those of the same class as well."""
    classes = tuple(
        replace(c, order=order, max_share=share)
        for c, order, share in zip(ZERO_CONFIGURATION_CLASSES, Order, (0.6, 1.0, 1.0), strict=True)
    )
    pool = PoolSettings(POOL, law=LAW, max_inflight_requests=2, max_queue=6)
    settings = Settings((pool,), classes=classes, displace=displace, class_order=class_order)
    pairs: set[int] = set()
    for number in range(3):
        crowd = Crowd(f"{displace} {class_order} {phase} {number}", settings, phase)
        crowd.reconfigures = False
        crowd.run(60)
        pairs |= crowd.pairs
    may_go = {Displace.OFF: set[int](), Displace.LOWER: {1, 2}, Displace.SAME: {0, 1, 2}}[displace]
    assert may_go - {2} <= pairs <= may_go


def trust(bench: Bench, phase: LearningPhase) -> None:
    """Let the pool have learned so much."""
    learned = {"phase": phase.value, "steps": 300, "finished": 300, "error_jumps": 0, "guard_trips": 0}
    assert bench.controller._pools[POOL].learning.restore(learned, bench.now)
