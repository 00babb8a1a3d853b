"""What the client helper's policy keeps, whatever servers answer and whenever."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from forebay.client.policy import TOLD_SPREAD, Call, RetryBudget, RetryPolicy, told_wait_s

STATUSES = st.sampled_from([200, 400, 401, 408, 413, 429, 500, 503, 529])
TIMES = st.one_of(st.integers(-5, 200).map(str), st.floats().map(str), st.text(max_size=12))
HEADERS = st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "x-should-retry"]),
    st.one_of(TIMES, st.sampled_from(["true", "false", "Thu, 01 Jan 2026 00:00:07 GMT"])),
)
ANSWERS = st.lists(st.tuples(STATUSES, HEADERS, st.floats(0, 30), st.floats(0, 1)), max_size=8)
OWN = st.fixed_dictionaries(
    {},
    optional={
        "x-stainless-retry-count": st.sampled_from(["0", "1", "many"]),
        "x-forebay-deadline-ms": st.integers(1, 100_000).map(str),
    },
)
CALLS = st.lists(st.tuples(OWN, st.one_of(st.none(), st.floats(0, 100)), ANSWERS), max_size=60)


@given(CALLS, st.floats(0, 1), st.floats(0, 10))
def test_slots_deadlines_and_budgets_are_kept(
    calls: list[tuple[dict[str, str], float | None, list[tuple[int, dict[str, str], float, float]]]],
    ratio: float,
    reserve: float,
) -> None:
    """No retry comes before its slot, much after it, after its deadline, or beyond the budget."""
    policy, budget = RetryPolicy(), RetryBudget(ratio, reserve)
    retries = 0
    now = 0.0
    for made, (own, timeout_s, answers) in enumerate(calls, 1):
        call = Call(policy, budget, now, headers=own, timeout_s=timeout_s)
        ends = now + min(
            math.inf if timeout_s is None else timeout_s,
            float(own.get("x-forebay-deadline-ms", "inf")) / 1000,
        )
        for status, headers, took_s, chance in answers:
            now += took_s
            wait_s = call.answered(status, headers, now=now, wall=1_767_225_600.0, chance=chance)
            if wait_s is None:
                break
            assert status not in (200, 400, 401, 413) or headers.get("x-should-retry") == "true"
            told_s = told_wait_s(headers, 1_767_225_600.0)
            if told_s is None:
                assert 0 <= wait_s <= policy.longest_backoff_s
            else:
                assert told_s <= wait_s <= told_s * (1 + TOLD_SPREAD) * (1 + 1e-12)
            assert now + wait_s < ends
            now += wait_s
            retries += 1
            assert str(call.retries) == call.headers(now)["x-stainless-retry-count"]
        assert call.retries <= (0 if own.get("x-stainless-retry-count") == "1" else policy.max_retries)
        assert retries <= reserve + ratio * made + 1e-6
