"""How many requests an endpoint may hold at once: configured, told by the engine, or found.

The found limit starts at 8 and doubles with each round (as many first tokens as the limit) whose first tokens
all came within the tightest wait budget. It falls to what the engine actually runs when the engine reports a
queue of its own, since then more would only wait there, where the order is not ours; and by a fifth when
first tokens come late or the engine preempts.

A limit found on little evidence must not hold up a burst at an idle engine: while the last sample shows
no waiting request and the KV cache below `KV_CALM`, up to one more limit of requests may be dispatched per
sample. `Endpoint.has_room` applies this.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EngineSample

FIRST_LIMIT: Final = 8
HIGHEST_LIMIT: Final = 4096
KV_CALM: Final = 0.8
LATE_SHARE: Final = 0.1
"""Part of a round's first tokens that may be late before the limit is lowered."""
DECREASE: Final = 0.8
QUEUE_SEEN_TIMES: Final = 2
"""Samples in a row with waiting requests before the engine counts as full: one may have caught arrivals in flight."""


class ConcurrencyLimit:
    """The found limit of one endpoint."""

    __slots__ = ("_late", "_preemptions", "_queue_seen", "_round", "limit", "tightest_s")

    def __init__(self, tightest_s: float) -> None:
        self.limit = FIRST_LIMIT
        self.tightest_s = tightest_s
        """The tightest wait budget of any class."""
        self._round = 0
        self._late = 0
        self._queue_seen = 0
        self._preemptions: int | None = None

    def first_token(self, took_s: float, *, in_flight: int) -> None:
        """A first token came `took_s` after dispatch, with `in_flight` requests at the endpoint."""
        self._round += 1
        self._late += took_s > self.tightest_s
        if self._round < self.limit:
            return
        late, self._late, self._round = self._late, 0, 0
        if late > LATE_SHARE * self.limit:
            self.limit = max(1, int(self.limit * DECREASE))
        elif not late and self._queue_seen == 0 and in_flight >= self.limit - 1:
            self.limit = min(2 * self.limit, HIGHEST_LIMIT)

    def sampled(self, sample: EngineSample) -> None:
        """Take in what the engine says of itself."""
        if sample.waiting is not None:
            self._queue_seen = self._queue_seen + 1 if sample.waiting > 0 else 0
            if self._queue_seen >= QUEUE_SEEN_TIMES and sample.running:
                self.limit = min(self.limit, max(1, sample.running))
        if sample.preemptions_total is not None:
            if self._preemptions is not None and sample.preemptions_total > self._preemptions:
                self.limit = max(1, int(self.limit * DECREASE))
            self._preemptions = sample.preemptions_total
