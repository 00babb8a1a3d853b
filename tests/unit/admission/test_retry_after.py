from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.retry_after import CAP_S, LEAST_RETURN, PRIOR_RETURN, SPREAD, RetryAfter, known_s

NOW = 500.0
RATE = 1_000_000.0
"""One endpoint-second a second."""
FIFTH_US = 200_000
"""A fifth of an endpoint-second."""
GOLDEN = (math.sqrt(5) - 1) / 2


def promises(base_s: float, count: int = 200) -> list[float]:
    """What so many clients are told that are refused in one instant, and whose requests cost nothing."""
    retry = RetryAfter(1)
    return [retry.promise_s(0, base_s, 0, RATE, NOW) for _ in range(count)]


def burst(retry: RetryAfter, count: int, *, base_s: float = 2.0, now: float = NOW) -> list[float]:
    """What so many clients are told that are refused in one instant, with a fifth of a second of work each."""
    return [retry.promise_s(0, base_s, FIFTH_US, RATE, now) for _ in range(count)]


def slots(told: list[float], *, first: int = 1) -> list[float]:
    """The same without the spread: the first refusal of the class has the number 1."""
    return [promise / (1 + SPREAD * (n * GOLDEN % 1)) for n, promise in enumerate(told, first)]


# Spread and bounds


@pytest.mark.parametrize("base_s", [1.0, 5.0, 20.0, 46.0])
def test_promises_are_spread_upwards_only(base_s: float) -> None:
    """Nobody is told to come back before the slot, and nobody later than 1.3 times its distance."""
    told = promises(base_s)
    assert min(told) >= base_s
    assert max(told) <= 1.3 * base_s
    assert max(told) - min(told) > 0.28 * base_s


@pytest.mark.parametrize("base_s", [-1.0, 0.0, 0.2, 1.0, 20.0, 59.0, 60.0, 300.0, 1e9, math.inf])
def test_promises_lie_between_a_second_and_a_minute(base_s: float) -> None:
    """SDKs ignore anything else and come back on their own short schedule."""
    told = promises(base_s)
    assert min(told) >= 1.0
    assert max(told) <= 60.0


@pytest.mark.parametrize("base_s", [20.0, 30.0, 45.0, 60.0, 300.0, math.inf])
def test_f037_no_second_holds_more_than_a_quarter_of_the_returns(base_s: float) -> None:
    """Of 200 clients refused in one instant, no one-second slot is told to more than 50, also beyond the cap."""
    seconds = Counter(math.ceil(promise) for promise in promises(base_s))
    assert max(seconds.values()) <= 50


def test_any_few_promises_in_a_row_are_apart() -> None:
    """Of any eight refusals in a row no two are told to return within a hundredth of the base of each other."""
    told = promises(10.0, 800)
    for start in range(0, 800, 8):
        run = sorted(told[start : start + 8])
        assert min(later - sooner for sooner, later in pairwise(run)) > 0.1


def test_promises_are_the_same_in_every_run() -> None:
    """There is no randomness: the same refusals get the same promises."""
    assert promises(7.0) == promises(7.0)
    assert burst(RetryAfter(1), 50) == burst(RetryAfter(1), 50)


def test_f035_a_known_time_is_never_told_too_early() -> None:
    """F035: also between 46 s and a minute, where a prediction may be; what is beyond cannot be told."""
    for wait_s in (0.2, 5.0, 45.0, 47.0, 55.0, 60.0):
        told = [known_s(wait_s, wait_s, number) for number in range(200)]
        assert wait_s <= min(told)
        assert max(told) <= min(60.0, max(wait_s, 1.0) * 1.3)
    assert CAP_S <= min(known_s(300.0, 300.0, number) for number in range(200))
    assert 60.0 == min(known_s(60.0, 120.0, number) for number in range(200) if number)


def test_where_nothing_drains_the_longest_is_told() -> None:
    """Without a rate no slot is known: 46 to 60 s, spread as ever."""
    retry = RetryAfter(1)
    told = [retry.promise_s(0, 0.0, FIFTH_US, 0.0, NOW) for _ in range(100)]
    assert CAP_S <= min(told) < max(told) <= 60.0


# Slots


def test_the_first_is_told_when_the_class_can_start_it() -> None:
    """With nothing promised yet the slot is the base."""
    assert [2.0] == pytest.approx(slots(burst(RetryAfter(1), 1)))


def test_a_burst_comes_back_spaced_as_it_can_be_served() -> None:
    """Each refusal is told a slot later than the one before, by its work at the class's rate times P(return)."""
    told = slots(burst(RetryAfter(1), 50))
    assert [2.0 + n * PRIOR_RETURN * 0.2 for n in range(50)] == pytest.approx(told)


def test_returns_of_a_burst_do_not_come_faster_than_they_are_served() -> None:
    """Of 150 clients refused at once, of which P(return) come back as told, no three seconds bring more than
    1.2 times the work of three seconds.
    """
    told = burst(RetryAfter(1), 150)
    most = max(sum(start <= other < start + 3.0 for other in told) for start in told)
    assert most * 0.2 * PRIOR_RETURN <= 1.2 * 3.0


def test_a_large_request_takes_a_large_slot() -> None:
    """Who is refused after it waits for its work as well."""
    retry = RetryAfter(1)
    told = [retry.promise_s(0, 2.0, work, RATE, NOW) for work in (10_000_000, FIFTH_US)]
    assert [2.0, 2.0 + 10 * PRIOR_RETURN] == pytest.approx(slots(told))


