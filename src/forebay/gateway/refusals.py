"""Turns an outcome into what the client sees: status, headers and a body in OpenAI's shape.

The one place where outcomes meet HTTP. 429 means that capacity exists and is contended, 503 that there is none,
4xx that the request can never pass as it is; one setting moves the contended ones to 503 or 529. Everything that
may pass later carries Retry-After; what can never pass carries `x-should-retry: false`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import msgspec

from forebay.admission.model import DecisionRecord, QuotaView, Refusal
from forebay.admission.outcomes import Group, Outcome
from forebay.admission.wording import OUTCOME_WORDS, two_numbers, words_of
from forebay.http.message import Headers

__all__ = [
    "Answer",
    "decision_header",
    "early_refusal",
    "ending_body",
    "error_body",
    "plain_error",
    "predicted_wait",
    "quota_headers",
    "refusal_answer",
    "retry_headers",
    "seconds",
    "status_of",
    "try_again",
]

LONGEST_RETRY_S: Final = 60
"""SDKs ignore more; the honest figure is in `x-queue-predict-wait` and in the body."""

LONGEST_SHOWN_S: Final = 86_400
"""More says nothing more."""

_STATUS: Final = {
    Outcome.NO_ENDPOINTS: 503,
    Outcome.DRAINING: 503,
    Outcome.LIMITS_UNAVAILABLE: 503,
    Outcome.STALE_ENGINE: 503,
    Outcome.REQUEST_TOO_LARGE: 413,
    Outcome.DEADLINE_HOPELESS: 400,
    Outcome.REQUEST_EXCEEDS_QUOTA: 400,
    Outcome.UPSTREAM_FAILED: 502,
    Outcome.UPSTREAM_INTERRUPTED: 502,
    Outcome.STREAM_LIMIT: 502,
    Outcome.SLOW_READER: 408,
    Outcome.NO_PROGRESS: 504,
}
"""Status where a whole answer can still be given. Contended outcomes take `overload_status`; a rate limit of the
client's own stays 429, since no other endpoint or proxy can help."""

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
    529: "overloaded_error",
}

_UNIT_IN_NAME: Final = ("_seconds", "_bytes")

_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, ready to be sent."""

    status: int
    headers: Headers
    body: bytes
    code: str = ""
    """The error's code; empty where it is no error of ours."""


def status_of(outcome: Outcome, overload_status: int) -> int:
    """The status of a refusal or failure.

    Raises:
        KeyError: The outcome is no error (`completed`) or nobody is there to be told (`client_gone`).
    """
    if outcome is Outcome.RATE_LIMIT_EXCEEDED:
        return 429
    if outcome.group is Group.CONTENDED:
        return overload_status
    return _STATUS[outcome]


def error_body(status: int, code: str, message: str, param: str | None = None) -> bytes:
    """OpenAI's error object."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def ending_body(outcome: Outcome, detail: str) -> tuple[int, bytes]:
    """Why a running stream was ended: the status that this would have had, and OpenAI's error object."""
    status = _STATUS.get(outcome, 502)
    message = f"{OUTCOME_WORDS[outcome]} {detail}".rstrip()
    return status, error_body(status, outcome.value, message)


def plain_error(
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    headers: Headers | None = None,
    *,
    bound: str = "",
) -> Answer:
    """An error that is not the core's decision: bad input, unknown path. `bound`: which limit it was about."""
    own: Headers = [(b"content-type", b"application/json"), (b"x-forebay-reason", _reason(code, bound))]
    if status in (400, 401, 403, 404, 405, 413, 431):
        own.append((b"x-should-retry", b"false"))
    return Answer(status, own + (headers or []), error_body(status, code, message, param), code)


def early_refusal(
    status: int,
    outcome: Outcome,
    message: str,
    *,
    retry_after_s: float,
    wait_s: float | None = None,
    bound: str = "",
) -> Answer:
    """A refusal given without asking the core, because the request's body is not even to be read.

    Args:
        wait_s: predicted; None where there is nothing to wait for.
    """
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"x-forebay-reason", _reason(outcome.value, bound)),
        *([] if wait_s is None else predicted_wait(wait_s)),
        *retry_headers(retry_after_s),
    ]
    return Answer(status, headers, error_body(status, outcome.value, message), outcome.value)


def retry_headers(retry_after_s: float) -> Headers:
    """`retry-after` in whole seconds, rounded up, 1 to 60, and `retry-after-ms`, which agrees with it.

    SDKs that know the second one wait exactly that long, which is the core's promise unrounded.
    """
    bounded_s = min(max(retry_after_s, 0.001), LONGEST_RETRY_S)
    return [
        (b"retry-after", b"%d" % math.ceil(bounded_s)),
        (b"retry-after-ms", b"%d" % math.ceil(bounded_s * 1000)),
    ]


def try_again(retry_after_s: float) -> str:
    """The same in words."""
    return f"Try again in {max(math.ceil(min(retry_after_s, LONGEST_RETRY_S)), 1)} s."


