"""What a body asks for, and how readers of all APIs decode a body and count what is in it.

For: the readers (`demand`, `content`, `responses_body`, `pooling_bodies`, `native_bodies`, `media_bodies`), one or a
few for each API. Only the fields that they name are decoded; the rest is checked for JSON syntax and skipped, and
belongs to the engine to judge. A wrong type in a field that is read is our 400, naming the field. The body itself is
never changed: what reaches the engine is what the client sent. What is decoded is bounded: a body may hold millions of
tiny parts, and as objects they would take ten times its size and stop the event loop for a second.

Where engines differ on duplicate keys they all take the last one, and so does the decoder used here. Nothing of the
input is ever put into an error message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from forebay.gateway.body_fields import Number, decode_texts
from forebay.gateway.prefix import prefix_of_text

__all__ = [
    "ATTACHMENT_TOKENS",
    "Ask",
    "BadRequest",
    "bounded",
    "count_prompt",
    "decoded",
    "decoded_field",
    "is_crowded",
    "output_limit",
    "samples_of",
    "size_of",
    "utf8_length",
]

ATTACHMENT_TOKENS: Final = 1_000
"""Prompt tokens assumed for an image, a sound or a file: what a picture costs in the common vision models. Only an
estimate of cost; the true count comes with the answer."""

MAX_OUTPUT_TOKENS: Final = 2**31 - 1
"""No engine takes a larger limit; above it the value is a mistake."""

MAX_SAMPLES: Final = 128
"""Most answers to one prompt (`n`, `best_of`), as with OpenAI: one request must not be able to book a whole pool."""

MAX_LIST_SAMPLES: Final = 8192
"""The same for a list of prompts, over all of them. Batch clients send one or two thousand prompts at a time."""

MODEL_NAME_CHARS: Final = 512
"""Longest model name. It is kept in records and logs long after the body is gone, so it must not be of any size."""

LARGE_BODY_BYTES: Final = 1024 * 1024
"""A body up to this size cannot hold enough parts to matter; in a larger one they are reckoned before being decoded."""

DECODED_PARTS: Final = 500_000
"""Most parts (messages, content parts, prompts) that a large body may have for them to be decoded one by one."""


class BadRequest(Exception):
    """The client's bytes are wrong; answered with 400 `invalid_request`."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(slots=True)
class Ask:
    """What one body asks for."""

    model: str | None
    stream: bool
    prompt_bytes: int
    prompt_tokens: int | None = None
    """Exact count, for prompts given as token ids."""
    extra_prompt_tokens: int = 0
    max_output_tokens: int | None = None
    samples: int = 1
    prompts: int = 1
    """Separate prompts (`prompt` may be a list); sizes are those of all together."""
    prefix_hash: int | None = None
    """What the prompt begins with (`gateway.prefix`); None if it is short."""
    cut_output_tokens: int | None = None
    """Where an answer may have been cut off before its limit (`Demand.cut_output_tokens`)."""
    generates: bool = True
    """False for embeddings and scores: there is a prompt and no output."""
    flat: str = ""
    """`audio` or `image`: it costs what the pool's configuration says of its kind, for each of `samples`."""


_Body = TypeVar("_Body")

