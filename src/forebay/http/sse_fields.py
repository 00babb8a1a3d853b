"""The fields of server-sent events that are ever looked at, and their decoders.

For: the scanner in `http.sse`, which asks here what is in an event once it has found one of the keys. Owns the shapes,
nothing else. Apart from the scanner because msgspec reads these classes by their annotations, which a native class
does not have: this module stays interpreted in the compiled build. It must never decode what the scanner does not use.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["UNREADABLE", "decode_event", "decode_usage"]


class Event(msgspec.Struct):
    """The parts of an event that are ever looked at.

    `message` and `response` are where Anthropic's `message_start` and OpenAI's `response.completed` carry their
    usage.
    """

    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    object: msgspec.Raw = msgspec.Raw()
    message: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    type: msgspec.Raw = msgspec.Raw()


class Usage(msgspec.Struct):
    """The counts by which two usages of one stream are compared."""

    completion_tokens: int | float | None = None
    output_tokens: int | float | None = None
    total_tokens: int | float | None = None


decode_event: Final = msgspec.json.Decoder(Event).decode
decode_usage: Final = msgspec.json.Decoder(Usage).decode
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoders raise for what is not as they expect."""
