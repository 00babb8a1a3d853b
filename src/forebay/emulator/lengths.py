"""How long prompts and answers are, without a tokenizer or a model.

Prompt: four bytes of UTF-8 text are one token, rounded up per text; each chat message costs four tokens more and
a chat three on top, for what a chat template adds. Token-id prompts count exactly.

Answer: what the request fixes (`emulator_output_tokens`, or `ignore_eos` with a limit), else a draw from a
log-normal distribution with median 180 tokens and sigma 0.8 (mean 248, one in a hundred above 1,150): many short,
few very long, as chat services report. The draw depends on nothing but the emulator's seed, the prompt, the
request's own `seed` and the sample's index: the same question gets an answer of the same length, in any order of
arrival and under any hash seed.

Prefix reuse: prompts are compared in blocks of `4 × block_size` bytes, from the start (of the whole chat, as the
template would lay it out). Answers are not recognised in a later prompt.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forebay.enginemodel import token_keys

BYTES_PER_TOKEN: Final = 4
MESSAGE_TOKENS: Final = 4
CHAT_TOKENS: Final = 3
OUTPUT_MEDIAN_TOKENS: Final = 180.0
OUTPUT_SIGMA: Final = 0.8


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the emulator sees it: its length and what identifies it."""

    tokens: int
    text: bytes = b""
    """Laid out so that byte 4·i belongs to token i; empty for token-id prompts."""
    token_ids: Sequence[int] = ()

    def block_keys(self, block_size: int) -> Sequence[int]:
        """Names of its full KV blocks."""
        if self.token_ids:
            return token_keys(self.token_ids, block_size)
        text, step = memoryview(self.text), block_size * BYTES_PER_TOKEN
        keys: list[int] = []
        checksum = 0
        for index, end in enumerate(range(step, len(text) + 1, step)):
            # A checksum over everything so far names the block and what is before it; the index rules out most
            # of the collisions that 32 bits would have.
            checksum = zlib.crc32(text[end - step : end], checksum)
            keys.append(index << 32 | checksum)
        return keys

    @property
    def fingerprint(self) -> int:
        """A number that stands for the whole prompt."""
        if self.token_ids:
            return hash(tuple(self.token_ids))
        return zlib.crc32(self.text)


def text_prompt(text: str) -> Prompt:
    """A completion's prompt."""
    raw = _padded(text.encode("utf-8", "surrogatepass"))
    return Prompt(max(1, len(raw) // BYTES_PER_TOKEN), raw)


def ids_prompt(token_ids: Sequence[int]) -> Prompt:
    """A completion's prompt given as token ids."""
    return Prompt(len(token_ids), token_ids=token_ids)


def chat_prompt(messages: Sequence[tuple[str, str]]) -> Prompt:
    """A chat's prompt: (role, text) pairs."""
    pieces: list[bytes] = []
    for role, text in messages:
        header = role.encode("utf-8", "surrogatepass")[: MESSAGE_TOKENS * BYTES_PER_TOKEN]
        pieces.append(header.ljust(MESSAGE_TOKENS * BYTES_PER_TOKEN, b"\0"))
        pieces.append(_padded(text.encode("utf-8", "surrogatepass")))
    raw = b"".join(pieces)
    return Prompt(len(raw) // BYTES_PER_TOKEN + CHAT_TOKENS, raw)


def drawn_output_tokens(seed: int, prompt: Prompt, request_seed: int | None, sample: int) -> int:
    """The natural length of an answer."""
    # Seeding with a string does not depend on the hash seed of the process.
    stream = random.Random(f"{seed}:{prompt.fingerprint}:{request_seed}:{sample}")
    return max(1, round(OUTPUT_MEDIAN_TOKENS * math.exp(OUTPUT_SIGMA * stream.gauss(0.0, 1.0))))


def _padded(raw: bytes) -> bytes:
    return raw.ljust(-(-len(raw) // BYTES_PER_TOKEN) * BYTES_PER_TOKEN, b"\0")
