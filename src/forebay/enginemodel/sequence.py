"""One generation: what the caller asks for (`Request`), and the engine's record of it (`Sequence`)."""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass, field
from enum import Enum, unique

from forebay.enginemodel.errors import MisuseError

_OWN_KEYS = 1 << 24
"""Block keys reserved per sequence for content that nobody else can ask for."""


@dataclass(frozen=True, slots=True)
class Request:
    """A generation of known length."""

    id: int
    """The caller's; not in use by another live request."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that the answer will have. Known to the caller, not to the scheduler, which reserves nothing for it."""
    block_keys: collections.abc.Sequence[int] = ()
    """Names of its full KV blocks from the start, for prefix reuse (`prefix`); may end anywhere."""

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise MisuseError(
                f"request {self.id}: a prompt and an answer have at least one token each, "
                f"got {self.prompt_tokens} and {self.output_tokens}"
            )


@unique
class RequestState(Enum):
    """Where a live request is."""

    WAITING = "waiting"
    """Submitted or preempted; holds no blocks."""
    PREFILLING = "prefilling"
    """In the batch; part of its prompt is computed."""
    DECODING = "decoding"
    """In the batch; gives one token per step."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The engine's record of a live request. Changed by `Engine` and `DecodeBatch` only."""

    request: Request
    number: int
    """Order of arrival."""
    state: RequestState = RequestState.WAITING
    generated: int = 0
    """Tokens given; for a decoding sequence, those given when it joined (`DecodeBatch.generated` adds the rest)."""
    computed: int = 0
    """Tokens of this prefill that are in the KV cache."""
    private: int = 0
    """KV blocks of its own."""
    held: list[int] = field(default_factory=list)
    """Keys of the shared KV blocks that it uses, in order."""
    published: int = 0
    """Full blocks that have been offered to the prefix cache."""
    preemptions: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    joined_tick: int = 0
    joined_context: int = 0
    growth_slot: int = 0
    finish_tick: int = -1

    @property
    def target(self) -> int:
        """Tokens that prefill has to compute before the next token comes: the prompt, and what was given before."""
        return self.request.prompt_tokens + self.generated

    @property
    def blocks(self) -> int:
        """KV blocks that it holds."""
        return self.private + len(self.held)

    def block_key(self, index: int) -> int:
        """Name of its block number `index`: the caller's as far as they go, then one that is only its own."""
        keys = self.request.block_keys
        if index < len(keys):
            return keys[index]
        return -(self.number * _OWN_KEYS + index) - 1
