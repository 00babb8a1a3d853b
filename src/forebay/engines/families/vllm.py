"""vLLM, and what speaks its metric names (our emulator, some forks).

Generations of names, newest first: the KV gauge was `gpu_cache_usage_perc` before it became `kv_cache_usage_perc`,
prefix hits were `gpu_prefix_cache_hits_total`, and only newer servers say `kv_cache_size_tokens`. Where a page has
both, the new name wins.

Data-parallel ranks: one series per rank, told apart by `engine`. Requests and counters are summed, KV usage is that of
the worst rank, and the capacity is the sum over ranks: usage × capacity then never reads less than what is in use.

Two facts to keep in mind when reading samples: gauges move once per engine step (which may take most of a second in
heavy prefill), and `num_preemptions_total` lags, since it grows only when a preempted request produces its next token.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import Reading, page_of, positive
from forebay.engines.exposition import Page, PageReader, PageTooLarge, labels_of
from forebay.engines.plausible import Numbers
from forebay.engines.reading import Answer, Look
from forebay.engines.selecting import Selector, picked

__all__ = ["FAMILY", "Vllm"]

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
PREEMPTIONS: Final = "vllm:num_preemptions_total"
PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
OUTPUT_TOKENS: Final = "vllm:generation_tokens_total"
STEPS: Final = "vllm:iteration_tokens_total_count"
STEP_TOKENS: Final = "vllm:iteration_tokens_total_sum"
CACHED_TOKENS: Final = (
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:prompt_tokens_cached_total",
)
CACHE_CONFIG: Final = "vllm:cache_config_info"
AWAKE: Final = Selector.parse('vllm:engine_sleep_state{sleep_state="awake"}')
PROCESS_START: Final = "process_start_time_seconds"

_SAMPLED: Final = (
    *(RUNNING, WAITING, PREEMPTIONS, PROMPT_TOKENS, OUTPUT_TOKENS, STEPS, STEP_TOKENS),
    *KV_USAGE,
    *CACHED_TOKENS,
)
_SAMPLES = PageReader((*_SAMPLED, AWAKE.name, PROCESS_START))
_DESCRIPTION = PageReader((*_SAMPLED, CACHE_CONFIG))


class Vllm:
    """Reads vLLM's `/metrics` and `/v1/models`."""

    kind: Final = EngineKind.VLLM
    describing_paths: Final = ("/metrics", "/v1/models")
    least_interval_s: Final = 0.0
    health_interval_s: Final = 2.0

    def claims(self, look: Look) -> bool:
        page = _page(look)
        return look.is_owned_by("vllm") or any(name in page for name in (RUNNING, WAITING, *KV_USAGE))

    def describe(self, look: Look) -> EngineInfo:
        page = _page(look)
        return EngineInfo(
            kind=self.kind,
            models=look.model_names(),
            checks_model_names=True,
            # The longest: adapters are listed beside their base model, sometimes without a length.
            context_tokens=max(
                (tokens for entry in look.models() if (tokens := positive(entry.get("max_model_len")))),
                default=None,
            ),
            kv_tokens=_kv_tokens(page),
            kv_block_tokens=_block_tokens(page),
            linger_s=1.0,
            aborts_unstreamed=True,
            reports_load=RUNNING in page and WAITING in page,
            counts_while_running=OUTPUT_TOKENS in page or STEPS in page,
            closes_after_stream=False,
        )

    def sample_path(self, look: Look) -> str:
        del look  # the same wherever
        return "/metrics"

    def read(self, path: str, answer: Answer) -> Reading:
        del path
        page = page_of(answer, _SAMPLES)
        numbers = Numbers(page)
        sample = EngineSample(
            at_s=answer.at_s,
            took_s=answer.took_s,
            running=numbers.gauge(RUNNING),
            waiting=numbers.gauge(WAITING),
            kv_usage=numbers.ratio(*KV_USAGE),
            preemptions_total=numbers.counter(PREEMPTIONS),
            prompt_tokens_total=numbers.counter(PROMPT_TOKENS),
            output_tokens_total=numbers.counter(OUTPUT_TOKENS),
            steps_total=numbers.counter(STEPS),
            step_tokens_total=numbers.counter(STEP_TOKENS),
            cached_tokens_total=numbers.counter(*CACHED_TOKENS),
            # One rank that sleeps is enough: the request may be sent there.
            unready="it is asleep" if 0.0 in picked(page, (AWAKE,)).values(AWAKE.text) else "",
            doubtful=numbers.doubtful,
        )
        starts = page.values(PROCESS_START)
        return Reading(sample, repr(starts[0]) if starts else None, numbers.doubts)


def _page(look: Look) -> Page:
    try:
        return _DESCRIPTION.read(look.body("/metrics") or b"")
    except PageTooLarge:
        return Page({})


def _kv_tokens(page: Page) -> int | None:
    """Tokens that fit into the KV cache, over all ranks; None unless every rank says."""
    total = 0
    for raw in page.series.get(CACHE_CONFIG, {}):
        labels = labels_of(raw)
        block = positive(labels.get("block_size"))
        blocks = positive(labels.get("num_gpu_blocks"))
        tokens = positive(labels.get("kv_cache_size_tokens"))
        if tokens is None and block is not None and blocks is not None:
            tokens = block * blocks
        if tokens is None:
            return None
        # One block holds nothing: the engine points unused table entries at it, and its own usage gauge leaves it out.
        total += tokens - block if block is not None and block < tokens else tokens
    return total or None


def _block_tokens(page: Page) -> int:
    """Tokens of a block of the KV cache, the largest of any rank; 1 where nobody says."""
    blocks = [positive(labels_of(raw).get("block_size")) for raw in page.series.get(CACHE_CONFIG, {})]
    return max((tokens for tokens in blocks if tokens is not None), default=1)


FAMILY: Final = Vllm()
