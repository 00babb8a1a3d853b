"""How many requests an endpoint may hold at once, and how fast prompts may enter it.

**The limit** (`ConcurrencyLimit`) is found and followed. A round is as many first tokens as the limit.

1. It starts at 8.
2. A good round is one in which every first token came within the tightest wait budget, no queue was seen in the
   engine and steps were not slow. It raises the limit only if as many requests as the limit were in flight at
   some moment of it: few requests say nothing about more of them.
3. Until it has fallen for the first time, a good round doubles it; from then on it adds 1. What was found to be
   too much is approached slowly.
4. A round of which more than a tenth came late lowers it by a fifth, and so does a preemption. What is only reckoned,
   of answers that come as a whole, counts where no first token of the round was seen to come.
5. The engine's own queue, seen in two samples in a row, lowers it to what the engine runs: more would only wait
   there, where the order is not ours. It never raises it. The prompts that were sent ahead to keep the engine busy
   (the prefill window) are no such queue.
6. Steps: where the mean of a window of 32 steps, each taken relative to the tightest TPOT target of the classes
   running then, is over 1 in two windows in a row, it is lowered to 10 % less than was in flight on average. Not
   again before so few are in flight; not below 8, where a step takes hardly longer than that of one sequence;
   and not at all where the empty step alone is over the target, since no limit would help.

A limit found on little evidence must not hold up a burst at an idle engine: while the last sample shows
no waiting request and the KV cache below `KV_CALM`, up to one more limit of requests may be dispatched per
sample. `Endpoint.has_room` applies this. A calm sample shows nothing of slow steps, though: a limit that
fell by rule 6 holds at a calm engine too (`holds_when_calm`), until it has grown back to what was too much.

**The prefill window** (`prefill_window_s`) is how much prefill may be under way: its first token has not come
back. **Pacing** (`PrefillPacer`) bounds prompt tokens per second where streams with a TPOT target decode. With
decode time D = c0 + c2·n + c3·K of a step (`SpeedLaw`), a step with P prompt tokens takes D + c1·P; it should
take θ·T of the target T, so prompts may enter at

    R = P ÷ (θ·T) = (1 − D ÷ (θ·T)) ÷ c1        θ = 0.6, at least a fifth of 1 ÷ c1

through a bucket of 0.25 s of R. With D at most 0.8·T that fifth still keeps T.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Final

from forebay.admission.model import EngineSample
from forebay.admission.settings import SpeedLaw

if TYPE_CHECKING:
    from forebay.admission.tickets import Ticket

FIRST_LIMIT: Final = 8
HIGHEST_LIMIT: Final = 4096
KV_CALM: Final = 0.8
LATE_SHARE: Final = 0.1
"""Part of a round's first tokens that may be late before the limit is lowered."""
DECREASE: Final = 0.8
QUEUE_SEEN_TIMES: Final = 2
"""Samples in a row with waiting requests before the engine counts as full: one may have caught arrivals in flight."""
STEP_WINDOW: Final = 32
SLOW_TIMES: Final = 2
"""Windows in a row with slow steps before the limit is lowered: one may have caught a long prompt."""
STEP_DECREASE: Final = 0.9

WINDOW_SHORTEST_S: Final = 0.15
WINDOW_LONGEST_S: Final = 0.35
PACED_SHARE: Final = 0.6
"""θ: in a step-level model at load 1.1, steps a little over the target, 95 % were in time at 0.6, 76 % at 0.75."""
PACED_DEPTH_S: Final = 0.25
PACED_LEAST: Final = 0.2
"""Least part of the unpaced rate: prompts are never starved by the decoding of others."""
PACED_DEBT_S: Final = 5.0
"""Longest time for which one prompt holds up those after it."""
_HALF_A_TOKEN: Final = 0.5
"""So much may be missing: at the moment that `next_at` names, rounding must not say no again."""


