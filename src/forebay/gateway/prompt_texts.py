"""The texts of a body, for whoever counts them exactly: the same parts as the readers count by their bytes.

For: `counting`, which calls this in a thread of its own, so that a body is decoded once more only where a tokenizer is
configured. What has no text that a tokenizer could count (token ids, files, an engine's own forms) has none here.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from forebay.gateway.api_fields import decode_embeddings, decode_messages, decode_responses, decode_scores
from forebay.gateway.asks import is_crowded
from forebay.gateway.body_fields import (
    ABSENT,
    decode_chat,
    decode_completion,
    decode_texts,
    reasoning_of,
)
from forebay.gateway.content import Content

__all__ = [
    "Texts",
    "texts_of_chat",
    "texts_of_completion",
    "texts_of_embeddings",
    "texts_of_messages",
    "texts_of_responses",
    "texts_of_scores",
]


@dataclass(slots=True)
class Texts:
    """What is to be counted."""

    texts: list[str]
    turns: int = 0
    """Messages, around each of which a template puts something."""
    plain: bool = True
    """There is nothing in it that templates lay out anew: no tools."""


def texts_of_chat(body: bytes) -> Texts | None:
    """A chat; None if it is not to be taken apart."""
    if is_crowded(body):
        return None
    chat = decode_chat(body)
    content = Content(keeps=True)
    for message in chat.messages or []:
        if isinstance(message.content, str):
            content.text(message.content)
        elif message.content is not None:
            for part in message.content:
                text = part if isinstance(part, str) else part.text or part.refusal
                if text is not None:
                    content.text(text)
        content.json(message.tool_calls)
        content.json(reasoning_of(message))
    for given in (chat.tools, chat.functions, chat.documents, chat.chat_template_kwargs):
        content.json(given)
    return Texts(content.texts, len(chat.messages or []), content.plain)


def texts_of_completion(body: bytes) -> Texts | None:
    """A completion's prompts."""
    return _texts_in(decode_completion(body).prompt)


def texts_of_messages(body: bytes) -> Texts | None:
    """A body of the Messages API."""
    if is_crowded(body):
        return None
    fields = decode_messages(body)
    content = Content(keeps=True)
    content.value(fields.system, "system")
    content.value(fields.messages, "messages")
    content.json(fields.tools)
    return Texts(content.texts, content.blocks + (fields.system is not ABSENT), content.plain)


def texts_of_responses(body: bytes) -> Texts | None:
    """A body of the Responses API."""
    if is_crowded(body):
        return None
    fields = decode_responses(body)
    content = Content(keeps=True)
    content.value(fields.instructions, "instructions")
    content.value(fields.input, "input")
    content.json(fields.tools)
    return Texts(content.texts, max(content.blocks, 1) + (fields.instructions is not ABSENT), content.plain)


def texts_of_embeddings(body: bytes) -> Texts | None:
    """Inputs to embed."""
    return _texts_in(decode_embeddings(body).input)


def texts_of_scores(body: bytes) -> Texts | None:
    """Pairs: a query is there once for each document."""
    fields = decode_scores(body)
    left = _texts_in(fields.query if fields.query is not ABSENT else fields.text_1)
    right = _texts_in(fields.documents if fields.documents is not ABSENT else fields.text_2)
    if left is None or right is None:
        return None
    times = len(right.texts) if len(left.texts) == 1 else 1
    return Texts([*(left.texts * times), *right.texts], len(right.texts))


def _texts_in(raw: msgspec.Raw) -> Texts | None:
    """A text or a list of texts."""
    if raw is ABSENT or is_crowded(bytes(raw)):
        return None
    texts = decode_texts(raw)
    return Texts([texts] if isinstance(texts, str) else texts)
