from __future__ import annotations

import json
import math

import pytest

from forebay.admission.model import Check, DecisionRecord, EndpointId, Refusal, TicketId
from forebay.admission.outcomes import Group, Outcome
from forebay.gateway import refusals
from forebay.gateway.error_shapes import ErrorShape, event_of

NO_ANSWER = {Outcome.COMPLETED, Outcome.CLIENT_GONE, Outcome.ENGINE_REJECTED}


def record(**changes: object) -> DecisionRecord:
    """A record of a refusal."""
    values: dict[str, object] = {
        "ticket": TicketId(1),
        "at_s": 0.0,
        "pool": "p",
        "class_name": "standard",
        "tenant": "anonymous",
        "model": "m",
        "action": "refuse",
        "outcome": Outcome.QUEUE_FULL,
        "decided_by": "class_queue_requests",
        "checks": (Check("class_queue_requests", 11, 10, False),),
        "cost_gpu_s": 0.5,
        "kv_tokens": 100,
        "predicted_wait_s": 2.5,
        "wait_budget_s": 5.0,
        "waited_s": 0.0,
        "position": 10,
        "endpoint": EndpointId("http://10.0.0.1:8000"),
        "learning": False,
    }
    return DecisionRecord(**(values | changes))  # type: ignore[arg-type]


def refusal(outcome: Outcome, retry_after_s: float | None = 3.2, wait_s: float = 2.5) -> Refusal:
    """A refusal with that outcome."""
    return Refusal(outcome, retry_after_s, wait_s, record(outcome=outcome))


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in NO_ANSWER])
@pytest.mark.parametrize("overload_status", [429, 503, 529])
def test_every_outcome_has_its_status(outcome: Outcome, overload_status: int) -> None:
    """Contended is `overload_status`, absent is 503, impossible is 4xx, failed is 408 or 5xx."""
    status = refusals.status_of(outcome, overload_status)
    expected = {
        Group.CONTENDED: {429} if outcome is Outcome.RATE_LIMIT_EXCEEDED else {overload_status},
        Group.ABSENT: {503},
        Group.IMPOSSIBLE: {400, 413},
        Group.FAILED: {408, 502, 504},
    }
    assert status in expected[outcome.group]


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in NO_ANSWER])
def test_every_outcome_has_a_body(outcome: Outcome) -> None:
    """Every refusal says its code, a type and a sentence, and whether to come back."""
    possible = outcome.group is not Group.IMPOSSIBLE
    answer = refusals.refusal_answer(refusal(outcome, 3.2 if possible else None), 429)
    error = json.loads(answer.body)["error"]
    headers = dict(answer.headers)
    assert {"message", "type", "param", "code"} == set(error)
    assert outcome.value == error["code"] == headers[b"x-forebay-reason"].decode().split()[0]
    assert len(error["message"]) > 20
    assert possible == (b"retry-after" in headers)
    assert possible != (headers.get(b"x-should-retry") == b"false")


@pytest.mark.parametrize(
    ("asked_s", "seconds", "milliseconds"),
    [
        (0.2, 1, 200),
        (1.0, 1, 1000),
        (3.2, 4, 3200),
        (5.0, 5, 5000),
        (60.0, 60, 60000),
        (300.0, 60, 60000),
        (0, 1, 1),
    ],
)
def test_retry_after_is_what_sdks_obey(asked_s: float, seconds: int, milliseconds: int) -> None:
    """Whole seconds from 1 to 60, rounded up; the millisecond header agrees."""
    headers = dict(refusals.retry_headers(asked_s))
    assert (b"%d" % seconds, b"%d" % milliseconds) == (headers[b"retry-after"], headers[b"retry-after-ms"])
    assert math.ceil(int(headers[b"retry-after-ms"]) / 1000) == int(headers[b"retry-after"])


def test_a_refusal_says_what_was_exceeded() -> None:
    """The message names the check that decided, its numbers, and when to come back."""
    message = json.loads(refusals.refusal_answer(refusal(Outcome.QUEUE_FULL), 429).body)["error"]["message"]
    assert "class queue requests: 11, limit 10" in message
    assert "Try again in 4 s" in message


def test_a_refusal_says_a_thing_once() -> None:
    """Words, the detail of the check and its numbers follow each other; nothing is said twice."""
    checks = (Check("predicted_wait", 7.25, 5.0, False),)
    told = Refusal(
        Outcome.DEADLINE_UNREACHABLE, 7.5, 7.25, record(checks=checks, decided_by="predicted_wait", detail="")
    )
    message = json.loads(refusals.refusal_answer(told, 429).body)["error"]["message"]
    assert (
        "The predicted wait is longer than this request may wait. Decided by predicted wait: 7.25 s, limit 5 s. "
        "Try again in 8 s."
    ) == message


