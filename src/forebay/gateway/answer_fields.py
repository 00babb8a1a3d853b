"""The fields of an engine's answer that are ever looked at, and their decoders.

For: `gateway.engine_answers`, which judges what is read here. Owns the shapes, nothing else. Apart from it because
msgspec reads these classes by their annotations, which a native class does not have: this module stays interpreted
in the compiled build. It must never decide anything.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "UNREADABLE",
    "NativeAnswer",
    "NestedError",
    "UsageFields",
    "decode_error",
    "decode_native",
    "decode_usage",
    "decode_whole",
]


class CachedTokens(msgspec.Struct, gc=False):
    """Where OpenAI's shape has the prompt tokens that cost nothing."""

    cached_tokens: int | None = None


class UsageFields(msgspec.Struct, gc=False):
    """A `usage` object."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: CachedTokens | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class WholeAnswer(msgspec.Struct, gc=False):
    """An answer that is not a stream."""

    usage: UsageFields | None = None


class NestedError(msgspec.Struct, gc=False):
    """The error object of those who nest it."""

    code: int | str | None = None
    type: str | None = None


class ErrorEvent(msgspec.Struct, gc=False):
    """A stream's first event that is an error."""

    error: NestedError | str | None = None
    code: int | str | None = None
    error_type: str | None = None


class Timings(msgspec.Struct, gc=False):
    """Of llama.cpp."""

    cache_n: int | None = None


class MetaInfo(msgspec.Struct, gc=False):
    """Of SGLang."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Details(msgspec.Struct, gc=False):
    """Of TGI."""

    generated_tokens: int | None = None
    input_length: int | None = None


class NativeAnswer(msgspec.Struct, gc=False):
    """An answer of an engine's own route, or the last event of one."""

    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    timings: Timings | None = None
    meta_info: MetaInfo | None = None
    details: Details | None = None


decode_usage: Final = msgspec.json.Decoder(UsageFields).decode
decode_whole: Final = msgspec.json.Decoder(WholeAnswer).decode
decode_native: Final = msgspec.json.Decoder(NativeAnswer | list[NativeAnswer]).decode
decode_error: Final = msgspec.json.Decoder(ErrorEvent).decode
UNREADABLE: Final = (msgspec.DecodeError, RecursionError)
"""What the decoders raise for what is not as they expect."""
