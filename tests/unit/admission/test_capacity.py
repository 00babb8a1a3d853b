from __future__ import annotations

from math import inf
from typing import Final

import pytest

from forebay.admission.capacity import (
    HIGHEST_LIMIT,
    STEP_WINDOW,
    ConcurrencyLimit,
    PrefillPacer,
    prefill_window_s,
)
from forebay.admission.model import EngineSample
from forebay.admission.settings import SpeedLaw
from tests.unit.admission.build import reading

TIGHTEST_S: Final = 1.5
TPOT_S: Final = 0.1


def limit_at(limit: int) -> ConcurrencyLimit:
    """A limit that has been found to be this."""
    found = ConcurrencyLimit(TIGHTEST_S)
    found.limit = limit
    return found


def first_tokens(found: ConcurrencyLimit, count: int, took_s: float = 0.2, *, in_flight: int = 4096) -> None:
    """So many first tokens come, each after `took_s`."""
    for _ in range(count):
        found.first_token(took_s, in_flight=in_flight)


def test_it_starts_at_eight() -> None:
    """An unknown engine is given eight requests at a time."""
    assert 8 == ConcurrencyLimit(TIGHTEST_S).limit


def test_it_doubles_with_each_good_round() -> None:
    """A round is as many first tokens as the limit; all in time doubles it, and the next round is as much longer."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 7)
    assert 8 == found.limit
    first_tokens(found, 1)
    assert 16 == found.limit
    first_tokens(found, 15)
    assert 16 == found.limit
    first_tokens(found, 1)
    assert 32 == found.limit


def test_a_first_token_at_the_budget_is_in_time() -> None:
    """The tightest wait budget itself is not late."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 8, TIGHTEST_S)
    assert 16 == found.limit


def test_it_does_not_grow_where_it_was_not_reached() -> None:
    """First tokens that came in time with fewer in flight than the limit say nothing about more of them."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 80, in_flight=7)
    assert 8 == found.limit
    first_tokens(found, 8, in_flight=8)
    assert 16 == found.limit


def test_it_was_reached_if_it_was_at_any_time_of_the_round() -> None:
    """One moment at the limit is enough, and it counts for its own round alone."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 1, in_flight=8)
    first_tokens(found, 7, in_flight=1)
    assert 16 == found.limit
    first_tokens(found, 16, in_flight=15)
    assert 16 == found.limit


def test_a_light_load_leaves_it_where_it_is() -> None:
    """However long all goes well with forty in flight, the limit does not double on."""
    found = ConcurrencyLimit(TIGHTEST_S)
    for _ in range(1000):
        first_tokens(found, 10, in_flight=40)
    assert 64 == found.limit


def test_late_first_tokens_lower_it_by_a_fifth() -> None:
    """More than a tenth of a round late means that the engine is past its knee."""
    found = ConcurrencyLimit(TIGHTEST_S)
    first_tokens(found, 7)
    first_tokens(found, 1, 1.6)
    assert 6 == found.limit


def test_a_few_late_ones_stop_growth() -> None:
    """A tenth of a round or less late keeps the limit where it is."""
    found = limit_at(20)
    first_tokens(found, 2, 1.6)
    first_tokens(found, 18)
    assert 20 == found.limit


def test_late_ones_are_forgotten_with_their_round() -> None:
    """Each round is judged by itself."""
    found = limit_at(20)
    first_tokens(found, 2, 1.6)
    first_tokens(found, 18)
    first_tokens(found, 20)
    assert 40 == found.limit


def test_what_is_reckoned_weighs_nothing_beside_what_was_seen() -> None:
    """Answers that come whole show no first token: of a round with seen ones, only those are judged."""
    found = limit_at(20)
    for _ in range(19):
        found.first_token(9.0, in_flight=20, seen=False)
    first_tokens(found, 1)
    assert 40 == found.limit


def test_a_tenth_of_those_seen_is_what_counts() -> None:
    """Ten whole answers do not hide that two of ten streams were late."""
    found = limit_at(20)
    for _ in range(10):
        found.first_token(0.0, in_flight=20, seen=False)
    first_tokens(found, 2, 1.6)
    first_tokens(found, 8)
    assert 16 == found.limit


def test_where_nothing_is_seen_what_is_reckoned_counts() -> None:
    """And each round is judged by itself."""
    found = limit_at(20)
    first_tokens(found, 20, in_flight=10)
    for _ in range(20):
        found.first_token(9.0, in_flight=20, seen=False)
    assert 16 == found.limit


