"""llama.cpp's own server.

It has a fixed number of slots, each with its own part of the context, queues the rest without limit, and says nothing
about its KV cache. Token counters grow only when a request ends, so a standstill proves nothing, and there is no step
histogram to learn from. A request that is not streamed runs to its end when its client leaves. After a streamed answer
it closes the connection, although it announces keep-alive.

`/metrics` exists only when the server was started with it; `/slots` is then read instead, and tells how many slots are
busy but not how many requests wait.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading, Reading, page_of, positive, text_of
from forebay.engines.exposition import PageReader
from forebay.engines.plausible import Numbers
from forebay.engines.reading import Answer, Look

__all__ = ["FAMILY", "LlamaCpp"]

PROCESSING: Final = "llamacpp:requests_processing"
DEFERRED: Final = "llamacpp:requests_deferred"
PROMPT_TOKENS: Final = "llamacpp:prompt_tokens_total"
OUTPUT_TOKENS: Final = "llamacpp:tokens_predicted_total"
CACHED_TOKENS: Final = "llamacpp:prompt_tokens_cached_total"
KV_USAGE: Final = "llamacpp:kv_cache_usage_ratio"
"""Gone from current servers; read where an older one still has it."""

METRICS: Final = "/metrics"
SLOTS: Final = "/slots"
PROPS: Final = "/props"
SLOTS_READ: Final = 4096

_SAMPLES = PageReader((PROCESSING, DEFERRED, PROMPT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS, KV_USAGE))


class LlamaCpp:
    """Reads llama.cpp's `/metrics` (or `/slots`), `/props` and `/v1/models`."""

    kind: Final = EngineKind.LLAMACPP
    describing_paths: Final = (METRICS, "/v1/models", PROPS, SLOTS)
    least_interval_s: Final = 0.0
    health_interval_s: Final = 2.0

    def claims(self, look: Look) -> bool:
        if (look.header(b"server") or b"").lower().startswith(b"llama.cpp") or look.is_owned_by("llamacpp"):
            return True
        if b"llamacpp:" in (look.body(METRICS) or b""):
            return True
        match look.json(PROPS):
            case {"total_slots": int(), "default_generation_settings": dict()}:
                return True
        return False

    def describe(self, look: Look) -> EngineInfo:
        contexts = _slot_contexts(look)
        return EngineInfo(
            kind=self.kind,
            models=look.model_names(),
            checks_model_names=False,
            context_tokens=min(contexts, default=None),
            kv_tokens=_kv_tokens(look, contexts),
            max_requests=len(contexts) or None,
            linger_s=1.0,
            aborts_unstreamed=False,
            reports_load=look.body(METRICS) is not None,
            counts_while_running=False,
            closes_after_stream=True,
        )

    def sample_path(self, look: Look) -> str:
        return SLOTS if look.body(METRICS) is None and look.body(SLOTS) is not None else METRICS

    def read(self, path: str, answer: Answer) -> Reading:
        started = answer.header(b"process-start-time-unix")
        process = started.decode("latin-1") if started else None
        if path == SLOTS:
            return Reading(_slots_sample(answer), process)
        numbers = Numbers(page_of(answer, _SAMPLES))
        return Reading(_metrics_sample(numbers, answer), process, numbers.doubts)


def _metrics_sample(numbers: Numbers, answer: Answer) -> EngineSample:
    return EngineSample(
        at_s=answer.at_s,
        took_s=answer.took_s,
        running=numbers.gauge(PROCESSING),
        waiting=numbers.gauge(DEFERRED),
        kv_usage=numbers.ratio(KV_USAGE),
        prompt_tokens_total=numbers.counter(PROMPT_TOKENS),
        output_tokens_total=numbers.counter(OUTPUT_TOKENS),
        cached_tokens_total=numbers.counter(CACHED_TOKENS),
        doubtful=numbers.doubtful,
    )


def _slots_sample(answer: Answer) -> EngineSample:
    text_of(answer)
    match Look({SLOTS: answer}).json(SLOTS):
        case list(slots):
            busy = sum(
                1
                for slot in slots[:SLOTS_READ]
                if isinstance(slot, dict) and slot.get("is_processing") is True
            )
            return EngineSample(at_s=answer.at_s, took_s=answer.took_s, running=busy)
    raise NoReading("its list of slots is none")


def _kv_tokens(look: Look, contexts: list[int]) -> int | None:
    """Tokens that fit into the KV cache.

    With a part of the cache for each slot, that is their sum. With one cache for all slots each of them shows the
    whole, and the server does not say which way it was started. Overfilling a shared cache makes it fail all running
    requests at once, so the whole is counted once where it is the model's full length: that is what a server gives
    each of several slots that share, unless told otherwise. (A shared cache of another size cannot be told from here:
    `max_inflight_tokens` is there for that.)
    """
    lengths = [
        tokens
        for entry in look.models()
        if isinstance(meta := entry.get("meta"), dict) and (tokens := positive(meta.get("n_ctx_train")))
    ]
    if lengths and contexts and min(contexts) >= max(lengths):
        return max(contexts)
    return sum(contexts) or None


def _slot_contexts(look: Look) -> list[int]:
    """The context of each slot, in tokens."""
    match look.json(SLOTS):
        case list(slots):
            contexts = [
                tokens
                for slot in slots[:SLOTS_READ]
                if isinstance(slot, dict) and (tokens := positive(slot.get("n_ctx")))
            ]
            if contexts:
                return contexts
    match look.json(PROPS):
        case {"total_slots": slots, "default_generation_settings": {"n_ctx": tokens}}:
            count, each = positive(slots), positive(tokens)
            if count is not None and each is not None and count <= SLOTS_READ:
                return [each] * count
    return []


FAMILY: Final = LlamaCpp()
