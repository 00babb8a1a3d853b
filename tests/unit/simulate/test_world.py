"""A run: what clients, engines and faults do, and what is checked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from forebay.admission.controller import Controller
from forebay.admission.effects import Effect
from forebay.admission.events import Arrived, Event
from forebay.admission.model import Check
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.load.felt import End
from forebay.profiles import load_profile
from forebay.simulate.faults import Fault, MetricsLost, ReplicaLost, ReplicaSlow
from forebay.simulate.pass_through import PassThrough
from forebay.simulate.place import fleet
from forebay.simulate.policy import PolicyMaker, refuse
from forebay.simulate.request import Habits, Planned
from forebay.simulate.world import BrokenPolicy, World

PROFILE = load_profile("llama3-8b-h100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE, kv_tokens=60_000, context_tokens=20_000)
SETTINGS = Settings(pools=(PoolSettings("p"),), classes=ZERO_CONFIGURATION_CLASSES)


def asked(index: int, at_s: float = 0.0, **changed: object) -> Planned:
    """A short chat."""
    plain = Planned(
        index,
        at_s,
        "standard",
        prompt_tokens=200,
        output_tokens=50,
        limit_tokens=256,
        prompt_bytes=800,
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


def world(
    *,
    engines: int = 2,
    policy: PolicyMaker = Controller,
    habits: Habits | None = None,
    faults: Sequence[Fault] = (),
    settings: Settings = SETTINGS,
) -> World:
    """A run before its first request."""
    return World(settings, fleet("p", PROFILE, CONFIG, engines), policy=policy, habits=habits, faults=faults)


class Refusing(PassThrough):
    """Refuses every first try, and tells when to come back."""

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived) and not event.demand.retry_count:
            check = Check("depth", 1, 0, False)
            return (refuse(event.demand, now, Outcome.QUEUE_FULL, check, retry_after_s=7.0),)
        return super().handle(event, now)


class Forgetful(PassThrough):
    """Does not answer."""

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        return () if isinstance(event, Arrived) else super().handle(event, now)


def test_every_request_has_one_outcome_and_the_books_are_empty_at_the_end() -> None:
    """Also where the run ends in the middle of everything."""
    run = world()
    run.run([asked(n, n * 0.01) for n in range(300)], 2.0)
    assert any(one.end is End.UNANSWERED for one in run.tries)
    assert [] == run.end()
    assert 201 == len(run.tries) == len(run.settled)
    assert {Outcome.COMPLETED, Outcome.CLIENT_GONE} == {one.outcome for one in run.tries}


def test_a_run_stops_when_everything_is_done() -> None:
    """Virtual time that nobody needs is not played."""
    run = world()
    run.run([asked(0), asked(1, 3.0)], 1000.0, stop_when_done=True)
    assert 3.0 < run.now < 10.0
    assert [End.COMPLETED] * 2 == [one.end for one in run.tries]


def test_clients_leave_when_they_have_had_nothing_for_too_long() -> None:
    """What was done for them is noted; one whose answer has begun stays."""
    run = world(engines=1, policy=PassThrough)
    long = {"prompt_tokens": 15_000, "prompt_bytes": 60_000, "output_tokens": 400, "limit_tokens": 512}
    run.run([asked(n, 0.0, **long, patience_s=1.0) for n in range(3)], 60.0)
    ends = [one.end for one in run.tries]
    assert [End.COMPLETED, End.UNANSWERED] == [ends[0], ends[2]]
    assert (Outcome.CLIENT_GONE, 1.0) == (run.tries[2].outcome, run.tries[2].ended_s)
    assert run.tries[0].ended_s > 1.0
    assert run.tries[2].work_s < run.tries[0].work_s
    assert [] == run.end()


def test_refused_clients_come_back_once_when_they_are_told() -> None:
    """The return is a request of its own, of the same client."""
    run = world(policy=Refusing, habits=Habits())
    run.run([asked(0), asked(1, 0.5)], 60.0)
    assert [0.0, 0.5, 7.0, 7.5] == [one.planned.at_s for one in run.tries]
    assert [0, 1, 0, 1] == [one.planned.index for one in run.tries]
    assert [End.REFUSED, End.REFUSED, End.COMPLETED, End.COMPLETED] == [one.end for one in run.tries]


def test_clients_that_do_not_heed_retry_after_come_when_they_like() -> None:
    """The variant: a back-off of their own, drawn from the seed."""
    run = world(policy=Refusing, habits=Habits(heed_retry_after=False, own_wait_s=1.0))
    run.run([asked(n) for n in range(20)], 60.0)
    came = [one.planned.at_s for one in run.tries if one.planned.returned]
    assert 20 == len(came) == len(set(came))
    assert 0.5 <= min(came) < max(came) <= 1.5


def test_a_client_that_has_come_back_is_not_refused_for_ever() -> None:
    """It comes back once only, and not where nobody does."""
    always = replace(SETTINGS, pools=(PoolSettings("p", max_output_tokens=10),))
    run = world(settings=always, habits=Habits())
    run.run([asked(0)], 100.0)
    assert 1 == len(run.tries), "what can never pass is not told to come back"
    run = world(policy=Refusing, habits=Habits(come_back=False))
    run.run([asked(0)], 100.0)
    assert 1 == len(run.tries)


def test_what_an_engine_does_not_take_is_rejected_by_it() -> None:
    """Longer than its context: an error of the engine, not a request that vanishes."""
    run = world(policy=PassThrough)
    run.run([asked(0, prompt_tokens=30_000, prompt_bytes=120_000)], 10.0)
    assert (End.FAILED, Outcome.ENGINE_REJECTED) == (run.tries[0].end, run.tries[0].outcome)
    assert [] == run.end()


def test_a_lost_replica_takes_its_streams_with_it_and_the_rest_goes_elsewhere() -> None:
    """Answers that had begun are broken off; others start again on the engine that is left; later it is back."""
    run = world(faults=[ReplicaLost(0, 2.0, 20.0)])
    run.run([asked(n, n * 0.05, output_tokens=120) for n in range(600)], 60.0)
    broken = [one for one in run.tries if one.outcome is Outcome.UPSTREAM_INTERRUPTED]
    assert broken
    assert {2.0} == {one.ended_s for one in broken}
    assert all(one.lost_work_s > 0 for one in broken)
    busy_s = [place.busy_s for place in run.places]
    assert 3.0 < busy_s[0] < busy_s[1]
    assert [] == run.end()


def test_without_a_gateway_what_a_lost_replica_had_is_lost() -> None:
    """Pass-through tries nothing again, and passes over an engine that is gone."""
    run = world(policy=PassThrough, faults=[ReplicaLost(0, 2.0)])
    run.run([asked(n, n * 0.05) for n in range(200)], 60.0)
    failed = [one for one in run.tries if one.end is End.FAILED]
    assert 0 < len(failed) < 20
    assert max(one.planned.at_s for one in failed) <= 2.2
    assert [] == run.end()


def test_a_slow_replica_gets_less_to_do() -> None:
    """Nobody tells the policy; a balancer in turn gives it as much as the others."""
    coming = [asked(n, n * 0.02, output_tokens=150) for n in range(2_000)]
    run = world(faults=[ReplicaSlow(0, 0.0, 4.0)])
    run.run(coming, 60.0)
    done = [place.engine.statistics().requests_finished for place in run.places]
    assert done[0] < 0.6 * done[1]


def test_without_metrics_requests_go_on() -> None:
    """Stale readings alone refuse nobody where nothing says so, and the books are kept."""
    run = world(faults=[MetricsLost(0, 1.0, 20.0), MetricsLost(1, 1.0, 20.0)])
    run.run([asked(n, n * 0.05) for n in range(300)], 60.0)
    assert {End.COMPLETED} == {one.end for one in run.tries}
    assert [] == run.end()


def test_a_policy_that_does_not_answer_is_found_out() -> None:
    """A baseline that loses a request must not pass for one that turned it away."""
    run = world(policy=Forgetful)
    with pytest.raises(BrokenPolicy, match="neither dispatched, held nor refused"):
        run.run([asked(0)], 10.0)


def test_a_policy_that_answers_twice_is_found_out() -> None:
    """What is over has no second outcome."""

    class Twice(Refusing):
        def handle(self, event: Event, now: float) -> Sequence[Effect]:
            return [effect for effect in super().handle(event, now) for _ in range(2)]

    with pytest.raises(BrokenPolicy, match="is over or never came"):
        world(policy=Twice).run([asked(0)], 10.0)


def test_conversations_find_their_beginning_in_the_cache() -> None:
    """Engines reuse it, and tell so in the usage of the answer."""
    turns = [
        asked(
            n,
            n * 5.0,
            prompt_tokens=480 * (n + 1),
            prompt_bytes=1_920 * (n + 1),
            prefix=3,
            shared_tokens=480 * (n + 1) + 50,
        )
        for n in range(3)
    ]
    run = world(engines=1)
    run.run(turns, 30.0)
    assert 0 == run.tries[0].cached_tokens
    assert run.tries[1].cached_tokens >= 480
    assert run.tries[2].cached_tokens >= 960
