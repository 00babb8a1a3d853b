"""TensorRT-LLM, behind Triton or served by itself (`trtllm-serve`).

Triton tells several things under one name, by a label: `nv_trt_llm_request_metrics{request_type=…}` counts requests
that are scheduled and waiting, `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=…}` blocks of the KV cache, and
the counter of iterations moves with each step. Its OpenAI frontend has them at `/metrics` of its own port.

`trtllm-serve` has Prometheus text at `/prometheus/metrics`; its `/metrics` is JSON that is used up by being read, so it
is left alone once that is known. Token counters grow when a request ends.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import Reading, largest, page_of, positive, sign_of_life
from forebay.engines.exposition import Page, PageReader, PageTooLarge
from forebay.engines.plausible import Numbers
from forebay.engines.reading import Answer, Look
from forebay.engines.selecting import Selector, picked

__all__ = ["FAMILY", "Trtllm"]

METRICS: Final = "/metrics"
PROMETHEUS: Final = "/prometheus/metrics"
MODELS: Final = "/v1/models"
OWNERS: Final = ("tensorrt_llm", "Triton Inference Server")


def _served(name: str) -> tuple[str, str]:
    return f"trtllm_{name}", f"trtllm:{name}"


RUNNING: Final = ('nv_trt_llm_request_metrics{request_type="scheduled"}', *_served("num_requests_running"))
WAITING: Final = ('nv_trt_llm_request_metrics{request_type="waiting"}', *_served("num_requests_waiting"))
MOST: Final = ('nv_trt_llm_request_metrics{request_type="max"}',)
KV_USAGE: Final = (
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',
    *_served("kv_cache_utilization"),
)
BLOCKS: Final = ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}',)
BLOCK_TOKENS: Final = ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"}',)
STEPS: Final = ('nv_trt_llm_general_metrics{general_type="iteration_counter"}',)
PROMPT_TOKENS: Final = _served("prompt_tokens_total")
OUTPUT_TOKENS: Final = _served("generation_tokens_total")
_SELECTORS: Final = tuple(
    Selector.parse(text)
    for texts in (RUNNING, WAITING, MOST, KV_USAGE, BLOCKS, BLOCK_TOKENS, STEPS, PROMPT_TOKENS, OUTPUT_TOKENS)
    for text in texts
)
_PAGES: Final = PageReader({selector.name: None for selector in _SELECTORS})


class Trtllm:
    """Reads the metrics of Triton or of `trtllm-serve`, and `/v1/models`."""

    kind: Final = EngineKind.TRTLLM
    describing_paths: Final = (METRICS, MODELS, PROMETHEUS)
    least_interval_s: Final = 0.0
    health_interval_s: Final = 2.0

    def claims(self, look: Look) -> bool:
        return any(look.is_owned_by(owner) for owner in OWNERS) or bool(_page(look.body(METRICS)).series)

    def describe(self, look: Look) -> EngineInfo:
        page = _page(look.body(self.sample_path(look)))
        numbers = Numbers(page)
        blocks, block_tokens = numbers.counter(*BLOCKS), largest(page, BLOCK_TOKENS)
        lengths = (
            tokens
            for entry in look.models()
            for key in ("max_model_len", "max_seq_len")
            if (tokens := positive(entry.get(key)))
        )
        return EngineInfo(
            kind=self.kind,
            models=look.model_names(),
            checks_model_names=False,
            context_tokens=max(lengths, default=None),
            kv_tokens=blocks * block_tokens if blocks and block_tokens else None,
            kv_block_tokens=block_tokens or 1,
            max_requests=numbers.counter(*MOST) or None,
            linger_s=1.0,
            aborts_unstreamed=True,
            reports_load=any(name in page for name in RUNNING) and any(name in page for name in WAITING),
            counts_while_running=any(name in page for name in STEPS),
            closes_after_stream=False,
        )

    def sample_path(self, look: Look) -> str:
        if _page(look.body(METRICS)).series:
            return METRICS
        served = look.answers.get(PROMETHEUS)
        return MODELS if served is not None and served.status == 404 else PROMETHEUS

    def read(self, path: str, answer: Answer) -> Reading:
        if path == MODELS:
            return sign_of_life(answer)
        numbers = Numbers(picked(page_of(answer, _PAGES), _SELECTORS))
        return Reading(
            EngineSample(
                at_s=answer.at_s,
                took_s=answer.took_s,
                running=numbers.gauge(*RUNNING),
                waiting=numbers.gauge(*WAITING),
                kv_usage=numbers.ratio(*KV_USAGE),
                prompt_tokens_total=numbers.counter(*PROMPT_TOKENS),
                output_tokens_total=numbers.counter(*OUTPUT_TOKENS),
                steps_total=numbers.counter(*STEPS),
                doubtful=numbers.doubtful,
            ),
            doubts=numbers.doubts,
        )


def _page(body: bytes | None) -> Page:
    try:
        return picked(_PAGES.read(body or b""), _SELECTORS)
    except PageTooLarge:
        return Page({})


FAMILY: Final = Trtllm()
