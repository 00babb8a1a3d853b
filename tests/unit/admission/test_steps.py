from __future__ import annotations

import math
from typing import Any

import pytest

from forebay.admission.model import EngineSample
from forebay.admission.settings import SpeedLaw
from forebay.admission.steps import EngineClock, EventPace, StepSources, StepWindow, attention_of

PRIOR = SpeedLaw(c0_s=8e-3, c1_s=2e-5, c2_s=5e-5, c3_s=0.0, c4_s=0.0, kv_tokens=100_000, max_requests=64)
CAPACITY = 10_000


def sample(at_s: float, steps: int, **fields: Any) -> EngineSample:
    """Four sequences, each with a token from each step, and 2,000 KV tokens of `CAPACITY`."""
    values: dict[str, Any] = {
        "running": 4,
        "waiting": 0,
        "kv_usage": 0.2,
        "preemptions_total": 0,
        "output_tokens_total": 4 * steps,
        "steps_total": steps,
        "step_tokens_total": 4 * steps,
        "cached_tokens_total": 0,
    }
    values.update(fields)
    return EngineSample(at_s, **values)


def take(clock: EngineClock, reading: EngineSample, **books: Any) -> StepWindow | None:
    """A sample of an engine that was busy, with the books agreeing."""
    values: dict[str, Any] = {
        "was_idle": False,
        "half_done": False,
        "sequences": 4.0,
        "kv_tokens": 1500.0,
        "kv_capacity": CAPACITY,
    }
    values.update(books)
    return clock.sampled(reading, **values)


def started(**fields: Any) -> EngineClock:
    """A clock with a window open since 10 s and step 100."""
    clock = EngineClock(chunk_tokens=1000)
    assert take(clock, sample(10.0, 100, **fields)) is None
    return clock


def test_time_over_steps_is_the_step_time() -> None:
    """Twenty steps in 0.2 s are steps of 10 ms, with what the counters and the gauges say was in them."""
    window = take(started(), sample(10.2, 120, kv_usage=0.3))
    assert window is not None
    assert (20, 0.0, 0.0, 0.0) == (
        window.steps,
        window.prefill_tokens,
        window.prefill_steps,
        window.attention,
    )
    assert pytest.approx([10e-3, 4.0, 2500.0]) == [window.step_s, window.sequences, window.kv_tokens]


def test_windows_follow_each_other() -> None:
    """The sample that closes a window opens the next."""
    clock = started()
    windows = [take(clock, sample(10.0 + 0.2 * n, 100 + 20 * n)) for n in (1, 2, 3)]
    assert [20, 20, 20] == [window.steps for window in windows if window is not None]


def test_prefill_is_what_is_no_output() -> None:
    """Step tokens that are neither output nor cached are prefill; our books say in how many steps, and how much
    attention it took.
    """
    clock = started()
    clock.prompt_done(1500)
    clock.prompt_done(700, 200)
    tokens = 4 * 140 + 2
    reading = sample(
        11.0,
        140,
        output_tokens_total=tokens,
        step_tokens_total=tokens + 2200,
        cached_tokens_total=200,
    )
    window = take(clock, reading)
    assert window is not None
    assert pytest.approx([25e-3, 2000 / 40, 4.0]) == [window.step_s, window.prefill_tokens, window.sequences]
    assert pytest.approx(40 * (1 - math.exp(-3 / 40))) == window.prefill_steps
    assert pytest.approx((1500**2 + 700**2 - 200**2) / 2 / 40) == window.attention


def test_prefill_of_others_is_taken_to_be_like_ours() -> None:
    """If the engine computed three times what we sent, there were three times as many chunks and prompts."""
    clock = started()
    clock.prompt_done(400)
    window = take(
        clock, sample(11.0, 200, output_tokens_total=803, step_tokens_total=803 + 1200, kv_usage=0.2)
    )
    assert window is not None
    assert pytest.approx([12.0, 4.0]) == [window.prefill_tokens, window.sequences]
    assert pytest.approx(100 * (1 - math.exp(-3 / 100))) == window.prefill_steps
    assert pytest.approx(3 * 400**2 / 2 / 100) == window.attention


