"""Source 3 of what an engine's steps take: end-to-end times of answers that are not streamed.

An engine that queues nothing works on an answer from its dispatch to its end, and gives it a token in each step after
its prefill. So with the engine's own count of its tokens the number of steps is known, and

    took = (chunks of its prompt + output tokens - 1 + the rest of the step that ran when it came) · mean step

What was in these steps beside it comes from our own books: time integrals of the sequences there, of their prompts and
of their ages (an age in steps is a number of tokens), and sums over the prompts that came meanwhile. An answer takes
the differences between its dispatch and its end, so that each event costs the same however many are in flight.

- Answers that end at about the same time saw the same steps, so one in `APART_S` is learned from. It counts for no
  more steps than have passed since the last.
- Of other prompts only the estimate is known. What engines have said of those that ended corrects it, and takes off
  what prefix caches held.
- An answer says nothing if it had to wait inside the engine for the prompts of those before it: for more than
  `QUEUED_CHUNKS`, by our books and the speed learned so far. Nor does one of a few tokens, of several samples, or
  without the engine's usage.
- Where a reading shows a queue inside the engine, or more are in flight than it runs at once, or it may be at work on
  what was given up, our books are wrong about what runs: all that are in flight say nothing (`doubt`).

It is used only while counters and streams teach nothing (`StepSources.taught_until_s`): it stops counting then, and
begins anew with what runs by the time they fall silent. An engine that tells neither how many it runs at once nor how
many wait inside it may queue unseen. The law that is learned there is that of a place in line: right for how much it
serves, too slow for a step.

Owns the integrals of one endpoint, and a `StepLearner`. Costs are counted by its law while no better one is trusted
(`Endpoint.learner`); prompts are never paced by it. It reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forebay.admission.model import TicketId, Usage
from forebay.admission.settings import SpeedLaw
from forebay.admission.steplaw import StepLearner
from forebay.admission.steps import LONGEST_WINDOW_S, StepSources, attention_of, distinct_steps
from forebay.admission.tickets import Ticket

LEAST_TOKENS: Final = 16
"""Output tokens of an answer that is learned from: at fewer, what is no step (network, a rest) weighs too much."""
APART_S: Final = 0.1
"""Between two observations: they are dear, and at a busy engine one answer says what the next one does."""
LATE_BODY: Final = 0.05
"""Part of an answer's time that its body may take to arrive: beyond, nobody knows when the engine was done."""
QUEUED_CHUNKS: Final = 2.0
"""Chunks of prompts before it with which a newcomer still counts as not queued."""
FRESH_STEPS: Final = 2.0
"""Who waits inside an engine for up to so many steps has only just come: nobody enters in the middle of a step."""
LESSONS: Final = 200
"""Answers that are learned from in a row, once the law is trusted, before"""
RESTS_S: Final = 60.0
"""so long a rest in which nothing is counted: an engine seldom changes, and counting is done for every request."""
RATIO_DECAY: Final = 0.98
"""Per answer."""


class _Begun:
    """The integrals and sums when an answer was dispatched."""

    __slots__ = (
        "age_s",
        "at_s",
        "attention",
        "beside",
        "chunks",
        "prefill",
        "prompt_s",
        "prompts",
        "sequence_s",
    )

    def __init__(self, books: WholeAnswers, now: float, beside: bool) -> None:
        self.at_s = now
        self.beside = beside
        """A step was running."""
        self.sequence_s = books.sequence_s
        self.prompt_s = books.prompt_s
        self.age_s = books.age_s
        self.prefill = books.prefill
        self.attention = books.attention
        self.chunks = books.chunks
        self.prompts = books.prompts


