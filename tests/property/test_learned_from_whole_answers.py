"""The speed law is learned from answers that are not streamed, with no counters, against the engine model.

The bench is that of `test_learned_speed`: requests come and go at a changing concurrency. All that is told here is when
each was dispatched and when its answer came, with the engine's count of its tokens; prompts are known by an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from forebay.admission.settings import OPTIMISTIC_LAW
from forebay.admission.steplaw import StepLearner
from forebay.admission.whole_answers import WholeAnswers
from forebay.enginemodel import Engine, StepResult
from tests.property.test_learned_speed import FAST, SEEDS, SLOW, Bench, Stream, assert_within, times


@dataclass
class WholeBench(Bench):
    """Source 3 alone."""

    sampled: bool = False
    fixed: int | None = None
    """Requests in flight, if always as many."""
    slots: int | None = None
    """Sequences that the engine runs at once, if fewer than what is sent there."""
    slots_known: bool = False
    waiting_read_every_s: float | None = None
    """How often it says how many wait inside it."""
    estimate: float = 1.0
    """What is expected of a prompt, over what it is."""
    teaches: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots is not None:
            config = replace(self.engine.config, max_num_seqs=self.slots)
            self.engine = Engine(self.engine.profile, config)
        self.whole = WholeAnswers(self.sources, self.prior)
        self.whole.start(0.0)
        self.next_reading_s = self.waiting_read_every_s or float("inf")

    @property
    def learner(self) -> StepLearner:
        """What it ends in."""
        return self.whole.learner

    def errors(self, steps: int = 1000) -> float:
        self.teaches = False
        self.whole.doubt()
        return super().errors(steps)

    def learn_until_trusted(self, at_most: int) -> int:
        """Steps that the engine made by then."""
        while not self.learner.is_trusted and self.steps < at_most:
            self.learn(10)
        return self.steps

    def _plan(self) -> None:
        if self.fixed is not None:
            self.level, self.level_until_s = self.fixed, float("inf")
        super()._plan()

    def _guess(self, stream: Stream) -> int:
        return round(self.estimate * stream.prompt_tokens)

    def _arrive(self, at_s: float) -> None:
        super()._arrive(at_s)
        stream = self.live[self.number]
        self.whole.began(self.number, at_s, self._guess(stream), 1, teaches=self.teaches)
        if self.slots is not None and self.slots_known and len(self.live) > self.slots:
            self.whole.doubt()

    def _hand_out(self, result: StepResult) -> None:
        if self.waiting_read_every_s is not None and self.now >= self.next_reading_s:
            self.next_reading_s = self.now + self.waiting_read_every_s
            waiting = self.engine.statistics().waiting
            if waiting:
                self.whole.queue_seen(waiting, self.now)
        super()._hand_out(result)

    def _end(self, number: int, stream: Stream) -> None:
        guess = self._guess(stream)
        self.whole.ended(
            number,
            self.now,
            guessed_tokens=guess,
            prompt_tokens=stream.prompt_tokens,
            cached_tokens=0,
            output_tokens=stream.given,
        )
        self.whole.left(number, self.now, dispatched_s=stream.dispatched_s, prompt_tokens=guess, samples=1)


@pytest.mark.parametrize("profile", [FAST, SLOW])
@pytest.mark.parametrize("off", [0.1, 10.0])
def test_3000_steps_of_whole_answers_teach_the_step_time(profile: str, off: float) -> None:
    """From whole answers alone step times are predicted within 5 %, be the prior 10 times off."""
    errors = []
    for seed in SEEDS:
        bench = WholeBench(profile, seed, times(OPTIMISTIC_LAW, off))
        bench.learn(3000)
        errors.append(bench.errors())
    assert_within(0.05, errors)


@pytest.mark.parametrize("profile", [FAST, SLOW])
def test_a_few_hundred_steps_are_trusted(profile: str) -> None:
    """What was learned is trusted after 300 to 700 steps, and by then nothing was taken for a change of the engine."""
    for seed in SEEDS:
        bench = WholeBench(profile, seed)
        bench.learn_until_trusted(700)
        assert (True, 0) == (bench.learner.is_trusted, bench.learner.jumps)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_an_engine_unlike_any_profile_is_learned(factor: float) -> None:
    """So is one that is ten times faster or slower than its profile, within 8 %."""
    errors = []
    for seed in SEEDS:
        bench = WholeBench(FAST, seed)
        bench.slow_down(factor)
        bench.learn(3000)
        errors.append(bench.errors())
    assert_within(0.08, errors)


@pytest.mark.parametrize(("fixed", "limit"), [(1, 0.01), (4, 0.01), (16, 0.03), (64, 0.06)])
def test_steady_load_teaches_its_own_steps(fixed: int, limit: float) -> None:
    """Always as many in flight: a step is predicted within 1 % for few, and 6 % for many, of whose steps a third has
    prefill in it.
    """
    errors = []
    for seed in SEEDS:
        bench = WholeBench(FAST, seed, times(OPTIMISTIC_LAW, 10.0), fixed=fixed)
        bench.learn(3000)
        errors.append(bench.errors())
    assert_within(limit, errors)


@pytest.mark.parametrize("estimate", [0.5, 2.0])
def test_prompts_that_are_not_as_estimated_are_corrected_for(estimate: float) -> None:
    """Prompts half or twice as long as taken to be spoil nothing: what engines say of them is believed."""
    errors = []
    for seed in SEEDS:
        bench = WholeBench(FAST, seed, estimate=estimate)
        bench.learn(3000)
        errors.append(bench.errors())
    assert_within(0.06, errors)


@pytest.mark.parametrize(("known", "read_every_s"), [(True, None), (False, 0.2)])
def test_what_waits_inside_the_engine_does_not_teach(known: bool, read_every_s: float | None) -> None:
    """An engine of 16 sequences is sent up to 64 requests. Those that met a queue there are left out: by its number of
    sequences, or by readings of how many wait.
    """
    errors = []
    for seed in SEEDS:
        bench = WholeBench(FAST, seed, slots=16, slots_known=known, waiting_read_every_s=read_every_s)
        bench.learn(3000)
        errors.append(bench.errors())
    ordered = sorted(errors)
    assert ordered[len(ordered) // 2] <= 0.03, ordered
    assert ordered[-2] <= 0.06, ordered


def test_an_engine_that_always_queues_teaches_nothing() -> None:
    """With 16 in flight at an engine known to run 4, no answer is learned from."""
    bench = WholeBench(FAST, 0, fixed=16, slots=4, slots_known=True)
    bench.learn(1000)
    assert 0 == bench.learner.steps


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_changed_engine_is_followed(factor: float) -> None:
    """An engine that becomes five times slower or faster in mid-run is predicted within 20 % 3,000 steps later."""
    errors = []
    for seed in SEEDS:
        bench = WholeBench(FAST, seed)
        bench.learn(2000)
        bench.slow_down(factor)
        bench.learn(3000)
        errors.append(bench.errors())
    assert_within(0.20, errors)
