"""Counts what messages of many shapes put into a prompt: text, calls of tools and their results, documents, pictures.

For: the readers of the Messages and the Responses API, and of what takes messages besides. Base64 is never counted as
text: a picture, a sound or a file is so many tokens, whatever its size.
"""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.gateway.api_fields import (
    Block,
    decode_blocks,
    decode_one_block,
    decode_source,
    decode_text,
)
from forebay.gateway.asks import (
    ATTACHMENT_TOKENS,
    Ask,
    BadRequest,
    decoded_field,
    is_crowded,
    size_of,
    utf8_length,
)
from forebay.gateway.body_fields import ABSENT
from forebay.gateway.demand import LOW_DETAIL_TOKENS, image_tokens
from forebay.gateway.prefix import PREFIX_CHARACTERS, prefix_of_text

__all__ = ["Content"]

DEPTH: Final = 4
"""Blocks within blocks: a message, a tool's result, its parts. What is deeper is counted by its size, since each level
is read once more."""

_PICTURES: Final = frozenset({"image", "image_url", "input_image"})
_ATTACHMENTS: Final = frozenset(
    {"audio", "audio_url", "input_audio", "file", "input_file", "video", "video_url", "container_upload"}
)


class Content:
    """The count of one body."""

    __slots__ = ("_beginning", "_keeps", "attachment_tokens", "blocks", "plain", "text_bytes", "texts")

    def __init__(self, *, keeps: bool = False) -> None:
        """See the class. `keeps`: the texts are kept, for who wants more than their size."""
        self._keeps = keeps
        self.texts: list[str] = []
        self.blocks = 0
        """Messages or items, at the top level."""
        self.plain = True
        """There was no JSON among it."""
        self.text_bytes = 0
        self.attachment_tokens = 0
        self._beginning: str | None = ""
        """The first of its text; None once an attachment has come before there was enough of it."""

    def give(self, ask: Ask) -> None:
        """Puts the count into what the body asks for."""
        ask.prompt_bytes += self.text_bytes
        ask.extra_prompt_tokens += self.attachment_tokens
        if self._beginning is not None:
            ask.prefix_hash = prefix_of_text(self._beginning, ask.model)

    def value(self, raw: msgspec.Raw, field: str, depth: int = 0) -> None:
        """A text, a list of blocks, or a block; nothing if it is not there. Raises: BadRequest."""
        first = bytes(memoryview(raw)[:1])
        if first == b'"':
            self.text(decoded_field(decode_text, raw, field))
        elif first not in (b"[", b"{", b"", b"n"):
            raise BadRequest(f"'{field}' must be a string or a list.", field)
        elif depth >= DEPTH or (depth == 0 and is_crowded(bytes(raw))):
            self.json(raw)
        elif first == b"[":
            for block in decoded_field(decode_blocks, raw, field):
                if isinstance(block, str):
                    self.text(block)
                else:
                    self.blocks += depth == 0
                    self._block(block, field, depth + 1)
        elif first == b"{":
            self._block(decoded_field(decode_one_block, raw, field), field, depth + 1)

    def json(self, raw: msgspec.Raw) -> None:
        """What templates put into the prompt as it is, so that here its syntax counts."""
        size = size_of(raw)
        if size:
            self.text_bytes += size
            self.plain = False
            if self._keeps:
                self.texts.append(bytes(raw).decode("utf-8", "replace"))

    def text(self, text: str) -> None:
        """A text."""
        self.text_bytes += utf8_length(text)
        if self._keeps:
            self.texts.append(text)
        if self._beginning is not None and len(self._beginning) < PREFIX_CHARACTERS:
            self._beginning += text[:PREFIX_CHARACTERS]

    def _attachment(self, tokens: int) -> None:
        self.attachment_tokens += tokens
        if self._beginning is not None and len(self._beginning) < PREFIX_CHARACTERS:
            self._beginning = None

    def _block(self, block: Block, field: str, depth: int) -> None:
        if block.text is not None:
            self.text(block.text)
        kind = block.type
        if kind is not None:
            if kind in _PICTURES:
                low = block.detail == "low"
                self._attachment(LOW_DETAIL_TOKENS if low else image_tokens(block.image_url))
                return
            if kind in _ATTACHMENTS:
                self._attachment(ATTACHMENT_TOKENS)
                return
            if kind == "document":
                self._document(block.source, field, depth)
        if block.thinking is not None:
            self.text(block.thinking)
        for json in (block.input, block.arguments, block.tool_calls):
            if json is not ABSENT:
                self.json(json)
        for part, name in ((block.content, "content"), (block.output, "output"), (block.summary, "summary")):
            if part is not ABSENT:
                self.value(part, f"{field}.{name}", depth)

    def _document(self, source: msgspec.Raw, field: str, depth: int) -> None:
        """Text counts as such; a file, or one that is to be fetched, as an attachment."""
        if bytes(memoryview(source)[:1]) != b"{":
            self._attachment(ATTACHMENT_TOKENS)
            return
        read = decoded_field(decode_source, source, f"{field}.source")
        if read.type == "text":
            self.value(read.data, f"{field}.source.data", depth)
        elif read.type == "content":
            self.value(read.content, f"{field}.source.content", depth)
        else:
            self._attachment(ATTACHMENT_TOKENS)