class WholeAnswers:
    """What runs at one endpoint over time, and what its whole answers say."""

    __slots__ = (
        "_ages",
        "_at_s",
        "_begun",
        "_guessed_attention",
        "_guessed_prefill",
        "_lessons",
        "_prefilled_s",
        "_prompt_tokens",
        "_sources",
        "_step_s",
        "_taught_s",
        "_token_s",
        "_told_attention",
        "_told_prefill",
        "_took_s",
        "_unqueued_s",
        "age_s",
        "attention",
        "chunks",
        "counts",
        "learner",
        "prefill",
        "prompt_s",
        "prompts",
        "rests_until_s",
        "sequence_s",
        "sequences",
    )

    def __init__(self, sources: StepSources, prior: SpeedLaw) -> None:
        self._sources = sources
        self.learner = StepLearner(prior)
        """Its own: what is worked out from whole answers must not spoil what counters and streams tell of steps."""
        self._begun: dict[int, _Begun] = {}
        """Answers that may teach, in order of dispatch."""
        self._step_s = 0.0
        """Mean step by the last answer that was learned from, and how long that took."""
        self._took_s = 0.0
        self._token_s = 0.0
        """Seconds per prompt token by what was learned; 0 before."""
        self._told_prefill = self._guessed_prefill = 0.0
        """Prefill tokens of ended answers, as the engine said and as had been estimated; faded. Likewise attention."""
        self._told_attention = self._guessed_attention = 0.0
        self._lessons = 0
        self.rests_until_s = -1.0
        """Until when nothing is counted because enough is known."""
        self.start(0.0)
        self.counts = False

    # Told of tickets

    def dispatched(
        self, ticket: Ticket, running: Mapping[TicketId, Ticket], now: float, *, slots: float, goes_on: bool
    ) -> None:
        """A request was dispatched while neither counters nor streams teach.

        Args:
            running: all that run there, this one included.
            slots: sequences that the engine runs at once, as far as known; infinite if not.
            goes_on: the engine may still be at work on what was given up.
        """
        if not self.counts:
            self.start(now)
            for other in running.values():
                if other is not ticket:
                    self.runs(
                        now,
                        dispatched_s=other.dispatched_s,
                        prompt_tokens=other.price.cost.prompt_tokens,
                        samples=other.demand.samples,
                    )
        demand = ticket.demand
        samples = demand.samples
        teaches = samples == 1 and not demand.stream
        self.began(demand.ticket, now, ticket.price.cost.prompt_tokens, samples, teaches=teaches)
        if goes_on or self.sequences > slots:
            self.doubt()

    def answered(self, ticket: Ticket, usage: Usage | None, now: float, *, goes_on: bool) -> None:
        """An answer that was not streamed came to its own end. Before `gone`; not while nothing is counted."""
        first_s = ticket.first_token_s
        if usage is None or first_s is None:
            return
        if goes_on:
            self.doubt()
        elif now - first_s <= LATE_BODY * (now - ticket.dispatched_s):
            self.ended(
                ticket.demand.ticket,
                now,
                guessed_tokens=ticket.price.cost.prompt_tokens,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=ticket.pool.pricing.cached_at_end(usage, ticket.cost.cached_tokens),
                output_tokens=usage.output_tokens,
            )

    def gone(self, ticket: Ticket, now: float) -> None:
        """A request is not there any more, however it ended."""
        self.left(
            ticket.demand.ticket,
            now,
            dispatched_s=ticket.dispatched_s,
            prompt_tokens=ticket.price.cost.prompt_tokens,
            samples=ticket.demand.samples,
        )

    # The books

    def start(self, now: float) -> None:
        """Count from now on, beginning with an empty engine: `runs` tells of what is there."""
        self.counts = True
        """It is told of all that comes and goes."""
        self._begun.clear()
        self._at_s = self._prefilled_s = self._unqueued_s = now
        """`_prefilled_s`: when the engine will have computed all prompts. `_unqueued_s`: when one last met no queue."""
        self._taught_s = now - APART_S
        self._ages = self._prompt_tokens = 0.0
        self.sequences = 0.0
        """Sequences there now."""
        self.sequence_s = self.prompt_s = self.age_s = 0.0
        """Integrals over time: of the sequences, of their prompts' tokens, of the sum of their ages."""
        self.prefill = self.attention = self.chunks = self.prompts = 0.0
        """Sums over the prompts that came: estimated tokens, their attention, chunks, and their number."""

    def stop(self) -> None:
        """Another source speaks: nothing is counted."""
        self.counts = False
        self._begun.clear()

    def runs(self, now: float, *, dispatched_s: float, prompt_tokens: int, samples: int) -> None:
        """This one runs there since before the start."""
        self.sequences += samples
        self._prompt_tokens += prompt_tokens
        self._ages += samples * (now - dispatched_s)

    def began(self, key: int, now: float, prompt_tokens: int, samples: int, *, teaches: bool) -> None:
        """A request was dispatched.

        Args:
            key: its ticket.
            prompt_tokens: as estimated.
            teaches: it has one answer, which is not streamed: `ended` will be told of it.
        """
        self._advance(now)
        beside = self.sequences > 0.0
        self.sequences += samples
        self._prompt_tokens += prompt_tokens
        self.prefill += prompt_tokens
        self.attention += attention_of(prompt_tokens)
        self.chunks += self._chunks_of(prompt_tokens)
        self.prompts += 1.0
        if not self._is_queued(now) and teaches:
            self._begun[key] = _Begun(self, now, beside)
        self._prefilled_s += prompt_tokens * self._fresh_share() * self._token_s

    def _is_queued(self, now: float) -> bool:
        """True if one that comes now has to wait for the prompts of those before it."""
        queued_s = self._prefilled_s - now
        if queued_s <= QUEUED_CHUNKS * self._sources.clock.chunk_tokens * self._token_s:
            self._unqueued_s = now
            if queued_s < 0.0:
                self._prefilled_s = now
            return False
        if now - self._unqueued_s <= LONGEST_WINDOW_S + self._took_s:
            return True
        # Nobody has been learned from for long: the engine may have become faster than it is taken to be.
        self._prefilled_s = self._unqueued_s = now
        return False

    def doubt(self) -> None:
        """Something may wait inside the engine, or be computed twice: nothing that is in flight now teaches."""
        self._begun.clear()

    def queue_seen(self, waiting: int, at_s: float) -> None:
        """A reading that began at `at_s` showed so many waiting inside the engine: the latest that had come by then."""
        for begun in reversed(self._begun.values()):
            if begun.at_s > at_s:
                continue
            if at_s - begun.at_s > FRESH_STEPS * self._step_s:
                break
            waiting -= 1
            if waiting <= 0:
                return
        self.doubt()

    def left(self, key: int, now: float, *, dispatched_s: float, prompt_tokens: int, samples: int) -> None:
        """A request is not there any more, however it ended; `ended` comes first."""
        self._advance(now)
        self._begun.pop(key, None)
        self.sequences -= samples
        self._prompt_tokens -= prompt_tokens
        self._ages -= samples * (now - dispatched_s)
        if self.sequences <= 0.0:
            # Whatever was rounded, and whatever was said of its prompts: it is empty.
            self.sequences = self._prompt_tokens = self._ages = 0.0
            self._prefilled_s = now

    def ended(
        self,
        key: int,
        now: float,
        *,
        guessed_tokens: int,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
    ) -> None:
        """An answer that was not streamed has come whole. It decides what that is good for.

        Args:
            guessed_tokens: its prompt as it was estimated at dispatch; the others are the engine's own counts.
        """
        begun = self._begun.pop(key, None)
        if begun is None:
            return
        if now < self._sources.taught_until_s:
            self.stop()
            return
        fresh = prompt_tokens - cached_tokens
        attention = attention_of(prompt_tokens, cached_tokens)
        self._told_prefill = RATIO_DECAY * self._told_prefill + fresh
        self._guessed_prefill = RATIO_DECAY * self._guessed_prefill + guessed_tokens
        self._told_attention = RATIO_DECAY * self._told_attention + attention
        self._guessed_attention = RATIO_DECAY * self._guessed_attention + attention_of(guessed_tokens)
        if output_tokens >= LEAST_TOKENS and now - self._taught_s >= APART_S and now > begun.at_s:
            self._advance(now)
            self._teach(begun, now, fresh, attention, output_tokens)

    def _teach(self, begun: _Begun, now: float, fresh: int, attention: float, output_tokens: int) -> None:
        """Let the learner see the steps of an answer."""
        sources = self._sources
        per_step = sources.pace.tokens_per_step
        own_chunks = self._chunks_of(fresh)
        # The last chunk gives the first token. Who comes in the middle of a step waits for the rest of it.
        steps = own_chunks + (output_tokens - 1) / per_step + (0.5 if begun.beside else 0.0)
        took_s = now - begun.at_s
        step_s = took_s / steps
        chunks = own_chunks + self.chunks - begun.chunks
        # A sequence does not decode in the steps of its prefill, nor in the rest of a step.
        decoded = (
            (self.sequence_s - begun.sequence_s) / step_s - chunks - 0.5 * (self.prompts - begun.prompts)
        )
        kv_s = self.prompt_s - begun.prompt_s + (self.age_s - begun.age_s) * per_step / step_s
        if self._guessed_attention > 0.0:
            ratio = self._told_attention / self._guessed_attention
            attention += (self.attention - begun.attention) * ratio
        passed = (now - self._taught_s) / step_s
        counted = (int(passed) or 1) if passed < steps else int(steps)
        self.learner.observe(
            step_s,
            steps=counted,
            prefill_tokens=(fresh + (self.prefill - begun.prefill) * self._fresh_share()) / steps,
            prefill_steps=distinct_steps(chunks, steps) / steps * counted,
            sequences=decoded / steps if decoded > 0.0 else 0.0,
            kv_tokens=kv_s / took_s,
            attention=attention / steps,
        )
        self._taught_s = now
        self._took_s = took_s
        self._step_s = step_s
        self._lessons += 1
        if self._lessons >= LESSONS:
            self._lessons = 0
            if self.learner.is_trusted:
                self.rests_until_s = now + RESTS_S
                self.stop()
        self._token_s = self.learner.law().c1_s

    def _fresh_share(self) -> float:
        """Prefill that an estimated prompt token turns out to be."""
        return self._told_prefill / self._guessed_prefill if self._guessed_prefill > 0.0 else 1.0

    def _advance(self, now: float) -> None:
        """Bring the integrals up to now."""
        elapsed_s = now - self._at_s
        if elapsed_s > 0.0:
            self._at_s = now
            older = elapsed_s * self.sequences
            self.age_s += elapsed_s * (self._ages + 0.5 * older)
            self._ages += older
            self.sequence_s += older
            self.prompt_s += elapsed_s * self._prompt_tokens

    def _chunks_of(self, prefill_tokens: int) -> int:
        """Steps that its prefill takes if it has them to itself."""
        chunk_tokens = self._sources.clock.chunk_tokens
        return 1 if prefill_tokens <= chunk_tokens else -(-prefill_tokens // chunk_tokens)