def test_after_a_fall_it_grows_by_one() -> None:
    """What was found to be too much is approached slowly: a good round adds one, and never doubles again."""
    found = limit_at(20)
    first_tokens(found, 20, 1.6)
    assert (16, True) == (found.limit, found.has_fallen)
    first_tokens(found, 16)
    assert 17 == found.limit
    first_tokens(found, 17, in_flight=16)
    assert 17 == found.limit
    first_tokens(found, 17)
    assert 18 == found.limit


@pytest.mark.parametrize(
    "readings",
    [
        [reading(0.0, running=6, waiting=3), reading(0.2, running=6, waiting=3), reading(0.4)],
        [reading(0.0, preemptions_total=0), reading(0.2, preemptions_total=1)],
    ],
    ids=["queue", "preemption"],
)
def test_every_fall_ends_the_doubling(readings: list[EngineSample]) -> None:
    """It is the same whether the engine queued, preempted or was late."""
    found = ConcurrencyLimit(TIGHTEST_S)
    for sample in readings:
        found.sampled(sample)
    assert (6, True) == (found.limit, found.has_fallen)
    first_tokens(found, 6)
    assert 7 == found.limit


def test_a_queue_that_lowers_nothing_is_no_fall() -> None:
    """An engine that queues other people's requests beyond our limit does not end the doubling."""
    found = ConcurrencyLimit(TIGHTEST_S)
    for sample in [reading(0.0, running=8, waiting=3), reading(0.2, running=8, waiting=3), reading(0.4)]:
        found.sampled(sample)
    first_tokens(found, 8)
    assert (16, False) == (found.limit, found.has_fallen)


def test_it_stays_between_one_and_the_highest() -> None:
    """However well or badly it goes, an endpoint is tried, and never without bound."""
    found = limit_at(1)
    first_tokens(found, 10, 60.0)
    assert 1 == found.limit
    found = limit_at(HIGHEST_LIMIT)
    first_tokens(found, HIGHEST_LIMIT)
    assert HIGHEST_LIMIT == found.limit


def test_a_queue_in_the_engine_shows_what_it_runs() -> None:
    """An engine that queues in two readings in a row runs what it can: that becomes the limit."""
    found = limit_at(64)
    found.sampled(reading(0.0, running=40, waiting=3))
    assert 64 == found.limit
    found.sampled(reading(0.2, running=40, waiting=3))
    assert 40 == found.limit


def test_one_glimpse_of_a_queue_is_chance() -> None:
    """Arrivals on their way into the batch look like a queue; a calm reading between two makes them chance."""
    found = limit_at(64)
    for at_s, waiting in enumerate([3, 0, 3, 0]):
        found.sampled(reading(float(at_s), running=40, waiting=waiting))
    assert 64 == found.limit


def test_a_queue_never_raises_the_limit() -> None:
    """An engine that runs other people's requests too does not entitle us to more."""
    found = limit_at(8)
    for at_s in range(4):
        found.sampled(reading(float(at_s), running=100, waiting=5))
    assert 8 == found.limit


@pytest.mark.parametrize("running", [0, None])
def test_a_queue_with_nothing_running_says_nothing(running: int | None) -> None:
    """A missing or zero running count cannot be a limit."""
    found = limit_at(64)
    for at_s in range(4):
        found.sampled(reading(float(at_s), running=running, waiting=5))
    assert 64 == found.limit


def test_it_does_not_grow_while_the_engine_queues() -> None:
    """First tokens in time do not double a limit at which the engine already queues."""
    found = limit_at(8)
    found.sampled(reading(0.0, running=40, waiting=3))
    first_tokens(found, 8)
    assert 8 == found.limit
    found.sampled(reading(0.2, running=40, waiting=0))
    first_tokens(found, 8)
    assert 16 == found.limit


def test_preemptions_lower_it_by_a_fifth() -> None:
    """A preemption count that grew since the last reading lowers the limit; the first reading only sets the mark."""
    found = limit_at(10)
    assert not found.sampled(reading(0.0, preemptions_total=700))
    assert 10 == found.limit
    assert found.sampled(reading(0.2, preemptions_total=703))
    assert 8 == found.limit
    assert not found.sampled(reading(0.4, preemptions_total=703))
    assert 8 == found.limit


