"""What a client is told whose request no attempt has answered: the engine's own error where there is one, else ours."""

from __future__ import annotations

from collections.abc import Callable

from forebay.admission.effects import Abort
from forebay.gateway.headers import LIMITS, answer_headers, without_limits
from forebay.gateway.refusals import Answer, error_body, retry_headers, try_again
from forebay.http.message import Headers, get_header

__all__ = ["failure_answer"]


def failure_answer(
    effect: Abort,
    error: Answer | None,
    own: Headers,
    status: int,
    *,
    silent: bool,
    promise_s: Callable[[], float],
) -> Answer:
    """The answer for a request that the core has given up.

    Args:
        error: of the last engine that gave one.
        own: our headers.
        status: of the outcome.
        silent: no engine has said anything in time.
        promise_s: when it may be worth trying again, where the core does not say.
    """
    own = [*own, (b"x-forebay-reason", effect.outcome.value.encode("ascii"))]
    if error is not None:
        told = any(name.startswith(LIMITS) for name, _ in own)
        headers = answer_headers(without_limits(error.headers) if told else error.headers, own, sse=False)
        if error.status in (429, 503, 529) and get_header(error.headers, b"retry-after") is None:
            headers += retry_headers(effect.retry_after_s or promise_s())
        return Answer(error.status, headers, error.body)
    if status == 502 and silent:
        status = 504
    headers = [(b"content-type", b"application/json"), *own]
    if effect.retry_after_s is not None:
        headers += retry_headers(effect.retry_after_s)
    message = f"The engine gave no answer. {effect.detail}".rstrip()
    if effect.retry_after_s is not None:
        message = f"{message} {try_again(effect.retry_after_s)}"
    return Answer(status, headers, error_body(status, effect.outcome.value, message), effect.outcome.value)
