"""The speed law is learned from what can be seen of an engine, against the engine model, whose law is the truth.

The bench plays gateway and engine: requests come and go at a changing concurrency, the engine's counters are read
every 0.2 s as vLLM shows them, and what streams give is batched every 0.1 s. What is scored are predictions for single
steps of a stretch that nothing is learned from, given what was truly in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.model import EngineSample
from forebay.admission.settings import OPTIMISTIC_LAW, SpeedLaw
from forebay.admission.steplaw import StepLearner
from forebay.admission.steps import StepSources
from forebay.enginemodel import Engine, EngineConfig, EngineStatistics, Request, StepLaw, StepResult
from forebay.profiles import load_profile

FAST = "llama3-8b-h100x1-bf16"
SLOW = "llama3-70b-a100x4-bf16"
PROFILES = (FAST, SLOW)
SEEDS = range(8)
CHUNK = 2048


class WatchedLaw(StepLaw):
    """The truth, which remembers what was in the last step and can be slowed down."""

    factor: float
    contents: dict[str, float]

    def step_s(
        self, *, prefill_tokens: int, decoding: int, kv_tokens: int, prefill_attention: float, sequences: int
    ) -> float:
        contents = {
            "prefill_tokens": float(prefill_tokens),
            "sequences": float(decoding),
            "kv_tokens": float(kv_tokens),
            "attention": prefill_attention,
        }
        object.__setattr__(self, "contents", contents)
        plain_s = super().step_s(
            prefill_tokens=prefill_tokens,
            decoding=decoding,
            kv_tokens=kv_tokens,
            prefill_attention=prefill_attention,
            sequences=sequences,
        )
        return self.factor * plain_s


@dataclass
class Stream:
    """One request, as a gateway sees it."""

    prompt_tokens: int
    dispatched_s: float
    beside: int
    """Streams that were decoding when it was dispatched, and their KV tokens."""
    beside_kv: int
    alone: bool
    """No other request was without its first token while this one was."""
    first_s: float | None = None
    given: int = 0
    """Tokens by the engine model, of which one comes in each step."""
    tokens: int = 1
    """Tokens as the test wants them: several a step with speculative decoding."""
    events: int = 1
    new_events: int = 0
    last_s: float = 0.0
    reported_s: float = 0.0


@dataclass
class Bench:
    """A gateway with one engine behind it, in model time."""

    profile: str
    seed: int
    prior: SpeedLaw = OPTIMISTIC_LAW
    sampled: bool = True
    """Source 1 is there."""
    streamed: bool = False
    """Source 2 is."""
    steps_per_event: int = 1
    burst: tuple[int, ...] = (1,)
    """Tokens that one step gives a sequence."""
    now: float = 0.0
    steps: int = 0
    live: dict[int, Stream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        profile = load_profile(self.profile)
        truth = profile.law
        self.law = WatchedLaw(
            truth.t0,
            truth.n0,
            truth.s_lo,
            truth.s_hi,
            truth.c_kv,
            truth.f_attn,
            truth.g_seq,
            truth.h0,
            truth.h1,
        )
        self.slow_down(1.0)
        config = EngineConfig.from_profile(profile, max_num_batched_tokens=CHUNK, prefix_caching=False)
        self.engine = Engine(replace(profile, law=self.law), config)
        self.sources = StepSources(self.prior, CHUNK)
        self.draw = Random(self.seed)
        self.due: list[float] = []
        self.number = self.level = self.speculated = 0
        self.level_until_s = 0.0
        self.next_sample_s, self.next_batch_s = 0.2, 0.1
        self.was_idle = self.unquiet = True

    def slow_down(self, factor: float) -> None:
        """From now on every step takes this times what the profile says."""
        object.__setattr__(self.law, "factor", factor)

    def learn(self, steps: int) -> None:
        """Serve for so many steps."""
        end = self.steps + steps
        while self.steps < end:
            self._step()

    @property
    def learner(self) -> StepLearner:
        """What is judged."""
        return self.sources.learner

    def errors(self, steps: int = 1000) -> float:
        """Median relative error over the next steps, from which nothing is learned."""
        self.sampled = self.streamed = False
        found = []
        for _ in range(steps):
            result = self._step()
            predicted_s = self.learner.step_s(**self.law.contents)
            found.append(abs(predicted_s / result.duration_s - 1.0))
        return median(found)

    def _step(self) -> StepResult:
        """Run one step, and all that happens until it ends."""
        self._plan()
        while self.due and (self.due[0] <= self.now or not self.live):
            self.was_idle = self.was_idle or not self.live
            self.now = max(self.now, self.due[0])
            self._arrive(self.due.pop(0))
        before = self.engine.statistics()
        result = self.engine.step(self.now)
        assert result is not None
        self.steps += 1
        while True:
            arrival_s = self.due[0] if self.due else math.inf
            if min(arrival_s, self.next_sample_s) >= result.end_s:
                break
            if arrival_s <= self.next_sample_s:
                self._arrive(self.due.pop(0))
            else:
                if self.sampled:
                    self._sample(before, len(result.admitted))
                self.next_sample_s += 0.2
        self.now = result.end_s
        self._hand_out(result)
        if self.now >= self.next_batch_s:
            if self.streamed:
                self._report()
            self.next_batch_s = self.now + 0.1
        for number in result.finished:
            self._end(number, self.live.pop(number))
        return result

    def _end(self, number: int, stream: Stream) -> None:
        """An answer is complete."""
        del number
        self.sources.ended(stream.tokens, stream.events)

    def _plan(self) -> None:
        """Whoever has an answer asks again after a moment; how many do so changes every second or two."""
        draw = self.draw
        if self.now >= self.level_until_s:
            self.level = round(2 ** draw.uniform(0, 6))
            self.level_until_s = self.now + draw.uniform(0.7, 3.0)
        while len(self.live) + len(self.due) < self.level:
            self.due.append(self.now + draw.expovariate(1 / 0.03))
        self.due.sort()

    def _arrive(self, at_s: float) -> None:
        draw = self.draw
        prompt = round(math.exp(draw.uniform(math.log(20), math.log(4000))))
        output = round(math.exp(draw.uniform(math.log(10), math.log(600))))
        decoding = self._decoding()
        alone = len(decoding) == len(self.live)
        for other in self.live.values():
            other.alone = other.alone and other.first_s is not None
        self.number += 1
        self.live[self.number] = Stream(prompt, at_s, len(decoding), self._kv_tokens(), alone)
        self.engine.submit(Request(self.number, prompt, output))
        self.unquiet = True

    def _sample(self, before: EngineStatistics, admitted: int) -> None:
        """In mid-step: counters as before it, with those in the batch that entered with it."""
        after = self.engine.statistics()
        sample = EngineSample(
            self.next_sample_s,
            running=before.running + admitted,
            waiting=after.waiting,
            kv_usage=after.kv_usage,
            preemptions_total=after.preemptions,
            prompt_tokens_total=before.prompt_tokens,
            output_tokens_total=before.generation_tokens + self.speculated,
            steps_total=before.iteration_tokens.count,
            step_tokens_total=before.iteration_tokens.sum + self.speculated,
        )
        self.sources.sampled(
            sample,
            was_idle=self.was_idle,
            half_done=any(s.first_s is None and s.prompt_tokens > CHUNK for s in self.live.values()),
            sequences=len(self._decoding()),
            kv_tokens=self._kv_tokens(),
            kv_capacity=self.engine.config.kv_tokens,
        )
        self.was_idle = False

    def _hand_out(self, result: StepResult) -> None:
        """The step's tokens reach the streams."""
        first = set(result.first_tokens)
        for number in result.tokens:
            stream = self.live[number]
            stream.given += 1
            if number in first:
                stream.first_s = stream.last_s = stream.reported_s = self.now
                self._first_token(stream)
                continue
            tokens = self.draw.choice(self.burst)
            stream.tokens += tokens
            self.speculated += tokens - 1
            if (stream.given - 1) % self.steps_per_event == 0:
                stream.events += 1
                stream.new_events += 1
                stream.last_s = self.now

    def _first_token(self, stream: Stream) -> None:
        self.unquiet = True
        self.sources.prompt_done(stream.prompt_tokens)
        if self.streamed and stream.alone:
            self.sources.learn_first_token(
                self.now - stream.dispatched_s,
                self.now,
                prompt_tokens=stream.prompt_tokens,
                sequences=stream.beside,
                kv_tokens=stream.beside_kv,
            )

    def _report(self) -> None:
        """A batch of progress, as the gateway makes it."""
        gaps_s, events, most = 0.0, 0, 0
        decoding = self._decoding()
        for stream in decoding:
            if stream.new_events:
                gaps_s += stream.last_s - stream.reported_s
                events += stream.new_events
                most = max(most, stream.new_events)
                stream.reported_s, stream.new_events = stream.last_s, 0
        waits = len(decoding) < len(self.live)
        if events:
            self.sources.learn_gap(
                gaps_s / events,
                self.now,
                events=most,
                quiet=not self.unquiet and not waits,
                sequences=len(decoding),
                kv_tokens=self._kv_tokens(),
            )
        self.unquiet = waits

    def _decoding(self) -> list[Stream]:
        return [stream for stream in self.live.values() if stream.first_s is not None]

    def _kv_tokens(self) -> int:
        return sum(stream.prompt_tokens + stream.given for stream in self._decoding())


