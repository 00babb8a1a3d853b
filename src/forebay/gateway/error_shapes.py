"""Errors in the shape of the API that was called: OpenAI's, that of OpenAI's Responses API in a stream, Anthropic's.

For: whoever answers a client. Errors are made in OpenAI's shape (`refusals`), and turned here into what another API's
clients expect. The code stays in all of them. An engine's own error is never turned into anything.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from forebay.gateway.refusals import Answer
from forebay.http.exchange import Exchange

__all__ = ["ErrorShape", "event_of", "in_shape", "tell"]


class ErrorShape(Enum):
    """Whose clients are to understand it."""

    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's shape, and events of a stream have a name."""
    ANTHROPIC = "anthropic"


_OPENAI: Final = ErrorShape.OPENAI
_RESPONSES: Final = ErrorShape.RESPONSES
_ANTHROPIC: Final = ErrorShape.ANTHROPIC

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, dict[str, str | None]]).decode


def in_shape(answer: Answer, shape: ErrorShape) -> Answer:
    """An error of ours as the clients of this API expect it."""
    if shape is not _ANTHROPIC or not answer.code:
        return answer
    return Answer(answer.status, answer.headers, _anthropic_body(answer.status, answer.body), answer.code)


def tell(exchange: Exchange, answer: Answer, shape: ErrorShape) -> None:
    """Answers with an error: of ours, in this shape, or of the engine, as it is."""
    if exchange.started and shape is not _OPENAI:
        # Comments have gone out while it waited: it can only be told as an event, and these clients look at its name.
        told = in_shape(answer, shape).body if shape is _ANTHROPIC or not answer.code else b""
        exchange.write(_named(told) if told else event_of(shape, answer.status, answer.body))
        exchange.abort()
        return
    exchange.respond(answer.status, answer.headers, in_shape(answer, shape).body)


def event_of(shape: ErrorShape, status: int, body: bytes) -> bytes:
    """An SSE event that tells an error inside a stream.

    Args:
        body: in OpenAI's shape.
    """
    if shape is _ANTHROPIC:
        return _named(_anthropic_body(status, body))
    if shape is _RESPONSES:
        # The object is for SDKs, which raise it wherever they find one; the rest is the event's own form.
        error = _decode(body)["error"]
        told = {"type": "error", "sequence_number": 0, "param": error["param"], "error": error}
        return _named(_encode({**told, "code": error["code"], "message": error["message"]}))
    return b"data: %b\n\n" % body


def _named(body: bytes) -> bytes:
    return b"event: error\ndata: %b\n\n" % body.replace(b"\r", b"").strip().replace(b"\n", b"\ndata: ")


def _anthropic_body(status: int, body: bytes) -> bytes:
    error = _decode(body)["error"]
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    own = {"type": kind, "message": error["message"], "param": error["param"], "code": error["code"]}
    return _encode({"type": "error", "error": own})
