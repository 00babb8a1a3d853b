"""Metric pages and answers as real engines give them, built for one test at a time.

Names, labels and number formats are those of recorded pages; the surroundings (other families, `_created` series,
buckets) are there because a reader that matches too much fails on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from forebay.engines.reading import Answer

CREATED = "1.7959887361107013e+09"


def series(name: str, value: object, **labels: str) -> str:
    """One line of a page."""
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def family(name: str, kind: str, *lines: str) -> list[str]:
    """The lines of one metric family with its two comment lines."""
    return [f"# HELP {name} Text with a {{brace}} and a 1.0 in it.", f"# TYPE {name} {kind}", *lines]


def vllm_page(
    *,
    ranks: int = 1,
    running: Sequence[object] = (6.0,),
    waiting: Sequence[object] = (1.0,),
    kv_usage: Mapping[str, Sequence[object]] | None = None,
    preemptions: Sequence[object] = (71.0,),
    prompt_tokens: Sequence[object] = (5600.0,),
    output_tokens: Sequence[object] = (14527.0,),
    steps: Sequence[object] = (2060.0,),
    step_tokens: Sequence[object] = (20127.0,),
    cached: Sequence[object] = (0.0,),
    cached_name: str = "vllm:prefix_cache_hits_total",
    cache_config: Mapping[str, str] | None = None,
    started: object = "1.79598868156e+09",
    reverse: bool = False,
) -> bytes:
    """A page of vLLM; each sequence has one value per data-parallel rank, and one value alone goes for all ranks."""
    lines = [
        *family(
            "python_info", "gauge", series("python_info", 1.0, implementation="CPython", version="3.11.7")
        ),
        *family("process_start_time_seconds", "gauge", series("process_start_time_seconds", started)),
        *family("process_cpu_seconds_total", "counter", series("process_cpu_seconds_total", 23.85)),
    ]

    def ranked(name: str, kind: str, values: Sequence[object], *, of: str = "") -> None:
        values = values if len(values) == ranks else list(values) * ranks
        found = [
            series(name, value, engine=str(rank), model_name="tiny")
            for rank, value in enumerate(values)
            if value != ""
        ]
        lines.extend(family(of or name, kind, *(reversed(found) if reverse else found)))
        if kind == "counter":
            made = name.removesuffix("_total") + "_created"
            lines.extend(family(made, "gauge", series(made, CREATED, engine="0", model_name="tiny")))

    ranked("vllm:num_requests_running", "gauge", running)
    ranked("vllm:num_requests_waiting", "gauge", waiting)
    reasons = [
        series("vllm:num_requests_waiting_by_reason", 9.0, engine="0", reason=why)
        for why in ("capacity", "x")
    ]
    lines.extend(family("vllm:num_requests_waiting_by_reason", "gauge", *reasons))
    for name, values in ({"vllm:kv_cache_usage_perc": (0.5,)} if kv_usage is None else kv_usage).items():
        ranked(name, "gauge", values)
    ranked("vllm:prefix_cache_queries_total", "counter", (5600.0,))
    ranked(cached_name, "counter", cached)
    ranked("vllm:num_preemptions_total", "counter", preemptions)
    ranked("vllm:prompt_tokens_total", "counter", prompt_tokens)
    ranked("vllm:generation_tokens_total", "counter", output_tokens)
    lines.extend(
        series("vllm:iteration_tokens_total_bucket", 2060.0, engine="0", le=bound, model_name="tiny")
        for bound in ("1.0", "8.0", "+Inf")
    )
    ranked("vllm:iteration_tokens_total_count", "histogram", steps, of="vllm:iteration_tokens_total")
    ranked("vllm:iteration_tokens_total_sum", "histogram", step_tokens, of="vllm:iteration_tokens_total")
    config = {"block_size": "32", "cache_dtype": "auto", "num_gpu_blocks": "64", "num_cpu_blocks": "None"}
    config |= {"kv_cache_size_tokens": "2048"} if cache_config is None else dict(cache_config)
    lines.extend(
        family(
            "vllm:cache_config_info",
            "gauge",
            *(series("vllm:cache_config_info", 1.0, engine=str(rank), **config) for rank in range(ranks)),
        )
    )
    return ("\n".join(lines) + "\n").encode()


def llamacpp_page(
    *, processing: object = 4, deferred: object = 20, predicted: object = 0, more: str = ""
) -> bytes:
    """A page of llama.cpp: no labels, no KV gauge."""
    numbers = {
        "llamacpp:prompt_tokens_total": 400,
        "llamacpp:prompt_tokens_cached_total": 7,
        "llamacpp:tokens_predicted_total": predicted,
        "llamacpp:n_decode_total": 97,
        "llamacpp:prompt_tokens_seconds": 812.5,
        "llamacpp:requests_processing": processing,
        "llamacpp:requests_deferred": deferred,
    }
    lines = [line for name, value in numbers.items() for line in family(name, "gauge", series(name, value))]
    return ("\n".join(lines) + "\n" + more).encode()


def vllm_models(*names: str, length: int | None = 2048) -> bytes:
    """What vLLM lists; names after the first are adapters of the first."""
    entries = [
        {
            "id": name,
            "object": "model",
            "created": 1795988479,
            "owned_by": "vllm",
            "root": f"models/{name}",
            "parent": names[0] if number else None,
            "max_model_len": None if number else length,
            "permission": [{"id": "modelperm-9440386f716f2bc6", "organization": "*", "is_blocking": False}],
        }
        for number, name in enumerate(names)
    ]
    return json.dumps({"object": "list", "data": entries}).encode()


def llamacpp_models(*, context: int = 2048, trained: int = 8192) -> bytes:
    """What llama.cpp lists, under two keys."""
    meta = {"vocab_type": 2, "n_vocab": 4096, "n_ctx": context, "n_ctx_train": trained, "n_params": 27271680}
    entry = {
        "id": "tiny",
        "aliases": ["tiny", "small"],
        "object": "model",
        "owned_by": "llamacpp",
        "meta": meta,
    }
    return json.dumps({"models": [{"name": "tiny"}], "object": "list", "data": [entry]}).encode()


def llamacpp_slots(*contexts: int, busy: int = 0) -> bytes:
    """One object per slot."""
    return json.dumps(
        [
            {"id": number, "n_ctx": context, "speculative": False, "is_processing": number < busy}
            for number, context in enumerate(contexts)
        ]
    ).encode()


def llamacpp_props(*, slots: int = 4, context: int = 2048) -> bytes:
    """The server's properties, the few that matter."""
    settings = {"params": {"seed": 4294967295, "temperature": 0.8}, "n_ctx": context}
    return json.dumps(
        {
            "default_generation_settings": settings,
            "total_slots": slots,
            "model_alias": "tiny",
            "is_sleeping": False,
        }
    ).encode()


def answer(body: bytes = b"", status: int = 200, **headers: str) -> Answer:
    """An answer, asked at second 10 and there 5 ms later."""
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Answer(status, body, fields, at_s=10.0, took_s=0.005)