def times(law: SpeedLaw, factor: float) -> SpeedLaw:
    """The law of an engine that is slower by this factor."""
    return replace(
        law,
        c0_s=factor * law.c0_s,
        c1_s=factor * law.c1_s,
        c2_s=factor * law.c2_s,
        c3_s=factor * law.c3_s,
        c4_s=factor * law.c4_s,
    )


def assert_within(limit: float, errors: list[float]) -> None:
    """All seeds but one are within the limit, and the middle one is within half of it.

    But one: few steps may not have met what the held-out stretch is made of.
    """
    ordered = sorted(errors)
    assert ordered[len(ordered) // 2] <= limit / 2, ordered
    assert ordered[-2] <= limit, ordered


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("off", [0.1, 1.0, 10.0])
def test_300_steps_of_samples_teach_the_step_time(profile: str, off: float) -> None:
    """From counters read every 0.2 s step times are predicted within 5 % after 300 steps, be the prior 10 times off."""
    errors = []
    for seed in SEEDS:
        bench = Bench(profile, seed, times(OPTIMISTIC_LAW, off))
        bench.learn(300)
        errors.append(bench.errors())
    assert_within(0.05, errors)


@pytest.mark.parametrize("factor", [0.2, 10.0])
def test_an_engine_unlike_any_profile_is_learned(factor: float) -> None:
    """One that is 5 times faster or 10 times slower than its profile is, too, in about as many windows."""
    errors = []
    for seed in SEEDS:
        bench = Bench(FAST, seed)
        bench.slow_down(factor)
        # A fast engine makes 150 steps between two samples.
        bench.learn(300 if factor > 1.0 else 1500)
        errors.append(bench.errors())
    assert_within(0.05, errors)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("off", "steps_per_event"), [(0.1, 1), (10.0, 1), (1.0, 2)])
