"""What an engine's counters say of prompts whose streams carry no usage: how many tokens, and how many were cached.

Most streams end without any usage. But the engine counts the tokens of all prompts that it works off, and those whose
first token came since an earlier reading are known: together they had so many bytes of text. A window goes from one
reading to another and is learned from (`Pricing.learn_counted`) when few prompts can lie across its ends: nothing
waits for its first token, or one for each `EDGE` prompts inside. What crosses an end is missing in one window and too
much in the next, so it cancels out. Windows at whose end too much is on its way are drawn out.

The counters are everybody's. Where an engine runs more than was sent to it, or counts prompts while we sent none,
others use it too, and nothing is learned for `STRANGERS_S`. A window is dropped if in it there was a prompt that only
makes a vector (embeddings), of which not every engine counts the tokens, or one with several answers, which engines
count once for each.

Owns the open window of one endpoint. It reads no clock.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import Demand, EngineSample
from forebay.admission.record import record

EDGE: Final = 8
"""Prompts in a window for each one that may lie across its ends."""
MOST_PROMPTS: Final = 512
"""In a window: one that has more and cannot be closed is dropped."""
STRANGERS_S: Final = 60.0


@record
class CountedPrompts:
    """Some prompts, and what an engine counted for all of them together."""

    prompts: list[tuple[Demand, int]]
    """At least one; each with its expected tokens."""
    tokens: int
    cached_tokens: int | None
    """None if the engine does not count them."""


class PromptCount:
    """The prompts of one endpoint since the reading at which the window was opened."""

    __slots__ = ("_done", "_is_spoilt", "_most_in_flight", "_opened", "_opened_pending", "_strangers_until_s")

    def __init__(self) -> None:
        self._done: list[tuple[Demand, int, float]] = []
        """(request, its expected tokens, when its first token came)"""
        self._is_spoilt = False
        """The window holds what cannot be compared."""
        self._most_in_flight = 0
        """Ours, since the last reading."""
        self._opened: EngineSample | None = None
        self._opened_pending = 0
        """Prompts that were on their way at that moment."""
        self._strangers_until_s = 0.0

    def dispatched(self, in_flight: int) -> None:
        """A request was sent: so many sequences of ours are there now, or may be."""
        if in_flight > self._most_in_flight:
            self._most_in_flight = in_flight

    def prompt_done(self, demand: Demand, expected_tokens: int, now: float) -> None:
        """The first token of a request came."""
        if self._opened is None:
            return
        if not demand.generates or demand.samples > 1 or len(self._done) >= MOST_PROMPTS:
            self._is_spoilt = True
        else:
            self._done.append((demand, expected_tokens, now))

    def sampled(self, sample: EngineSample, *, pending: int, in_flight: int) -> CountedPrompts | None:
        """A reading came. Returns what the window says that it closes, if it closes one.

        Args:
            pending: of ours, waiting for their first token.
            in_flight: sequences of ours, those included that were given up and may still run.
        """
        if self._opened is not None and sample.at_s < self._opened.at_s:
            return None  # An older one, overtaken.
        most, self._most_in_flight = max(self._most_in_flight, in_flight), in_flight
        opened, done, at_s = self._opened, self._done, sample.at_s
        if sample.running is None or sample.prompt_tokens_total is None:
            self._drop()
            return None
        if sample.running + (sample.waiting or 0) > most:
            self._strangers_until_s = at_s + STRANGERS_S
        if at_s < self._strangers_until_s:
            self._drop()
            return None
        later = 0
        while later < len(done) and done[-1 - later][2] > at_s:
            later += 1  # Its first token came after the engine was asked.
        across = pending + later
        count = len(done) - later
        if opened is None or opened.prompt_tokens_total is None or self._is_spoilt:
            self._open(sample, across, later)
            return None
        tokens = sample.prompt_tokens_total - opened.prompt_tokens_total
        if tokens < 0:  # It has begun anew.
            self._open(sample, across, later)
            return None
        if tokens and not count and not across and not self._opened_pending:
            self._strangers_until_s = at_s + STRANGERS_S
            self._drop()
            return None
        if not tokens or (across + self._opened_pending) * EDGE > count:
            return None
        cached: int | None = None
        if sample.cached_tokens_total is not None and opened.cached_tokens_total is not None:
            cached = min(max(sample.cached_tokens_total - opened.cached_tokens_total, 0), tokens)
        found = CountedPrompts([(demand, expected) for demand, expected, _ in done[:count]], tokens, cached)
        self._open(sample, across, later)
        return found

    def _open(self, sample: EngineSample, across: int, later: int) -> None:
        """Begin a window here, with the last `later` prompts in it."""
        self._opened, self._opened_pending = sample, across
        self._is_spoilt = False
        del self._done[: len(self._done) - later]

    def _drop(self) -> None:
        self._opened = None
        self._is_spoilt = False
        self._done.clear()