def test_a_restarted_engine_has_preempted_nothing() -> None:
    """A count that falls is a restart, and the next growth is measured from there."""
    found = limit_at(10)
    for at_s, total in enumerate([700, 0, 0]):
        found.sampled(reading(float(at_s), preemptions_total=total))
    assert 10 == found.limit
    found.sampled(reading(3.0, preemptions_total=1))
    assert 8 == found.limit


def test_an_engine_that_says_nothing_changes_nothing() -> None:
    """Missing gauges are not zeros: the limit and what is known stay."""
    found = limit_at(10)
    found.sampled(reading(0.0, running=9, waiting=1, preemptions_total=5))
    found.sampled(reading(0.2, running=None, waiting=None, preemptions_total=None))
    found.sampled(reading(0.4, running=9, waiting=1, preemptions_total=5))
    assert 9 == found.limit


# Slow steps


def steps(
    found: ConcurrencyLimit,
    windows: int,
    step_s: float,
    *,
    in_flight: int,
    target_s: float = TPOT_S,
    empty_s: float = 0.0,
) -> None:
    """So many windows of equal steps."""
    for _ in range(windows * STEP_WINDOW):
        found.observe_step(step_s, target_s, in_flight=in_flight, empty_step_s=empty_s)


def test_slow_steps_lower_it_by_a_tenth_of_what_runs() -> None:
    """Two windows in a row over the target: a tenth less than was in flight, which may be far below the limit."""
    found = limit_at(512)
    steps(found, 1, 0.11, in_flight=100)
    assert (512, False) == (found.limit, found.holds_when_calm)
    steps(found, 1, 0.11, in_flight=100)
    assert (90, True, True) == (found.limit, found.has_fallen, found.holds_when_calm)


def test_one_slow_window_is_chance() -> None:
    """A window within the target between two slow ones makes them chance; the target itself is within."""
    found = limit_at(100)
    for step_s in (0.11, 0.1, 0.11, 0.09, 0.11):
        steps(found, 1, step_s, in_flight=100)
    assert 100 == found.limit


