from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.enginemodel import Engine, EngineConfig, Request, Submission, chain_keys, token_keys
from tests.unit.enginemodel.builders import profile


class EngineMachine(RuleBasedStateMachine):
    """Random submissions (with shared prefixes of both kinds), aborts and steps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next_id = 0
        self.wanted: dict[int, int] = {}
        self.given: dict[int, int] = {}
        self.live: list[int] = []
        self.finished: list[int] = []
        self.aborted: set[int] = set()
        self.admitted: list[int] = []
        self.engine: Engine

    @initialize(
        kv_blocks=st.integers(3, 20),
        seqs=st.integers(1, 5),
        extra=st.integers(0, 10),
        caching=st.booleans(),
        watermark=st.sampled_from([0.0, 0.3]),
    )
    def start(self, kv_blocks: int, seqs: int, extra: int, caching: bool, watermark: float) -> None:
        config = EngineConfig(
            kv_blocks=kv_blocks,
            block_size=4,
            max_num_seqs=seqs,
            max_num_batched_tokens=seqs + extra,
            context_tokens=kv_blocks * 4,
            prefix_caching=caching,
            watermark=watermark,
        )
        self.engine = Engine(profile(), config)

    @rule(
        prompt=st.integers(1, 40),
        output=st.integers(1, 25),
        chain=st.none() | st.integers(0, 2),
        known=st.integers(0, 60),
        as_tokens=st.booleans(),
    )
    def submit(self, prompt: int, output: int, chain: int | None, known: int, as_tokens: bool) -> None:
        request_id, self.next_id = self.next_id, self.next_id + 1
        if chain is None:
            request = Request(request_id, prompt, output)
        elif as_tokens:
            request = Request(request_id, prompt, output, token_keys([chain] * min(known, prompt), 4))
        else:
            request = Request(request_id, prompt, output, chain_keys(chain, min(known, prompt + output), 4))
        fits = prompt + output <= self.engine.config.context_tokens
        assert fits == (self.engine.submit(request) is Submission.QUEUED)
        if fits:
            self.wanted[request_id] = output
            self.given[request_id] = 0
            self.live.append(request_id)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.live))
        assert self.engine.abort(request_id)
        assert not self.engine.abort(request_id)
        self.live.remove(request_id)
        self.aborted.add(request_id)

    @precondition(lambda self: self.live)
    @rule(steps=st.integers(1, 12), pause_s=st.sampled_from([0.0, 0.5]))
    def step(self, steps: int, pause_s: float) -> None:
        for _ in range(steps):
            result = self.engine.step(self.now + pause_s)
            if result is None:
                assert not self.live
                return
            assert result.duration_s > 0
            self.now = result.end_s
            assert len(set(result.tokens)) == len(result.tokens)
            for request_id in result.tokens:
                assert request_id in self.live
                self.given[request_id] += 1
            for request_id in result.first_tokens:
                assert self.given[request_id] == 1
            self.admitted.extend(result.admitted)
            for request_id in result.finished:
                assert self.given[request_id] == self.wanted[request_id]
                self.live.remove(request_id)
                self.finished.append(request_id)

    @invariant()
    def books_balance(self) -> None:
        self.engine.check()
        statistics = self.engine.statistics()
        assert 0 <= statistics.kv_blocks_used <= statistics.kv_blocks
        assert statistics.running <= self.engine.config.max_num_seqs
        assert statistics.running + statistics.waiting == len(self.live)
        if not self.live:
            assert statistics.kv_blocks_used == 0

    @invariant()
    def every_request_is_admitted_in_order_and_ends_once(self) -> None:
        assert self.admitted == sorted(set(self.admitted))
        assert len(set(self.finished)) == len(self.finished)
        assert self.aborted.isdisjoint(self.finished)
        for request_id in self.live:
            assert self.engine.generated(request_id) == self.given[request_id]

    def teardown(self) -> None:
        """Whatever happened, what is left runs to its end."""
        if not hasattr(self, "engine"):
            return
        left = 40 * sum(self.wanted[request_id] + 60 for request_id in self.live) + 10
        while self.live:
            self.step(steps=1, pause_s=0.0)
            left -= 1
            assert left > 0, "the engine makes no progress"
        self.books_balance()
        statistics = self.engine.statistics()
        assert len(self.finished) == statistics.requests_finished
        assert len(self.aborted) == statistics.requests_aborted


EngineMachine.TestCase.settings = settings(stateful_step_count=40)
TestEngineBooks = EngineMachine.TestCase
