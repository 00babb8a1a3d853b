from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import pytest

from forebay.client.policy import Call, RetryBudget, RetryPolicy, may_pass_later, told_wait_s

WALL = 1_767_225_600.0  # Thu, 01 Jan 2026 00:00:00 GMT
TOLD = {"retry-after": "3", "retry-after-ms": "2500"}


def call(
    headers: dict[str, str] | None = None, *, policy: RetryPolicy | None = None, **options: Any
) -> tuple[Call, RetryBudget]:
    """A call that begins at second 100, and its budget."""
    budget = RetryBudget()
    return Call(policy or RetryPolicy(), budget, 100.0, headers=headers or {}, **options), budget


def answered(
    made: Call,
    status: int = 429,
    headers: dict[str, str] | None = None,
    *,
    now: float = 100.0,
    chance: float = 0.5,
) -> float | None:
    """What becomes of an answer."""
    return made.answered(status, TOLD if headers is None else headers, now=now, wall=WALL, chance=chance)


@pytest.mark.parametrize(("chance", "wait_s"), [(0.0, 2.5), (0.5, 2.625), (1.0, 2.75)])
def test_a_told_slot_is_kept_and_spread_upwards_by_a_tenth(chance: float, wait_s: float) -> None:
    """R33: the told time is the least that is waited, in milliseconds where the server tells them."""
    made, _ = call()
    assert wait_s == pytest.approx(answered(made, chance=chance))


def test_without_a_told_time_the_wait_is_anywhere_below_a_doubling_bound() -> None:
    """R33: full jitter: uniform from nothing to a bound that doubles, and ends at its longest."""
    policy = RetryPolicy(max_retries=5, first_backoff_s=1.0, longest_backoff_s=6.0)
    made, _ = call(policy=policy)
    assert [1.0, 2.0, 4.0, 6.0, 6.0, None] == [made.failed(now=100.0, chance=1.0) for _ in range(6)]
    made, _ = call(policy=policy)
    assert [0.0, 0.5] == [made.failed(now=100.0, chance=chance) for chance in (0.0, 0.25)]


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "0", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "nan", "retry-after": "-9"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:07 GMT"}, 7.0),
        ({"retry-after": "Wed, 31 Dec 2025 23:59:00 GMT"}, None),
        ({"retry-after": "Thu, 99 Foo"}, None),
        ({"retry-after": "1e999"}, math.inf),
        ({}, None),
    ],
)
def test_every_form_of_a_told_time_is_read(headers: dict[str, str], wait_s: float | None) -> None:
    """Milliseconds, seconds and dates are read; nonsense, times gone by and nothing at all say nothing."""
    assert wait_s == told_wait_s(headers, WALL)


def test_who_is_told_to_wait_for_too_long_gives_up() -> None:
    """A time that is told and longer than the longest is not cut short but given up."""
    made, budget = call()
    assert answered(made, headers={"retry-after": "121"}) is None
    assert answered(made, headers={"retry-after": "1e999"}) is None
    assert 10.0 == budget.retries_left


@pytest.mark.parametrize("status", [200, 304, 400, 401, 403, 404, 405, 413, 422, 431, 501])
def test_what_never_can_pass_is_not_sent_again(status: int) -> None:
    """R33: bad input, unknown keys and what is too large are not retried, even with a time told."""
    made, _ = call()
    assert answered(made, status) is None
    assert not made.is_last_word(status, {})


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_later_is_sent_again(status: int) -> None:
    """Contended, absent and failed servers are asked again."""
    made, _ = call()
    assert answered(made, status) is not None


def test_the_word_of_the_server_goes_before_the_status() -> None:
    """`x-should-retry` decides where it is there; nothing makes a success a failure."""
    assert not may_pass_later(429, {"x-should-retry": "false"})
    assert may_pass_later(409, {"x-should-retry": "True"})
    assert not may_pass_later(200, {"x-should-retry": "true"})
    assert may_pass_later(503, {"x-should-retry": "perhaps"})


def test_a_retry_that_would_come_too_late_is_not_made() -> None:
    """R33: neither after the time-out nor after the stated deadline; it takes nothing from the budget."""
    for made, budget in (call(timeout_s=2.7), call({"x-forebay-deadline-ms": "2700"}, timeout_s=600.0)):
        assert answered(made, chance=1.0) is None
        assert 10.0 == budget.retries_left
        assert answered(made, now=100.1, chance=0.0) is not None
        assert answered(made, now=100.2, chance=0.0) is None


