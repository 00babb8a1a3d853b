"""Reads the bodies of the Messages API (Anthropic's) and of the Responses API (OpenAI's)."""

from __future__ import annotations

from typing import Final

from forebay.gateway.api_fields import decode_messages, decode_responses
from forebay.gateway.asks import Ask, BadRequest, bounded, decoded, output_limit
from forebay.gateway.content import Content

__all__ = ["read_messages", "read_responses"]

_BACKGROUND: Final = (
    "'background' is not served here: what an engine goes on with after its answer cannot be admitted. Stream the "
    "response instead."
)


def read_messages(body: bytes) -> Ask:
    """The body of /v1/messages.

    Raises:
        BadRequest: The body is not a JSON object, or a field that is read has a wrong type or value.
    """
    fields = decoded(decode_messages, body)
    ask = Ask(
        bounded(fields.model),
        fields.stream is True,
        0,
        max_output_tokens=output_limit(fields.max_tokens, "max_tokens"),
    )
    content = Content()
    content.value(fields.system, "system")
    content.value(fields.messages, "messages")
    content.json(fields.tools)
    content.give(ask)
    return ask


def read_responses(body: bytes) -> Ask:
    """The body of /v1/responses. What an earlier response adds to the prompt is not known here, and comes with `usage`.

    Raises:
        BadRequest: As for `read_messages`; or the answer is not to be waited for.
    """
    fields = decoded(decode_responses, body)
    if fields.background:
        raise BadRequest(_BACKGROUND, "background")
    ask = Ask(
        bounded(fields.model),
        fields.stream is True,
        0,
        max_output_tokens=output_limit(fields.max_output_tokens, "max_output_tokens"),
    )
    content = Content()
    content.value(fields.instructions, "instructions")
    content.value(fields.input, "input")
    content.json(fields.tools)
    content.give(ask)
    return ask