def test_1000_steps_of_streams_teach_the_step_time(profile: str, off: float, steps_per_event: int) -> None:
    """Without any counter, 1,000 steps seen by their streams give step times within 10 %, also where an event carries
    the tokens of two steps.
    """
    errors = []
    for seed in SEEDS:
        prior = times(OPTIMISTIC_LAW, off)
        bench = Bench(profile, seed, prior, sampled=False, streamed=True, steps_per_event=steps_per_event)
        bench.learn(1000)
        errors.append(bench.errors())
    assert_within(0.10, errors)


def test_counted_steps_tell_speculative_decoding_from_gathered_events() -> None:
    """Two or three tokens in an event that are from one step are known for that once steps were counted, and streams
    alone go on teaching the true step time.
    """
    errors = []
    for seed in SEEDS:
        bench = Bench(FAST, seed, streamed=True, burst=(2, 3))
        bench.learn(1500)
        pace = bench.sources.pace
        assert pytest.approx(1.0, rel=0.1) == pace.steps_per_event
        assert pytest.approx(2.5, rel=0.15) == pace.tokens_per_step
        bench.sources.learner = StepLearner(OPTIMISTIC_LAW)
        bench.sampled = False
        bench.learn(1500)
        errors.append(bench.errors())
    assert_within(0.10, errors)


