from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from forebay.admission.settings import OPTIMISTIC_LAW, SpeedLaw
from forebay.admission.steplaw import StepLearner

PRIOR = SpeedLaw(c0_s=5e-3, c1_s=2e-5, c2_s=5e-5, c3_s=3e-8, c4_s=8e-10, kv_tokens=100_000, max_requests=64)


class Truth:
    """An engine whose law has round numbers."""

    def __init__(self, knee: float = 256.0, scale: float = 1.0) -> None:
        self.knee = knee
        self.c0, self.low, self.high, self.each, self.kv, self.attention = (
            scale * part for part in (8e-3, 1.5e-5, 4e-5, 6e-5, 5e-8, 2e-9)
        )

    def step_s(self, prefill: float, sequences: float, kv_tokens: float, attention: float) -> float:
        batch = prefill + sequences
        below = min(batch, self.knee) if self.knee else 0.0
        return (
            self.c0
            + self.low * below
            + self.high * (batch - below)
            + self.each * sequences
            + self.kv * kv_tokens
            + self.attention * attention
        )


def observe(learner: StepLearner, step_s: float, **contents: float) -> None:
    """An observation of ten decode steps with ten sequences, or as given."""
    values = {
        "steps": 10,
        "prefill_tokens": 0.0,
        "prefill_steps": 0.0,
        "sequences": 10.0,
        "kv_tokens": 5e3,
        "attention": 0.0,
    }
    values.update(contents)
    learner.observe(step_s, **values)  # type: ignore[arg-type]


def teach(learner: StepLearner, truth: Truth, windows: int, noise: float = 0.0, seed: int = 1) -> None:
    """Windows of 16 steps, of which some have all the same prefill in them."""
    draw = Random(seed)
    for _ in range(windows):
        sequences = draw.uniform(1.0, 60.0)
        kv_tokens = sequences * draw.uniform(100.0, 2000.0)
        with_prefill = draw.choice([0, 0, 2, 8])
        prefill = draw.uniform(20.0, 1800.0)
        attention = prefill * prefill * draw.uniform(0.2, 0.5)
        plain_s = truth.step_s(0.0, sequences, kv_tokens, 0.0)
        mixed_s = truth.step_s(prefill, sequences, kv_tokens, attention)
        part = with_prefill / 16
        learner.observe(
            (plain_s + part * (mixed_s - plain_s)) * (1.0 + draw.uniform(-noise, noise)),
            steps=16,
            prefill_tokens=part * prefill,
            prefill_steps=with_prefill,
            sequences=sequences,
            kv_tokens=kv_tokens,
            attention=part * attention,
        )


def predict(
    learner: StepLearner,
    prefill: float = 0.0,
    sequences: float = 10.0,
    kv_tokens: float = 5e3,
    attention: float = 0.0,
) -> float:
    """The learner's time for one step."""
    return learner.step_s(
        prefill_tokens=prefill, sequences=sequences, kv_tokens=kv_tokens, attention=attention
    )


def test_before_the_first_observation_the_law_is_the_prior() -> None:
    """Nothing seen: the prior, with the capacity that is asked for, no error and no trust."""
    learner = StepLearner(PRIOR)
    assert PRIOR == learner.law()
    assert replace(PRIOR, kv_tokens=7, max_requests=3) == learner.law(kv_tokens=7, max_requests=3)
    assert (None, False, 0, 0) == (learner.error, learner.is_trusted, learner.steps, learner.rejected)
    assert pytest.approx(5e-3 + 10 * 5e-5 + 5e3 * 3e-8) == predict(learner)


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_the_first_observation_sets_the_scale(factor: float) -> None:
    """One observation of an engine that is the prior times a factor is enough to know it: proportions are kept."""
    learner = StepLearner(PRIOR)
    observe(learner, factor * predict(learner))
    law = learner.law()
    assert pytest.approx([factor * 5e-3, factor * 2e-5, factor * 5e-5, factor * 3e-8, factor * 8e-10]) == [
        law.c0_s,
        law.c1_s,
        law.c2_s,
        law.c3_s,
        law.c4_s,
    ]