_TYPE_WORDS: Final = {
    "str": "a string",
    "int": "a whole number",
    "int | float": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def decoded(decode: Callable[[bytes], _Body], body: bytes) -> _Body:
    """The fields of a body. Raises: BadRequest."""
    try:
        read = decode(body)
        # Skipped strings are not checked by the decoder, and an engine's parser would fail on them.
        if not body.isascii():
            body.decode()
        return read
    except msgspec.ValidationError as invalid:
        raise _wrong_type(invalid) from None
    except msgspec.DecodeError as malformed:
        raise BadRequest(_syntax_message(body, malformed)) from None
    except UnicodeDecodeError as undecodable:
        raise BadRequest(f"The request body is not valid UTF-8 (byte {undecodable.start}).") from None
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None


def decoded_field(decode: Callable[[bytes], _Body], raw: msgspec.Raw, field: str) -> _Body:
    """The fields of a part of a body that has been read as a whole. Raises: BadRequest."""
    try:
        return decode(bytes(raw))
    except msgspec.ValidationError as invalid:
        raise _wrong_type(invalid, field) from None
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(f"'{field}' is nested too deeply.", field) from None


def size_of(raw: msgspec.Raw) -> int:
    """Bytes of a field that is not looked into; 0 if it is not there, or null."""
    size = memoryview(raw).nbytes
    return 0 if size == 4 and bytes(raw) == b"null" else size


def _syntax_message(body: bytes, error: msgspec.DecodeError) -> str:
    if not body:
        return "The request body is empty; a JSON object is expected."
    if body.startswith(b"\xef\xbb\xbf"):
        return "The request body starts with a byte order mark; send plain UTF-8."
    said = str(error)
    if said.startswith("JSON is malformed: "):
        return f"The request body is not valid JSON: {said.removeprefix('JSON is malformed: ')}."
    if "UTF-8" in said:
        return "The request body is not valid UTF-8."
    # A cut-off body and an unpaired surrogate escape are reported alike.
    return "The request body is not valid JSON: it ends too early, or has an incomplete \\u escape."


def _wrong_type(error: msgspec.ValidationError, field: str = "") -> BadRequest:
    said, _, path = str(error).partition(" - at `$")
    param = (field + path.rstrip("`")).lstrip(".") or None
    place = f"'{param}'" if param else "The request body"
    expected, _, got = said.partition(", got ")
    if expected.startswith("Expected `") and got:
        wanted = expected.removeprefix("Expected `").rstrip("`").removesuffix(" | null")
        found = got.strip("`")
        return BadRequest(f"{place} must be {_in_words(wanted)}, not {_in_words(found)}.", param)
    return BadRequest(f"{place} is out of range.", param)


def _in_words(kind: str) -> str:
    if kind in _TYPE_WORDS:
        return _TYPE_WORDS[kind]
    return " or ".join(_TYPE_WORDS.get(part, part) for part in kind.split(" | "))


def is_crowded(data: bytes) -> bool:
    """True if this may have more parts than are decoded. Each part has a brace of its own or two quotation marks."""
    if len(data) <= LARGE_BODY_BYTES:
        return False
    return data.count(b"{") + data.count(b'"') // 2 > DECODED_PARTS


def bounded(model: str | None) -> str | None:
    """The name of a model. Raises: BadRequest if it is too long."""
    if model is not None and len(model) > MODEL_NAME_CHARS:
        raise BadRequest(f"'model' is longer than {MODEL_NAME_CHARS} characters.", "model")
    return model


def _whole(value: Number, field: str) -> int:
    if isinstance(value, float):
        if not value.is_integer():
            raise BadRequest(f"'{field}' must be a whole number.", field)
        return int(value)
    return value


def output_limit(value: Number | None, field: str) -> int | None:
    """The most output tokens of an answer. Raises: BadRequest."""
    if value is None:
        return None
    limit = value if isinstance(value, int) else _whole(value, field)
    if not 1 <= limit <= MAX_OUTPUT_TOKENS:
        raise BadRequest(
            f"'{field}' must be between 1 and {MAX_OUTPUT_TOKENS}; leave it out for no limit.", field
        )
    return limit


def samples_of(value: Number, field: str) -> int:
    """How many answers to one prompt. Raises: BadRequest."""
    samples = _whole(value, field)
    if not 1 <= samples <= MAX_SAMPLES:
        raise BadRequest(f"'{field}' must be between 1 and {MAX_SAMPLES}.", field)
    return samples


def utf8_length(text: str) -> int:
    """Bytes of a text."""
    return len(text) if text.isascii() else len(text.encode())


_ID_LIST_CHARACTERS: Final = b"0123456789,[] \t\r\n"


def count_prompt(raw: bytes, ask: Ask, field: str = "prompt") -> None:
    """A field that is a string, a list of strings, a list of token ids, or a list of such lists. Raises: BadRequest."""
    if not raw or raw == b"null":
        return
    if raw[:1] == b"[" and not raw.translate(None, _ID_LIST_CHARACTERS):
        _count_ids(raw, ask, field)
    else:
        _count_texts(raw, ask, field)
    if ask.samples > MAX_LIST_SAMPLES:
        raise BadRequest(
            f"'{field}' and 'n' ask for {ask.samples} answers, and {MAX_LIST_SAMPLES} is the most in one request; "
            "send fewer prompts in one.",
            field,
        )


def _count_texts(raw: bytes, ask: Ask, field: str) -> None:
    if raw[:1] == b"[" and is_crowded(raw):
        raise BadRequest(
            f"'{field}' may have more than {DECODED_PARTS} texts; send fewer in one request.", field
        )
    try:
        texts = decode_texts(raw)
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(
            f"'{field}' must be a string, a list of strings, a list of token ids, or a list of such lists.",
            field,
        ) from None
    if isinstance(texts, str):
        ask.prompt_bytes = utf8_length(texts)
        ask.prefix_hash = prefix_of_text(texts, ask.model)
        return
    ask.prompt_bytes = sum([utf8_length(text) for text in texts])
    ask.prompts = max(len(texts), 1)
    ask.samples *= ask.prompts


def _count_ids(raw: bytes, ask: Ask, field: str) -> None:
    """Counts the ids of lists that hold digits and commas only, without making an object of each.

    The syntax is already known to be right, so every comma stands between two ids or between two lists.
    """
    compact = raw.translate(None, b" \t\r\n")
    empty = compact.count(b"[]")
    if compact.startswith(b"[["):
        if b"[[[" in compact:
            raise BadRequest(f"'{field}' is nested deeper than a list of lists of token ids.", field)
        ask.prompt_tokens = compact.count(b",") + 1 - empty
        ask.prompts = compact.count(b"[") - 1
        ask.samples *= ask.prompts
    elif compact.count(b"[") > 1:
        raise BadRequest(f"'{field}' mixes token ids and lists.", field)
    else:
        ask.prompt_tokens = compact.count(b",") + 1 - empty
