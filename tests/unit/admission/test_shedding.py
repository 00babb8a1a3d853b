from __future__ import annotations

import math

import pytest

from forebay.admission.length_law import PRIOR
from forebay.admission.settings import Displace
from forebay.admission.shedding import (
    DisplacedRetries,
    Sessions,
    cannot_finish,
    cannot_start,
    firm_from_s,
    is_protected,
    may_be_displaced,
    may_displace,
)

NOW = 1000.0
NO_LIMIT = 1 << 20


# Who may go


@pytest.mark.parametrize(
    ("displace", "less_important", "same", "more_important"),
    [
        (Displace.OFF, False, False, False),
        (Displace.LOWER, True, False, False),
        (Displace.SAME, True, True, False),
    ],
)
def test_displace_says_which_classes(
    displace: Displace, less_important: bool, same: bool, more_important: bool
) -> None:
    """A newcomer pushes out less important classes, its own only with `same`, and more important ones never."""
    assert (less_important, same, more_important) == (
        may_displace(displace, 1, 2),
        may_displace(displace, 1, 1),
        may_displace(displace, 1, 0),
    )


@pytest.mark.parametrize("reason", ["never_refuse", "retry_of_displaced", "later_call", "bytes_sent"])
def test_each_reason_protects(reason: str) -> None:
    """Any one of them is enough, and without any of them a waiter is not protected."""
    none = {"never_refuse": False, "retry_of_displaced": False, "later_call": False, "bytes_sent": False}
    assert is_protected(**{**none, reason: True})
    assert not is_protected(**none)


def test_half_its_budget_makes_a_waiter_firm() -> None:
    """Of a budget of five seconds a waiter may be displaced in the first two and a half, and not after."""
    firm = firm_from_s(NOW, 5.0)
    may = [
        may_be_displaced(Displace.LOWER, 0, 1, protected=False, firm_s=firm, now=now)
        for now in (NOW, NOW + 2.5, NOW + 2.51)
    ]
    assert [True, True, False] == may


def test_without_a_budget_no_waiter_becomes_firm() -> None:
    """Half of an endless budget is never over."""
    assert may_be_displaced(Displace.LOWER, 0, 1, protected=False, firm_s=firm_from_s(NOW, math.inf), now=1e9)


def test_all_rules_hold_at_once() -> None:
    """A protected waiter stays, and so does one of a class that may not be pushed out."""
    assert not may_be_displaced(Displace.SAME, 0, 1, protected=True, firm_s=math.inf, now=NOW)
    assert not may_be_displaced(Displace.LOWER, 1, 1, protected=False, firm_s=math.inf, now=NOW)
    assert may_be_displaced(Displace.SAME, 1, 1, protected=False, firm_s=math.inf, now=NOW)


# Who waits in vain


def test_a_waiter_is_given_up_when_even_a_short_wait_is_too_long() -> None:
    """The low quantile of the wait decides, to the instant."""
    assert not cannot_start(NOW, NOW + 2.0, 2.0)
    assert cannot_start(NOW, NOW + 2.0, 2.001)
    assert cannot_start(NOW + 0.01, NOW, 0.0)
    assert not cannot_start(NOW, math.inf, 1e9)


def falling(tokens: float) -> float:
    """All lengths up to 1000 tokens are equally likely."""
    return max(0.0, 1.0 - tokens / 1000)


def test_an_answer_is_given_up_when_few_are_so_short() -> None:
    """With 98 steps after the first token under one in ten answers are done; with 100 it is more than that."""

    def hopeless(steps: float) -> bool:
        return cannot_finish(
            NOW,
            NOW + 2.0 + steps * 0.01,
            first_token_s=2.0,
            step_s=0.01,
            limit_tokens=NO_LIMIT,
            survival=falling,
        )

    assert hopeless(98.0)
    assert not hopeless(100.0)


def test_an_answer_is_judged_by_its_chance_and_not_by_its_median() -> None:
    """A deadline that half the answers miss by far is no reason to give up."""
    assert not cannot_finish(
        NOW, NOW + 2.0, first_token_s=0.0, step_s=0.01, limit_tokens=NO_LIMIT, survival=falling
    )


def test_without_time_for_the_first_token_there_is_no_hope() -> None:
    """Short answers need their first token as well."""
    assert cannot_finish(
        NOW, NOW + 1.0, first_token_s=1.1, step_s=0.0, limit_tokens=1, survival=lambda _: 0.0
    )


def test_a_limit_that_fits_is_hope_enough() -> None:
    """An answer that is cut after 50 tokens is done after 50, however long it would have become."""

    def hopeless(limit_tokens: int) -> bool:
        return cannot_finish(
            NOW,
            NOW + 49 * 0.125,
            first_token_s=0.0,
            step_s=0.125,
            limit_tokens=limit_tokens,
            survival=lambda _: 1.0,
        )

    assert not hopeless(50)
    assert hopeless(51)


def test_steps_of_no_known_time_give_up_nobody() -> None:
    """Where no step was learned only the first token counts."""
    assert not cannot_finish(
        NOW, NOW + 1.0, first_token_s=1.0, step_s=0.0, limit_tokens=NO_LIMIT, survival=lambda _: 1.0
    )


