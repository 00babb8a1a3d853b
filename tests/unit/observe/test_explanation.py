"""Why a request was treated so, in sentences."""

from __future__ import annotations

import math

import pytest

from forebay.admission.model import Check, DecisionRecord, Mode
from forebay.admission.outcomes import Outcome
from forebay.admission.snapshot import TicketView
from forebay.observe.explanation import Explanation, explain
from tests.unit.observe.records import ENDPOINT, record, settlement

FULL = (
    Check("endpoints_up", 2, None, True),
    Check("pool_gpu_seconds", 3.5, 10.0, True),
    Check("class_queue_requests", 3, 2, False),
    Check("pool_queue_requests", 9, 8, False),
)


def refused(**changes: object) -> DecisionRecord:
    """A refusal at the bound of its class."""
    usual = {
        "action": "refuse",
        "outcome": Outcome.QUEUE_FULL,
        "decided_by": "class_queue_requests",
        "checks": FULL,
        "endpoint": None,
        "predicted_wait_s": 3.25,
        "detail": "Class 'standard' has as many requests waiting as it may.",
    }
    return record(**{**usual, **changes})


def text(explanation: Explanation) -> str:
    """All its sentences."""
    return " ".join(explanation.summary)


def test_a_refusal_says_what_decided_and_what_would_have_let_it_in() -> None:
    """The sentence of the outcome first, then the numbers; every check that failed has its remedy."""
    told = explain([refused()], settlement(outcome=Outcome.QUEUE_FULL), None)
    assert told.summary[0] == "It was refused at once (queue_full): The waiting line is full."
    assert "`class_queue_requests`. Requests of its class waiting, with it: 3, and 2 is the most." in text(
        told
    )
    assert "in pool p and class standard" in text(told)
    assert "a wait of 3.25 s was expected, and 5 s allowed" in text(told)
    assert (
        "Fewer requests of class standard waiting, or its `max_queue` being 3.",
        "Fewer requests waiting, or `max_queue` of pool p being 9.",
    ) == told.would_admit
    assert [(True, False), (True, False), (False, True), (False, False)] == [
        (line.passed, line.decided) for line in told.checks
    ]
    assert ("2", "") == (told.checks[0].found, told.checks[0].allowed)
    assert ("3.5 GPU-seconds", "10 GPU-seconds") == (told.checks[1].found, told.checks[1].allowed)
    assert "It ended" not in text(told)


def test_one_that_may_wait_for_ever_has_no_number_for_that() -> None:
    """Infinity is no time to plan with."""
    told = text(explain([refused(wait_budget_s=math.inf)], settlement(outcome=Outcome.QUEUE_FULL), None))
    assert "a wait of 3.25 s was expected, and it may take as long as it takes" in told
    assert "inf" not in told


def test_a_predicted_wait_names_the_budget_that_would_have_been_enough() -> None:
    """In seconds, with the class whose budget it is."""
    checks = (Check("predicted_wait", 4.125, 1.5, False),)
    told = explain(
        [refused(outcome=Outcome.DEADLINE_UNREACHABLE, decided_by="predicted_wait", checks=checks)],
        None,
        None,
    )
    (remedy,) = told.would_admit
    assert "4.12 s" in remedy
    assert "class standard" in remedy


def test_a_check_without_words_is_told_by_its_name() -> None:
    """One that is new since this was written."""
    told = explain([refused(decided_by="new_bound", checks=(Check("new_bound", 3, 2, False),))], None, None)
    assert ("New bound of at most 2.",) == told.would_admit


def test_a_rule_is_called_by_its_name() -> None:
    """It says itself what it is for."""
    told = explain(
        [
            refused(
                outcome=Outcome.RULE_REFUSED,
                decided_by="rule:cliff",
                checks=(Check("rule:cliff", 1, None, False),),
            )
        ],
        None,
        None,
    )
    assert "The operator's rule cliff matched." in text(told)
    assert ("A request or a moment that rule cliff does not match.",) == told.would_admit


def test_what_other_pools_said_is_shown_and_is_not_the_reason() -> None:
    """A refusal is its own pool's; one that was taken elsewhere is that pool's."""
    asked = (
        Check("pool_queue_requests", 6, 5, False),
        Check("fallback:small", 1, None, False),
        Check("pool_queue_requests", 3, 2, False),
    )
    told = explain([refused(decided_by="pool_queue_requests", checks=asked)], None, None)
    assert "6, and 5 is the most" in " ".join(told.summary)
    assert 1 == len(told.would_admit)
    assert [("it fell back to pool small", "")] == [
        (line.what, line.found) for line in told.checks if line.name == "fallback:small"
    ]
    taken = (
        *asked[:1],
        Check("fallback:small", 1, None, True),
        Check("endpoint_requests", 9, 8, False),
        Check("waited", 5.0, 4.0, False),
    )
    told = explain([refused(action="evict", pool="small", decided_by="waited", checks=taken)], None, None)
    assert "5 s, and 4 s is the most" in " ".join(told.summary)
    assert 2 == len(told.would_admit)


def test_what_was_only_recorded_asks_for_nothing() -> None:
    """A hopeless deadline that refused nobody is not in the way."""
    told = explain([refused(checks=(*FULL[:3], Check("deadline_hopeless", 2.0, 1.0, False)))], None, None)
    assert 1 == len(told.would_admit)


def test_a_plain_yes_or_no_has_no_numbers() -> None:
    """One over none says nothing to a person."""
    told = explain(
        [refused(outcome=Outcome.DRAINING, decided_by="draining", checks=(Check("draining", 1, 0, False),))],
        None,
        None,
    )
    assert ("", "") == (told.checks[0].found, told.checks[0].allowed)
    assert "The gateway shuts down." in text(told)