def test_each_attempt_tells_what_is_left() -> None:
    """R33: the time-out goes along as deadline of the first token and as time-out of the answer, less what is over."""
    made, _ = call(timeout_s=10.0)
    assert {"x-stainless-read-timeout": "10.000", "x-forebay-deadline-ms": "9500"} == made.headers(100.0)
    answered(made)
    later = made.headers(104.0)
    assert {
        "x-stainless-read-timeout": "6.000",
        "x-forebay-deadline-ms": "5700",
        "x-stainless-retry-count": "1",
    } == later
    assert 6.0 == made.timeout_left_s(104.0)


def test_a_stated_deadline_is_tightened_and_never_loosened() -> None:
    """Of the caller's own header and its time-out the sooner is told; it runs from the first attempt."""
    made, _ = call({"x-forebay-deadline-ms": "3000"}, timeout_s=10.0)
    assert "3000" == made.headers(100.0)["x-forebay-deadline-ms"]
    assert "1000" == made.headers(102.0)["x-forebay-deadline-ms"]
    made, _ = call({"x-forebay-deadline-ms": "30000"}, timeout_s=10.0)
    assert "9500" == made.headers(100.0)["x-forebay-deadline-ms"]
    made, _ = call({"x-forebay-deadline-ms": "3000"})
    assert {"x-forebay-deadline-ms": "3000"} == made.headers(100.0)


def test_who_has_no_time_out_tells_none() -> None:
    """Nothing is said where nothing is known, and a deadline that is nonsense is left for the gateway to refuse."""
    assert {} == call()[0].headers(100.0)
    made, _ = call({"x-forebay-deadline-ms": "soon"}, timeout_s=10.0)
    assert {"x-stainless-read-timeout": "10.000"} == made.headers(100.0)


def test_times_that_are_over_are_still_told_as_numbers() -> None:
    """A clock that runs over between two steps gives the least there is, not zero or less."""
    made, _ = call(timeout_s=1.0)
    assert {"x-stainless-read-timeout": "0.001", "x-forebay-deadline-ms": "1"} == made.headers(105.0)


def test_an_sdks_own_retry_is_sent_once_and_counts() -> None:
    """R12, R33: a call that comes with a retry count is not multiplied, and takes from the budget."""
    made, budget = call({"x-stainless-retry-count": "1"})
    assert 9.0 == budget.retries_left
    assert answered(made) is None
    assert made.failed(now=100.0, chance=0.0) is None
    assert "x-stainless-retry-count" not in made.headers(100.0)
    made, budget = call({"x-stainless-retry-count": "0"})
    assert answered(made) is not None


def test_a_body_that_cannot_be_sent_twice_is_not() -> None:
    """A body that is read once goes once; who can make it anew may."""
    made, _ = call(can_repeat=False)
    assert answered(made) is None
    assert not made.is_last_word(429, TOLD)


def test_what_was_given_up_is_the_last_word() -> None:
    """An answer that was worth a retry and is handed on is marked as not to be retried."""
    made, _ = call(policy=RetryPolicy(max_retries=0))
    assert answered(made) is None
    assert made.is_last_word(429, TOLD)


def test_the_budget_allows_one_retry_in_ten_beyond_its_reserve() -> None:
    """R33: the reserve is used up once; from then on ten calls earn one retry, and rest earns nothing."""
    budget = RetryBudget(ratio=0.1, reserve=2)
    assert [True, True, False] == [budget.take_retry() for _ in range(3)]
    for _ in range(9):
        budget.add_call()
    assert not budget.take_retry()
    budget.add_call()
    assert budget.take_retry()
    for _ in range(1000):
        budget.add_call()
    assert 2.0 == budget.retries_left


def test_a_call_beyond_the_budget_gets_its_answer() -> None:
    """An empty budget makes refusals final."""
    made = Call(RetryPolicy(), RetryBudget(ratio=0.0, reserve=0.0), 100.0, headers={})
    assert answered(made) is None
    assert made.is_last_word(429, TOLD)


def test_settings_that_cannot_be_meant_are_refused() -> None:
    """Each message names the setting and what was given."""
    with pytest.raises(ValueError, match="max_retries must be at least 0, not -1"):
        RetryPolicy(max_retries=-1)
    for name in ("first_backoff_s", "longest_backoff_s", "longest_told_s"):
        for value in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match=f"{name} must be a positive number"):
                replace(RetryPolicy(), **cast("Any", {name: value}))
    for name in ("ratio", "reserve"):
        for value in (-0.1, math.nan, math.inf):
            with pytest.raises(ValueError, match=f"{name} must be a number from 0 on"):
                RetryBudget(**{name: value})
