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


def sglang_page(
    *,
    separator: str = ":",
    running: object = 31.0,
    queued: object = 1.0,
    token_usage: object = 0.99,
    priorities: Mapping[str, tuple[object, object]] | None = None,
    dp_ranks: int = 1,
    tp_ranks: int = 1,
    realtime: Mapping[str, object] | None = None,
    retracted: object = None,
) -> bytes:
    """A page of SGLang 0.5; `priorities` are (running, queued) of each beside the totals."""
    lines: list[str] = []

    def ranked(name: str, value: object, **more: str) -> None:
        found = []
        for dp_rank in range(dp_ranks):
            for tp_rank in range(tp_ranks):
                labels = {"engine_type": "unified", "model_name": "tiny", "moe_ep_rank": "0", "pp_rank": "0"}
                labels |= {"tp_rank": str(dp_rank * tp_ranks + tp_rank)}
                labels |= {"dp_rank": str(dp_rank)} if dp_ranks > 1 else {}
                labels |= {"priority": ""} if priorities is not None else {}
                found.append(series(f"sglang{separator}{name}", value, **(labels | more)))
        lines.extend(family(f"sglang{separator}{name}", "gauge", *found))

    ranked("max_total_num_tokens", 8192.0)
    ranked("page_size", 1.0)
    ranked("context_len", 2048.0)
    ranked("num_running_reqs", running)
    ranked("num_queue_reqs", queued)
    for priority, (its_running, its_queued) in (priorities or {}).items():
        ranked("num_running_reqs", its_running, priority=priority)
        ranked("num_queue_reqs", its_queued, priority=priority)
    ranked("num_grammar_queue_reqs", 0.0)
    ranked("token_usage", token_usage)
    ranked("full_token_usage", 0.991455078125)
    ranked("fwd_occupancy", "NaN")
    for mode, value in (realtime or {}).items():
        ranked("realtime_tokens_total", value, mode=mode)
    if retracted is not None:
        ranked("num_retracted_requests_total", retracted)
    for streaming, prompt, output in (("false", 112.0, 43.0), ("true", 24112.0, 7709.0)):
        labels = {"engine_type": "unified", "is_streaming": streaming, "model_name": "tiny"}
        lines.append(series(f"sglang{separator}prompt_tokens_total", prompt, **labels))
        lines.append(series(f"sglang{separator}generation_tokens_total", output, **labels))
    lines.append(
        series(f"sglang{separator}cached_tokens_total", 170.0, cache_source="device", model_name="tiny")
    )
    return ("\n".join(lines) + "\n").encode()


def sglang_models(*, length: int | None = 2048) -> bytes:
    """What SGLang lists."""
    entry = {"id": "tiny", "object": "model", "created": 1795990025, "owned_by": "sglang", "root": "tiny"}
    return json.dumps(
        {"object": "list", "data": [entry | {"parent": None, "max_model_len": length}]}
    ).encode()


def tgi_page(*, batch: object = 5, queue: object = 3, prefills: object = 40, decodes: object = 900) -> bytes:
    """A page of TGI."""
    lines = [
        *family("tgi_batch_current_size", "gauge", series("tgi_batch_current_size", batch)),
        *family("tgi_queue_size", "gauge", series("tgi_queue_size", queue)),
        series("tgi_batch_current_max_tokens", 12000),
        series("tgi_batch_inference_count", prefills, method="prefill"),
        series("tgi_batch_inference_count", decodes, method="decode"),
        series("tgi_request_input_length_bucket", 7, le="64"),
        series("tgi_request_input_length_sum", 4200),
        series("tgi_request_generated_tokens_sum", 9300),
        series("tgi_request_generated_tokens_count", 12),
    ]
    return ("\n".join(lines) + "\n").encode()


def tgi_info(**changes: object) -> bytes:
    """What TGI says that it was started with."""
    info: dict[str, object] = {
        "model_id": "org/tiny",
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": 128,
        "max_best_of": 2,
        "max_input_tokens": 4095,
        "max_total_tokens": 4096,
        "validation_workers": 2,
        "max_client_batch_size": 4,
        "router": "text-generation-router",
        "version": "3.3.4",
    }
    return json.dumps(info | changes).encode()


def triton_page(
    *, scheduled: object = 6, waiting: object = 2, fraction: object = 0.5, steps: object = 812
) -> bytes:
    """A page of Triton with TensorRT-LLM."""
    name, requests, blocks = "tensorrt_llm", "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
    lines = [series("nv_inference_request_success", 12, model=name, version="1")]
    for kind, value in {
        "waiting": waiting,
        "context": 1,
        "scheduled": scheduled,
        "max": 256,
        "active": 8,
    }.items():
        lines.append(series(requests, value, model=name, request_type=kind, version="1"))
    for kind, value in {"fraction": fraction, "tokens_per": 64, "used": 50, "free": 50, "max": 100}.items():
        lines.append(series(blocks, value, kv_cache_block_type=kind, model=name, version="1"))
    lines.append(series("nv_trt_llm_general_metrics", steps, general_type="iteration_counter", model=name))
    lines.append(series("nv_trt_llm_general_metrics", 1701, general_type="timestamp", model=name))
    return ("\n".join(lines) + "\n").encode()


def trtllm_page(
    *, running: object = 3, waiting: object = 1, usage: object = 0.62, separator: str = "_"
) -> bytes:
    """A page of trtllm-serve at `/prometheus/metrics`."""
    numbers = {
        "num_requests_running": running,
        "num_requests_waiting": waiting,
        "kv_cache_utilization": usage,
        "prompt_tokens_total": 900,
        "generation_tokens_total": 4100,
    }
    labels = {"model_name": "tiny", "engine_type": "trtllm"}
    return "".join(
        series(f"trtllm{separator}{name}", value, **labels) + "\n" for name, value in numbers.items()
    ).encode()


def models_of(owner: str, name: str = "tiny", **more: object) -> bytes:
    """A list of one model that says whose it is."""
    return json.dumps({"object": "list", "data": [{"id": name, "owned_by": owner} | more]}).encode()