class ConcurrencyLimit:
    """The found limit of one endpoint."""

    __slots__ = (
        "_in_flight",
        "_late",
        "_most",
        "_preemptions",
        "_queue_seen",
        "_reckoned_late",
        "_round",
        "_seen",
        "_slow_at",
        "_slow_windows",
        "_steps",
        "_strain",
        "has_fallen",
        "limit",
        "tightest_s",
    )

    def __init__(self, tightest_s: float) -> None:
        self.limit = FIRST_LIMIT
        self.tightest_s = tightest_s
        """The tightest wait budget of any class."""
        self.has_fallen = False
        """True once it was lowered: it doubles no more."""
        self._round = 0
        self._seen = 0
        """First tokens of this round that were seen to come,"""
        self._late = 0
        """those of them that were late,"""
        self._reckoned_late = 0
        """and those that must have been, of answers that came as a whole."""
        self._most = 0
        """Most requests in flight at a first token of this round."""
        self._queue_seen = 0
        self._preemptions: int | None = None
        self._steps = 0
        self._strain = 0.0
        """Sum of step time ÷ target over this window."""
        self._in_flight = 0
        """Sum of the requests in flight over this window."""
        self._slow_windows = 0
        """Windows with slow steps in a row, the latest included."""
        self._slow_at = 0
        """So many in flight made steps slow."""

    @property
    def holds_when_calm(self) -> bool:
        """True if the limit was lowered for slow steps, of which a calm sample shows nothing."""
        return self.limit < self._slow_at

    def first_token(self, took_s: float, *, in_flight: int, seen: bool = True) -> None:
        """A first token came `took_s` after dispatch, with `in_flight` requests at the endpoint, its own included.

        Args:
            seen: False if that is only reckoned, from the time of a whole answer.
        """
        self._round += 1
        if seen:
            self._seen += 1
            self._late += took_s > self.tightest_s
        else:
            self._reckoned_late += took_s > self.tightest_s
        if in_flight > self._most:
            self._most = in_flight
        if self._round < self.limit:
            return
        late, judged, most = self._late, self._seen, self._most
        if not judged:
            late, judged = self._reckoned_late, self._round
        self._late = self._reckoned_late = self._seen = self._round = self._most = 0
        if late > LATE_SHARE * judged:
            self._lower_to(int(self.limit * DECREASE))
        elif not late and not self._queue_seen and not self._slow_windows and most >= self.limit:
            self.limit = min(self.limit + (1 if self.has_fallen else self.limit), HIGHEST_LIMIT)

    def sampled(self, sample: EngineSample, *, expected_waiting: int = 0) -> bool:
        """Take in what the engine says of itself.

        Args:
            expected_waiting: requests whose prompts we have sent ahead on purpose: as many may well wait there.

        Returns:
            True if it has preempted requests since the last sample.
        """
        if sample.waiting is not None:
            self._queue_seen = self._queue_seen + 1 if sample.waiting > expected_waiting else 0
            if self._queue_seen >= QUEUE_SEEN_TIMES and sample.running:
                self._lower_to(sample.running)
        total = sample.preemptions_total
        if total is None:
            return False
        before, self._preemptions = self._preemptions, total
        if before is None or total <= before:
            return False
        self._lower_to(int(self.limit * DECREASE))
        return True

    def observe_step(
        self, step_s: float, tightest_tpot_s: float, *, in_flight: int, empty_step_s: float = 0.0
    ) -> None:
        """A step of the engine took so long.

        Args:
            tightest_tpot_s: the tightest TPOT target of the classes running there; infinite where none has one.
            in_flight: requests at the endpoint.
            empty_step_s: what a step takes at least (c0 of the step law, at this endpoint's speed); 0 if unknown.
        """
        if not empty_step_s < tightest_tpot_s < inf:
            self._strain = 0.0
            self._steps = self._in_flight = self._slow_windows = 0
            return
        self._steps += 1
        self._strain += step_s / tightest_tpot_s
        self._in_flight += in_flight
        if self._steps < STEP_WINDOW:
            return
        is_slow, mean_in_flight = self._strain > self._steps, self._in_flight / self._steps
        self._strain = 0.0
        self._steps = self._in_flight = 0
        self._slow_windows = self._slow_windows + 1 if is_slow else 0
        if self._slow_windows >= SLOW_TIMES:
            self._lower_for_steps(mean_in_flight)

    def _lower_for_steps(self, in_flight: float) -> None:
        """So many in flight are too many for the TPOT target."""
        held = self.holds_when_calm
        if held and in_flight > self.limit:
            return  # It was lowered already, and those above it have not ended yet.
        wanted = int(in_flight * STEP_DECREASE)
        if wanted < FIRST_LIMIT:
            wanted = FIRST_LIMIT
        if wanted >= in_flight:
            return  # So few cannot be what makes steps slow.
        if not held:
            self._slow_at = int(in_flight)
        # At a calm engine more may be in flight than the limit. Then the limit may well rise here, and holds from now.
        self.limit = wanted
        self.has_fallen = True
        self._slow_windows = 0

    def _lower_to(self, limit: int) -> None:
        if limit < 1:
            limit = 1
        if limit < self.limit:
            self.limit = limit
            self.has_fallen = True