def test_a_slot_that_passed_is_over() -> None:
    """What was promised drains at the class's rate, used or not."""
    retry = RetryAfter(1)
    burst(retry, 50)
    assert 8.0 * RATE == pytest.approx(retry.promised_us(0))
    [told] = burst(retry, 1, now=NOW + 3.0)
    assert 2.0 + 5.0 == pytest.approx(slots([told], first=51)[0])
    [told] = burst(retry, 1, now=NOW + 30.0)
    assert 2.0 == pytest.approx(slots([told], first=52)[0])


def test_a_faster_class_has_nearer_slots() -> None:
    """Slots are work at the present rate, so what is promised in work is told in other times when the rate changes."""
    retry = RetryAfter(1)
    burst(retry, 50)
    told = retry.promise_s(0, 2.0, FIFTH_US, 4 * RATE, NOW)
    assert 2.0 + 8.0 / 4 == pytest.approx(slots([told], first=51)[0])


def test_classes_have_slots_of_their_own() -> None:
    """A burst in one class moves no slot of another."""
    retry = RetryAfter(2)
    burst(retry, 50)
    told = retry.promise_s(1, 2.0, FIFTH_US, RATE, NOW)
    assert 2.0 == pytest.approx(slots([told])[0])
    assert 0.0 < retry.promised_us(1) < retry.promised_us(0)


def test_refusals_without_an_engine_promise_nothing() -> None:
    """A 503 tells a time that is spread, and books no slot."""
    retry = RetryAfter(1)
    told = [retry.absent(2.0) for _ in range(50)]
    assert 2.0 <= min(told) < max(told) <= 2.6
    assert 0.0 == retry.promised_us(0)


def test_what_is_past_is_not_promised_any_more() -> None:
    """After a burst of ten minutes' work, told to come within one, nothing of it is promised a minute later."""
    retry = RetryAfter(1)
    burst(retry, 3000)
    assert 480.0 * RATE == pytest.approx(retry.promised_us(0))
    [told] = burst(retry, 1, now=NOW + 20.0)
    assert 460.0 * RATE < retry.promised_us(0)
    assert told > CAP_S
    burst(retry, 1, now=NOW + 85.0)
    assert FIFTH_US >= retry.promised_us(0)


# Who comes back


def test_the_share_that_comes_back_is_learned() -> None:
    """Where nobody returns slots come closer together, and where all do they move apart; only past slots count."""
    retry = RetryAfter(1)
    burst(retry, 300)
    assert PRIOR_RETURN == retry.return_share(0), "nobody can have come back yet"
    burst(retry, 1, now=NOW + 100.0)
    assert LEAST_RETURN <= retry.return_share(0) < 0.15
    for n in range(100):
        burst(retry, 20, now=NOW + 200.0 + 4 * n)
        for _ in range(20):
            retry.returned(0)
    burst(retry, 1, now=NOW + 700.0)
    assert 0.95 < retry.return_share(0) <= 1.0


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_steady_share_is_found(share: float) -> None:
    """With ten refusals a second, of which a share returns half a minute later, the share is found within a tenth."""
    retry = RetryAfter(1)
    owed = 0.0
    for n in range(3000):
        retry.promise_s(0, 20.0, 1, RATE, NOW + 0.1 * n)
        if n > 300:
            owed += share
            if owed >= 1.0:
                owed -= 1.0
                retry.returned(0)
    assert share == pytest.approx(retry.return_share(0), abs=0.1)


def test_returns_that_are_not_ours_are_soon_forgotten() -> None:
    """Any number of retries of what others refused counts for no more than all that was refused here."""
    retry = RetryAfter(1)
    for _ in range(1_000_000):
        retry.returned(0)
    for n in range(120):
        burst(retry, 10, now=NOW + 4.0 * n)
    assert retry.return_share(0) < 0.15


# Whatever happens


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 30.0),
            st.floats(-5.0, 100.0) | st.just(math.inf),
            st.integers(0, 100_000_000),
            st.sampled_from([0.0, 1.0, 1e5, 1e6, 1e8]),
            st.integers(0, 3),
            st.integers(0, 1),
        ),
        max_size=60,
    )
)
def test_what_is_promised_is_never_negative(
    refusals: list[tuple[float, float, int, float, int, int]],
) -> None:
    """Whatever is refused, at whatever rate, V is not below zero nor above what was booked, and promises keep
    their bounds.
    """
    retry, now, booked = RetryAfter(2), NOW, 0
    for later_s, base_s, cost_us, rate, returned, class_index in refusals:
        now += later_s
        booked += cost_us
        assert 1.0 <= retry.promise_s(class_index, base_s, cost_us, rate, now) <= 60.0
        for _ in range(returned):
            retry.returned(class_index)
        assert 0.0 <= retry.promised_us(class_index) <= booked * (1 + 1e-9)
        assert LEAST_RETURN <= retry.return_share(class_index) <= 1.0


@given(
    st.floats(0.0, 40.0),
    st.lists(st.integers(0, 5_000_000), min_size=2, max_size=80),
    st.sampled_from([1e5, 1e6, 3e7]),
)
def test_slots_of_one_burst_never_go_back(base_s: float, costs_us: list[int], rate: float) -> None:
    """Before the spread, each one refused in an instant is told a time no earlier than those before."""
    retry = RetryAfter(1)
    told = slots([retry.promise_s(0, base_s, cost_us, rate, NOW) for cost_us in costs_us])
    assert all(later >= sooner * (1 - 1e-9) for sooner, later in pairwise(told))
