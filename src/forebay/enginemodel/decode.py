"""The decoding part of the batch, kept so that a step costs what changes in it.

Every decoding sequence gives one token in every step. So instead of touching each, one tick is counted, and what
a sequence has is what it had when it joined plus the ticks since. Two things happen to a sequence at ticks that
are known when it joins: it needs another KV block (every block_size ticks: a ring of that many slots) and it ends
(a calendar of ticks). The sum of context lengths grows by the number of members per tick.

Owns the tick, the ring and the calendar. It never takes or gives blocks; `Engine` does, from what is due here.
"""

from __future__ import annotations

from forebay.enginemodel.sequence import RequestState, Sequence


class DecodeBatch:
    """The sequences that give one token per step, in order of arrival."""

    __slots__ = ("_block_size", "_calendar", "_ring", "_tick", "kv_tokens", "members")

    def __init__(self, block_size: int) -> None:
        self.members: dict[int, Sequence] = {}
        """By request id, in order of arrival."""
        self.kv_tokens = 0
        """Sum of context lengths in the next step, the tokens being computed included."""
        self._block_size = block_size
        self._tick = 0
        self._ring: list[dict[int, Sequence]] = [{} for _ in range(block_size)]
        self._calendar: dict[int, list[Sequence]] = {}

    def context(self, sequence: Sequence) -> int:
        """Context length of a member in the next step."""
        return sequence.joined_context + self._tick - sequence.joined_tick

    def generated(self, sequence: Sequence) -> int:
        """Tokens that a member has given."""
        return sequence.generated + self._tick - sequence.joined_tick

    def last(self) -> Sequence | None:
        """The member that arrived last."""
        return self.members[next(reversed(self.members))] if self.members else None

    def join(self, sequence: Sequence) -> None:
        """Add a sequence whose prefill is done and whose first token of this stay has been given."""
        request = sequence.request
        tick = self._tick
        context = sequence.target
        sequence.state = RequestState.DECODING
        sequence.joined_tick = tick
        sequence.joined_context = context
        # The step at tick t needs a new block if the context in it is one above a multiple of the block size.
        slot = (tick - context + 1) % self._block_size
        sequence.growth_slot = slot
        self._ring[slot][request.id] = sequence
        sequence.finish_tick = tick + request.output_tokens - sequence.generated
        self._calendar.setdefault(sequence.finish_tick, []).append(sequence)
        self.members[request.id] = sequence
        self.kv_tokens += context

    def leave(self, sequence: Sequence) -> None:
        """Take a member out; its `generated` and `computed` then say what it has."""
        context = self.context(sequence)
        request_id = sequence.request.id
        del self.members[request_id]
        del self._ring[sequence.growth_slot][request_id]
        self.kv_tokens -= context
        sequence.generated = self.generated(sequence)
        sequence.computed = context - 1
        sequence.finish_tick = (
            -1
        )  # leaves a stale entry in the calendar, which is passed over when its tick comes

    def growing(self) -> dict[int, Sequence]:
        """The members that need one more block for the next step. Belongs to the batch: copy before changing it."""
        return self._ring[self._tick % self._block_size]

    def advance(self) -> list[Sequence]:
        """Count one step: every member has given a token. Returns those that are done, already taken out."""
        self._tick += 1
        self.kv_tokens += len(self.members)
        due = self._calendar.pop(self._tick, None)
        if due is None:
            return []
        done: list[Sequence] = []
        for sequence in due:
            # Twice in here: a sequence that was taken out and joined again with the same end.
            if sequence.finish_tick == self._tick:
                self.leave(sequence)
                done.append(sequence)
        return done
