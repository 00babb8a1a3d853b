"""What of a prompt its engines have in their prefix caches: expected from what they reported for earlier requests.

`PrefixCaches` is kept for each pool. Requests that begin alike carry the same `prefix_hash`; for each hash the
decayed mean of the cached tokens in their usage is kept, for the hashes seen last. A hash is kept from its first hit
on: before that the cache was being filled, and what a miss tells is what is expected of unknown prefixes anyway.

    known hash    its mean of cached tokens
    new hash      0: nobody has sent this prefix
    no hash       prompt x (cached ÷ prompt over such requests), once 30 of them have told their usage

In doubt it says too little: a request charged for prefill that it did not need is settled at its end, while one
that was let in too cheaply has made others late by then. Never all of a prompt: an engine works out at least the
last token, to have something to go on from.

Which endpoint holds a prefix is in `homes`. No clock: caches drop what was used longest ago, so a prefix is taken to be
gone at the latest when `room_tokens` of prompts have been worked out since it was used. (Answers fill the cache too,
and other endpoints share the work: what really is gone shows in the next usage.)
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from forebay.admission.homes import PrefixHomes

PREFIXES: Final = 4096
"""Most hashes kept."""
PREFIX_DECAY: Final = 0.8
"""Per usage of one hash: the memory is about 5 requests. Prefixes grow with each turn of a conversation."""
RATIO_DECAY: Final = 0.995
"""Per usage without a hash: the memory is about 200 requests."""
TRUSTED_AFTER: Final = 30
"""Usages without a hash before their ratio is used."""


ALIKE_AT_FIRST: Final = 0.5
"""Part of prompts with one hash that is taken to be alike, before engines have told."""
ALIKE_DECAY: Final = 0.98
"""Per usage with a hash: the memory is about 50 requests."""


class _Prefix:
    """One hash."""

    __slots__ = ("cached_tokens", "used_at", "weight")

    def __init__(self, cached_tokens: float, used_at: int) -> None:
        self.cached_tokens = cached_tokens
        """Decayed mean."""
        self.used_at = used_at
        """Prompt tokens that the pool had worked out when it was last used."""
        self.weight = 1.0


class PrefixCaches:
    """Expected prefix-cached prompt tokens of arrivals at one pool."""

    __slots__ = ("_cached", "_known", "_prompt", "_worked_out", "alike", "homes", "room_tokens", "unhashed")

    def __init__(self, room_tokens: int | None = None) -> None:
        self.room_tokens = room_tokens
        """KV cache of all endpoints together; None if it is not known, and then nothing is taken to be gone."""
        self.homes = PrefixHomes()
        self.alike = ALIKE_AT_FIRST
        """Decayed mean of cached ÷ prompt over usages with a hash."""
        self.unhashed = 0
        """Usages without a hash so far."""
        self._known: OrderedDict[int, _Prefix] = OrderedDict()
        """Used longest ago first."""
        self._worked_out = 0
        """Prompt tokens that were not cached, since the start."""
        self._cached = 0.0
        self._prompt = 0.0
        """Decayed sums over usages without a hash."""

    def __len__(self) -> int:
        return len(self._known)

    def expect(self, prefix_hash: int | None, prompt_tokens: int) -> int:
        """Prompt tokens of an arrival that are expected to be cached; at most all but one."""
        if prefix_hash is None:
            if self.unhashed < TRUSTED_AFTER:
                return 0
            cached = int(prompt_tokens * self._cached / self._prompt)
        else:
            prefix = self._known.get(prefix_hash)
            if prefix is None:
                return 0
            room = self.room_tokens
            if room is not None and self._worked_out - prefix.used_at > room:
                return 0
            cached = int(prefix.cached_tokens)
        if cached >= prompt_tokens:
            cached = prompt_tokens - 1
        return cached if cached > 0 else 0

    def worth(self, prefix_hash: int, prompt_tokens: int) -> int:
        """Tokens that an endpoint with this prefix need not work out; of one without hits so far, what is alike."""
        cached = self.expect(prefix_hash, prompt_tokens)
        return cached if cached or prefix_hash in self._known else int(prompt_tokens * self.alike)

    def observe(self, prefix_hash: int | None, prompt_tokens: int, cached_tokens: int) -> None:
        """Learn from one request whose usage is known. A prompt without tokens is no evidence."""
        if prompt_tokens <= 0:
            return
        if cached_tokens > prompt_tokens:
            cached_tokens = prompt_tokens
        elif cached_tokens < 0:
            cached_tokens = 0
        self._worked_out += prompt_tokens - cached_tokens
        if prefix_hash is not None:
            self.alike += (1.0 - ALIKE_DECAY) * (cached_tokens / prompt_tokens - self.alike)
        if prefix_hash is None:
            self._cached = self._cached * RATIO_DECAY + cached_tokens
            self._prompt = self._prompt * RATIO_DECAY + prompt_tokens
            self.unhashed += 1
            return
        prefix = self._known.get(prefix_hash)
        if prefix is None:
            if cached_tokens:
                self._known[prefix_hash] = _Prefix(float(cached_tokens), self._worked_out)
                if len(self._known) > PREFIXES:
                    self._known.popitem(last=False)
            return
        self._known.move_to_end(prefix_hash)
        prefix.used_at = self._worked_out
        prefix.weight = prefix.weight * PREFIX_DECAY + 1.0
        prefix.cached_tokens += (cached_tokens - prefix.cached_tokens) / prefix.weight

    def observe_together(self, prompts: list[tuple[int | None, int]], cached_tokens: int) -> None:
        """Learn from some requests of which only the sum of the cached tokens is known.

        Each is taken to have had what was expected of it, all of them more or less by the same factor. What is
        beyond that is shared by the tokens that are left: a prefix that comes again and again gets its due in time.

        Args:
            prompts: (prefix hash, prompt tokens) of each.
        """
        expected = [self.expect(prefix_hash, tokens) for prefix_hash, tokens in prompts]
        known = sum(expected)
        left = sum(tokens for _, tokens in prompts) - known
        beyond = cached_tokens - known
        for (prefix_hash, tokens), its in zip(prompts, expected, strict=True):
            if beyond < 0:
                cached = its * cached_tokens // known
            else:
                cached = its + (tokens - its) * beyond // left if left > 0 else its
            self.observe(prefix_hash, tokens, cached)