def test_prefill_that_we_know_nothing_of_keeps_the_window_open() -> None:
    """The engine's news may be ahead of ours: the window closes when the prompt's first token is known."""
    clock = started()
    assert take(clock, sample(10.2, 120, step_tokens_total=4 * 120 + 300)) is None
    clock.prompt_done(300)
    window = take(clock, sample(10.4, 140, step_tokens_total=4 * 140 + 300))
    assert window is not None
    assert (40, 300 / 40) == (window.steps, window.prefill_tokens)


@pytest.mark.parametrize(
    ("fields", "books"),
    [({"waiting": 1}, {}), ({"waiting": None}, {}), ({}, {"half_done": True})],
    ids=["waiting", "unknown", "half-done"],
)
def test_a_window_has_clean_ends(fields: dict[str, Any], books: dict[str, Any]) -> None:
    """A sample with a queue, or with a prompt half done, neither opens nor closes a window; it draws one out."""
    clock = started()
    assert take(clock, sample(10.2, 120, **fields), **books) is None
    window = take(clock, sample(10.4, 140))
    assert window is not None
    assert 40 == window.steps
    clock = EngineClock()
    take(clock, sample(10.0, 100, **fields), **books)
    assert not clock.is_open


@pytest.mark.parametrize(
    ("fields", "books"),
    [
        ({}, {"was_idle": True}),
        ({"running": 0}, {}),
        ({"steps_total": 90}, {}),
        ({"output_tokens_total": 5}, {}),
        ({"step_tokens_total": 5}, {}),
        ({"preemptions_total": 1}, {}),
        ({"steps_total": None}, {}),
        ({"step_tokens_total": None}, {}),
        ({"output_tokens_total": None}, {}),
    ],
)
def test_what_spoils_a_window_drops_it(fields: dict[str, Any], books: dict[str, Any]) -> None:
    """Idleness, a restart, a preemption, a counter that is missing: nothing of that time is learned from."""
    clock = started()
    assert take(clock, sample(10.2, 120, **fields), **books) is None
    assert 1 == clock.dropped
    window = take(clock, sample(10.4, 140, preemptions_total=fields.get("preemptions_total", 0)))
    assert window is None or window.steps <= 50, "at most what came after"


def test_a_long_gap_gives_nothing() -> None:
    """Samples that are more than five seconds apart have too much between them, and so do those out of order."""
    assert take(started(), sample(15.01, 600)) is None
    assert take(started(), sample(14.99, 600)) is not None
    assert take(started(), sample(9.9, 120)) is None


def test_a_window_is_not_drawn_out_for_ever() -> None:
    """After five seconds without a clean end it is given up."""
    clock = started()
    for n in range(1, 27):
        assert take(clock, sample(10.0 + 0.2 * n, 100 + 20 * n, waiting=1)) is None
    assert (1, False) == (clock.dropped, clock.is_open)


def test_a_window_of_few_steps_is_drawn_out() -> None:
    """Each end cuts through a step: eight steps are too few, sixteen are enough; a slow engine's five are after 2 s."""
    clock = started()
    assert take(clock, sample(10.2, 108)) is None
    window = take(clock, sample(10.4, 116))
    assert window is not None
    assert 16 == window.steps
    assert take(started(), sample(11.9, 105)) is None
    assert take(started(), sample(12.1, 105)) is not None


def test_a_chunk_that_may_have_been_alone_spoils_the_window() -> None:
    """With a prompt of two chunks and one sequence running, a step may not have been counted; with more it was."""
    for running, expected in ((1, False), (2, True)):
        clock = started(running=running)
        clock.prompt_done(1500)
        reading = sample(11.0, 140, running=running, step_tokens_total=4 * 140 + 1500)
        assert expected == (take(clock, reading) is not None)


