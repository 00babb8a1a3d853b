from __future__ import annotations

import pytest

from forebay.admission.outcomes import Group, Outcome

PUBLIC_CODES = {
    "completed",
    "rate_limit_exceeded",
    "queue_full",
    "deadline_unreachable",
    "queue_timeout",
    "displaced",
    "rule_refused",
    "no_endpoints",
    "draining",
    "limits_unavailable",
    "stale_engine",
    "request_too_large",
    "deadline_hopeless",
    "request_exceeds_quota",
    "engine_rejected",
    "upstream_failed",
    "upstream_interrupted",
    "stream_limit",
    "slow_reader",
    "no_progress",
    "client_gone",
}


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_group(outcome: Outcome) -> None:
    """No outcome can be added without saying what it means for the work."""
    assert isinstance(outcome.group, Group)


def test_the_codes_are_the_public_ones() -> None:
    """The values are contracts: a code that users see does not change its name unnoticed."""
    assert {outcome.value for outcome in Outcome} == PUBLIC_CODES


def test_every_group_is_used() -> None:
    """No group is left without an outcome."""
    assert {outcome.group for outcome in Outcome} == set(Group)


@pytest.mark.parametrize(
    ("outcome", "may_pass"),
    [
        (Outcome.QUEUE_FULL, True),
        (Outcome.NO_ENDPOINTS, True),
        (Outcome.DRAINING, True),
        (Outcome.REQUEST_TOO_LARGE, False),
        (Outcome.DEADLINE_HOPELESS, False),
        (Outcome.UPSTREAM_FAILED, False),
        (Outcome.CLIENT_GONE, False),
        (Outcome.COMPLETED, False),
    ],
)
def test_only_what_is_contended_or_absent_may_pass_later(outcome: Outcome, may_pass: bool) -> None:
    """A Retry-After makes sense where capacity is taken or missing, and nowhere else."""
    assert may_pass is outcome.may_pass_later