def prefill_window_s(chunk_s: float) -> float:
    """Seconds of prefill that may be under way at an endpoint whose prefill steps take `chunk_s`.

    Two chunks, one in work and one behind it, keep the engine busy; within 0.15 to 0.35 s, because less starves it
    between two answers of ours and more gives the order away; and never below the one chunk.
    """
    return max(min(max(2.0 * chunk_s, WINDOW_SHORTEST_S), WINDOW_LONGEST_S), chunk_s)


class PrefillPacer:
    """Bucket through which prompt tokens enter one endpoint, so that streams there keep their TPOT target.

    A prompt larger than the bucket passes when it is full and leaves a debt. Where nothing decodes with a
    target every prompt passes, and what it leaves as debt is what the engine still has to work off.
    """

    __slots__ = ("_at_s", "_level", "depth_tokens", "paces", "rate_tokens_per_s")

    def __init__(self) -> None:
        self.paces = False
        """True while a stream with a TPOT target decodes there."""
        self.rate_tokens_per_s = inf
        self.depth_tokens = inf
        self._level = inf
        """Tokens that may enter, as of `_at_s`; negative is debt."""
        self._at_s = 0.0

    def follow(
        self,
        now: float,
        law: SpeedLaw,
        *,
        decoding: int,
        kv_tokens: float,
        tightest_tpot_s: float,
        speed: float = 1.0,
    ) -> None:
        """What runs there has changed, or the law has: the rate from now on.

        Args:
            law: the step law of the reference endpoint.
            decoding: sequences that generate.
            kv_tokens: KV tokens that they hold.
            tightest_tpot_s: the tightest TPOT target among them; infinite where none has one.
            speed: this endpoint's speed relative to the reference.
        """
        if law.c1_s <= 0.0:
            self.paces = False
            self.rate_tokens_per_s = self.depth_tokens = self._level = inf
            return
        self._level = self._level_at(now)
        self._at_s = now
        share = 1.0
        self.paces = 0.0 < tightest_tpot_s < inf and decoding > 0
        if self.paces:
            decode_s = (law.c0_s + law.c2_s * decoding + law.c3_s * kv_tokens) / speed
            share = max(1.0 - decode_s / (PACED_SHARE * tightest_tpot_s), PACED_LEAST)
        rate = self.rate_tokens_per_s = share * speed / law.c1_s
        self.depth_tokens = rate * PACED_DEPTH_S
        self._level = max(min(self._level, self.depth_tokens), -rate * PACED_DEBT_S)

    def allows(self, prompt_tokens: int, now: float) -> bool:
        """True if this prompt may enter now."""
        if not self.paces:
            return True
        return self._level_at(now) + _HALF_A_TOKEN >= self._needed(prompt_tokens)

    def spend(self, prompt_tokens: int, now: float) -> None:
        """It enters: whether or not it was allowed, it is counted."""
        level = self._level_at(now) - prompt_tokens
        self._level = max(level, -self.rate_tokens_per_s * PACED_DEBT_S)
        self._at_s = now

    def next_at(self, prompt_tokens: int, now: float) -> float:
        """When it will allow this prompt if nothing else enters and the rate stays: `now` if it does already."""
        if self.allows(prompt_tokens, now):
            return now
        return now + (self._needed(prompt_tokens) - self._level_at(now)) / self.rate_tokens_per_s

    def _needed(self, prompt_tokens: int) -> float:
        return min(float(prompt_tokens), self.depth_tokens)

    def _level_at(self, now: float) -> float:
        level = self._level
        if now > self._at_s and level < self.depth_tokens:
            level = min(level + (now - self._at_s) * self.rate_tokens_per_s, self.depth_tokens)
        return level


def tightest_tpot_s(running: Iterable[Ticket]) -> float:
    """The tightest TPOT objective of those of them that are streams and are decoding; infinite if there is none."""
    tightest = inf
    for ticket in running:
        tpot_s = ticket.settings.tpot_s
        if tpot_s < tightest and ticket.demand.stream and ticket.first_token_s is not None:
            tightest = tpot_s
    return tightest
