from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES as CLASSES
from forebay.load.felt import End, Felt, quantile, summarise

REALTIME, STANDARD, BATCH = CLASSES
GOOD = Felt(
    "realtime",
    at_s=0.0,
    stream=True,
    end=End.COMPLETED,
    duration_s=2.0,
    first_token_s=0.5,
    last_token_s=2.0,
    output_tokens=31,
    status=200,
)
REFUSED = Felt(
    "realtime",
    at_s=0.0,
    stream=True,
    end=End.REFUSED,
    duration_s=0.01,
    status=429,
    code="queue_full",
    retry_after_s=2.0,
)


def test_a_stream_is_met_by_first_token_and_pace() -> None:
    """A whole stream is met when both its first token and its mean pace are within the objective."""
    assert GOOD.met(REALTIME)
    assert replace(GOOD, first_token_s=1.5).met(REALTIME)
    assert not replace(GOOD, first_token_s=1.51).met(REALTIME)
    assert not replace(GOOD, output_tokens=10).met(REALTIME)  # 1.5 s for 9 tokens


def test_a_stream_of_one_token_has_no_pace_to_miss() -> None:
    """The pace of a single token is 0."""
    assert replace(GOOD, output_tokens=1).tpot_s == 0
    assert replace(GOOD, output_tokens=1).met(REALTIME)


def test_a_whole_answer_is_met_by_its_length_and_time() -> None:
    """An answer that is not streamed has TTFT + TPOT × output tokens for the whole of it."""
    whole = replace(GOOD, stream=False, first_token_s=3.9, last_token_s=3.9, duration_s=3.9)

    assert whole.met(REALTIME)  # 1.5 s + 31 × 0.08 s = 3.98 s
    assert not replace(whole, duration_s=3.99).met(REALTIME)
    patient = replace(REALTIME, whole_answer_s=10.0)
    assert replace(whole, duration_s=10.0).met(patient)
    assert not replace(whole, duration_s=10.1).met(patient)


@pytest.mark.parametrize("end", [End.REFUSED, End.FAILED, End.UNANSWERED])
def test_what_was_not_answered_whole_is_not_met(end: End) -> None:
    """Refused, failed and unanswered requests are never met, however fast they began."""
    assert not replace(GOOD, end=end).met(REALTIME)


def test_an_unanswered_request_counts_at_its_age() -> None:
    """Time to first token of a request without one is its age when the clients stopped waiting."""
    waiting = replace(GOOD, end=End.UNANSWERED, first_token_s=None, last_token_s=None, duration_s=30.0)

    assert waiting.ttft_s == 30.0
    assert replace(waiting, end=End.FAILED).ttft_s is None
    report = summarise([GOOD, GOOD, waiting], CLASSES, duration_s=10)
    assert report.classes["realtime"].ttft_p99_s == 30.0
    assert report.classes["realtime"].ttft_p50_s == 0.5
    assert report.unanswered == 1


def test_attainment_is_of_all_offered_and_admitted_attainment_of_the_rest() -> None:
    """Refusals count against attainment, not against the attainment of admitted requests."""
    late = replace(GOOD, first_token_s=1.9)
    report = summarise([GOOD, GOOD, late, REFUSED], CLASSES, duration_s=2.0)

    assert report.slo_attainment == 0.5
    assert pytest.approx(2 / 3) == report.admitted_attainment
    assert report.goodput_rps == 1.0
    assert report.offered == 4


def test_refusals_are_counted_with_and_without_retry_after() -> None:
    """A refusal that names no time to come back is told apart."""
    report = summarise([REFUSED, replace(REFUSED, retry_after_s=None)], CLASSES, duration_s=1)

    assert report.refusals == 2
    assert report.refusals_with_retry_after == 1
    assert report.admitted_attainment == 0
    assert report.classes["realtime"].ttft_p50_s is None


def test_failures_are_errors() -> None:
    """A failed request is offered, not completed, and an error."""
    report = summarise([replace(GOOD, end=End.FAILED)], CLASSES, duration_s=1)

    assert report.errors == 1
    assert report.classes["realtime"].failed == 1
    assert report.classes["realtime"].completed == 0


def test_the_json_form_has_the_promised_names() -> None:
    """The JSON report has the documented fields, and only classes that were offered something."""
    report = summarise([GOOD, REFUSED], CLASSES, duration_s=40, preemptions=3)
    data = json.loads(json.dumps(report.to_json()))

    assert {"classes", "goodput_rps", "slo_attainment", "admitted_attainment", "preemptions"} <= set(data)
    assert data["refusals_with_retry_after"] == 1
    assert data["preemptions"] == 3
    assert list(data["classes"]) == ["realtime"]
    assert {"offered", "completed", "refused", "met_slo", "ttft_p50_s", "ttft_p99_s"} <= set(
        data["classes"]["realtime"]
    )


def test_a_class_without_objectives_is_an_error() -> None:
    """A record of an unknown class cannot be judged, and the message names the class."""
    with pytest.raises(ValueError, match="no objectives for class 'gold'"):
        summarise([replace(GOOD, class_name="gold")], CLASSES, duration_s=1)


def test_nothing_offered_is_no_division_by_zero() -> None:
    """A report over no requests is all zeros."""
    report = summarise([], CLASSES, duration_s=0)

    assert report.slo_attainment == 0
    assert report.goodput_rps == 0
    assert not report.classes


def test_quantiles_are_values_that_occurred() -> None:
    """A quantile is the nearest rank, so it is one of the values; of nothing there is none."""
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([3.0, 1.0, 2.0], 0.0) == 1.0
    assert quantile([], 0.5) is None


def test_failures_are_told_apart() -> None:
    """By status and code, the most frequent first; a target that makes up codes cannot make the report long."""
    codes = (
        [("no_model", 404)] * 3
        + [("closed_in_body", 200), ("", None)]
        + [(f"made-up-{n}", 500) for n in range(50)]
    )
    felt = [
        Felt("standard", 0.0, stream=True, end=End.FAILED, duration_s=1.0, status=status, code=code)
        for code, status in codes
    ]
    told = summarise(felt, CLASSES, duration_s=1.0).failures
    assert [("404 no_model", 3), ("closed_in_body", 1), ("no answer", 1)] == list(told.items())[:3]
    assert 5 == len(told)
