"""What a client is told whose body is not read: too large, no room for it, too slow, broken, or to no avail."""

from __future__ import annotations

from typing import Final

from forebay.admission.model import Exhausted
from forebay.admission.outcomes import Outcome
from forebay.gateway.bodies import GUESSED_WAIT_S, BodyRoom
from forebay.gateway.ports import GatewaySettings
from forebay.gateway.refusals import Answer, early_refusal, plain_error, quota_headers, try_again
from forebay.http.exchange import BodyFailure

__all__ = ["NOT_FOR_NOTHING_BYTES", "answer_to", "unread_refusal"]

NOT_FOR_NOTHING_BYTES: Final = 64 * 1024
"""A longer body is not read where its tenant has nothing left anyway. Others are as cheap as the refusal, and what they
ask for makes it exact."""


def answer_to(failure: BodyFailure, settings: GatewaySettings, bodies: BodyRoom) -> Answer:
    """The answer to a body that was not read to its end."""
    if failure is BodyFailure.TOO_LARGE:
        return _too_large(settings)
    if failure is BodyFailure.NO_ROOM:
        return _no_room(settings, bodies)
    if failure is BodyFailure.TIMEOUT:
        return plain_error(408, "request_timeout", "The request body came too slowly.")
    return plain_error(400, "invalid_request", "The request body's chunked coding is broken.")


def unread_refusal(exhausted: Exhausted) -> Answer:
    """The tenant has nothing left: told before the body is read."""
    message = f"Your own rate limit is used up. {try_again(exhausted.retry_after_s)}"
    answer = early_refusal(
        429,
        Outcome.RATE_LIMIT_EXCEEDED,
        message,
        wait_s=exhausted.wait_s,
        retry_after_s=exhausted.retry_after_s,
        bound=exhausted.check,
    )
    if exhausted.quota is not None:
        answer.headers.extend(quota_headers(exhausted.quota))
    return answer


def _too_large(settings: GatewaySettings) -> Answer:
    most, bound = settings.max_body_bytes, "body_bytes"
    message = f"The request body is larger than {most} bytes, the limit here."
    if settings.max_waiting_bytes < most:
        most, bound = settings.max_waiting_bytes, "waiting_bytes"
        message = f"The request body is larger than {most} bytes, all that may wait here."
    return plain_error(413, Outcome.REQUEST_TOO_LARGE.value, message, bound=bound)


def _no_room(settings: GatewaySettings, bodies: BodyRoom) -> Answer:
    """No memory for this body: told before it is read, where its length was declared."""
    most = settings.max_waiting_bytes
    return early_refusal(
        settings.overload_status,
        Outcome.QUEUE_FULL,
        f"Bodies of requests that have no answer yet hold as many bytes as they may ({most}). Try again in 1 to 2 s.",
        wait_s=GUESSED_WAIT_S,
        retry_after_s=bodies.promise_s(),
        bound="waiting_bytes",
    )