def test_numbers_are_told_apart() -> None:
    """A value that is just over its limit is not shown as the limit; a size that is only estimated is at least that."""
    for check, words in (
        (Check("own_prefill", 0.057649, 0.057641, False), "own prefill: 0.057649 s, limit 0.057641 s."),
        (
            Check("context_window", 25_399, 16_384, False),
            "context window: at least 25399 tokens, limit 16384 tokens.",
        ),
        (Check("pool_gpu_seconds", 2.0, 2.0, False), "pool gpu seconds: 2, limit 2."),
    ):
        told = Refusal(
            Outcome.QUEUE_FULL, 1.0, 1.0, record(checks=(check,), decided_by=check.name, detail="")
        )
        assert words in json.loads(refusals.refusal_answer(told, 429).body)["error"]["message"]


def test_the_reason_names_the_bound() -> None:
    """The reason header is the code and the check that decided, and the code alone where that says nothing more."""
    reasons = [
        dict(answer.headers)[b"x-forebay-reason"]
        for answer in (
            refusals.refusal_answer(refusal(Outcome.QUEUE_FULL), 429),
            refusals.refusal_answer(
                Refusal(Outcome.DRAINING, 1.0, 0.0, record(outcome=Outcome.DRAINING, decided_by="draining")),
                429,
            ),
            refusals.plain_error(413, "request_too_large", "Too large.", bound="body_bytes"),
            refusals.plain_error(404, "not_found", "Not here."),
        )
    ]
    assert [
        b"queue_full class_queue_requests",
        b"draining",
        b"request_too_large body_bytes",
        b"not_found",
    ] == reasons


def test_a_refusal_without_the_core_has_the_same_headers() -> None:
    """Refused before its body was read, a client is told the reason, the wait and when to return all the same."""
    asked = refusals.early_refusal(
        429, Outcome.QUEUE_FULL, "Full.", wait_s=1.0, retry_after_s=1.2, bound="waiting_bytes"
    )
    headers = dict(asked.headers)
    told = dict(refusals.refusal_answer(refusal(Outcome.QUEUE_FULL), 429).headers)
    assert set(told) - set(headers) == {b"x-queue-time"}
    assert b"queue_full waiting_bytes" == headers[b"x-forebay-reason"]
    assert (b"1.000", b"2", b"1200") == (
        headers[b"x-queue-predict-wait"],
        headers[b"retry-after"],
        headers[b"retry-after-ms"],
    )


def test_long_waits_are_told_honestly() -> None:
    """Where the header is cut to a minute, the body and x-queue-predict-wait have the real figure."""
    answer = refusals.refusal_answer(refusal(Outcome.DEADLINE_UNREACHABLE, 60.0, 432.0), 429)
    assert dict(answer.headers)[b"x-queue-predict-wait"] == b"432.000"
    assert "432 s" in json.loads(answer.body)["error"]["message"]


def test_an_endless_wait_is_not_told() -> None:
    """A predicted wait without end does not put `inf` into a header, and a very long one stays a number."""
    endless = refusals.refusal_answer(refusal(Outcome.QUEUE_TIMEOUT, 60.0, math.inf), 429)
    assert b"x-queue-predict-wait" not in dict(endless.headers)
    assert refusals.seconds(1e9) == b"86400"


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in NO_ANSWER])
def test_a_wait_is_told_where_there_is_something_to_wait_for(outcome: Outcome) -> None:
    """Only for contended capacity is there a line, and a wait in it; elsewhere a number would be made up."""
    headers = dict(refusals.refusal_answer(refusal(outcome, 3.0, 0.0), 429).headers)
    assert (outcome.group is Group.CONTENDED) == (b"x-queue-predict-wait" in headers)


def test_stream_errors_are_events() -> None:
    """A running stream is ended by a data event with the same code."""
    event = event_of(ErrorShape.OPENAI, *refusals.ending_body(Outcome.UPSTREAM_INTERRUPTED, "It broke."))
    assert event.startswith(b"data: {")
    assert event.endswith(b"\n\n")
    assert json.loads(event[6:])["error"]["code"] == "upstream_interrupted"


def test_a_decision_tells_no_addresses() -> None:
    """The decision header is one line of JSON without the engine's address."""
    header = refusals.decision_header(record())
    assert b"\n" not in header
    assert b"10.0.0.1" not in header
    assert json.loads(header)["decided_by"] == "class_queue_requests"


def test_client_errors_must_not_be_retried() -> None:
    """What is wrong with a request is wrong again: SDKs are told so."""
    assert (b"x-should-retry", b"false") in refusals.plain_error(400, "invalid_request", "No.").headers
    assert (b"x-should-retry", b"false") not in refusals.plain_error(502, "upstream_failed", "No.").headers


def test_a_timeout_says_what_held_the_request() -> None:
    """Its client learns whether slots, memory or something else was what it waited for."""
    checks = (
        Check("endpoints_up", 1, None, True),
        Check("kv_forecast", 4283.7, 3784.8, False),
        Check("waited", 5.0, 5.0, False),
    )
    told = Refusal(Outcome.QUEUE_TIMEOUT, 2.0, 1.0, record(checks=checks, decided_by="waited", detail=""))
    message = json.loads(refusals.refusal_answer(told, 429).body)["error"]["message"]
    assert "When it came it was held by kv forecast." in message
