"""Counts prompts exactly, with the tokenizer of a pool's model, before they are decided on.

For: `relay`, where a pool has a `tokenizer`. The texts are counted in a thread, so that the event loop goes on; how
many bytes are being counted at once is bounded, and what is beyond is estimated as without a tokenizer. What a chat
template puts around texts is not in them: it is learned for each API from what engines say of prompts that were
counted.

Owns one tokenizer and its thread. Nothing that goes wrong in there fails a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from forebay.gateway.prompt_texts import Texts

__all__ = ["LONGEST_BYTES", "PENDING_BYTES", "Counted", "Overhead", "PromptCounter"]

LONGEST_BYTES: Final = 512 * 1024
"""Texts of one request that are counted: some 130,000 tokens, which take a quarter of a second."""
PENDING_BYTES: Final = 1024 * 1024
"""Of all requests together: nobody waits longer than a second for a count."""
DECAY: Final = 0.98
PRIOR_WEIGHT: Final = 0.05
"""Of each case that is assumed: one observation goes nearly all the way."""
MOST_OVERHEAD: Final = 4096
"""More than this is no template, but a system prompt of the engine's, or somebody else's count."""


class Overhead:
    """Tokens that engines add to what was counted: so many to a request, and so many to each message.

    Faded least squares, with two cases assumed beforehand, so that there is always one answer.
    """

    __slots__ = ("_prior", "_sums")

    def __init__(self, request: float, message: float) -> None:
        """See the class. What is assumed: tokens for a request, and for each of its messages."""
        cases = ((1.0, request + message), (9.0, request + 9 * message))
        self._prior = _sums_of(cases, PRIOR_WEIGHT)
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)

    def observe(self, messages: int, tokens: int) -> None:
        """An engine counted so many tokens more."""
        if not 0 <= tokens <= MOST_OVERHEAD:
            return
        new = _sums_of(((float(messages), float(tokens)),), 1.0)
        self._sums = (
            self._sums[0] * DECAY + new[0],
            self._sums[1] * DECAY + new[1],
            self._sums[2] * DECAY + new[2],
            self._sums[3] * DECAY + new[3],
            self._sums[4] * DECAY + new[4],
        )

    def expect(self, messages: int) -> int:
        """Tokens to add."""
        n, x, y, xx, xy = [seen + assumed for seen, assumed in zip(self._sums, self._prior, strict=True)]
        each = max((n * xy - x * y) / (n * xx - x * x), 0.0)
        return int(max((y - each * x) / n + each * messages, 0.0) + 0.5)


def _sums_of(
    cases: tuple[tuple[float, float], ...], weight: float
) -> tuple[float, float, float, float, float]:
    n = x = y = xx = xy = 0.0
    for messages, tokens in cases:
        n += weight
        x += weight * messages
        y += weight * tokens
        xx += weight * messages * messages
        xy += weight * messages * tokens
    return n, x, y, xx, xy


class Counted:
    """One prompt's count."""

    __slots__ = ("_overhead", "_texts", "tokens")

    def __init__(self, tokens: int, texts: Texts, overhead: Overhead) -> None:
        self.tokens = tokens
        """Of its texts alone."""
        self._texts = texts
        self._overhead = overhead
        texts.texts = []  # not needed any more

    @property
    def prompt_tokens(self) -> int:
        """With what the template is expected to add."""
        return self.tokens + self._overhead.expect(self._texts.turns)

    def learn(self, prompt_tokens: int) -> None:
        """What the engine said of it."""
        if self._texts.plain:
            self._overhead.observe(self._texts.turns, prompt_tokens - self.tokens)


class PromptCounter:
    """A tokenizer, and the prompts that are being counted with it."""

    def __init__(self, count: Callable[[list[str]], int]) -> None:
        """See the class. `count`: tokens of some texts, without special ones; called in a thread."""
        self._count = count
        self._threads = ThreadPoolExecutor(1, "forebay-tokenizer")
        self._overheads: dict[str, Overhead] = {}
        self.pending_bytes = 0

    def takes(self, text_bytes: int) -> bool:
        """True if a prompt of this size can be counted now."""
        return 0 < text_bytes <= LONGEST_BYTES and self.pending_bytes + text_bytes <= PENDING_BYTES

    def begin(
        self,
        path: str,
        texts_of: Callable[[bytes], Texts | None],
        body: bytes,
        text_bytes: int,
        done: Callable[[Counted | None], None],
    ) -> None:
        """Counts a prompt, then calls back from the event loop: with its count, or None if there is none.

        Args:
            path: of the API; one of the table's, whose templates are alike.
        """
        loop = asyncio.get_running_loop()
        self.pending_bytes += text_bytes

        def finished(future: Future[tuple[int, Texts] | None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(self._finish, path, text_bytes, future, done)

        self._threads.submit(self._work, texts_of, body).add_done_callback(finished)

    def _work(self, texts_of: Callable[[bytes], Texts | None], body: bytes) -> tuple[int, Texts] | None:
        texts = texts_of(body)
        return None if texts is None else (self._count(texts.texts), texts)

    def _finish(
        self,
        path: str,
        text_bytes: int,
        future: Future[tuple[int, Texts] | None],
        done: Callable[[Counted | None], None],
    ) -> None:
        self.pending_bytes -= text_bytes
        found = None if future.exception() is not None else future.result()
        if found is None:
            done(None)
            return
        tokens, texts = found
        overhead = self._overheads.get(path)
        if overhead is None:
            overhead = self._overheads[path] = Overhead(3.0, 4.0) if texts.turns else Overhead(1.0, 0.0)
        done(Counted(tokens, texts, overhead))