def test_without_counted_steps_the_time_of_a_token_is_learned() -> None:
    """With 2.5 tokens a step and no counters, what is learned is 1 / 2.5 of a step: a token costs what it does."""
    ratios = []
    for seed in SEEDS:
        bench = Bench(FAST, seed, sampled=False, streamed=True, burst=(2, 3))
        bench.learn(1500)
        predicted_s = bench.sources.learner.step_s(
            prefill_tokens=0.0, sequences=8.0, kv_tokens=6000.0, attention=0.0
        )
        truth_s = bench.law.step_s(
            prefill_tokens=0, decoding=8, kv_tokens=6000, prefill_attention=0.0, sequences=8
        )
        ratios.append(predicted_s / truth_s)
    assert pytest.approx(1 / 2.5, rel=0.1) == median(ratios)


def test_speculative_decoding_does_not_mislead_the_counters() -> None:
    """Where steps are counted and give 2.5 tokens each, sequences are not taken for 2.5 times as many."""
    errors = []
    for seed in SEEDS:
        bench = Bench(FAST, seed, burst=(2, 3))
        bench.learn(400)
        errors.append(bench.errors())
    assert_within(0.05, errors)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("factor", [2.0, 5.0])
def test_a_changed_engine_is_followed(factor: float, streamed: bool) -> None:
    """An engine that becomes slower in mid-run is predicted within 10 % again 300 steps later; trust was withdrawn."""
    errors = []
    for seed in SEEDS:
        bench = Bench(FAST, seed, sampled=not streamed, streamed=streamed)
        bench.learn(1500)
        assert bench.sources.learner.is_trusted
        bench.slow_down(factor)
        bench.learn(300)
        assert bench.sources.learner.jumps
        errors.append(bench.errors(300))
    assert_within(0.10, errors)


def test_an_engine_that_becomes_faster_is_followed_within_seconds() -> None:
    """At twice the speed 300 steps may be one window between samples: it is followed after three seconds."""
    errors = []
    for seed in SEEDS:
        bench = Bench(FAST, seed)
        bench.learn(1500)
        bench.slow_down(0.5)
        until_s = bench.now + 3.0
        while bench.now < until_s:
            bench.learn(20)
        errors.append(bench.errors(300))
    assert_within(0.10, errors)


def test_a_steady_engine_never_looks_changed() -> None:
    """Over 4,000 steps of changing load no run of errors is taken for a jump, and what was learned is trusted."""
    for seed in SEEDS:
        bench = Bench(FAST, seed)
        bench.learn(4000)
        learner = bench.sources.learner
        assert (0, True) == (learner.jumps, learner.is_trusted)


