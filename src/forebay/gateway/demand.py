"""Reads the bodies of chats and completions: the readers of the paths that nearly all requests come on.

For: `apis`, which has the readers of all APIs. How a body is decoded and what of it counts is in `asks`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.gateway.asks import (
    ATTACHMENT_TOKENS,
    Ask,
    bounded,
    count_prompt,
    decoded,
    is_crowded,
    output_limit,
    samples_of,
    size_of,
    utf8_length,
)
from forebay.gateway.body_fields import (
    ABSENT,
    UNREADABLE,
    Chat,
    CrowdedChat,
    Message,
    Part,
    decode_chat,
    decode_completion,
    decode_crowded_chat,
    decode_detail,
    reasoning_of,
)
from forebay.gateway.prefix import PREFIX_CHARACTERS, prefix_of_messages

__all__ = ["image_tokens", "read_chat", "read_completion", "unstated_limit"]

LOW_DETAIL_TOKENS: Final = 85
"""An image that is declared `"detail": "low"`, as OpenAI counts it."""

_UNSTATED_COMPLETION_LIMIT: Final = {"vllm": 16, "sglang": 16}
"""What /v1/completions generates at most when the client says nothing. Other engines run until they end."""


def read_chat(body: bytes) -> Ask:
    """The body of /v1/chat/completions.

    Raises:
        BadRequest: The body is not a JSON object, or a field that is read has a wrong type or value.
    """
    chat = decoded(decode_crowded_chat, body) if is_crowded(body) else decoded(decode_chat, body)
    limit = output_limit(chat.max_tokens, "max_tokens")
    other = output_limit(chat.max_completion_tokens, "max_completion_tokens")
    cut = None
    if other is not None and limit is None:
        limit = other
    elif other is not None and limit is not None and other != limit:
        # With both set, engines differ on which counts: the larger is reserved, and an answer that reaches the smaller
        # one says nothing of its length.
        limit, cut = max(limit, other), min(limit, other)
    ask = Ask(
        bounded(chat.model),
        chat.stream is True,
        _given_beside(chat),
        None,
        0,
        limit,
        1 if chat.n is None else samples_of(chat.n, "n"),
        cut_output_tokens=cut,
    )
    messages = chat.messages
    if isinstance(messages, list):
        _count_messages(messages, ask)
        if ask.prompt_bytes >= PREFIX_CHARACTERS:
            ask.prefix_hash = prefix_of_messages(messages, bytes(chat.tools), chat.model)
    elif messages is not None:
        ask.prompt_bytes += memoryview(messages).nbytes
    return ask


def read_completion(body: bytes) -> Ask:
    """The body of /v1/completions. A list of prompts is one request with as many samples.

    Raises:
        BadRequest: As for `read_chat`.
    """
    completion = decoded(decode_completion, body)
    ask = Ask(
        bounded(completion.model),
        completion.stream is True,
        0,
        max_output_tokens=output_limit(completion.max_tokens, "max_tokens"),
        samples=1 if completion.n is None else samples_of(completion.n, "n"),
    )
    if completion.best_of is not None:
        best_of = samples_of(completion.best_of, "best_of")
        if best_of > ask.samples:
            # Engines that do not know it give fewer answers: what is divided by it is no length.
            ask.samples, ask.cut_output_tokens = best_of, 1
    count_prompt(bytes(completion.prompt), ask)
    return ask


def unstated_limit(engine: str) -> int | None:
    """The output limit that this engine applies to /v1/completions when the client states none."""
    return _UNSTATED_COMPLETION_LIMIT.get(engine)


def _given_beside(chat: Chat | CrowdedChat) -> int:
    """Bytes of what templates put into the prompt beside the messages: tools, documents, values for the template."""
    size = 0
    for given in (chat.tools, chat.functions, chat.documents, chat.chat_template_kwargs):
        if given is not ABSENT:
            size += size_of(given)
    return size


def _count_messages(messages: list[Message], ask: Ask) -> None:
    text_bytes = 0
    for message in messages:
        content = message.content
        if isinstance(content, str):
            text_bytes += len(content) if content.isascii() else len(content.encode())
        elif content is not None:
            text_bytes += _count_parts(content, ask)
        if message.tool_calls is not ABSENT:
            # Templates put calls into the prompt as JSON, so here its syntax counts.
            text_bytes += memoryview(message.tool_calls).nbytes
        reasoning = reasoning_of(message)
        if reasoning is not ABSENT:
            text_bytes += size_of(reasoning)
    ask.prompt_bytes += text_bytes


def _count_parts(parts: list[Part | str], ask: Ask) -> int:
    text_bytes = 0
    for part in parts:
        if isinstance(part, str):
            text_bytes += utf8_length(part)
        elif part.text is not None:
            text_bytes += utf8_length(part.text)
        elif part.refusal is not None:
            text_bytes += utf8_length(part.refusal)
        elif part.type not in (None, "text"):
            image = part.image_url
            ask.extra_prompt_tokens += ATTACHMENT_TOKENS if image is ABSENT else image_tokens(image)
    return text_bytes


def image_tokens(image: msgspec.Raw) -> int:
    """What an image is taken to be: by its declared detail, where that is low."""
    if bytes(memoryview(image)[:1]) != b"{":
        return ATTACHMENT_TOKENS
    try:
        detail = decode_detail(image).detail
    except UNREADABLE:
        return ATTACHMENT_TOKENS  # the engine's to judge
    return LOW_DETAIL_TOKENS if detail == "low" else ATTACHMENT_TOKENS
