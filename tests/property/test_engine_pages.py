"""Whatever an engine sends, reading it gives a record or nothing, never an exception and never nonsense."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.base import NoReading
from forebay.engines.exposition import PageReader, labels_of
from forebay.engines.reading import Answer, Look
from forebay.engines.registry import all_families

PATHS = ("/metrics", "/v1/models", "/props", "/slots", "/health", "/info", "/prometheus/metrics")
NAMES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:iteration_tokens_total_count",
    "vllm:cache_config_info",
    "llamacpp:requests_processing",
    "llamacpp:prompt_tokens_total",
    "sglang:num_running_reqs",
    "sglang_token_usage",
    "sglang:max_total_num_tokens",
    "sglang:page_size",
    "sglang:realtime_tokens_total",
    "tgi_batch_current_size",
    "tgi_queue_size",
    "nv_trt_llm_request_metrics",
    "nv_trt_llm_kv_cache_block_metrics",
    "trtllm_kv_cache_utilization",
)
LABELS = (
    'priority="",mode="decode"',
    'priority="1",mode="prefill_compute"',
    'request_type="max",kv_cache_block_type="max"',
    'request_type="scheduled",kv_cache_block_type="tokens_per"',
)

PUNCTUATION = (b"\n", b"{", b"}", b'"', b"\\", b",", b"=", b" ", b"# ", b"1", b"-", b"NaN", b"Inf", b"e9")
KEYS = (
    "data",
    "id",
    "aliases",
    "owned_by",
    "max_model_len",
    "meta",
    "n_ctx_train",
    "n_ctx",
    "total_slots",
    "model_id",
)

pieces = st.sampled_from([*PUNCTUATION, b'{engine="0"} ', *(name.encode() for name in NAMES)])
texts = st.one_of(st.binary(max_size=400), st.lists(pieces, max_size=40).map(b"".join))
numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr), st.integers().map(str), st.text(max_size=6)
)
lines = st.builds(
    lambda name, rank, value: (
        f'{name}{{engine="{rank}",num_gpu_blocks="{value}",block_size="{value}",{LABELS[rank]}}} {value}'
    ),
    st.sampled_from(NAMES),
    st.integers(0, 3),
    numbers,
)
pages = st.one_of(
    texts, st.lists(lines, max_size=12).map(lambda found: "\n".join(found).encode("utf-8", "replace"))
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["vllm", "llamacpp", "", "a"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from([*KEYS, "default_generation_settings", "is_processing", "max_total_tokens"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


def encoded(value: object) -> bytes:
    """A JSON body, as lenient as Python's writer (NaN and infinities included)."""
    return json.dumps(value).encode()


bodies = st.one_of(pages, json_values.map(encoded))
answers = st.builds(
    Answer,
    st.sampled_from([200, 200, 200, 404, 500, 501, 503]),
    bodies,
    st.lists(
        st.sampled_from(
            [(b"server", b"llama.cpp"), (b"content-encoding", b"gzip"), (b"process-start-time-unix", b"\xff")]
        ),
        max_size=2,
    ),
)


@given(texts)
def test_any_bytes_are_a_page(page: bytes) -> None:
    """Any bytes are read, and every value found is a number."""
    found = PageReader(NAMES).read(page)
    assert set(found.series) <= set(NAMES)
    assert all(isinstance(value, float) for name in NAMES for value in found.values(name))


@given(texts)
def test_any_bytes_are_labels(raw: bytes) -> None:
    """Any bytes are read as labels."""
    assert all(key for key in labels_of(raw))


@given(st.sampled_from(PATHS), answers)
def test_any_answer_is_a_believable_sample_or_none(path: str, answer: Answer) -> None:
    """A sample never holds NaN, infinities, negative counts or a usage outside 0 to 1, whatever was sent."""
    for family in all_families():
        try:
            sample = family.read(path, answer).sample
        except NoReading:
            continue
        counts = (
            *(sample.running, sample.waiting, sample.preemptions_total, sample.prompt_tokens_total),
            *(
                sample.output_tokens_total,
                sample.steps_total,
                sample.step_tokens_total,
                sample.cached_tokens_total,
            ),
        )
        assert all(count is None or (type(count) is int and count >= 0) for count in counts)
        assert sample.kv_usage is None or (math.isfinite(sample.kv_usage) and 0 <= sample.kv_usage <= 1)


@given(st.dictionaries(st.sampled_from(PATHS), answers, max_size=5))
def test_any_answers_are_a_believable_description(found: dict[str, Answer]) -> None:
    """A description never holds a limit below one, and each family can say where to sample, whatever was sent."""
    look = Look(found)
    for family in all_families():
        family.claims(look)
        info = family.describe(look)
        limits = (info.context_tokens, info.kv_tokens, info.max_requests)
        assert all(limit is None or limit > 0 for limit in limits)
        assert family.sample_path(look) in PATHS
