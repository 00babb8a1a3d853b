"""vLLM's `/metrics`, by name, label and bucket, as version 0.32 writes them.

Two sources: the engine's statistics at the end of its last step (gauges and counters), and what the HTTP side saw
of each request (times, sizes, endings), in real seconds. Every counter and histogram comes with a `_created`
series and every family with HELP and TYPE, as the Python client library writes them. Families about things that
are not modelled (multi-modal cache, KV transfer, FLOPs) are left out.

One family is our own: `emulator:lag_seconds_total`, the time by which the engine ran behind its profile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from forebay.enginemodel import EngineConfig, EngineStatistics
from forebay.enginemodel.statistics import ITERATION_TOKENS_BOUNDS

CONTENT_TYPE: Final = b"text/plain; version=1.0.0; charset=utf-8"
FINISHED_REASONS: Final = ("stop", "length", "abort", "error", "repetition")

_FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_GAP_S: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_S: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_SAMPLES: Final = (1, 2, 5, 10, 20)
_PREEMPTIONS: Final = (1, 2, 3, 4, 5, 10, 20)


def token_bounds(context_tokens: int) -> tuple[int, ...]:
    """Bounds 1, 2, 5, 10, 20, 50, … up to the context: those of vLLM's token histograms."""
    bounds: list[int] = []
    decade = 1
    while decade <= context_tokens:
        bounds.extend(decade * step for step in (1, 2, 5) if decade * step <= context_tokens)
        decade *= 10
    return tuple(bounds)


