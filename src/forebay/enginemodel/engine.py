"""The engine: a waiting queue, a batch, KV blocks, and one method that runs a step.

Rules, those of vLLM's V1 scheduler with its defaults:

- First come, first served. The batch is always in order of arrival, and so is the waiting queue; every request
  in the batch arrived before every one that waits.
- A step computes at most `max_num_batched_tokens`: one for each decoding sequence first, then the chunk of the
  prompt that is half done (there is at most one, the latest in the batch), then waiting prompts.
- A waiting request enters if a sequence is free and its whole prompt would fit the free KV blocks; nothing is
  reserved for its answer. The first that does not fit blocks those behind it.
- KV blocks are taken as tokens are computed. If there is none, the latest in the batch is preempted: it gives up
  its blocks, goes back to the head of the queue, and later computes its prompt and what it had generated anew.
  In a step with a preemption nobody enters.
- The step takes what the profile's law says, and ends with one token for each decoding sequence and for each
  whose prefill was completed.

Contract: `submit` and `abort` at any time; `step(now)` not before the last step's end. A step changes the state
at once; what it returned has happened at `StepResult.end_s`. A request ends exactly once: in one
`StepResult.finished`, or by `abort`. Not modelled: speculative decoding, LoRA, several data-parallel ranks,
priorities, swapping, the null block, CUDA-graph batch sizes, the time of a cancelled request's last step.
"""

from __future__ import annotations

from collections import OrderedDict

from forebay.enginemodel.blocks import BlockPool
from forebay.enginemodel.decode import DecodeBatch
from forebay.enginemodel.errors import InvariantError, MisuseError
from forebay.enginemodel.profile import EngineConfig, EngineProfile
from forebay.enginemodel.sequence import Request, RequestState, Sequence
from forebay.enginemodel.statistics import Counters, EngineStatistics, IterationTokens
from forebay.enginemodel.step import StepDraft, StepResult, Submission