def test_a_waiter_says_where_it_stands_now() -> None:
    """What held it when it came, and the rest of its wait."""
    held = record(
        action="hold",
        decided_by="endpoint_requests",
        checks=(Check("endpoint_requests", 9, 8, False),),
        endpoint=None,
        learning=True,
    )
    state = TicketView("waiting", 1.0, 2.5, "p", "standard", 0, 3, 1.25, 2.5)
    told = explain([held], None, state)
    assert "It had to wait." == told.summary[0]
    assert (
        "It waits now, for 2.5 s so far, with 3 to be served before it; it is expected to start in 1.25 s, "
        "and may wait for 2.5 s more."
    ) in told.summary
    assert "Requests at the engine, with it: 9, and 8 is the most." in text(told)
    assert "still learning" in text(told)
    assert () == told.would_admit


def test_one_that_runs_says_where() -> None:
    """With what its client has had of it."""
    state = TicketView(
        "running", 1.0, 0.5, "p", "standard", 1, endpoint=ENDPOINT, ttft_s=0.75, output_events=12
    )
    told = explain([record()], None, state)
    assert "It was let in, and started at once." == told.summary[0]
    assert (
        f"It runs now on {ENDPOINT}; its first token came 0.75 s after it did, and 12 events were sent"
        in text(told)
    )


def test_one_of_which_only_the_state_is_left_is_told_all_the_same() -> None:
    """Its records are pushed out by later ones while it runs."""
    told = explain([], None, TicketView("running", 1.0, 0.5, "p", "standard", 1, endpoint=ENDPOINT))
    assert (f"It runs now on {ENDPOINT}.",) == told.summary


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome.COMPLETED, "It was answered in 2 s, the first token after 0.3 s: 20 tokens."),
        (Outcome.CLIENT_GONE, "Its client left after 2 s, before the answer was whole."),
        (Outcome.ENGINE_REJECTED, "an error of its own about the request"),
        (Outcome.UPSTREAM_INTERRUPTED, "It ended after 2 s (upstream_interrupted)"),
    ],
)
def test_how_it_ended_is_told(outcome: Outcome, said: str) -> None:
    """After how it was decided."""
    assert said in text(explain([record()], settlement(outcome=outcome), None))


def test_an_eviction_says_how_long_it_had_waited() -> None:
    """And what it had been waiting for when it came, since that is among its checks."""
    checks = (Check("kv_forecast", 1200, 1000, False), Check("waited", 5.0, 5.0, False))
    evicted = refused(
        action="evict", outcome=Outcome.QUEUE_TIMEOUT, decided_by="waited", checks=checks, waited_s=5.0
    )
    told = explain([record(action="hold", endpoint=None), evicted], None, None)
    assert "It waited 5 s and was turned away (queue_timeout)" in told.summary[0]
    assert 2 == len(told.would_admit)


def test_shadow_and_bypass_say_that_it_was_let_through() -> None:
    """And what enforcing would have done."""
    told = explain([refused(mode=Mode.SHADOW, endpoint=ENDPOINT)], settlement(), None)
    assert told.summary[0].startswith(
        "It was let through (shadow mode). Enforcing would have refused it (queue_full)"
    )
    assert "It was answered in 2 s" in text(told)
    assert told.would_admit
    told = explain([record(action="hold", mode=Mode.SHADOW)], None, None)
    assert "Enforcing would have made it wait." in told.summary[0]
    told = explain([record(mode=Mode.SHADOW)], None, None)
    assert "started at once (shadow mode)" in told.summary[0]
    told = explain([record(mode=Mode.BYPASS)], None, None)
    assert "without a decision (bypass mode)" in told.summary[0]


def test_a_limit_of_nothing_is_told_as_a_number() -> None:
    """`max_queue: 0` refuses whatever cannot start: the remedy says what it would have to be."""
    none = Check("class_queue_requests", 1, 0, False)
    told = explain([refused(checks=(none,))], settlement(outcome=Outcome.QUEUE_FULL), None)
    assert ("1", "0") == (told.checks[0].found, told.checks[0].allowed)
    assert told.would_admit[0].endswith("its `max_queue` being 1.")


def test_who_may_have_nothing_is_not_told_to_wait() -> None:
    """No refilling would help."""
    nothing = (Check("quota_requests", 1, 0, False),)
    told = explain(
        [refused(outcome=Outcome.RATE_LIMIT_EXCEEDED, decided_by="quota_requests", checks=nothing)],
        None,
        None,
    )
    assert ("A plan that allows more than none.",) == told.would_admit


def test_what_is_counted_low_is_told_so_whether_it_fits_or_not() -> None:
    """A prompt has more tokens than it surely has."""
    checks = (Check("context_window", 64, 100, True), Check("kv_cache", 0, 100, True), *FULL)
    told = explain([refused(checks=checks)], None, None)
    assert ["at least 64 tokens", "0 tokens"] == [line.found for line in told.checks[:2]]


def test_a_deadline_of_the_client_is_named_beside_the_budget() -> None:
    """Which of the two ended the wait, the summary says; a longer budget alone may not be enough."""
    waited = (Check("waited", 0.29991509400861105, 0.29991509400861105, False),)
    told = explain(
        [refused(outcome=Outcome.QUEUE_TIMEOUT, decided_by="waited", checks=waited, action="evict")],
        None,
        None,
    )
    assert "Time waited: 0.3 s, and 0.3 s is the most." in text(told)
    (remedy,) = told.would_admit
    assert "`wait_budget` of class standard, and whatever deadline the client states" in remedy