class Histogram:
    """Counts by upper bound, and a sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


class RequestMetrics:
    """What the HTTP side saw of the requests."""

    def __init__(self, context_tokens: int) -> None:
        sizes = token_bounds(context_tokens)
        self.first_token_s = Histogram(_FIRST_TOKEN_S)
        self.token_gap_s = Histogram(_TOKEN_GAP_S)
        self.tpot_s = Histogram(_TOKEN_GAP_S)
        self.e2e_s = Histogram(_REQUEST_S)
        self.queue_s = Histogram(_REQUEST_S)
        self.inference_s = Histogram(_REQUEST_S)
        self.prefill_s = Histogram(_REQUEST_S)
        self.decode_s = Histogram(_REQUEST_S)
        self.prompt_tokens = Histogram(sizes)
        self.generation_tokens = Histogram(sizes)
        self.limit_tokens = Histogram(sizes)
        self.samples = Histogram(_SAMPLES)
        self.preemptions = Histogram(_PREEMPTIONS)
        self.finished: dict[str, int] = dict.fromkeys(FINISHED_REASONS, 0)


class MetricsText:
    """Writes the text of one engine."""

    def __init__(self, *, model: str, config: EngineConfig, created_s: float) -> None:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = f'engine="0",model_name="{escaped}"'
        self._created = go_float(created_s)
        self._cache_info = _cache_info(config)

    def render(self, now: EngineStatistics, requests: RequestMetrics, lag_s: float) -> bytes:
        """The whole text."""
        lines: list[str] = []
        self._gauges(lines, now)
        self._counters(lines, now, requests.finished)
        self._histograms(lines, now, requests)
        self._family(
            lines, "vllm:cache_config_info", "gauge", "Settings of the KV cache", [(self._cache_info, 1.0)]
        )
        self._family(lines, "emulator:lag_seconds_total", "counter", "Time behind the profile", [("", lag_s)])
        self._family(lines, "process_start_time_seconds", "gauge", "Start of the process", [])
        lines.append(f"process_start_time_seconds {self._created}\n")
        return "".join(lines).encode("utf-8")

    def _gauges(self, lines: list[str], now: EngineStatistics) -> None:
        for name, text, value in (
            ("num_requests_running", "Requests in the batch", now.running),
            ("num_requests_waiting", "Requests waiting to enter the batch", now.waiting),
        ):
            self._family(lines, f"vllm:{name}", "gauge", text, [("", value)])
        reasons = [('reason="capacity"', float(now.waiting)), ('reason="deferred"', 0.0)]
        self._family(
            lines, "vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by reason", reasons
        )
        states = [("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)]
        sleep = [(f'sleep_state="{state}"', value) for state, value in states]
        self._family(lines, "vllm:engine_sleep_state", "gauge", "Whether the engine is awake", sleep)
        usage = "Part of the KV cache in use; 1 is all of it"
        self._family(lines, "vllm:kv_cache_usage_perc", "gauge", usage, [("", now.kv_usage)])

    def _counters(self, lines: list[str], now: EngineStatistics, finished: Mapping[str, int]) -> None:
        computed = now.prompt_tokens - now.prompt_tokens_cached
        for name, text, value in (
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache",
                now.prefix_queries_tokens,
            ),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", now.prefix_hits_tokens),
            ("num_preemptions", "Preemptions", now.preemptions),
            ("prompt_tokens", "Prompt tokens of requests that gave a token", now.prompt_tokens),
            ("prompt_tokens_cached", "Those found in the prefix cache", now.prompt_tokens_cached),
            ("generation_tokens", "Tokens generated", now.generation_tokens),
        ):
            self._counter(lines, f"vllm:{name}", text, [("", value)])
        by_source = [
            ('source="local_compute"', computed),
            ('source="local_cache_hit"', now.prompt_tokens_cached),
        ]
        self._counter(lines, "vllm:prompt_tokens_by_source", "Prompt tokens by source", by_source)
        endings = [(f'finished_reason="{reason}"', float(count)) for reason, count in finished.items()]
        self._counter(lines, "vllm:request_success", "Requests that ended, by reason", endings)

    def _histograms(self, lines: list[str], now: EngineStatistics, requests: RequestMetrics) -> None:
        iterations = Histogram(ITERATION_TOKENS_BOUNDS)
        iterations.counts = list(now.iteration_tokens.buckets)
        iterations.sum = now.iteration_tokens.sum
        for name, text, histogram in (
            ("iteration_tokens_total", "Tokens per step that gave a token", iterations),
            ("request_prompt_tokens", "Prompt tokens per request", requests.prompt_tokens),
            ("request_generation_tokens", "Output tokens per request", requests.generation_tokens),
            ("request_params_n", "Samples asked for", requests.samples),
            ("request_params_max_tokens", "Output limit", requests.limit_tokens),
            ("time_to_first_token_seconds", "Arrival to first token", requests.first_token_s),
            ("inter_token_latency_seconds", "Time between tokens", requests.token_gap_s),
            ("request_time_per_output_token_seconds", "Mean time per output token", requests.tpot_s),
            ("e2e_request_latency_seconds", "Arrival to last token", requests.e2e_s),
            ("request_queue_time_seconds", "Time in the waiting queue", requests.queue_s),
            ("request_inference_time_seconds", "Time in the batch", requests.inference_s),
            ("request_prefill_time_seconds", "Time in prefill", requests.prefill_s),
            ("request_decode_time_seconds", "Time in decode", requests.decode_s),
            ("request_num_preemptions", "Preemptions per request", requests.preemptions),
        ):
            self._histogram(lines, f"vllm:{name}", text, histogram)

    def _family(
        self, lines: list[str], name: str, kind: str, text: str, series: Iterable[tuple[str, float]]
    ) -> None:
        lines.append(f"# HELP {name} {text}.\n# TYPE {name} {kind}\n")
        lines.extend(f"{name}{{{self._with(label)}}} {go_float(value)}\n" for label, value in series)

    def _counter(self, lines: list[str], name: str, text: str, series: Sequence[tuple[str, float]]) -> None:
        self._family(lines, f"{name}_total", "counter", text, series)
        lines.append(f"# HELP {name}_created {text}.\n# TYPE {name}_created gauge\n")
        lines.extend(f"{name}_created{{{self._with(label)}}} {self._created}\n" for label, _ in series)

    def _histogram(self, lines: list[str], name: str, text: str, histogram: Histogram) -> None:
        lines.append(f"# HELP {name} {text}.\n# TYPE {name} histogram\n")
        total = 0
        for bound, count in zip((*map(go_float, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            total += count
            label = f'le="{bound}"'
            lines.append(f"{name}_bucket{{{self._with(label)}}} {go_float(total)}\n")
        lines.append(f"{name}_count{{{self._labels}}} {go_float(total)}\n")
        lines.append(f"{name}_sum{{{self._labels}}} {go_float(histogram.sum)}\n")
        lines.append(f"# HELP {name}_created {text}.\n# TYPE {name}_created gauge\n")
        lines.append(f"{name}_created{{{self._labels}}} {self._created}\n")

    def _with(self, label: str) -> str:
        """All labels of a series, in alphabetical order as the client library writes them."""
        if not label:
            return self._labels
        return ",".join(sorted((*self._labels.split(",", 1), label)))


def go_float(value: float) -> str:
    """A number of at least 0 as the Python client library writes it: an exponent from a million up, as in Go."""
    text = repr(float(value))
    digits, dot, fraction = text.partition(".")
    if not dot or "e" in text or len(digits) <= 6:
        return text
    mantissa = f"{digits[0]}.{digits[1:]}{fraction}".rstrip("0.")
    return f"{mantissa}e+{len(digits) - 1:02d}"


def _cache_info(config: EngineConfig) -> str:
    concurrency = config.kv_tokens / config.context_tokens
    fields = {
        "block_size": config.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": config.prefix_caching,
        "kv_cache_max_concurrency": concurrency,
        "kv_cache_size_tokens": config.kv_tokens,
        "num_cpu_blocks": None,
        "num_gpu_blocks": config.kv_blocks,
        "num_gpu_blocks_override": None,
        "prefix_caching_hash_algo": "crc32",
    }
    return ",".join(f'{key}="{value}"' for key, value in fields.items())