def test_a_learned_law_can_be_asked() -> None:
    """The survival function of a length law is what is wanted here."""
    tenth = PRIOR.quantile(0.1, NO_LIMIT)

    def hopeless(tokens: float) -> bool:
        return cannot_finish(
            NOW,
            NOW + tokens * 0.02,
            first_token_s=0.0,
            step_s=0.02,
            limit_tokens=NO_LIMIT,
            survival=PRIOR.survival,
        )

    assert hopeless(tenth - 2)
    assert not hopeless(tenth)


# Retries of displaced requests


def test_a_displaced_request_is_protected_once() -> None:
    """Its retry is known, claims its protection once, and the next retry is as any other."""
    retries = DisplacedRetries()
    retries.displaced("acme", 7, NOW)
    assert retries.knows("acme", 7, NOW + 60)
    assert retries.knows("acme", 7, NOW + 60), "asking uses nothing up"
    assert retries.claim("acme", 7, NOW + 60)
    assert not retries.claim("acme", 7, NOW + 60)
    assert not retries.knows("acme", 7, NOW + 60)
    assert 0 == len(retries)


def test_retries_are_told_apart_by_tenant_and_request() -> None:
    """Neither another tenant nor another request is protected."""
    retries = DisplacedRetries()
    retries.displaced("acme", 7, NOW)
    assert not retries.claim("other", 7, NOW)
    assert not retries.claim("acme", 8, NOW)


def test_two_equal_requests_displaced_have_two_retries() -> None:
    """Each request that was displaced is owed one."""
    retries = DisplacedRetries()
    retries.displaced("acme", 7, NOW)
    retries.displaced("acme", 7, NOW)
    assert [True, True, False] == [retries.claim("acme", 7, NOW + 1) for _ in range(3)]


def test_retries_are_remembered_for_two_minutes() -> None:
    """Who comes later is as any other, and owes nothing to what was displaced before."""
    retries = DisplacedRetries()
    retries.displaced("acme", 7, NOW)
    assert retries.knows("acme", 7, NOW + 119.9)
    assert not retries.knows("acme", 7, NOW + 120.0)
    assert not retries.claim("acme", 7, NOW + 120.0)
    retries.displaced("acme", 7, NOW + 121.0)
    assert [True, False] == [retries.claim("acme", 7, NOW + 122) for _ in range(2)]


def test_retries_remembered_are_bounded() -> None:
    """Beyond the bound the oldest are forgotten."""
    retries = DisplacedRetries(size_max=100)
    for n in range(1000):
        retries.displaced("acme", n, NOW)
    assert 100 == len(retries)
    assert not retries.knows("acme", 899, NOW)
    assert retries.knows("acme", 900, NOW)
    assert retries.knows("acme", 999, NOW)


def test_what_has_expired_makes_room_little_by_little() -> None:
    """No call clears more than two, and in the end only what counts is there."""
    retries = DisplacedRetries()
    for n in range(100):
        retries.displaced("acme", n, NOW)
    retries.displaced("acme", 100, NOW + 200.0)
    assert 99 == len(retries)
    for n in range(101, 250):
        retries.displaced("acme", n, NOW + 200.0)
    assert 150 == len(retries)


# Sessions


def test_later_calls_of_a_session_keep_its_class() -> None:
    """The first call finds nothing, later ones the class of the last call that was admitted."""
    sessions = Sessions()
    assert sessions.class_of("acme", "s1", NOW) is None
    sessions.admitted("acme", "s1", 2, NOW)
    assert 2 == sessions.class_of("acme", "s1", NOW + 1)
    assert sessions.class_of("other", "s1", NOW + 1) is None
    assert sessions.class_of("acme", "s2", NOW + 1) is None


def test_a_session_ends_after_ten_idle_minutes() -> None:
    """Calls keep it alive; without them it is over."""
    sessions = Sessions()
    sessions.admitted("acme", "s1", 0, NOW)
    sessions.admitted("acme", "s1", 0, NOW + 590.0)
    assert 0 == sessions.class_of("acme", "s1", NOW + 1189.9)
    assert sessions.class_of("acme", "s1", NOW + 1190.0) is None


def test_sessions_are_bounded_and_the_idlest_goes() -> None:
    """Beyond the bound the one that was used least recently is forgotten."""
    sessions = Sessions(size_max=3)
    for name in ("a", "b", "c"):
        sessions.admitted("acme", name, 1, NOW)
    sessions.admitted("acme", "a", 1, NOW + 1)
    sessions.admitted("acme", "d", 1, NOW + 2)
    assert [1, None, 1, 1] == [sessions.class_of("acme", name, NOW + 3) for name in ("a", "b", "c", "d")]
    assert 3 == len(sessions)


def test_a_session_has_one_protected_call() -> None:
    """The last one that was named, for as long as sessions last."""
    sessions = Sessions()
    assert -1 == sessions.protected("acme", "s1", NOW)
    sessions.protect("acme", "s1", 7, NOW)
    sessions.protect("acme", "s1", 8, NOW)
    assert 8 == sessions.protected("acme", "s1", NOW + 599.9)
    assert -1 == sessions.protected("acme", "s1", NOW + 600.0)
    assert -1 == sessions.protected("other", "s1", NOW)