def cost_s(law: SpeedLaw, prompt: int, output: int) -> float:
    """Endpoint-seconds of a request, by the form in `cost`."""
    kv_time = prompt * output + output * output / 2
    share = max(kv_time / law.kv_tokens, output / law.max_requests)
    attention = prompt * prompt / 2
    return (
        law.c1_s * prompt + law.c4_s * attention + law.c2_s * output + law.c3_s * kv_time + law.c0_s * share
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_costs_come_out_of_the_learned_law(profile: str) -> None:
    """After 3,000 steps the costs of a chat and of a long prompt are within 10 % of those by the true law."""
    truth = load_profile(profile).law
    capacity = load_profile(profile).kv_tokens
    right = SpeedLaw(
        c0_s=1e-3 * (truth.t0 + truth.h0),
        c1_s=1e-3 * truth.s_hi,
        c2_s=1e-3 * (truth.s_lo + truth.g_seq + truth.h1),
        c3_s=1e-3 * truth.c_kv,
        c4_s=1e-3 * truth.f_attn,
        kv_tokens=capacity,
        max_requests=256,
    )
    for prompt, output in ((700, 200), (3000, 50)):
        errors = []
        for seed in range(4):
            bench = Bench(profile, seed, times(OPTIMISTIC_LAW, 10.0))
            bench.learn(3000)
            law = bench.sources.learner.law(kv_tokens=capacity)
            errors.append(abs(cost_s(law, prompt, output) / cost_s(right, prompt, output) - 1.0))
        assert median(errors) <= 0.10, errors


anything = st.floats() | st.sampled_from([0.0, -1.0, 1e-300, 1e300, math.nan, math.inf])
plausible = st.fixed_dictionaries(
    {
        "step_s": st.floats(1e-7, 200.0),
        "steps": st.integers(-1, 2_000_000),
        "prefill_tokens": st.floats(0.0, 2e6),
        "prefill_steps": st.floats(0.0, 100.0),
        "sequences": st.floats(0.0, 2e6),
        "kv_tokens": st.floats(0.0, 2e8),
        "attention": st.floats(0.0, 2e12),
    }
)
senseless = st.fixed_dictionaries(
    {
        "step_s": anything,
        "steps": st.integers(),
        "prefill_tokens": anything,
        "prefill_steps": anything,
        "sequences": anything,
        "kv_tokens": anything,
        "attention": anything,
    }
)


def assert_sane(learner: StepLearner) -> None:
    """Whatever was learned, it can be worked with."""
    law = learner.law()
    for value in (law.c0_s, law.c1_s, law.c2_s, law.c3_s, law.c4_s):
        assert 0.0 <= value <= 1e6
    predicted_s = learner.step_s(prefill_tokens=500.0, sequences=20.0, kv_tokens=1e4, attention=1e5)
    assert 0.0 <= predicted_s < math.inf


@given(st.lists(senseless | plausible, max_size=60))
def test_no_observation_breaks_the_learner(observations: list[dict[str, float]]) -> None:
    """Whatever is observed, each is either learned or counted as rejected, and the law stays finite and at least 0."""
    learner = StepLearner(OPTIMISTIC_LAW)
    for observation in observations:
        before = (learner.steps, learner.rejected)
        learner.observe(**observation)  # type: ignore[arg-type]
        assert (learner.steps > before[0]) != (learner.rejected > before[1])
        assert_sane(learner)


@given(st.lists(plausible, max_size=30), st.integers(0, 1000))
def test_nonsense_is_unlearned(observations: list[dict[str, float]], seed: int) -> None:
    """After whatever it was fed, 200 windows of a real engine bring a learner back to it."""
    learner = StepLearner(OPTIMISTIC_LAW)
    for observation in observations:
        learner.observe(**observation)  # type: ignore[arg-type]
    draw = Random(seed)
    for _ in range(200):
        sequences = draw.uniform(1.0, 60.0)
        prefill = draw.choice([0.0, 0.0, draw.uniform(5.0, 200.0)])
        kv_tokens = sequences * draw.uniform(300.0, 900.0)
        learner.observe(
            7e-3 + 2e-5 * prefill + 5e-5 * sequences + 4e-8 * kv_tokens + 8e-10 * 400.0 * prefill,
            steps=20,
            prefill_tokens=prefill,
            prefill_steps=4.0,
            sequences=sequences,
            kv_tokens=kv_tokens,
            attention=400.0 * prefill,
        )
    predicted_s = learner.step_s(prefill_tokens=0.0, sequences=20.0, kv_tokens=12_000.0, attention=0.0)
    assert pytest.approx(7e-3 + 1e-3 + 4.8e-4, rel=0.05) == predicted_s


def test_the_same_history_teaches_the_same() -> None:
    """Two learners that saw the same are equal to the last bit."""
    laws = []
    for _ in range(2):
        bench = Bench(FAST, 7, streamed=True)
        bench.learn(500)
        laws.append(repr(bench.sources.learner.law()))
    assert laws[0] == laws[1]