def test_several_tokens_a_step_are_not_several_sequences() -> None:
    """With ten output tokens a step and four sequences running, it is four that decoded."""
    window = take(started(), sample(10.2, 120, output_tokens_total=600, step_tokens_total=600))
    assert window is not None
    assert pytest.approx(4.0) == window.sequences


def test_our_books_stand_in_for_gauges() -> None:
    """Where a sample says neither what runs nor what KV is in use, or the capacity is not known, our own are taken."""
    clock = started(running=None, kv_usage=None, output_tokens_total=0)
    window = take(
        clock, sample(10.2, 120, running=None, kv_usage=None, output_tokens_total=0, step_tokens_total=400)
    )
    assert window is not None
    assert pytest.approx(1500.0) == window.kv_tokens
    window = take(started(), sample(10.2, 120), kv_capacity=None, kv_tokens=2000.0)
    assert window is not None
    assert pytest.approx(2000.0) == window.kv_tokens


def test_a_reading_is_of_the_middle_of_its_time() -> None:
    """A reading that took 40 ms is taken to be of 20 ms after it began."""
    window = take(started(), sample(10.2, 120, took_s=0.04))
    assert window is not None
    assert pytest.approx(0.22 / 20) == window.step_s


def test_attention_does_not_depend_on_the_cut() -> None:
    """Σ chunk · (before + chunk ÷ 2) of 2,048 + 952 tokens is half the square of 3,000."""
    assert 2048 * 1024 + 952 * (2048 + 476) == attention_of(3000)
    assert attention_of(3000) == attention_of(2048) + attention_of(3000, 2048)


def test_tokens_per_event_come_from_usage() -> None:
    """Once some fifty events were in streams with usage, tokens ÷ events of these is the ratio."""
    pace = EventPace()
    pace.ended(80, 40)
    assert (1.0, False) == (pace.tokens_per_event, pace.is_known)
    pace.ended(80, 40)
    assert pytest.approx(2.0) == pace.tokens_per_event
    assert pace.is_known
    assert pytest.approx(2.0) == pace.steps_per_event


def test_odd_streams_do_not_change_what_an_event_is() -> None:
    """Tool calls come in a few events of many tokens each, some clients' answers in large pieces: most count."""
    pace = EventPace()
    for _ in range(30):
        pace.ended(100, 3)
    assert (1.0, False) == (pace.tokens_per_event, pace.is_known)
    for _ in range(60):
        for tokens in (100, 104, 1600):
            pace.ended(tokens, 100)
    assert pytest.approx(1.0, rel=0.1) == pace.tokens_per_event


def test_without_usage_an_event_becomes_a_token_in_the_end() -> None:
    """Five hundred events without any usage: there will be none."""
    pace = EventPace()
    for _ in range(4):
        pace.ended(None, 100)
    assert not pace.is_known
    pace.ended(None, 100)
    assert (True, 1.0) == (pace.is_known, pace.steps_per_event)


def test_counted_steps_overrule_tokens() -> None:
    """Events 10 ms apart with steps of 10 ms are one step each, although they carry two tokens."""
    pace = EventPace()
    pace.ended(200, 100)
    for _ in range(3):
        pace.paced(10e-3, 10e-3)
    assert pytest.approx(2.0) == pace.steps_per_event
    for _ in range(3):
        pace.paced(10e-3, 10e-3)
    assert pytest.approx([1.0, 2.0]) == [pace.steps_per_event, pace.tokens_per_step]


@pytest.mark.parametrize(("tokens", "events"), [(0, 5), (-1, 5), (5, 0), (1000, 5)])
def test_impossible_usage_is_ignored(tokens: int, events: int) -> None:
    """No tokens, no events, or hundreds of tokens in each event, say nothing of the engine."""
    pace = EventPace()
    pace.ended(100, 100)
    pace.ended(tokens, events)
    assert 1.0 == pace.tokens_per_event


@pytest.mark.parametrize(
    ("gap_s", "step_s"), [(0.0, 1.0), (1.0, 0.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf), (1.0, 1e-3)]
)
def test_impossible_gaps_are_ignored(gap_s: float, step_s: float) -> None:
    """A ratio that no engine has is not averaged in."""
    pace = EventPace()
    for _ in range(4):
        pace.paced(2e-3, 1e-3)
    pace.paced(gap_s, step_s)
    assert pytest.approx(2.0) == pace.steps_per_event


