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
    NativeAnswer,
    NestedError,
    UsageFields,
    decode_error,
    decode_native,
    decode_usage,
    decode_whole,
)
from forebay.gateway.headers import LIMITS, answer_headers
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
    "usage_of_ends",
    "usage_of_native",
    "usage_of_object",
]

_OTHER_ENDPOINT_MAY_HELP: Final = frozenset({408, 425, 429})

_STATUS_OF_TYPE: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
    "validation": 422,
    "overloaded": 429,
}
"""Where an error inside a `200` has no number: Anthropic's types, and two of TGI's."""

_OUR_LIMITS: Final = b"x-ratelimit-"

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
    """What is left of an account at the engine is told among the lines."""

    def joined(self, own: bytes, *, our_account: bool = False) -> bytes:
        """All header lines of an answer. Where ours tell what is left of a tenant's limits, the engine's do not.

        Args:
            our_account: the engine was asked with the operator's key, so what is left there is not for clients.
        """
        if self.tells_limits and (our_account or own.find(_OUR_LIMITS) >= 0):
            kept = [line for line in self.lines.split(b"\r\n")[:-1] if not line.startswith(LIMITS)]
            return b"".join([line + b"\r\n" for line in kept]) + own
        return self.lines + own


def passed_head(head: ResponseHead) -> Passed:
    """What of a head is passed on: from its digest if the engine said the same before."""
    known = head.digest
    if type(known) is not Passed:
        stream = is_stream(head)
        lines = encode_headers(answer_headers(head.headers, [], sse=stream))
        request_id = get_header(head.headers, b"x-request-id")
        known = head.digest = Passed(stream, lines, request_id, any(lines.find(name) >= 0 for name in LIMITS))
    return known


def is_stream(head: ResponseHead) -> bool:
    """True if the answer is a stream of events, whatever the client asked for."""
    if not 200 <= head.status < 300:
        return False
    kind = get_header(head.headers, b"content-type")
    return kind is not None and kind[:17].lower() == b"text/event-stream"


def is_refusal(status: int) -> bool:
    """True if this status says that another endpoint, or a later try, may do better.

    Other 4xx judge the request itself and are the answer to it; and so does 501, which llama.cpp gives to what its
    model cannot do.
    """
    return (status >= 500 and status != 501) or status in _OTHER_ENDPOINT_MAY_HELP


def answer_from_event(data: bytes) -> Answer:
    """The error that a stream began with, as the plain answer it should have been."""
    headers: Headers = [(b"content-type", b"application/json")]
    try:
        event = decode_error(data)
    except UNREADABLE:
        return Answer(502, headers, data)
    nested = event.error if isinstance(event.error, NestedError) else None
    code = event.code if nested is None else nested.code
    if isinstance(code, int) and 400 <= code < 600:
        return Answer(code, headers, data)
    kind = event.error_type if nested is None else nested.type
    return Answer(502 if kind is None else _STATUS_OF_TYPE.get(kind, 502), headers, data)


def gave_up(body: bytes) -> bool:
    """True if a whole answer says that the engine did not finish it: vLLM and SGLang say so when they are shut down.

    Text cannot look like it: its quotation marks are escaped.
    """
    at = body.find(b'"abort"')
    return at > 0 and body[max(0, at - 32) : at].rstrip(b": \t\n").endswith(b'"finish_reason"')


def usage_of_object(data: bytes, first: bytes | None = None) -> Usage | None:
    """Token counts from the JSON text of a `usage` object; None where there are none to be believed.

    Args:
        first: the first such object of the stream, which has the prompt's count where the last one has not.
    """
    try:
        read = decode_usage(data)
        if read.input_tokens is None and read.prompt_tokens is None and first is not None:
            opening = decode_usage(first)
            opening.output_tokens = read.output_tokens
            read = opening
        return _usage(read)
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


def usage_of_native(data: bytes, headers: Headers) -> Usage | None:
    """Token counts from a whole answer of an engine's own route; TGI has them in the head."""
    prompt, generated = get_header(headers, b"x-prompt-tokens"), get_header(headers, b"x-generated-tokens")
    if prompt is not None and generated is not None and prompt.isdigit() and generated.isdigit():
        return _counts(int(prompt[:12]), int(generated[:12]), None)
    return usage_of_ends([data])


def usage_of_ends(ends: list[bytes]) -> Usage | None:
    """Token counts from the last events of the answers in one stream of an engine's own route."""
    prompt_tokens = output_tokens = cached_tokens = 0
    told = says_cached = False
    for data in ends:
        try:
            read = decode_native(data)
        except UNREADABLE:
            return None
        for answer in read if isinstance(read, list) else [read]:
            counts = _native_counts(answer)
            if counts is not None:
                told = True
                prompt_tokens += counts[0]
                output_tokens += counts[1]
                says_cached = says_cached or counts[2] is not None
                cached_tokens += counts[2] or 0
    return _counts(prompt_tokens, output_tokens, cached_tokens if says_cached else None) if told else None


def _native_counts(answer: NativeAnswer) -> tuple[int, int, int | None] | None:
    if answer.tokens_evaluated is not None:  # llama.cpp
        cached = None if answer.timings is None else answer.timings.cache_n
        return answer.tokens_evaluated, answer.tokens_predicted or 0, cached
    meta = answer.meta_info
    if meta is not None and meta.prompt_tokens is not None:  # SGLang
        return meta.prompt_tokens, meta.completion_tokens or 0, meta.cached_tokens
    details = answer.details
    if details is not None and details.input_length is not None:  # TGI
        return details.input_length, details.generated_tokens or 0, None
    return None


def _usage(read: UsageFields | None) -> Usage | None:
    if read is None:
        return None
    if read.prompt_tokens is None:
        return _other_usage(read)
    details = read.prompt_tokens_details
    return _counts(
        read.prompt_tokens, read.completion_tokens or 0, None if details is None else details.cached_tokens
    )


def _other_usage(read: UsageFields) -> Usage | None:
    """Of the Responses API, the Messages API, and rerankings."""
    prompt_tokens = read.input_tokens
    if prompt_tokens is None:
        return None if read.total_tokens is None else _counts(read.total_tokens, 0, None)
    details, cached_tokens = read.input_tokens_details, read.cache_read_input_tokens
    if cached_tokens is None:
        cached_tokens = None if details is None else details.cached_tokens
    else:
        prompt_tokens += cached_tokens  # Anthropic's counts leave out what was cached
    return _counts(
        prompt_tokens + (read.cache_creation_input_tokens or 0), read.output_tokens or 0, cached_tokens
    )


def _counts(prompt_tokens: int, output_tokens: int, cached_tokens: int | None) -> Usage | None:
    if not (0 <= prompt_tokens <= LARGEST_COUNT and 0 <= output_tokens <= LARGEST_COUNT):
        return None
    if cached_tokens is not None:
        cached_tokens = min(max(cached_tokens, 0), prompt_tokens)
    return Usage(prompt_tokens, output_tokens, cached_tokens)
