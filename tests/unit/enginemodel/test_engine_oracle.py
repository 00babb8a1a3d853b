from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.enginemodel import Engine, EngineConfig, Request, Submission
from tests.unit.enginemodel.builders import LAW, profile
from tests.unit.enginemodel.naive import NaiveEngine

_CONFIGS = st.builds(
    lambda kv_blocks, block_size, seqs, extra, watermark: EngineConfig(
        kv_blocks=kv_blocks,
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + extra,
        context_tokens=kv_blocks * block_size,
        prefix_caching=False,
        watermark=watermark,
    ),
    kv_blocks=st.integers(2, 24),
    block_size=st.integers(1, 6),
    seqs=st.integers(1, 6),
    extra=st.integers(0, 12),
    watermark=st.sampled_from([0.0, 0.2]),
)
_ARRIVALS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 40), st.integers(1, 30), st.none() | st.integers(0, 25)),
    max_size=14,
)


@given(config=_CONFIGS, arrivals=_ARRIVALS)
def test_the_model_does_step_for_step_what_the_obvious_scheduler_does(
    config: EngineConfig, arrivals: list[tuple[int, int, int, int | None]]
) -> None:
    """Same tokens, endings, preemptions and durations as a scheduler that touches every sequence in every step."""
    real, naive = Engine(profile(LAW), config), NaiveEngine(LAW, config)
    pending = sorted(enumerate(arrivals), key=lambda entry: entry[1][0])
    aborts = [(at, request_id) for request_id, (_, _, _, at) in enumerate(arrivals) if at is not None]
    step, now = 0, 0.0
    while pending or real.has_work:
        while pending and pending[0][1][0] <= step:
            request_id, (_, prompt_tokens, output_tokens, _) = pending.pop(0)
            if real.submit(Request(request_id, prompt_tokens, output_tokens)) is Submission.QUEUED:
                naive.submit(request_id, prompt_tokens, output_tokens)
        for at, request_id in aborts:
            if at == step:
                real.abort(request_id)
                naive.abort(request_id)
        result = real.step(now)
        step += 1
        if result is None:
            continue
        expected = naive.step()
        real.check()
        assert expected.tokens == list(result.tokens)
        assert expected.first_tokens == list(result.first_tokens)
        assert sorted(expected.finished) == sorted(result.finished)
        assert expected.preempted == list(result.preempted)
        assert expected.duration_s == result.duration_s
        statistics = real.statistics()
        assert (len(naive.running), len(naive.waiting), config.kv_blocks - naive.free) == (
            statistics.running,
            statistics.waiting,
            statistics.kv_blocks_used,
        )
        now = result.end_s
        assert step < 20_000
