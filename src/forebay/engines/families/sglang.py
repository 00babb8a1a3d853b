"""SGLang.

Two spellings of every name: `sglang:x` and, since the colon became an underscore, `sglang_x`. Where a page has both,
the newer one wins. `/metrics` exists only with `--enable-metrics`; without it our own books are all there is.

Series that are no sum: with priority scheduling every gauge is there once for each priority and once, with an empty
`priority`, for all of them; with metrics of all schedulers once for each rank of tensor, pipeline and expert
parallelism, which all work on the same requests. Only data-parallel ranks (`dp_rank`) and models add up.

The counters of finished requests stand still while a long answer is made. Newer servers count tokens as they are
made (`realtime_tokens_total`), which then shows that work goes on. Some gauges keep their last value when the engine
falls idle: an engine that runs and queues nothing uses no KV cache, whatever `token_usage` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import Reading, largest, page_of, positive, sign_of_life
from forebay.engines.exposition import Page, PageReader, PageTooLarge
from forebay.engines.plausible import Numbers
from forebay.engines.reading import Answer, Look
from forebay.engines.selecting import Selector, counted_once, picked

__all__ = ["FAMILY", "Sglang"]

METRICS: Final = "/metrics"
MODELS: Final = "/v1/models"


def _spellings(name: str) -> tuple[str, str]:
    return f"sglang_{name}", f"sglang:{name}"


RUNNING: Final = _spellings("num_running_reqs")
WAITING: Final = _spellings("num_queue_reqs")
KV_USAGE: Final = _spellings("token_usage")
KV_TOKENS: Final = _spellings("max_total_num_tokens")
PAGE_SIZE: Final = _spellings("page_size")
CONTEXT: Final = _spellings("context_len")
RETRACTIONS: Final = _spellings("num_retracted_requests_total")
FINISHED_PROMPT: Final = _spellings("prompt_tokens_total")
FINISHED_OUTPUT: Final = _spellings("generation_tokens_total")
FINISHED_CACHED: Final = _spellings("cached_tokens_total")
REALTIME: Final = _spellings("realtime_tokens_total")

_BY_NAME: Final = (
    *(*RUNNING, *WAITING, *KV_USAGE, *RETRACTIONS, *KV_TOKENS, *PAGE_SIZE, *CONTEXT),
    *(*FINISHED_PROMPT, *FINISHED_OUTPUT, *FINISHED_CACHED),
)
COMPUTED: Final = tuple(f'{name}{{mode="prefill_compute"}}' for name in REALTIME)
CACHED: Final = tuple(f'{name}{{mode="prefill_cache"}}' for name in REALTIME)
DECODED: Final = tuple(f'{name}{{mode="decode"}}' for name in REALTIME)
_SELECTORS: Final = tuple(Selector.parse(text) for text in (*_BY_NAME, *COMPUTED, *CACHED, *DECODED))
_PAGES: Final = PageReader((*_BY_NAME, *REALTIME))
_COPIES: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid", "priority"})


class Sglang:
    """Reads SGLang's `/metrics` and `/v1/models`."""

    kind: Final = EngineKind.SGLANG
    describing_paths: Final = (METRICS, MODELS)
    least_interval_s: Final = 0.0
    health_interval_s: Final = 5.0
    """It makes a token to answer."""

    def claims(self, look: Look) -> bool:
        page = _page(look.body(METRICS)) or Page({})
        return look.is_owned_by("sglang") or any(name in page for name in (*RUNNING, *WAITING, *KV_USAGE))

    def describe(self, look: Look) -> EngineInfo:
        page = _page(look.body(METRICS)) or Page({})
        numbers = Numbers(page)
        listed = (tokens for entry in look.models() if (tokens := positive(entry.get("max_model_len"))))
        return EngineInfo(
            kind=self.kind,
            models=look.model_names(),
            checks_model_names=False,
            context_tokens=max(listed, default=None) or largest(page, CONTEXT),
            kv_tokens=numbers.counter(*KV_TOKENS) or None,
            kv_block_tokens=largest(page, PAGE_SIZE) or 1,
            linger_s=4.0,
            aborts_unstreamed=True,
            reports_load=any(name in page for name in RUNNING) and any(name in page for name in WAITING),
            counts_while_running=any(name in page for name in DECODED),
            closes_after_stream=False,
        )

    def sample_path(self, look: Look) -> str:
        """The list of models is a proof of life where the server was started without metrics."""
        metrics = look.answers.get(METRICS)
        return MODELS if metrics is not None and metrics.status == 404 else METRICS

    def read(self, path: str, answer: Answer) -> Reading:
        if path != METRICS:
            return sign_of_life(answer)
        numbers = Numbers(_counted(page_of(answer, _PAGES)))
        return Reading(_sample(numbers, answer), doubts=numbers.doubts)


def _page(body: bytes | None) -> Page | None:
    if body is None:
        return None
    try:
        return _counted(_PAGES.read(body))
    except PageTooLarge:
        return None


def _counted(page: Page) -> Page:
    return counted_once(picked(page, _SELECTORS), copies=_COPIES, is_total=_is_total)


def _is_total(labels: Mapping[str, str]) -> bool:
    return labels.get("priority") == ""


def _sample(numbers: Numbers, answer: Answer) -> EngineSample:
    running, waiting = numbers.gauge(*RUNNING), numbers.gauge(*WAITING)
    kv_usage = numbers.ratio(*KV_USAGE)
    prompt, output = numbers.counter(*FINISHED_PROMPT), numbers.counter(*FINISHED_OUTPUT)
    cached = numbers.counter(*FINISHED_CACHED)
    computed, decoded = numbers.counter(*COMPUTED), numbers.counter(*DECODED)
    if computed is not None and decoded is not None:
        cached = numbers.counter(*CACHED) or 0
        prompt, output = computed + cached, decoded
    return EngineSample(
        at_s=answer.at_s,
        took_s=answer.took_s,
        running=running,
        waiting=waiting,
        kv_usage=0.0 if kv_usage is not None and running == 0 and waiting == 0 else kv_usage,
        preemptions_total=numbers.counter(*RETRACTIONS),
        prompt_tokens_total=prompt,
        output_tokens_total=output,
        cached_tokens_total=cached,
        doubtful=numbers.doubtful,
    )


FAMILY: Final = Sglang()