def refusal_answer(refusal: Refusal, overload_status: int) -> Answer:
    """The whole answer for a refusal or eviction of the core."""
    outcome = refusal.outcome
    status = status_of(outcome, overload_status)
    record = refusal.record
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"x-forebay-reason", _reason(outcome.value, record.decided_by)),
        (b"x-queue-time", seconds(record.waited_s)),
    ]
    if outcome.group is Group.CONTENDED:
        headers += predicted_wait(refusal.predicted_wait_s)
    if outcome.group is Group.IMPOSSIBLE:
        headers.append((b"x-should-retry", b"false"))
    elif refusal.retry_after_s is not None:
        headers += retry_headers(refusal.retry_after_s)
    else:
        headers.append((b"x-should-retry", b"false"))  # a limit of nothing
    if record.quota is not None:
        headers += quota_headers(record.quota)
    body = error_body(status, outcome.value, _refusal_message(refusal))
    return Answer(status, headers, body, outcome.value)


def _reason(code: str, bound: str) -> bytes:
    """`x-forebay-reason`: the code, then which bound or check it was where that says more than the code."""
    return (f"{code} {bound}" if bound and bound != code else code).encode("ascii")


def quota_headers(quota: QuotaView) -> Headers:
    """`x-ratelimit-…` as OpenAI has them: what the buckets hold, what is left, and when they are full again."""
    headers: Headers = []
    for kind, most, left, full_in_s in (
        (b"requests", quota.requests, quota.requests_left, quota.requests_full_in_s),
        (b"tokens", quota.tokens, quota.tokens_left, quota.tokens_full_in_s),
    ):
        if most is not None:
            headers += [
                (b"x-ratelimit-limit-" + kind, b"%d" % most),
                (b"x-ratelimit-remaining-" + kind, b"%d" % left),
                (b"x-ratelimit-reset-" + kind, _span(full_in_s)),
            ]
    return headers


def _span(time_s: float) -> bytes:
    """A time in words of one letter, as in `1h2m3s`, `2.5s` or `120ms`."""
    whole_ms = math.ceil(min(time_s, LONGEST_SHOWN_S) * 1000)
    if whole_ms < 1000:
        return b"%dms" % whole_ms
    minutes, ms = divmod(whole_ms, 60_000)
    seconds_text = f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if not minutes:
        return seconds_text.encode("ascii")
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "").encode("ascii") + f"{minutes}m{seconds_text}".encode("ascii")


def predicted_wait(wait_s: float) -> Headers:
    """`x-queue-predict-wait`. None where nothing drains: a wait without end is no number to plan with."""
    return [(b"x-queue-predict-wait", seconds(wait_s))] if math.isfinite(wait_s) else []


def seconds(value_s: float) -> bytes:
    """A time as header value, to the millisecond."""
    return b"%.3f" % value_s if value_s < LONGEST_SHOWN_S else b"%d" % LONGEST_SHOWN_S


def _refusal_message(refusal: Refusal) -> str:
    """What was exceeded, by how much, and what to do about it."""
    record = refusal.record
    parts = [OUTCOME_WORDS[refusal.outcome]]
    if record.detail:
        parts.append(record.detail)
    decisive = next((check for check in record.checks if check.name == record.decided_by), None)
    if decisive is not None and decisive.limit is not None:
        name = decisive.name.replace("_", " ")
        words = words_of(decisive.name)
        unit = "" if decisive.name.endswith(_UNIT_IN_NAME) else words.unit
        found, most = two_numbers(decisive.value, decisive.limit)
        least = "at least " if words.counted_low else ""
        parts.append(f"Decided by {name}: {least}{found}{unit}, limit {most}{unit}.")
    if refusal.outcome is Outcome.QUEUE_TIMEOUT:
        # The checks of its arrival come first: what failed among them is what it has waited for.
        held_by = next((check.name for check in record.checks if not check.passed), record.decided_by)
        if held_by != record.decided_by:
            parts.append(f"When it came it was held by {held_by.replace('_', ' ')}.")
    if refusal.retry_after_s is not None and refusal.outcome.group is not Group.IMPOSSIBLE:
        own_limit = refusal.outcome is Outcome.RATE_LIMIT_EXCEEDED  # no line to stand in
        if LONGEST_RETRY_S < refusal.predicted_wait_s < LONGEST_SHOWN_S and not own_limit:
            parts.append(f"The line is about {refusal.predicted_wait_s:.0f} s long.")
        parts.append(try_again(refusal.retry_after_s))
    return " ".join(parts)


def decision_header(record: DecisionRecord) -> bytes:
    """The record as compact JSON, for `x-forebay-decision`. Addresses of engines stay inside."""
    return _encode(
        {
            "mode": record.mode.value,
            "action": record.action,
            "outcome": record.outcome.value if record.outcome else None,
            "decided_by": record.decided_by,
            "pool": record.pool,
            "class": record.class_name,
            "model": record.model,
            "cost_gpu_s": round(record.cost_gpu_s, 6),
            "kv_tokens": record.kv_tokens,
            "predicted_wait_s": round(record.predicted_wait_s, 3),
            "wait_budget_s": round(record.wait_budget_s, 3),
            "waited_s": round(record.waited_s, 3),
            "position": record.position,
            "learning": record.learning,
            "checks": [[check.name, check.value, check.limit, check.passed] for check in record.checks],
        }
    )