class Engine:
    """One engine. See the module's text for its rules and its contract."""

    __slots__ = (
        "_block_size",
        "_blocked",
        "_busy_until_s",
        "_counters",
        "_decode",
        "_next_number",
        "_partial",
        "_pool",
        "_sequences",
        "_waiting",
        "config",
        "profile",
    )

    def __init__(self, profile: EngineProfile, config: EngineConfig) -> None:
        self.profile = profile
        self.config = config
        self._block_size = config.block_size
        self._pool = BlockPool(config.kv_blocks)
        self._decode = DecodeBatch(config.block_size)
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._partial: Sequence | None = None
        self._sequences: dict[int, Sequence] = {}
        self._blocked: tuple[int, int, int] | None = None
        self._counters = Counters()
        self._next_number = 0
        self._busy_until_s = 0.0

    # -- what callers ask ---------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._sequences)

    @property
    def busy_until_s(self) -> float:
        """End of the last step: the earliest time for the next."""
        return self._busy_until_s

    def next_step_at(self, now: float) -> float | None:
        """When the next step can start, or None if there is nothing to do."""
        if not self._sequences:
            return None
        return max(now, self._busy_until_s)

    def state(self, request_id: int) -> RequestState | None:
        """Where a request is, or None if it is not live."""
        sequence = self._sequences.get(request_id)
        return None if sequence is None else sequence.state

    def generated(self, request_id: int) -> int | None:
        """Tokens that a live request has given, or None if it is not live."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        if sequence.state is RequestState.DECODING:
            return self._decode.generated(sequence)
        return sequence.generated

    def generated_before_step(self, request_id: int) -> int | None:
        """The same while the last step runs, which gives one token to each that decodes: those that are there."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        if sequence.state is RequestState.DECODING:
            return self._decode.generated(sequence) - 1
        return sequence.generated

    def prefilled(self, request_id: int) -> int | None:
        """Prompt tokens of a live request that have been computed, or None if it is not live."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        prompt = sequence.request.prompt_tokens
        if sequence.state is RequestState.DECODING or sequence.generated:
            return prompt
        return min(sequence.computed, prompt)

    def cached_tokens(self, request_id: int) -> int | None:
        """Prompt tokens of a live request that the prefix cache had at its admission, or None if it is not live."""
        sequence = self._sequences.get(request_id)
        return None if sequence is None else sequence.cached_tokens

    def statistics(self) -> EngineStatistics:
        """The engine as it is now."""
        counters, pool = self._counters, self._pool
        return EngineStatistics(
            running=self._running(),
            waiting=len(self._waiting),
            kv_blocks=pool.total,
            kv_blocks_used=pool.used,
            kv_blocks_idle=pool.idle,
            steps=counters.steps,
            busy_s=counters.busy_s,
            preemptions=counters.preemptions,
            requests_admitted=counters.requests_admitted,
            requests_finished=counters.requests_finished,
            requests_aborted=counters.requests_aborted,
            prompt_tokens=counters.prompt_tokens,
            prompt_tokens_cached=counters.prompt_tokens_cached,
            prefill_tokens=counters.prefill_tokens,
            generation_tokens=counters.generation_tokens,
            prefix_queries_tokens=counters.prefix_queries_tokens,
            prefix_hits_tokens=counters.prefix_hits_tokens,
            iteration_tokens=IterationTokens(
                counters.iterations, counters.iterations_sum, tuple(counters.iteration_buckets)
            ),
        )

    # -- what happens -------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Submission:
        """Queue a request; it can enter the batch at the next step."""
        if request.id in self._sequences:
            raise MisuseError(f"request {request.id} is live already")
        if request.prompt_tokens + request.output_tokens > self.config.context_tokens:
            return Submission.TOO_LONG
        sequence = Sequence(request, self._next_number)
        self._next_number += 1
        self._sequences[request.id] = sequence
        self._waiting[request.id] = sequence
        return Submission.QUEUED

    def abort(self, request_id: int) -> bool:
        """End a request and free what it holds. False if it is not live (any more), which is no error."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.state is RequestState.WAITING:
            del self._waiting[request_id]
        else:
            if sequence.state is RequestState.DECODING:
                self._decode.leave(sequence)
            else:
                self._partial = None
            self._release(sequence)
        self._counters.requests_aborted += 1
        return True

    def step(self, now: float, *, list_tokens: bool = True) -> StepResult | None:
        """Run the step that starts at `now`. None if there is nothing to do.

        Args:
            now: not before the last step's end.
            list_tokens: fill in `StepResult.tokens`, which costs as much as the batch is large; all else costs what
                changes.

        After calling: nothing may be stepped again before `end_s` of the result.
        """
        if not self._sequences:
            return None
        if now < self._busy_until_s:
            raise MisuseError(f"a step at {now} would start before the last one ends at {self._busy_until_s}")
        step = StepDraft()
        self._grow(step)
        decode = self._decode
        decoding = len(decode.members)
        step.budget = self.config.max_num_batched_tokens - decoding
        self._continue_prefill(step)
        if not step.preempted:
            self._admit(step)
        duration_s = self.profile.law.step_s(
            prefill_tokens=step.prefill_tokens,
            decoding=decoding,
            kv_tokens=decode.kv_tokens,
            prefill_attention=step.attention,
            sequences=decoding + step.prefilling,
        )
        self._busy_until_s = now + duration_s
        return self._give_tokens(step, now, duration_s, list_tokens)

    # -- the parts of a step ------------------------------------------------------------------------------------

    def _grow(self, step: StepDraft) -> None:
        """Take the blocks that decoding sequences need for this step; preempt if there are not enough."""
        growing = self._decode.growing()
        pool = self._pool
        caching = self.config.prefix_caching
        if pool.take(len(growing)):
            for sequence in growing.values():
                sequence.private += 1
                if caching:
                    # The block before the new one is full.
                    self._publish(sequence, sequence.private + len(sequence.held) - 1)
            return
        for sequence in sorted(growing.values(), key=lambda member: member.number):
            while sequence.state is RequestState.DECODING:
                if pool.take(1):
                    sequence.private += 1
                    if caching:
                        self._publish(sequence, sequence.blocks - 1)
                    break
                self._preempt_last(step)

    def _continue_prefill(self, step: StepDraft) -> None:
        """Compute the next chunk of the prompt that is half done."""
        sequence = self._partial
        if sequence is None or step.budget <= 0:
            return
        chunk = min(step.budget, sequence.target - sequence.computed)
        blocks = -(-(sequence.computed + chunk) // self._block_size) - sequence.blocks
        if not self._pool.take(blocks):
            self._preempt_last(step)  # which is this one
            return
        sequence.private += blocks
        self._compute(step, sequence, chunk)

    def _admit(self, step: StepDraft) -> None:
        """Let waiting requests into the batch, in order, as long as everything allows it."""
        config, pool, counters = self.config, self._pool, self._counters
        block_size = self._block_size
        while self._waiting and step.budget > 0:
            running = self._running() + len(step.completed)
            if running >= config.max_num_seqs:
                return
            sequence = next(iter(self._waiting.values()))
            # Looking up a long prompt's blocks is dear: not again for a head that did not fit until that can change.
            blocked = self._blocked
            if blocked is not None and blocked == (
                sequence.number,
                pool.publications,
                max(pool.free, blocked[2]),
            ):
                return
            target = sequence.target
            keys = self._known_keys(sequence, (target - 1) // block_size)
            hits = pool.match(keys, len(keys))
            # The whole prompt has to fit, although only the first chunk's blocks are taken.
            needed = -(-target // block_size) - hits + pool.idle_among(keys, hits)
            kept_free = int(config.watermark * pool.total) if running else 0
            if needed > pool.free - kept_free:
                self._blocked = (sequence.number, pool.publications, pool.free)
                return
            self._blocked = None
            del self._waiting[sequence.request.id]
            sequence.held = pool.hold(keys, hits)
            sequence.published = hits
            sequence.computed = hits * block_size
            chunk = min(step.budget, target - sequence.computed)
            sequence.private = -(-(sequence.computed + chunk) // block_size) - hits
            if not pool.take(sequence.private):
                raise InvariantError("a prompt that fits does not get its blocks")
            if sequence.preemptions == 0:
                sequence.cached_tokens = sequence.computed
                counters.requests_admitted += 1
                counters.prefix_queries_tokens += target if config.prefix_caching else 0
                counters.prefix_hits_tokens += sequence.computed
                step.admitted.append(sequence.request.id)
            self._partial = sequence
            sequence.state = RequestState.PREFILLING
            self._compute(step, sequence, chunk)

    def _compute(self, step: StepDraft, sequence: Sequence, chunk: int) -> None:
        """Put a chunk of the partial sequence's prefill, for which it has the blocks, into the step."""
        before = sequence.computed
        sequence.computed = before + chunk
        step.budget -= chunk
        step.prefill_tokens += chunk
        step.attention += chunk * (before + 0.5 * chunk)
        step.prefilling += 1
        if self.config.prefix_caching:
            self._publish(sequence, sequence.computed // self._block_size)
        if sequence.computed == sequence.target:
            self._partial = None
            step.completed.append(sequence)

    def _give_tokens(self, step: StepDraft, now: float, duration_s: float, list_tokens: bool) -> StepResult:
        """End the step: one token for each decoding sequence and each whose prefill is complete."""
        counters, decode = self._counters, self._decode
        decoded = len(decode.members)
        given = decoded + len(step.completed)
        tokens = list(decode.members) if list_tokens else []
        first: list[int] = []
        resumed: list[int] = []
        done = decode.advance() if decoded else []
        credited = 0
        for sequence in step.completed:
            request = sequence.request
            if list_tokens:
                tokens.append(request.id)
            if sequence.generated == 0:
                first.append(request.id)
                credited += request.prompt_tokens
                counters.prompt_tokens_cached += sequence.cached_tokens
            else:
                resumed.append(request.id)
            sequence.generated += 1
            if sequence.generated == request.output_tokens:
                done.append(sequence)
            else:
                decode.join(sequence)
        for sequence in done:
            self._release(sequence)
            del self._sequences[sequence.request.id]
        counters.steps += 1
        counters.busy_s += duration_s
        counters.prefill_tokens += step.prefill_tokens
        counters.prompt_tokens += credited
        counters.generation_tokens += given
        counters.requests_finished += len(done)
        if given:
            counters.count_iteration(credited + given)
        return StepResult(
            start_s=now,
            duration_s=duration_s,
            decoding=decoded,
            prefill_tokens=step.prefill_tokens,
            tokens=tuple(tokens),
            first_tokens=tuple(first),
            resumed=tuple(resumed),
            finished=tuple(sequence.request.id for sequence in done),
            preempted=tuple(step.preempted),
            admitted=tuple(step.admitted),
        )

    # -- small parts --------------------------------------------------------------------------------------------

    def _running(self) -> int:
        return len(self._decode.members) + (self._partial is not None)

    def _known_keys(self, sequence: Sequence, blocks: int) -> tuple[int, ...]:
        """Names under which the first `blocks` blocks of a waiting sequence may be found."""
        if not self.config.prefix_caching:
            return ()
        if sequence.preemptions:  # its own blocks may still be there
            return tuple(sequence.block_key(index) for index in range(blocks))
        return tuple(sequence.request.block_keys[:blocks])

    def _publish(self, sequence: Sequence, full_blocks: int) -> None:
        """Offer the blocks that have become full to the prefix cache."""
        while sequence.published < full_blocks:
            key = sequence.block_key(sequence.published)
            sequence.published += 1
            if self._pool.publish(key):
                sequence.private -= 1
                sequence.held.append(key)

    def _release(self, sequence: Sequence) -> None:
        """Give back all blocks of a sequence that has left the batch."""
        if self.config.prefix_caching:
            self._publish(sequence, sequence.computed // self._block_size)
        self._pool.release(private=sequence.private, keys=sequence.held)
        sequence.private = 0
        sequence.held = []
        sequence.published = 0
        sequence.computed = 0

    def _preempt_last(self, step: StepDraft) -> None:
        """Put the latest in the batch back to the head of the queue."""
        sequence = self._partial
        if sequence is not None:
            self._partial = None
        else:
            sequence = self._decode.last()
            if sequence is None:
                raise InvariantError("KV blocks are short with nobody in the batch")
            self._decode.leave(sequence)
        self._release(sequence)
        sequence.state = RequestState.WAITING
        sequence.preemptions += 1
        self._counters.preemptions += 1
        request_id = sequence.request.id
        self._waiting[request_id] = sequence
        self._waiting.move_to_end(request_id, last=False)
        step.preempted.append(request_id)

    def check(self) -> None:
        """Raise `InvariantError` unless the books balance. O(live requests): for tests."""
        sequences = self._sequences.values()
        self._pool.check(sum(sequence.private for sequence in sequences))
        live = len(self._waiting) + self._running()
        if live != len(self._sequences):
            raise InvariantError(f"{live} requests wait or run, {len(self._sequences)} are live")
        context = sum(self._decode.context(sequence) for sequence in self._decode.members.values())
        if context != self._decode.kv_tokens:
            raise InvariantError(f"the sum of contexts is {context}, not {self._decode.kv_tokens}")
        for sequence in self._decode.members.values():
            blocks = -(-(self._decode.context(sequence) - 1) // self._block_size)
            if sequence.blocks != blocks:
                raise InvariantError(
                    f"request {sequence.request.id} holds {sequence.blocks} blocks, not {blocks}"
                )
        order = [sequence.number for sequence in (*self._decode.members.values(), *self._waiting.values())]
        if order != sorted(order):
            raise InvariantError("the batch and the queue are not in order of arrival")
