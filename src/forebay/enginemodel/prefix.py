"""Keys that name KV blocks by what is in them, so that equal prompt starts share blocks.

A key stands for one block *and everything before it*: two requests whose n-th keys are equal have the same first
n blocks of tokens. A request hands over one key per full block, as far as it wants to be known; keys may reach
beyond the prompt, over the answer, for conversations whose next turn contains it. Keys are integers of at least 0
(negative ones are the engine's own, for blocks that nobody else can ask for).

Two ways to make them, both independent of the hash seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay.enginemodel.errors import MisuseError

_CHAIN_BLOCKS = 1 << 24
"""Blocks that one chain can name: above any context that exists."""
_KEY_MASK = (1 << 62) - 1


def chain_keys(chain: int, tokens: int, block_size: int) -> Sequence[int]:
    """Keys for a request whose first `tokens` tokens are those of the token stream number `chain`.

    For traces that say "this much is shared with that session" without the tokens. Takes no memory per block.
    """
    if chain < 0:
        raise MisuseError(f"a chain's number is at least 0, got {chain}")
    blocks = min(max(tokens, 0) // block_size, _CHAIN_BLOCKS)
    first = chain * _CHAIN_BLOCKS
    return range(first, first + blocks)


def token_keys(token_ids: Sequence[int], block_size: int) -> Sequence[int]:
    """Keys for a request whose prompt is `token_ids`."""
    keys: list[int] = []
    key = 0
    for end in range(block_size, len(token_ids) + 1, block_size):
        # Hashes of tuples of integers do not depend on PYTHONHASHSEED; those of strings would.
        key = hash((key, *token_ids[end - block_size : end])) & _KEY_MASK
        keys.append(key)
    return tuple(keys)
