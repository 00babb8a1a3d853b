"""What a prompt begins with, as one number: requests with the same number may share a part of the engine's cache.

For: `gateway.demand`. An engine that keeps prefixes works out the same system prompt, document or conversation once.
The core learns for each number how much of such prompts was cached (`admission.prefixes`), so all that is needed here
is to tell beginnings apart: a checksum over the first `PREFIX_CHARACTERS` of a prompt's text, with the model and the
tools, which engines cache apart or put before the messages. A shorter prompt has no number: it would tell nothing but
the prompt itself, and what is cached of it hardly matters. No security rests on it: two beginnings with one number
only spoil an estimate.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from forebay.gateway.body_fields import Message

__all__ = ["PREFIX_CHARACTERS", "prefix_of_messages", "prefix_of_text"]

PREFIX_CHARACTERS: Final = 512
"""About 128 tokens: eight blocks of vLLM's cache."""
_TOOLS_BYTES: Final = 4096
"""Of the tools so much tells them apart."""


def prefix_of_text(text: str, model: str | None, start: int = 0) -> int | None:
    """The number of a prompt that is one text; None if it is short.

    Args:
        start: checksum of what the engine puts before it.
    """
    if len(text) < PREFIX_CHARACTERS:
        return None
    # Lone surrogates cannot be encoded, and need not be told apart.
    beginning = text[:PREFIX_CHARACTERS].encode("utf-8", "replace")
    return crc32(beginning, start if model is None else crc32(model.encode("utf-8", "replace"), start))


def prefix_of_messages(messages: list[Message], tools: bytes, model: str | None) -> int | None:
    """The number of a chat; None if its texts are short. What comes after an attachment does not count."""
    beginning = ""
    for message in messages:
        content = message.content
        if isinstance(content, str):
            beginning = beginning + content[:PREFIX_CHARACTERS] if beginning else content
        elif content is not None:
            for part in content:
                text = part if isinstance(part, str) else part.text
                if text is None:
                    return None
                beginning += text[:PREFIX_CHARACTERS]
        if len(beginning) >= PREFIX_CHARACTERS:
            return prefix_of_text(beginning, model, crc32(tools[:_TOOLS_BYTES]) if tools else 0)
    return None
