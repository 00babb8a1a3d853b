"""Closed forms of a batch, against figures worked by hand and an engine that plays every step."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from forebay.enginemodel import Engine as PlayedEngine
from forebay.enginemodel import EngineConfig
from forebay.enginemodel import Request as PlayedRequest
from forebay.profiles import load_profile
from forebay.runtime.sizing import engine_of_profile, given_workload
from forebay.sizing.batching import Engine, Request, Workload, batch_at, most_running, workload_of
from forebay.sizing.errors import SizingError

ENGINE = Engine(
    "hand",
    c0_s=0.010,
    c1_s=2e-5,
    c2_s=1e-4,
    c3_s=1e-7,
    kv_tokens=100_000,
    max_requests=64,
    chunk_tokens=2048,
    context_tokens=8192,
)


def workload(*requests: Request) -> Workload:
    """One of given requests."""
    return workload_of(requests or (Request(1000, 200, 0.08, 0.06, 2.3),))


def test_one_request_stands_for_itself() -> None:
    """Means of one are its own; it holds prompt + half its answer over its 200 steps."""
    alone = workload()
    assert (1000, 200, 0.08, 12.5) == (
        alone.prompt_tokens,
        alone.output_tokens,
        alone.work_s,
        alone.capacity_rps,
    )
    assert (1100, 1100 * 200, 1200) == (alone.held_tokens, alone.kv_time, alone.longest_tokens)
    assert 1000**2 + 1000 * 200 + 200**2 / 3 == pytest.approx(alone.held_square)


def test_long_answers_count_for_the_time_that_they_run() -> None:
    """Of one request with 100 tokens and one with 900, a batch holds the second for nine tenths of the time."""
    both = workload(Request(10, 100, 1, 1, 1), Request(1010, 900, 1, 1, 1))
    assert (0.1 * 60 + 0.9 * 1460) == pytest.approx(both.held_tokens)


def test_batch_by_hand() -> None:
    """5 requests/s with 0.06 s of own work each: 30 % of the time, so a step takes 10 ÷ 0.7 ms."""
    batch = batch_at(ENGINE, workload(), 5.0)
    step_s = 0.010 / 0.7
    assert (0.4, step_s) == pytest.approx((batch.load, batch.step_s))
    assert (5 * 200 * step_s, 5 * 220_000 * step_s) == pytest.approx((batch.running, batch.kv_tokens))


def test_step_is_without_end_where_tokens_alone_are_too_much() -> None:
    """At 0.06 s of own work, 17 requests/s leave no time for the fixed part of steps."""
    assert math.isinf(batch_at(ENGINE, workload(), 17.0).step_s)


def test_most_running_by_hand() -> None:
    """By KV cache the mean and two deviations fill 0.9 of it; by pace the step of that many takes 30 ms."""
    by_kv, by_pace, own = most_running(ENGINE, workload(), tpot_s=0.030, fill=0.9)
    spread = math.sqrt(200**2 / 12)
    assert by_kv * 1100 + 2 * math.sqrt(by_kv) * spread <= 90_000
    assert (by_kv + 1) * 1100 + 2 * math.sqrt(by_kv + 1) * spread > 90_000
    assert (int(0.020 / (1e-4 + 1100e-7)), 64) == (by_pace, own)


def test_there_is_room_for_one_always() -> None:
    """A target that not even one request meets still lets one run."""
    assert (80, 1, 64) == most_running(ENGINE, workload(), tpot_s=0.001, fill=0.9)


@pytest.mark.parametrize("fill", [0.0, 1.5])
def test_part_of_the_cache_is_checked(fill: float) -> None:
    """It is above 0 and at most 1."""
    with pytest.raises(SizingError, match="KV cache"):
        most_running(ENGINE, workload(), tpot_s=0.1, fill=fill)


def test_no_requests_are_an_error() -> None:
    """Neither none at all, nor only ones without an answer."""
    for requests in ([], [Request(10, 0, 0.1, 0.1, 0.1)]):
        with pytest.raises(SizingError, match="no requests with an answer"):
            workload_of(requests)


def test_capacity_and_step_hold_against_an_engine_that_plays_every_step() -> None:
    """At 0.7 of the capacity worked out, the engine keeps up, and pace and batch are within a fifth of the form."""
    profile = load_profile("llama3-8b-h100x1-bf16")
    engine, law = engine_of_profile(profile.name)
    mix = given_workload(engine, law, prompt_tokens=1000, output_tokens=250, spread=0.8)
    rate = 0.7 * mix.capacity_rps
    stream = random.Random(5)
    played = PlayedEngine(profile, EngineConfig.from_profile(profile, prefix_caching=False))
    now, due, durations, running = 0.0, stream.expovariate(rate), [], []
    for number in range(1, 1500):
        while played.has_work and now < due:
            result = played.step(now)
            assert result is not None
            now = result.start_s + result.duration_s
            durations.append((result.duration_s, len(result.tokens)))
        now = max(now, due)
        drawn = [max(1, round(mean * stream.lognormvariate(-0.32, 0.8))) for mean in (1000, 250)]
        played.submit(PlayedRequest(number, drawn[0], drawn[1]))
        due += stream.expovariate(rate)
        running.append(played.statistics().running)
    batch = batch_at(engine, mix, rate)
    steps = [duration for duration, tokens in durations[len(durations) // 4 :] if tokens]
    assert fmean(steps) == pytest.approx(batch.step_s, rel=0.2)
    assert fmean(running[400:]) == pytest.approx(batch.running, rel=0.2)
