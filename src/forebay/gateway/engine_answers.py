"""What an engine's answer says: is it a stream, an error, and how much was used.

Engines agree on little here: error objects are nested or flat, their codes are numbers or names, and a request may be
refused inside a `200` by the first event of a stream. Pure functions over bytes; nothing is decoded that need not be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forebay.admission.model import Usage
from forebay.gateway.answer_fields import (
    UNREADABLE,
    NestedError,
    UsageFields,
    decode_error,
    decode_usage,
    decode_whole,
)
from forebay.gateway.headers import answer_headers
from forebay.gateway.refusals import Answer
from forebay.http.message import Headers, ResponseHead, encode_headers, get_header

__all__ = [
    "Passed",
    "answer_from_event",
    "gave_up",
    "is_refusal",
    "is_stream",
    "passed_head",
    "usage_of_body",
    "usage_of_object",
]

_OTHER_ENDPOINT_MAY_HELP: Final = frozenset({408, 425, 429})

_LIMITS: Final = b"x-ratelimit-"

LARGEST_COUNT: Final = 2**31 - 1
"""More tokens than this in one answer is nonsense, and would poison whatever is learned from it."""


@dataclass(slots=True)
class Passed:
    """The head of an engine's answer as the client gets it."""

    is_stream: bool
    lines: bytes
    """Header lines, each with its CRLF; without framing and without ours."""
    request_id: bytes | None
    """The engine's own `x-request-id`."""
    tells_limits: bool
    """There are `x-ratelimit-*` of the engine's own among the lines."""

    def joined(self, own: bytes) -> bytes:
        """All header lines of an answer. Where ours tell what is left of a tenant's limits, the engine's do not."""
        if self.tells_limits and own.find(_LIMITS) >= 0:
            kept = [line for line in self.lines.split(b"\r\n")[:-1] if not line.lower().startswith(_LIMITS)]
            return b"".join([line + b"\r\n" for line in kept]) + own
        return self.lines + own


def passed_head(head: ResponseHead) -> Passed:
    """What of a head is passed on: from its digest if the engine said the same before."""
    known = head.digest
    if type(known) is not Passed:
        stream = is_stream(head)
        lines = encode_headers(answer_headers(head.headers, [], sse=stream))
        request_id = get_header(head.headers, b"x-request-id")
        known = head.digest = Passed(stream, lines, request_id, lines.find(_LIMITS) >= 0)
    return known


def is_stream(head: ResponseHead) -> bool:
    """True if the answer is a stream of events, whatever the client asked for."""
    if not 200 <= head.status < 300:
        return False
    kind = get_header(head.headers, b"content-type")
    return kind is not None and kind[:17].lower() == b"text/event-stream"


def is_refusal(status: int) -> bool:
    """True if this status says that another endpoint, or a later try, may do better.

    Other 4xx judge the request itself and are the answer to it.
    """
    return status >= 500 or status in _OTHER_ENDPOINT_MAY_HELP


def answer_from_event(data: bytes) -> Answer:
    """The error that a stream began with, as the plain answer it should have been."""
    headers: Headers = [(b"content-type", b"application/json")]
    try:
        event = decode_error(data)
    except UNREADABLE:
        return Answer(502, headers, data)
    code = event.error.code if isinstance(event.error, NestedError) else event.code
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return Answer(status, headers, data)


def gave_up(body: bytes) -> bool:
    """True if a whole answer says that the engine did not finish it: vLLM and SGLang say so when they are shut down.

    Text cannot look like it: its quotation marks are escaped.
    """
    at = body.find(b'"abort"')
    return at > 0 and body[max(0, at - 32) : at].rstrip(b": \t\n").endswith(b'"finish_reason"')


def usage_of_object(data: bytes) -> Usage | None:
    """Token counts from the JSON text of a `usage` object; None where there are none to be believed."""
    try:
        return _usage(decode_usage(data))
    except UNREADABLE:
        return None


def usage_of_body(data: bytes) -> Usage | None:
    """Token counts from a whole non-streamed answer.

    They stand behind the text in what engines write. Text cannot look like them: its quotation marks are escaped. What
    begins there closes one object and no more only if they belong to the answer itself, not to a part of it.
    """
    start = data.rfind(b'"usage":')
    if start > 0:
        try:
            return _usage(decode_whole(b"{" + data[start:]).usage)
        except UNREADABLE:
            pass  # something deeper has that name
    try:
        return _usage(decode_whole(data).usage)
    except UNREADABLE:
        return None


def _usage(read: UsageFields | None) -> Usage | None:
    if read is None or read.prompt_tokens is None:
        return None
    output_tokens = read.completion_tokens or 0
    if not (0 <= read.prompt_tokens <= LARGEST_COUNT and 0 <= output_tokens <= LARGEST_COUNT):
        return None
    details = read.prompt_tokens_details
    cached_tokens = details.cached_tokens if details is not None else None
    if cached_tokens is not None:
        cached_tokens = min(max(cached_tokens, 0), read.prompt_tokens)
    return Usage(read.prompt_tokens, output_tokens, cached_tokens)