@pytest.mark.parametrize("knee", [0.0, 96.0, 256.0, 640.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_law_is_found_exactly_where_there_is_no_noise(knee: float, scale: float) -> None:
    """Coefficients and knee come out, although only means over mixed steps were seen, and the prior was wrong.

    Attention, a thirtieth of the time here, stays nearer to the prior than the others.
    """
    learner, truth = StepLearner(OPTIMISTIC_LAW), Truth(knee, scale)
    teach(learner, truth, 300)
    law = learner.law()
    if knee:
        assert knee == learner.knee_tokens
    assert pytest.approx(truth.c0, rel=0.01) == law.c0_s
    assert pytest.approx(truth.high, rel=0.02) == law.c1_s
    assert pytest.approx((truth.low if knee else truth.high) + truth.each, rel=0.02) == law.c2_s
    assert pytest.approx(truth.kv, rel=0.02) == law.c3_s
    assert pytest.approx(truth.attention, rel=0.25) == law.c4_s
    for prefill, attention in ((0.0, 0.0), (60.0, 1800.0), (1500.0, 1.1e6)):
        expected_s = truth.step_s(prefill, 20.0, 9e3, attention)
        assert pytest.approx(expected_s, rel=0.01) == predict(learner, prefill, 20.0, 9e3, attention)


def test_noise_averages_out() -> None:
    """With times off by up to 10 % either way, 300 windows give step times within 4 %."""
    learner, truth = StepLearner(PRIOR), Truth()
    teach(learner, truth, 300, noise=0.1)
    for sequences in (2.0, 20.0, 50.0):
        expected_s = truth.step_s(0.0, sequences, 500.0 * sequences, 0.0)
        assert pytest.approx(expected_s, rel=0.04) == predict(learner, 0.0, sequences, 500.0 * sequences)


def test_a_prior_of_nothing_can_be_learned_from() -> None:
    """Coefficients of 0 in the prior are no bar: they are learned like the others."""
    learner = StepLearner(SpeedLaw(0.0, 0.0, 0.0, 0.0, 0.0, kv_tokens=1, max_requests=1))
    teach(learner, Truth(), 300)
    assert pytest.approx(8e-3, rel=0.02) == learner.law().c0_s
    assert pytest.approx(5e-8, rel=0.05) == learner.law().c3_s


def test_no_coefficient_is_below_zero() -> None:
    """An engine that looks faster the more KV it holds has KV at no cost, and the other coefficients make up for it."""
    learner = StepLearner(PRIOR)
    draw = Random(3)
    for _ in range(200):
        kv_tokens = draw.uniform(0.0, 50_000.0)
        observe(learner, 10e-3 - 4e-8 * kv_tokens, kv_tokens=kv_tokens)
    law = learner.law()
    assert 0.0 == law.c3_s
    assert min(law.c0_s, law.c1_s, law.c2_s, law.c4_s) >= 0.0
    assert pytest.approx(9e-3, rel=0.03) == predict(learner, kv_tokens=25_000.0)


def test_an_outlier_hardly_moves_the_law() -> None:
    """A window of ten times the usual step, in the middle of good ones, moves a prediction by less than 2 %."""
    learner, truth = StepLearner(PRIOR), Truth()
    teach(learner, truth, 60, noise=0.02)
    before_s = predict(learner)
    observe(learner, 10.0 * before_s, steps=32)
    assert pytest.approx(before_s, rel=0.02) == predict(learner)


def test_a_long_window_counts_for_32_steps() -> None:
    """A mean over 3,000 steps weighs as one over 32 does, and no more."""
    long, short = StepLearner(PRIOR), StepLearner(PRIOR)
    for learner, steps in ((long, 3000), (short, 32)):
        teach(learner, Truth(), 20)
        observe(learner, 11e-3, steps=steps)
    assert short.law() == long.law()
    assert (20 * 16 + 32, 20 * 16 + 3000) == (short.steps, long.steps)


def test_a_window_of_more_steps_counts_for_more() -> None:
    """The law moves further towards the mean of 20 steps than towards that of one."""
    moved = []
    for steps in (1, 20):
        learner = StepLearner(PRIOR)
        teach(learner, Truth(), 20)
        before_s = predict(learner)
        observe(learner, 1.04 * before_s, steps=steps)
        moved.append(predict(learner) - before_s)
    assert 0.0 < moved[0] < 0.5 * moved[1]


def test_a_slow_drift_is_followed() -> None:
    """An engine that becomes 12 % slower, too little for a jump, is known again after some 6,000 steps."""
    learner = StepLearner(PRIOR)
    teach(learner, Truth(), 200)
    teach(learner, Truth(scale=1.12), 400, seed=2)
    assert 0 == learner.jumps
    assert pytest.approx(Truth(scale=1.12).step_s(0.0, 10.0, 5e3, 0.0), rel=0.02) == predict(learner)


def test_prefill_below_the_knee_gives_the_slope_below() -> None:
    """c1 is s_lo while prefill was seen and no batch came above the knee, and s_hi from the first that did."""
    learner, truth = StepLearner(PRIOR), Truth(knee=256.0)
    draw = Random(5)
    for _ in range(100):
        prefill = draw.uniform(20.0, 200.0)
        step_s = truth.step_s(prefill, 10.0, 5e3, 0.5 * prefill * prefill)
        observe(
            learner, step_s, prefill_tokens=prefill, prefill_steps=10.0, attention=0.5 * prefill * prefill
        )
    assert 256.0 == learner.knee_tokens
    assert pytest.approx(truth.low, rel=0.1) == learner.law().c1_s
    step_s = truth.step_s(2000.0, 10.0, 5e3, 2e6)
    observe(learner, step_s, prefill_tokens=2000.0, prefill_steps=10.0, attention=2e6)
    assert learner.law().c1_s > 1.5 * truth.low


def test_without_prefill_its_slope_is_the_priors() -> None:
    """Decode steps alone leave c1 at the prior's proportion, not at the slope below the knee."""
    learner = StepLearner(PRIOR)
    for _ in range(20):
        observe(learner, 2.0 * (5e-3 + 10 * 5e-5 + 5e3 * 3e-8))
    assert pytest.approx(4e-5, rel=0.01) == learner.law().c1_s


def test_the_batch_of_a_prefill_step_is_not_that_of_the_mean_step() -> None:
    """Prefill of 1,000 tokens in one step of ten is above a knee that the mean of 100 a step would be below."""
    laws = []
    for steps in (1.0, 10.0):
        learner = StepLearner(PRIOR)
        observe(learner, 20e-3, prefill_tokens=100.0, prefill_steps=steps)
        laws.append(learner.law())
    assert pytest.approx(2.0, rel=0.5) == laws[0].c1_s / laws[1].c1_s
    assert laws[0].c0_s < laws[1].c0_s, "the same time, of which more was prefill"


def test_the_error_is_stated_from_the_eighth_prediction() -> None:
    """None for seven predictions; then their median: of eight, the first alone was wrong."""
    learner = StepLearner(PRIOR)
    stated = []
    for _ in range(8):
        observe(learner, 20e-3)
        stated.append(learner.error)
    assert [None] * 7 == stated[:7]
    assert pytest.approx(0.0, abs=1e-6) == stated[7]


def test_trust_takes_200_steps() -> None:
    """With predictions that are right, trust comes with the two hundredth step."""
    learner = StepLearner(PRIOR)
    for _ in range(19):
        observe(learner, 20e-3)
    assert not learner.is_trusted
    observe(learner, 20e-3)
    assert learner.is_trusted


def test_trust_takes_predictions_that_come_true() -> None:
    """An engine whose steps take 5 or 20 ms at random is not trusted, however long it was watched."""
    learner = StepLearner(PRIOR)
    draw = Random(8)
    for _ in range(200):
        observe(learner, draw.choice([5e-3, 20e-3]))
    assert learner.error is not None
    assert learner.error > 0.25
    assert not learner.is_trusted


def settled() -> StepLearner:
    """A learner that knows its engine."""
    learner = StepLearner(PRIOR)
    teach(learner, Truth(), 100, noise=0.01)
    assert learner.is_trusted
    return learner


def test_a_run_of_large_errors_is_a_jump() -> None:
    """Four windows of 30 steps at twice the time are a changed engine: the law doubles, in its learned proportions, and
    trust begins anew.
    """
    learner = settled()
    before = learner.law()
    step_s = predict(learner)
    for _ in range(3):
        observe(learner, 2.0 * step_s, steps=30)
    assert 0 == learner.jumps
    observe(learner, 2.0 * step_s, steps=30)
    assert (1, None, False) == (learner.jumps, learner.error, learner.is_trusted)
    after = learner.law()
    assert pytest.approx(2.0 * step_s, rel=0.01) == predict(learner)
    assert pytest.approx(2.0, rel=0.1) == after.c1_s / before.c1_s
    assert pytest.approx(2.0, rel=0.1) == after.c3_s / before.c3_s
    for _ in range(8):
        observe(learner, 2.0 * step_s, steps=30)
    assert learner.is_trusted


def test_short_observations_make_a_jump_by_their_steps() -> None:
    """Means of five steps at half the time need twenty of them, not four."""
    learner = settled()
    step_s = predict(learner)
    for _ in range(19):
        observe(learner, 0.5 * step_s, steps=5)
    assert 0 == learner.jumps
    observe(learner, 0.5 * step_s, steps=5)
    assert 1 == learner.jumps
    assert pytest.approx(0.5 * step_s, rel=0.01) == predict(learner)


def test_errors_both_ways_are_no_jump() -> None:
    """Windows that are now too long, now too short are noise, however large."""
    learner = settled()
    step_s = predict(learner)
    for turn in range(40):
        observe(learner, (2.0 if turn % 2 else 0.5) * step_s, steps=30)
    assert 0 == learner.jumps


def test_a_new_knee_needs_evidence() -> None:
    """Decode steps alone say nothing of the knee, and it stays where it was."""
    learner = StepLearner(PRIOR)
    draw = Random(2)
    for _ in range(100):
        sequences = draw.uniform(1.0, 60.0)
        observe(learner, (8e-3 + 6e-5 * sequences) * draw.uniform(0.9, 1.1), sequences=sequences)
    assert 256.0 == learner.knee_tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in ("step_s", "sequences") for value in (math.nan, math.inf, -1.0)),
        *((name, math.nan) for name in ("prefill_tokens", "prefill_steps", "kv_tokens", "attention")),
        *((name, -1e-9) for name in ("prefill_tokens", "prefill_steps", "kv_tokens", "attention")),
        ("step_s", 0.0),
        ("step_s", 101.0),
        ("steps", 0),
        ("steps", -5),
        ("steps", 1_000_001),
        ("prefill_tokens", 1.1e6),
        ("sequences", 1.1e6),
        ("kv_tokens", 1.1e8),
        ("attention", 1.1e12),
    ],
)
def test_nonsense_is_counted_and_not_learned(field: str, value: float) -> None:
    """A number that cannot be is rejected, and the law is what it was."""
    learner = settled()
    before = learner.law()
    contents = {"step_s": 10e-3, field: value}
    observe(learner, contents.pop("step_s"), **contents)
    assert (before, 1) == (learner.law(), learner.rejected)


def test_what_is_kept_is_bounded() -> None:
    """After ten thousand observations there are no more numbers in it than after a hundred."""
    learner = StepLearner(PRIOR)
    for _ in range(40):
        teach(learner, Truth(), 20)
    assert 64 == len(learner._errors) == len(learner._ordered_errors)
    assert 32 == len(learner._recent)
    assert learner._ordered_errors == sorted(learner._errors)