def paced_sources(tokens_per_event: int = 1) -> StepSources:
    """Sources that know what an event is, and have no counters."""
    sources = StepSources(PRIOR, chunk_tokens=1000)
    sources.ended(100 * tokens_per_event, 100)
    return sources


def gap(sources: StepSources, gap_s: float = 10e-3, now: float = 50.0, **fields: Any) -> None:
    """A batch in which five events of a stream came, beside three others."""
    values: dict[str, Any] = {"events": 5, "quiet": True, "sequences": 4.0, "kv_tokens": 2000.0}
    values.update(fields)
    sources.learn_gap(gap_s, now, **values)


def decode_s(sources: StepSources) -> float:
    """The learned time of a step with four sequences."""
    return sources.learner.step_s(prefill_tokens=0.0, sequences=4.0, kv_tokens=2000.0, attention=0.0)


def test_a_quiet_gap_is_a_decode_step() -> None:
    """Five gaps of 10 ms are five steps of 10 ms."""
    sources = paced_sources()
    gap(sources)
    assert 5 == sources.learner.steps
    assert pytest.approx(10e-3) == decode_s(sources)


def test_a_gap_holds_as_many_steps_as_an_event() -> None:
    """Where an event carries two tokens, five gaps of 20 ms are ten steps of 10 ms."""
    sources = paced_sources(tokens_per_event=2)
    gap(sources, 20e-3)
    assert 10 == sources.learner.steps
    assert pytest.approx(10e-3) == decode_s(sources)


@pytest.mark.parametrize(
    "fields", [{"quiet": False}, {"events": 0}, {"gap_s": 0.0}, {"gap_s": math.nan}, {"gap_s": 6.0}]
)
def test_other_gaps_teach_nothing(fields: dict[str, Any]) -> None:
    """A batch with prefill in it, or without a gap, is no decode step."""
    sources = paced_sources()
    gap(sources, **fields)
    assert 0 == sources.learner.steps


def test_no_gap_is_learned_from_before_events_are_known() -> None:
    """Until it is known what an event is, a gap might be any number of steps."""
    sources = StepSources(PRIOR)
    gap(sources)
    assert 0 == sources.learner.steps


def read(sources: StepSources, reading: EngineSample) -> None:
    """A sample of a busy engine."""
    sources.sampled(
        reading, was_idle=False, half_done=False, sequences=4.0, kv_tokens=2000.0, kv_capacity=CAPACITY
    )


def test_streams_are_silent_while_counters_speak() -> None:
    """For five seconds after a window neither gaps nor first tokens are learned from."""
    sources = paced_sources()
    read(sources, sample(10.0, 100))
    read(sources, sample(10.2, 120))
    assert 20 == sources.learner.steps
    gap(sources, now=15.1)
    sources.learn_first_token(0.05, 15.1, prompt_tokens=500, sequences=0.0, kv_tokens=0.0)
    assert 20 == sources.learner.steps
    gap(sources, now=15.3)
    sources.learn_first_token(0.05, 15.3, prompt_tokens=500, sequences=0.0, kv_tokens=0.0)
    assert 26 == sources.learner.steps


def test_gaps_beside_windows_tell_steps_per_event() -> None:
    """Events 30 ms apart while steps take 10 ms are three steps each, quiet or not."""
    sources = paced_sources()
    read(sources, sample(10.0, 100))
    for n in range(1, 6):
        gap(sources, 30e-3, now=10.0 + 0.2 * n, quiet=False)
        read(sources, sample(10.0 + 0.2 * n, 100 + 20 * n))
    assert pytest.approx(3.0) == sources.pace.steps_per_event


