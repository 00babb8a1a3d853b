"""Text Generation Inference (TGI).

`/info` tells what it was started with: the model, its length, how many tokens its batches may hold, and how many
requests it takes before it answers 429. `/metrics` has the running batch and the queue, but nothing of the KV cache.
Its token histograms grow when a request ends; the count of forward passes moves with each, so a standstill shows.
There is no word on the tokens of a pass, and so no step law from it: that is learned from streams.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import Reading, page_of, positive, sign_of_life
from forebay.engines.exposition import Page, PageReader, PageTooLarge
from forebay.engines.plausible import Numbers
from forebay.engines.reading import Answer, Look

__all__ = ["FAMILY", "Tgi"]

RUNNING: Final = "tgi_batch_current_size"
WAITING: Final = "tgi_queue_size"
PASSES: Final = ("tgi_batch_inference_count", "tgi_batch_inference_success")
PROMPT_TOKENS: Final = "tgi_request_input_length_sum"
OUTPUT_TOKENS: Final = "tgi_request_generated_tokens_sum"
METRICS: Final = "/metrics"
INFO: Final = "/info"
MODELS: Final = "/v1/models"

_PAGES: Final = PageReader((RUNNING, WAITING, *PASSES, PROMPT_TOKENS, OUTPUT_TOKENS))


class Tgi:
    """Reads TGI's `/metrics`, `/info` and `/v1/models`."""

    kind: Final = EngineKind.TGI
    describing_paths: Final = (METRICS, INFO, MODELS)
    least_interval_s: Final = 0.0
    health_interval_s: Final = 2.0

    def claims(self, look: Look) -> bool:
        if (look.body(METRICS) or b"").find(b"tgi_") >= 0 and _page(look.body(METRICS)).series:
            return True
        info = _info(look)
        return "max_total_tokens" in info and ("model_id" in info or "router" in info)

    def describe(self, look: Look) -> EngineInfo:
        info, page = _info(look), _page(look.body(METRICS))
        name = info.get("model_id")
        names = look.model_names() or ((name,) if isinstance(name, str) and 0 < len(name) <= 512 else ())
        return EngineInfo(
            kind=self.kind,
            models=names,
            checks_model_names=False,
            context_tokens=positive(info.get("max_total_tokens")),
            kv_tokens=positive(info.get("max_batch_total_tokens")),
            max_requests=positive(info.get("max_concurrent_requests")),
            linger_s=1.0,
            aborts_unstreamed=True,
            reports_load=RUNNING in page and WAITING in page,
            counts_while_running=any(name in page for name in PASSES),
            closes_after_stream=False,
        )

    def sample_path(self, look: Look) -> str:
        metrics = look.answers.get(METRICS)
        return MODELS if metrics is not None and metrics.status == 404 else METRICS

    def read(self, path: str, answer: Answer) -> Reading:
        if path != METRICS:
            return sign_of_life(answer)
        numbers = Numbers(page_of(answer, _PAGES))
        return Reading(
            EngineSample(
                at_s=answer.at_s,
                took_s=answer.took_s,
                running=numbers.gauge(RUNNING),
                waiting=numbers.gauge(WAITING),
                prompt_tokens_total=numbers.counter(PROMPT_TOKENS),
                output_tokens_total=numbers.counter(OUTPUT_TOKENS),
                steps_total=numbers.counter(*PASSES),
                doubtful=numbers.doubtful,
            ),
            doubts=numbers.doubts,
        )


def _info(look: Look) -> dict[str, object]:
    info = look.json(INFO)
    return info if isinstance(info, dict) else {}


def _page(body: bytes | None) -> Page:
    try:
        return _PAGES.read(body or b"")
    except PageTooLarge:
        return Page({})


FAMILY: Final = Tgi()
