"""The same scheduler written the slow and obvious way: every sequence is touched in every step.

Follows vLLM's own loop (running requests in order, then waiting ones) without the shortcuts of the real model. No
prefix cache. Used as an oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.enginemodel import EngineConfig, StepLaw


@dataclass
class NaiveSequence:
    id: int
    prompt_tokens: int
    output_tokens: int
    generated: int = 0
    computed: int = 0
    blocks: int = 0
    decoding: bool = False


@dataclass
class NaiveStep:
    duration_s: float
    tokens: list[int]
    first_tokens: list[int]
    finished: list[int]
    preempted: list[int]


@dataclass
class NaiveEngine:
    law: StepLaw
    config: EngineConfig
    waiting: list[NaiveSequence] = field(default_factory=list)
    running: list[NaiveSequence] = field(default_factory=list)

    @property
    def free(self) -> int:
        return self.config.kv_blocks - sum(sequence.blocks for sequence in self.running)

    def submit(self, request_id: int, prompt_tokens: int, output_tokens: int) -> None:
        self.waiting.append(NaiveSequence(request_id, prompt_tokens, output_tokens))

    def abort(self, request_id: int) -> None:
        self.waiting = [sequence for sequence in self.waiting if sequence.id != request_id]
        self.running = [sequence for sequence in self.running if sequence.id != request_id]

    def step(self) -> NaiveStep:
        budget = self.config.max_num_batched_tokens
        scheduled: list[tuple[NaiveSequence, int, int]] = []  # sequence, tokens before, tokens computed
        preempted: list[int] = []
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            chunk = min(budget, sequence.prompt_tokens + sequence.generated - sequence.computed)
            if not self._allocate(sequence, chunk, preempted):
                break
            scheduled.append((sequence, sequence.computed, chunk))
            budget -= chunk
            index += 1
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            sequence = self.waiting[0]
            target = sequence.prompt_tokens + sequence.generated
            kept_free = int(self.config.watermark * self.config.kv_blocks) if self.running else 0
            if self._blocks(target) > self.free - kept_free:
                break
            self.waiting.pop(0)
            self.running.append(sequence)
            chunk = min(budget, target)
            sequence.blocks = self._blocks(chunk)
            scheduled.append((sequence, 0, chunk))
            budget -= chunk
        return self._end(scheduled, preempted)

    def _blocks(self, tokens: int) -> int:
        return (tokens + self.config.block_size - 1) // self.config.block_size

    def _allocate(self, sequence: NaiveSequence, chunk: int, preempted: list[int]) -> bool:
        needed = self._blocks(sequence.computed + chunk) - sequence.blocks
        while needed > self.free:
            victim = self.running.pop()
            victim.blocks = victim.computed = 0
            victim.decoding = False
            self.waiting.insert(0, victim)
            preempted.append(victim.id)
            if victim is sequence:
                return False
        sequence.blocks += needed
        return True

    def _end(self, scheduled: list[tuple[NaiveSequence, int, int]], preempted: list[int]) -> NaiveStep:
        prefills = [(before, chunk) for sequence, before, chunk in scheduled if not sequence.decoding]
        decodes = [sequence for sequence, _, _ in scheduled if sequence.decoding]
        duration_s = self.law.step_s(
            prefill_tokens=sum(chunk for _, chunk in prefills),
            decoding=len(decodes),
            kv_tokens=sum(sequence.prompt_tokens + sequence.generated for sequence in decodes),
            prefill_attention=sum(chunk * (before + 0.5 * chunk) for before, chunk in prefills),
            sequences=len(scheduled),
        )
        step = NaiveStep(duration_s, [], [], [], preempted)
        for sequence, before, chunk in scheduled:
            sequence.computed = before + chunk
            if sequence.computed < sequence.prompt_tokens + sequence.generated:
                continue
            if sequence.generated == 0:
                step.first_tokens.append(sequence.id)
            sequence.generated += 1
            sequence.decoding = True
            step.tokens.append(sequence.id)
            if sequence.generated == sequence.output_tokens:
                step.finished.append(sequence.id)
        self.running = [sequence for sequence in self.running if sequence.id not in step.finished]
        return step