def test_gaps_before_a_window_are_not_of_it() -> None:
    """What streams did while no window was open is not held against the next one."""
    sources = paced_sources()
    gap(sources, 90e-3, quiet=False)
    read(sources, sample(9.8, 80, waiting=2))
    read(sources, sample(10.0, 100))
    for n in range(1, 6):
        gap(sources, 10e-3, quiet=False)
        read(sources, sample(10.0 + 0.2 * n, 100 + 20 * n))
    assert pytest.approx(1.0) == sources.pace.steps_per_event


def test_a_first_token_is_a_prefill() -> None:
    """A prompt of 2,500 tokens at an idle engine with chunks of 1,000 took three steps."""
    sources = paced_sources()
    sources.learn_first_token(0.12, 50.0, prompt_tokens=2500, sequences=0.0, kv_tokens=0.0)
    assert 3 == sources.learner.steps
    predicted_s = sources.learner.step_s(
        prefill_tokens=2500 / 3, sequences=0.0, kv_tokens=0.0, attention=attention_of(2500) / 3
    )
    assert pytest.approx(40e-3) == predicted_s


def test_a_first_token_waited_for_half_a_step() -> None:
    """Beside other streams a request comes in the middle of a step, and its own begin when that is over."""
    beside, alone = paced_sources(), paced_sources()
    for sources in (beside, alone):
        for _ in range(20):
            gap(sources)
    beside.learn_first_token(25e-3, 50.0, prompt_tokens=400, sequences=4.0, kv_tokens=2000.0)
    alone.learner.observe(
        20e-3,
        steps=1,
        prefill_tokens=400.0,
        prefill_steps=1.0,
        sequences=4.0,
        kv_tokens=2000.0,
        attention=80_000.0,
    )
    assert pytest.approx(alone.learner.law().c1_s) == beside.learner.law().c1_s


def test_a_cached_prompt_is_no_prefill() -> None:
    """What came from the prefix cache took no time; a prompt that is all cached teaches nothing."""
    sources = paced_sources()
    sources.learn_first_token(0.02, 50.0, prompt_tokens=500, cached_tokens=500, sequences=0.0, kv_tokens=0.0)
    assert 0 == sources.learner.steps
    sources.learn_first_token(
        0.02, 50.0, prompt_tokens=2500, cached_tokens=2000, sequences=0.0, kv_tokens=0.0
    )
    assert 1 == sources.learner.steps


def test_a_first_token_that_came_too_soon_is_rejected() -> None:
    """Less than half a step is no prefill."""
    sources = paced_sources()
    gap(sources)
    sources.learn_first_token(1e-3, 50.0, prompt_tokens=400, sequences=4.0, kv_tokens=2000.0)
    assert (5, 1) == (sources.learner.steps, sources.learner.rejected)


# Source 3 waits for these


def test_streams_that_teach_silence_whole_answers() -> None:
    """For five seconds after something was learned from a stream; a stream that teaches nothing silences nobody."""
    sources = StepSources(PRIOR)
    sources.learn_gap(10e-3, 1.0, events=9, quiet=True, sequences=4.0, kv_tokens=2000.0)
    assert sources.taught_until_s < 1.0
    sources.ended(100, 100)
    sources.learn_gap(10e-3, 2.0, events=9, quiet=False, sequences=4.0, kv_tokens=2000.0)
    assert sources.taught_until_s < 2.0
    sources.learn_gap(10e-3, 3.0, events=9, quiet=True, sequences=4.0, kv_tokens=2000.0)
    assert 8.0 == sources.taught_until_s
    sources.learn_first_token(0.02, 4.0, prompt_tokens=100, sequences=0.0, kv_tokens=0.0)
    assert 9.0 == sources.taught_until_s


def test_counted_steps_silence_whole_answers() -> None:
    """A window between two samples does so for as long as it silences streams."""
    sources = StepSources(PRIOR)
    for reading in (sample(10.0, 100), sample(10.2, 120)):
        sources.sampled(
            reading, was_idle=False, half_done=False, sequences=4.0, kv_tokens=1500.0, kv_capacity=CAPACITY
        )
    assert pytest.approx(15.2) == sources.taught_until_s
