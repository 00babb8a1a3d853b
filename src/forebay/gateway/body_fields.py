"""The fields of a request body that admission needs, and their decoders.

For: `gateway.demand`, which makes sense of them. Owns the shapes, nothing else. Apart from it because msgspec reads
these classes by their annotations, which a native class does not have: this module stays interpreted in the compiled
build. It must never check a value: what is wrong with one is said in `gateway.demand`.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "ABSENT",
    "UNREADABLE",
    "Chat",
    "Completion",
    "CrowdedChat",
    "Message",
    "Number",
    "Part",
    "decode_chat",
    "decode_completion",
    "decode_crowded_chat",
    "decode_detail",
    "decode_texts",
    "reasoning_of",
]

Number = int | float
"""A JSON number: which of the two it was written as matters for what is said about it."""

ABSENT: Final = msgspec.Raw()
"""What a field of raw JSON is if it was not there."""


class Part(msgspec.Struct, gc=False):
    """One part of a message's content."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: msgspec.Raw = ABSENT


class Detail(msgspec.Struct, gc=False):
    """How closely an image is to be looked at."""

    detail: str | None = None


class Message(msgspec.Struct, gc=False):
    """One message of a chat."""

    content: str | list[Part | str] | None = None
    tool_calls: msgspec.Raw = ABSENT
    reasoning: msgspec.Raw = ABSENT
    reasoning_content: msgspec.Raw = ABSENT


class Chat(msgspec.Struct, gc=False):
    """The body of /v1/chat/completions."""

    model: str | None = None
    messages: list[Message] | None = None
    tools: msgspec.Raw = ABSENT
    functions: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    stream: bool | None = None
    max_tokens: Number | None = None
    max_completion_tokens: Number | None = None
    n: Number | None = None


class CrowdedChat(msgspec.Struct, gc=False):
    """The same fields, for a body of too many parts: the messages are passed over."""

    model: str | None = None
    messages: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    functions: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    stream: bool | None = None
    max_tokens: Number | None = None
    max_completion_tokens: Number | None = None
    n: Number | None = None


class Completion(msgspec.Struct, gc=False):
    """The body of /v1/completions."""

    model: str | None = None
    prompt: msgspec.Raw = ABSENT
    stream: bool | None = None
    max_tokens: Number | None = None
    n: Number | None = None
    best_of: Number | None = None


def reasoning_of(message: Message) -> msgspec.Raw:
    """What an earlier answer thought, sent back under either of its two names."""
    return message.reasoning if message.reasoning_content is ABSENT else message.reasoning_content


decode_chat: Final = msgspec.json.Decoder(Chat).decode
decode_crowded_chat: Final = msgspec.json.Decoder(CrowdedChat).decode
decode_completion: Final = msgspec.json.Decoder(Completion).decode
decode_detail: Final = msgspec.json.Decoder(Detail).decode
decode_texts: Final = msgspec.json.Decoder(str | list[str]).decode

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoders raise for what is not as they expect."""