def test_a_window_is_judged_by_its_mean() -> None:
    """A few long steps with prompts in them do not make a window slow: TPOT is a mean too."""
    found = limit_at(100)
    for _ in range(4 * STEP_WINDOW // 8):
        for _ in range(7):
            found.observe_step(0.05, TPOT_S, in_flight=100)
        found.observe_step(0.44, TPOT_S, in_flight=100)
    assert 100 == found.limit


def test_it_waits_until_a_lowering_has_worked() -> None:
    """While more run than a lowered limit allows, slow steps are those of before; then it is lowered again."""
    found = limit_at(100)
    steps(found, 2, 0.11, in_flight=100)
    steps(found, 10, 0.11, in_flight=95)
    assert 90 == found.limit
    steps(found, 1, 0.11, in_flight=90)
    assert 81 == found.limit
    for _ in range(18):
        first_tokens(found, found.limit)
    assert (99, True) == (found.limit, found.holds_when_calm)


def test_slow_steps_at_a_calm_engine_bound_what_runs() -> None:
    """More than the limit may run at a calm engine: then it is lowered from what ran, and holds there too."""
    found = ConcurrencyLimit(TIGHTEST_S)
    steps(found, 2, 0.11, in_flight=60)
    assert (54, True) == (found.limit, found.holds_when_calm)


def test_it_holds_at_a_calm_engine_until_it_has_grown_back() -> None:
    """The limit is firm below what made steps slow, and no longer there."""
    found = limit_at(20)
    steps(found, 2, 0.11, in_flight=20)
    assert (18, True) == (found.limit, found.holds_when_calm)
    first_tokens(found, 18)
    assert (19, True) == (found.limit, found.holds_when_calm)
    first_tokens(found, 19)
    assert (20, False) == (found.limit, found.holds_when_calm)


def test_slow_steps_never_lower_it_below_eight() -> None:
    """A step of eight sequences takes hardly longer than of one: fewer would help nobody, and few are not at fault."""
    found = limit_at(9)
    steps(found, 2, 0.11, in_flight=9)
    assert 8 == found.limit
    steps(found, 4, 0.11, in_flight=8)
    assert 8 == found.limit
    found = limit_at(5)
    steps(found, 4, 0.11, in_flight=5)
    assert (5, False) == (found.limit, found.has_fallen)
    found = limit_at(64)
    steps(found, 4, 0.5, in_flight=1)
    assert 64 == found.limit


def test_a_target_that_an_empty_engine_misses_does_not_count() -> None:
    """Where the empty step is over the target no limit would help, so throughput is not given up for it."""
    found = limit_at(100)
    steps(found, 4, 0.2, in_flight=100, empty_s=0.1)
    assert 100 == found.limit


def test_without_a_target_no_step_is_slow() -> None:
    """Classes without a TPOT target run as many as fit, and slow windows from before are forgotten."""
    found = limit_at(100)
    steps(found, 1, 0.11, in_flight=100)
    steps(found, 4, 9.0, in_flight=100, target_s=inf)
    steps(found, 1, 0.11, in_flight=100)
    assert 100 == found.limit


def test_it_does_not_grow_while_steps_are_slow() -> None:
    """First tokens in time do not raise a limit at which the last window was over the target."""
    found = ConcurrencyLimit(TIGHTEST_S)
    steps(found, 1, 0.11, in_flight=8)
    first_tokens(found, 8)
    assert 8 == found.limit
    steps(found, 1, 0.09, in_flight=8)
    first_tokens(found, 8)
    assert 16 == found.limit


# The prefill window


@pytest.mark.parametrize(
    ("chunk_s", "window_s"),
    [(0.0, 0.15), (0.03, 0.15), (0.075, 0.15), (0.1, 0.2), (0.175, 0.35), (0.3, 0.35), (0.5, 0.5)],
)
def test_the_prefill_window_is_two_chunks(chunk_s: float, window_s: float) -> None:
    """Within 0.15 to 0.35 s, and never below one chunk."""
    assert window_s == prefill_window_s(chunk_s)


# Pacing

PACED: Final = SpeedLaw(
    c0_s=0.01, c1_s=1e-4, c2_s=0.001, c3_s=1e-6, c4_s=0.0, kv_tokens=100_000, max_requests=100
)
"""Ten thousand prompt tokens a second; a step of 10 sequences with 10,000 KV tokens takes 30 ms."""


def paced(now: float = 0.0, *, target_s: float = 0.1) -> PrefillPacer:
    """Ten sequences with 10,000 KV tokens decode: at a target of 100 ms, half of the rate is for prompts."""
    pacer = PrefillPacer()
    pacer.follow(now, PACED, decoding=10, kv_tokens=10_000, tightest_tpot_s=target_s)
    return pacer


def test_the_rate_leaves_the_target_to_those_that_decode() -> None:
    """R = (1 − 30 ms ÷ (0.6 · 100 ms)) ÷ 0.1 ms = 5000 tokens a second, and the bucket holds 0.25 s of it."""
    pacer = paced()
    assert (True, 5000.0, 1250.0) == (pacer.paces, pacer.rate_tokens_per_s, pacer.depth_tokens)


def test_a_faster_endpoint_is_paced_less() -> None:
    """At twice the speed the same step takes half the time: (1 − 15 ÷ 60) · 20,000."""
    pacer = PrefillPacer()
    pacer.follow(0.0, PACED, decoding=10, kv_tokens=10_000, tightest_tpot_s=0.1, speed=2.0)
    assert 15_000.0 == pytest.approx(pacer.rate_tokens_per_s)


def test_prompts_are_never_starved_by_decoding() -> None:
    """Where decoding alone takes more than the target, a fifth of the rate is left for prompts."""
    assert 2000.0 == pytest.approx(paced(target_s=0.02).rate_tokens_per_s)


def test_prompts_enter_at_the_rate() -> None:
    """A full bucket lets in what it holds; then 500 tokens take a tenth of a second."""
    pacer = paced()
    assert pacer.allows(1000, 0.0)
    pacer.spend(1000, 0.0)
    assert (True, False) == (pacer.allows(250, 0.0), pacer.allows(500, 0.0))
    assert pytest.approx(0.05) == pacer.next_at(500, 0.0)
    assert (False, True) == (pacer.allows(500, 0.049), pacer.allows(500, 0.05))
    pacer.spend(500, 0.05)
    assert pytest.approx(0.15) == pacer.next_at(500, 0.05)


def test_over_time_no_more_than_the_rate_enters() -> None:
    """Let in as soon as allowed, prompts of any size add up to rate · time and one bucket."""
    pacer, now, entered = paced(), 0.0, 0
    for number in range(500):
        prompt_tokens = 37 + 611 * (number % 7)
        now = pacer.next_at(prompt_tokens, now)
        assert pacer.allows(prompt_tokens, now)
        pacer.spend(prompt_tokens, now)
        entered += prompt_tokens
        assert entered - prompt_tokens <= 5000 * now + 1250 + 500
    assert pytest.approx(now, abs=1.0) == entered / 5000


def test_a_prompt_beyond_the_bucket_passes_when_it_is_full() -> None:
    """It leaves a debt that those after it wait for, however small they are."""
    pacer = paced()
    pacer.spend(100, 0.0)
    assert not pacer.allows(11_250, 0.0)
    assert pytest.approx(0.02) == pacer.next_at(11_250, 0.0)
    assert pacer.allows(11_250, 0.02)
    pacer.spend(11_250, 0.02)
    assert not pacer.allows(1, 2.0)
    assert pytest.approx(0.02 + 2.0002) == pacer.next_at(1, 0.02)


def test_a_debt_is_bounded() -> None:
    """The largest prompt holds up those after it for five seconds at most."""
    pacer = paced()
    pacer.spend(10_000_000, 0.0)
    assert pytest.approx(5.0, abs=0.001) == pacer.next_at(1, 0.0)
    pacer.follow(0.0, PACED, decoding=10, kv_tokens=10_000, tightest_tpot_s=0.02)
    assert pytest.approx(5.0, abs=0.001) == pacer.next_at(1, 0.0)


@pytest.mark.parametrize("now", [0.0, 1e3, 1e7, 1e9])
def test_what_is_named_as_the_time_is_the_time(now: float) -> None:
    """At the moment that `next_at` names it does allow, whatever the clock reads."""
    pacer = paced(now)
    for number in range(200):
        prompt_tokens = 1 + 397 * number % 2000
        now = pacer.next_at(prompt_tokens, now)
        assert pacer.allows(prompt_tokens, now)
        pacer.spend(prompt_tokens, now)


@pytest.mark.parametrize(("decoding", "target_s"), [(0, 0.1), (10, inf)])
def test_where_nobody_has_a_target_every_prompt_passes(decoding: int, target_s: float) -> None:
    """Nothing decodes, or nothing with a target: there is nobody to pace for."""
    pacer = PrefillPacer()
    assert pacer.allows(100_000, 0.0)
    pacer.follow(0.0, PACED, decoding=decoding, kv_tokens=0, tightest_tpot_s=target_s)
    for _ in range(5):
        assert (True, 1.0) == (pacer.allows(100_000, 1.0), pacer.next_at(100_000, 1.0))
        pacer.spend(100_000, 1.0)


def test_prompts_in_work_when_decoding_begins_count() -> None:
    """What passed unpaced is worked off at the full rate, and what is left of it then is a debt."""
    pacer = PrefillPacer()
    pacer.follow(0.0, PACED, decoding=0, kv_tokens=0, tightest_tpot_s=inf)
    pacer.spend(12_500, 0.0)
    pacer.follow(0.5, PACED, decoding=10, kv_tokens=10_000, tightest_tpot_s=0.1)
    assert not pacer.allows(1, 0.5)
    assert pytest.approx(0.5 + (12_500 - 2500 - 5000) / 5000, abs=0.001) == pacer.next_at(1, 0.5)


def test_a_lower_rate_takes_nothing_saved_along() -> None:
    """A bucket filled at a high rate holds no more than the new one can."""
    pacer = PrefillPacer()
    pacer.follow(0.0, PACED, decoding=0, kv_tokens=0, tightest_tpot_s=inf)
    pacer.follow(9.0, PACED, decoding=10, kv_tokens=10_000, tightest_tpot_s=0.1)
    pacer.spend(1250, 9.0)
    assert not pacer.allows(100, 9.0)


def test_a_law_without_prefill_cost_paces_nothing() -> None:
    """Where prompts cost nothing there is no rate; when that changes the bucket is full."""
    free = SpeedLaw(c0_s=0.01, c1_s=0.0, c2_s=0.0, c3_s=0.0, c4_s=0.0, kv_tokens=1, max_requests=1)
    pacer = paced()
    pacer.spend(5000, 0.0)
    pacer.follow(0.0, free, decoding=10, kv_tokens=0, tightest_tpot_s=0.001)
    assert pacer.allows(10_000, 0.0)
    pacer.spend(10_000, 0.0)
    pacer.follow(0.0, PACED, decoding=10, kv_tokens=10_000, tightest_tpot_s=0.1)
    assert pacer.allows(1250, 0.0)
