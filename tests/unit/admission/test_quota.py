"""Buckets, debits and the table of accounts, at literal times."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import pytest

from forebay.admission.model import Check
from forebay.admission.quota import (
    GPU_SECONDS,
    IN_FLIGHT,
    INPUT,
    REQUESTS,
    TOKENS,
    Account,
    Debit,
    Quota,
)
from forebay.admission.settings import PlanSettings

TEN_A_SECOND = PlanSettings("t", tokens_per_s=10.0, tokens_capacity=100)
TWO_A_MINUTE = PlanSettings("r", requests_per_s=2 / 60, requests_capacity=2)
EVERYTHING = PlanSettings(
    "all",
    tokens_per_s=10.0,
    tokens_capacity=100,
    requests_per_s=1.0,
    requests_capacity=2,
    max_inflight=2,
    max_inflight_gpu_us=3_000_000,
)


def debit(account: Account, tokens: int = 10, input_tokens: int = 1, gpu_us: int = 1_000_000) -> Debit:
    """What one request would take."""
    return Debit(account, tokens=tokens, input_tokens=input_tokens, gpu_us=gpu_us)


def failing(one: Debit, now: float) -> list[str]:
    """Limits that do not let it pass."""
    return [check.name for check in one.checks(now) if not check.passed]


def booked(account: Account, now: float, tokens: int = 10, **sizes: int) -> Debit:
    """A request that has been let in."""
    one = debit(account, tokens, **sizes)
    assert not failing(one, now)
    one.book(now)
    return one


def tokens_left(account: Account, now: float) -> int:
    """As the client is told."""
    view = account.view(now)
    assert view is not None
    return view.tokens_left


def test_a_bucket_is_full_at_first_and_refills_to_the_brim() -> None:
    """Never above its capacity, however long nothing is asked for."""
    account = Account(TEN_A_SECOND, 0.0)
    booked(account, 0.0, 60)
    assert 40 == tokens_left(account, 0.0)
    assert [TOKENS] == failing(debit(account, 41), 0.0)
    assert [] == failing(debit(account, 41), 0.101)
    assert 100 == tokens_left(account, 1000.0)
    assert 10 == tokens_left(Account(replace(TEN_A_SECOND, tokens_capacity=10), 0.0), 1000.0)


def test_refilling_in_small_steps_loses_nothing_to_speak_of() -> None:
    """A slow bucket that is looked at a thousand times a second refills as fast as one that is not."""
    account = Account(PlanSettings("slow", tokens_per_s=0.01, tokens_capacity=10), 0.0)
    booked(account, 0.0, 10)
    for step in range(1, 20_001):
        account.refill(step / 1000)
    assert account.tokens.spent == pytest.approx(9_800_000, abs=2_000)
    assert account.tokens.spent >= 9_800_000


def test_all_limits_are_compared_and_a_failing_one_charges_no_other() -> None:
    """F040: each limit in turn refuses, and the others are as they were."""
    account = Account(EVERYTHING, 0.0)
    first = booked(account, 0.0)
    before = (account.tokens.spent, account.requests.spent, account.in_flight, account.in_flight_gpu_us)
    assert [TOKENS] == failing(debit(account, 95), 0.0)
    assert [INPUT, TOKENS] == failing(debit(account, 101, input_tokens=101), 0.0)
    assert [GPU_SECONDS] == failing(debit(account, gpu_us=2_500_000), 0.0)
    booked(account, 0.0, 10).close(0, 0.0, was_request=False)
    assert before == (
        account.tokens.spent,
        account.requests.spent,
        account.in_flight,
        account.in_flight_gpu_us,
    )
    second = booked(account, 0.0)
    assert [REQUESTS, IN_FLIGHT] == failing(debit(account), 0.0)
    assert [IN_FLIGHT] == failing(debit(account), 1.0)
    second.close(10, 1.0, was_request=True)
    assert [] == failing(debit(account), 1.0)
    first.close(10, 1.0, was_request=True)
    assert (0, 0) == (account.in_flight, account.in_flight_gpu_us)


def test_a_refused_request_costs_the_next_one_nothing() -> None:
    """F040 as reported: 2 requests a minute and one at a time; A runs, B is refused, A ends, C comes in."""
    account = Account(replace(TWO_A_MINUTE, max_inflight=1), 0.0)
    a = booked(account, 0.0)
    assert [IN_FLIGHT] == failing(debit(account), 1.0)
    a.close(5, 5.0, was_request=True)
    booked(account, 5.0)


def test_what_was_not_used_comes_back_and_what_was_used_on_top_is_owed() -> None:
    """A debt is repaid before anything else passes."""
    account = Account(TEN_A_SECOND, 0.0)
    booked(account, 0.0, 80).close(30, 0.0, was_request=True)
    assert 70 == tokens_left(account, 0.0)
    booked(account, 0.0, 70).close(120, 0.0, was_request=True)
    assert 0 == tokens_left(account, 0.0)
    assert [TOKENS] == failing(debit(account, 1), 5.0)
    assert [] == failing(debit(account, 1), 5.101)


def test_what_is_given_back_to_a_full_bucket_is_lost() -> None:
    """Else a pause could be saved up by asking for much and using little."""
    account = Account(TEN_A_SECOND, 0.0)
    one = booked(account, 0.0, 100)
    assert 100 == tokens_left(account, 10.0)
    one.close(0, 10.0, was_request=True)
    assert 100 == tokens_left(account, 10.0)
    assert 0 == account.tokens.spent


def test_time_that_passed_before_a_correction_does_not_pay_for_it() -> None:
    """A full bucket saves nothing up: what is taken on top at the end is owed from then on."""
    account = Account(TEN_A_SECOND, 0.0)
    one = booked(account, 0.0, 10)
    one.close(100, 50.0, was_request=True)
    assert 10 == tokens_left(account, 50.0)


def test_a_request_larger_than_the_bucket_passes_when_it_is_full() -> None:
    """F028: with a debt afterwards; unless its input alone is larger, which can never pass."""
    account = Account(TEN_A_SECOND, 0.0)
    large = debit(account, 500, input_tokens=100)
    assert [] == failing(large, 0.0)
    large.book(0.0)
    assert [TOKENS] == failing(debit(account, 1), 40.0)
    assert 0.1 == pytest.approx(debit(account, 1).wait_s(40.0), abs=0.01)
    assert [TOKENS] == failing(debit(account, 500), 49.9)
    assert [] == failing(debit(account, 500), 50.0)
    assert [INPUT] == failing(debit(account, 500, input_tokens=101), 50.0)


def test_a_request_above_the_cap_on_work_passes_alone() -> None:
    """As one above the bucket passes when it is full."""
    account = Account(replace(PlanSettings("g"), max_inflight_gpu_us=1_000_000), 0.0)
    booked(account, 0.0, gpu_us=5_000_000)
    assert [GPU_SECONDS] == failing(debit(account, gpu_us=1), 0.0)


@pytest.mark.parametrize(
    "plan",
    [
        PlanSettings("0", tokens_per_s=0.0, tokens_capacity=0),
        PlanSettings("0", requests_per_s=0.0, requests_capacity=0),
        PlanSettings("0", max_inflight=0),
        PlanSettings("0", max_inflight_gpu_us=0),
    ],
)
def test_zero_blocks_all_and_gives_no_hint(plan: PlanSettings) -> None:
    """F041: nothing passes, not even what costs nothing, and there is no time to come back at."""
    one = debit(Account(plan, 0.0), tokens=0, gpu_us=0)
    assert 1 == len(failing(one, 1e6))
    assert inf == one.wait_s(1e6)
    assert Quota().retry_after_s(one, inf, 1e6) is None


def test_absent_limits_nothing() -> None:
    """F041: a plan without limits has none, and one without buckets has no headers."""
    account = Account(PlanSettings("none"), 0.0)
    assert [] == debit(account, 10**9, gpu_us=10**15).checks(0.0)
    assert not PlanSettings("none").limits
    assert Account(PlanSettings("one", max_inflight=1), 0.0).view(0.0) is None


def test_the_wait_is_that_of_the_slowest_limit() -> None:
    """Down to a millisecond; a second is all that can be said of a cap on what is in flight."""
    account = Account(EVERYTHING, 0.0)
    booked(account, 0.0, 95)
    assert 0.2 == pytest.approx(debit(account, 7).wait_s(0.0), abs=0.002)
    assert 1.0 == debit(account, 7, gpu_us=2_500_000).wait_s(0.0)
    assert 1.5 == pytest.approx(debit(account, 20).wait_s(0.0), abs=0.01)
    booked(account, 0.0, 0)
    assert [REQUESTS, IN_FLIGHT] == failing(debit(account, 5), 0.0)
    assert 1.0 == pytest.approx(debit(account, 5).wait_s(0.0), abs=0.01)


def test_who_comes_when_told_has_all_that_its_plan_grants() -> None:
    """Ten requests a second are ten also where a client asks for one after the other: it is not told a second."""
    quota, plan = Quota(), PlanSettings("r", requests_per_s=10.0, requests_capacity=1)
    account, now, served = quota.account("t", plan, 0.0), 0.0, 0
    while now < 30.0:
        one = debit(account)
        if failing(one, now):
            told_s = quota.retry_after_s(one, one.wait_s(now), now)
            assert told_s is not None
            now += ceil(told_s * 1000) / 1000
        else:
            one.book(now)
            one.close(1, now, was_request=True)
            served += 1
    assert 30.0 * 10 / 1.3 <= served <= 301


def test_those_that_are_refused_together_are_told_to_come_one_after_another() -> None:
    """Each when the bucket has refilled for it after those before it; beyond sixteen nobody is put off further."""
    quota, plan = Quota(), PlanSettings("r", requests_per_s=10.0, requests_capacity=1)
    account = quota.account("t", plan, 0.0)
    booked(account, 0.0)
    told = [quota.retry_after_s(one, one.wait_s(0.0), 0.0) or 0.0 for one in (debit(account),) * 40]
    for turn, told_s in enumerate(told[:16], 1):
        assert turn / 10 <= told_s <= 1.31 * (turn / 10 + 0.001)
    assert max(told) <= 1.3 * 1.8
    later = debit(account)
    later.account.refill(5.0)
    booked(account, 5.0)
    assert (quota.retry_after_s(later, later.wait_s(5.0), 5.0) or 1.0) < 0.14, "turns are over by themselves"


def test_retry_after_is_spread_upwards_only() -> None:
    """All requests of a tenant that are refused together could otherwise come back together."""
    quota = Quota()
    one = debit(Account(PlanSettings("one", max_inflight=1), 0.0))
    found = [quota.retry_after_s(one, 10.0, 0.0) or 0.0 for _ in range(50)]
    assert (50, True) == (len(set(found)), all(10.0 <= promise <= 13.0 for promise in found))
    assert 60.0 >= (quota.retry_after_s(one, 1e6, 0.0) or 0.0)


def test_a_changed_plan_keeps_what_was_used() -> None:
    """More is there at once, less at once as well, and nothing is handed out twice."""
    quota = Quota()
    account = quota.account("acme", TEN_A_SECOND, 0.0)
    booked(account, 0.0, 60)
    quota.reconfigure({"t": replace(TEN_A_SECOND, tokens_capacity=200)}, 0.0)
    assert 140 == tokens_left(account, 0.0)
    quota.reconfigure({"t": replace(TEN_A_SECOND, tokens_capacity=50, tokens_per_s=1.0)}, 1.0)
    assert 0 == tokens_left(account, 1.0)
    assert [TOKENS] == failing(debit(account, 1), 1.5)
    assert [] == failing(debit(account, 1), 2.0)


def test_a_limit_that_is_new_finds_a_full_bucket() -> None:
    """What ran while nothing was limited is no debt; what ends later is paid for."""
    unlimited = PlanSettings("t", max_inflight=10)
    account = Account(unlimited, 0.0)
    one = booked(account, 0.0, 500)
    account.adopt(TEN_A_SECOND, 1000.0)
    assert 100 == tokens_left(account, 1000.0)
    one.close(30, 1000.0, was_request=True)
    assert 70 == tokens_left(account, 1000.0)
    account.adopt(unlimited, 1000.0)
    account.adopt(TEN_A_SECOND, 1001.0)
    account.adopt(unlimited, 1001.0)
    assert 0 <= account.tokens.spent


def test_a_tenant_that_changes_its_plan_keeps_its_account() -> None:
    """Its requests in flight count on, and so does what it used."""
    quota = Quota()
    booked(quota.account("acme", TEN_A_SECOND, 0.0), 0.0, 60)
    account = quota.account("acme", EVERYTHING, 0.0)
    assert (1, 40) == (account.in_flight, tokens_left(account, 0.0))


def test_a_request_is_booked_once_and_closed_once() -> None:
    """Whatever is called twice on the way through retries and aborts."""
    account = Account(EVERYTHING, 0.0)
    one = debit(account)
    one.close(5, 0.0, was_request=True)
    one.book(0.0)
    one.book(0.0)
    assert (1, 90) == (account.in_flight, tokens_left(account, 0.0))
    one.close(10, 0.0, was_request=True)
    one.close(10, 0.0, was_request=True)
    assert (0, 90) == (account.in_flight, tokens_left(account, 0.0))


def test_what_clients_are_told_is_rounded_against_them() -> None:
    """Whole numbers: a started token is gone, and the time is the one until the bucket is full."""
    account = Account(EVERYTHING, 0.0)
    booked(account, 0.0, 50)
    view = account.view(0.01)
    assert view is not None
    assert (2, 1, 100, 50) == (view.requests, view.requests_left, view.tokens, view.tokens_left)
    assert 0.99 == pytest.approx(view.requests_full_in_s)
    assert 4.99 == pytest.approx(view.tokens_full_in_s)


def test_the_record_shows_value_and_limit() -> None:
    """In whole tokens where they are whole."""
    account = Account(TEN_A_SECOND, 0.0)
    booked(account, 0.0, 60)
    assert [Check(INPUT, 1, 100, True), Check(TOKENS, 110.0, 100, False)] == debit(account, 50).checks(0.0)


def test_what_is_used_up_is_told_without_a_request() -> None:
    """Whatever would be asked for; of a tenant that is not known, or to whom nothing is ever given, nothing is said."""
    quota = Quota()
    assert quota.exhausted("acme", EVERYTHING, 0.0) is None
    account = quota.account("acme", EVERYTHING, 0.0)
    booked(account, 0.0, 99)
    assert quota.exhausted("acme", EVERYTHING, 0.0) is None
    booked(account, 0.0, 1)
    found = quota.exhausted("acme", EVERYTHING, 0.0)
    assert found is not None
    assert found.quota is not None
    assert (TOKENS, 0) == (found.check, found.quota.tokens_left)
    assert 1.0 == pytest.approx(found.wait_s, abs=0.01)
    assert 1.0 <= found.retry_after_s <= 1.31
    none = PlanSettings("0", max_inflight=0)
    quota.account("none", none, 0.0)
    assert quota.exhausted("none", none, 0.0) is None


def test_what_is_used_up_is_told_by_the_plan_that_a_tenant_has_now() -> None:
    """A reload may have given it another one, or one without limits, since its last request."""
    quota = Quota()
    booked(quota.account("acme", TWO_A_MINUTE, 0.0), 0.0)
    booked(quota.account("acme", TWO_A_MINUTE, 0.0), 0.0)
    assert quota.exhausted("acme", TWO_A_MINUTE, 0.0) is not None
    assert quota.exhausted("acme", PlanSettings("free"), 0.0) is None
    assert quota.exhausted("acme", TEN_A_SECOND, 0.0) is None


def test_a_kept_place_is_not_kept_from_its_holder() -> None:
    """Before its body is read nobody knows whether a request is the one that has the promise: it may be."""
    quota = Quota()
    account = quota.account("acme", TEN_A_SECOND, 0.0)
    booked(account, 0.0, 60)
    large = Debit(account, tokens=100, input_tokens=1, gpu_us=1, key=7)
    wait_s = large.wait_s(0.0)
    told_s = quota.retry_after_s(large, wait_s, 0.0)
    assert told_s is not None
    assert quota.exhausted("acme", TEN_A_SECOND, told_s + 0.1) is None


# The promise


def test_f028_a_large_request_is_not_put_off_for_ever_by_small_ones() -> None:
    """F028: 900 of 1,000 tokens amid more small ones than the rate allows are let in within capacity ÷ rate."""
    quota = Quota()
    account = quota.account("acme", PlanSettings("p", tokens_per_s=100.0, tokens_capacity=1000), 0.0)
    large_at_s, told, small = 5.0, 0, 0
    admitted_s = None
    for step in range(600):
        now = step * 0.05
        flow = debit(account, 10, input_tokens=10)
        flow.key = 1
        if not failing(flow, now):
            flow.book(now)
            flow.close(10, now, was_request=True)
            small += 1
        if admitted_s is None and now >= large_at_s:
            large = debit(account, 900, input_tokens=10)
            large.key = 2
            if failing(large, now):
                promise_s = quota.retry_after_s(large, large.wait_s(now), now)
                assert promise_s is not None
                large_at_s, told = now + ceil(promise_s), told + 1
            else:
                large.book(now)
                admitted_s = now
    assert admitted_s is not None
    assert (1, True) == (told, admitted_s <= 5.0 + 10.0)
    assert small >= 250  # and they share what is left: 100 + 10 a second, less 900, in 30 s


def test_a_promise_lapses_when_nobody_comes_back() -> None:
    """Then others may have all again; and who returns too late begins anew."""
    quota = Quota()
    account = quota.account("acme", TEN_A_SECOND, 0.0)
    booked(account, 0.0, 100)
    large = debit(account, 80)
    large.key = 7
    assert 8.0 == pytest.approx(quota.retry_after_s(large, large.wait_s(0.0), 0.0), abs=0.01)
    small = debit(account, 10)
    assert [TOKENS] == failing(small, 5.0)
    assert 3.0 + 1.0 == pytest.approx(small.wait_s(5.0), abs=0.01)
    assert [TOKENS] == failing(debit(account, 21), 9.9)
    assert [] == failing(debit(account, 10), 10.1)
    assert [] == failing(large, 9.9)


def test_one_promise_at_a_time_and_a_kept_one_is_over() -> None:
    """The second that is refused is told its time and no more; spread, as one of many."""
    quota = Quota()
    account = quota.account("acme", TEN_A_SECOND, 0.0)
    booked(account, 0.0, 100)
    large, other = debit(account, 80), debit(account, 70)
    large.key, other.key = 7, 8
    assert quota.retry_after_s(large, large.wait_s(0.0), 0.0) == pytest.approx(8.0, abs=0.01)
    assert (quota.retry_after_s(other, 7.0, 0.0) or 0.0) > 7.01
    assert [] == failing(large, 8.1)
    large.book(8.1)
    large.close(0, 8.1, was_request=True)
    assert [] == failing(other, 8.1)


# The table


def test_accounts_that_are_as_new_give_way() -> None:
    """300,000 names in turn leave no more accounts than there is room for, and each is charged."""
    quota = Quota(accounts_max=100)
    for number in range(300_000):
        account = quota.account(f"tenant-{number}", TEN_A_SECOND, number * 1.0)
        booked(account, number * 1.0, 10).close(10, number * 1.0, was_request=True)
    assert 100 >= len(quota)


def test_where_nobody_gives_way_newcomers_share() -> None:
    """Nobody's debt is forgotten for a newcomer's sake, and no newcomer goes without a limit."""
    quota = Quota(accounts_max=10)
    for number in range(10):
        booked(quota.account(f"tenant-{number}", TEN_A_SECOND, 0.0), 0.0, 100)
    one, other = quota.account("new", TEN_A_SECOND, 1.0), quota.account("newer", TEN_A_SECOND, 1.0)
    assert one is other
    booked(one, 1.0, 100)
    for number in range(10):
        assert [TOKENS] == failing(debit(quota.account(f"tenant-{number}", TEN_A_SECOND, 1.0), 11), 1.0)
    assert 10 == len(quota)
    quota.reconfigure({}, 1.0)
    assert quota.account("new", TEN_A_SECOND, 1.0) is one  # it has something in flight


def test_a_tenant_in_use_keeps_its_account() -> None:
    """Those that are as new go first, however long ago the others were last seen."""
    quota = Quota(accounts_max=10)
    old = quota.account("old", TEN_A_SECOND, 0.0)
    booked(old, 0.0, 100)
    for number in range(100):
        quota.account(f"tenant-{number}", TEN_A_SECOND, 1.0)
    assert quota.account("old", TEN_A_SECOND, 1.0) is old


def test_what_a_time_without_a_limit_leaves_behind_is_no_gift() -> None:
    """A request from before it gives back what it took, and not more: the next ones get no more than the bucket."""
    plan = PlanSettings("t", tokens_per_s=0.001, tokens_capacity=1000)
    account = Account(plan, 0.0)
    first = booked(account, 0.0, 1000)
    account.adopt(replace(plan, tokens_per_s=None, tokens_capacity=None), 1.0)
    free = booked(account, 1.5, 5000)
    account.adopt(plan, 2.0)
    assert [TOKENS] == failing(debit(account, 1000), 2.0)
    first.close(0, 3.0, was_request=True)
    booked(account, 3.0, 1000)
    assert [TOKENS] == failing(debit(account, 1000), 4.0)
    free.close(5000, 4.0, was_request=True)
    assert tokens_left(account, 4.0) <= 0


def test_a_time_without_a_limit_refills_at_the_rate_that_follows() -> None:
    """An old debt is no reason to refuse somebody long after."""
    account = Account(TEN_A_SECOND, 0.0)
    booked(account, 0.0, 100)
    account.adopt(replace(TEN_A_SECOND, tokens_per_s=None, tokens_capacity=None), 1.0)
    account.adopt(TEN_A_SECOND, 6.0)
    assert 60 == tokens_left(account, 6.0)
