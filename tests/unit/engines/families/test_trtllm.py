from __future__ import annotations

import pytest

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading
from forebay.engines.families.trtllm import FAMILY
from forebay.engines.reading import Answer, Look
from tests.unit.engines.pages import answer, models_of, triton_page, trtllm_page, vllm_page


def sample(path: str, page: bytes) -> EngineSample:
    """The sample that a page makes."""
    reading = FAMILY.read(path, answer(page))
    assert reading is not None
    return reading.sample


def triton() -> Look:
    """What Triton's OpenAI frontend answers."""
    return Look(
        {"/metrics": answer(triton_page()), "/v1/models": answer(models_of("Triton Inference Server"))}
    )


def served(**changes: Answer) -> Look:
    """What trtllm-serve answers."""
    answers = {
        "/metrics": answer(b'[{"numActiveRequests": 3}]'),
        "/v1/models": answer(models_of("tensorrt_llm")),
        "/prometheus/metrics": answer(trtllm_page()),
    }
    return Look(answers | changes)


def test_triton_is_read_by_labels() -> None:
    """What Triton tells under one name is told apart by its labels."""
    assert sample("/metrics", triton_page()) == EngineSample(
        at_s=10.0, took_s=0.005, running=6, waiting=2, kv_usage=0.5, steps_total=812
    )


def test_triton_is_described() -> None:
    """KV cache, block and bound on requests are found; iterations show that work goes on."""
    assert FAMILY.claims(triton())
    assert FAMILY.sample_path(triton()) == "/metrics"
    assert FAMILY.describe(triton()) == EngineInfo(
        EngineKind.TRTLLM,
        models=("tiny",),
        kv_tokens=6400,
        kv_block_tokens=64,
        max_requests=256,
        reports_load=True,
        counts_while_running=True,
    )


@pytest.mark.parametrize("separator", ["_", ":"])
def test_trtllm_serve_is_read(separator: str) -> None:
    """trtllm-serve is read at its own path, under either spelling of the names."""
    assert sample("/prometheus/metrics", trtllm_page(separator=separator)) == EngineSample(
        at_s=10.0,
        took_s=0.005,
        running=3,
        waiting=1,
        kv_usage=0.62,
        prompt_tokens_total=900,
        output_tokens_total=4100,
    )


def test_trtllm_serve_is_known_by_its_word_and_not_asked_for_json() -> None:
    """Its `/metrics` is JSON that reading uses up: samples come from elsewhere."""
    look = served()
    assert FAMILY.claims(look)
    assert FAMILY.sample_path(look) == "/prometheus/metrics"
    info = FAMILY.describe(look)
    assert (info.reports_load, info.counts_while_running, info.kv_tokens) == (True, False, None)


def test_without_prometheus_the_list_of_models_is_the_sign_of_life() -> None:
    """An older one without that path is served, and its load is not known."""
    look = served(**{"/prometheus/metrics": answer(status=404)})
    assert (FAMILY.sample_path(look), FAMILY.describe(look).reports_load) == ("/v1/models", False)
    assert FAMILY.read("/v1/models", answer()) is not None


def test_f061_a_bad_value_is_unknown_and_named() -> None:
    """F061: a fraction beyond 1 is unknown and named, the rest is used."""
    found = sample("/metrics", triton_page(fraction=50))
    assert (found.kv_usage, found.running) == (None, 6)
    assert found.doubtful == ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',)


def test_others_are_not_claimed() -> None:
    """The names of others do not make it TensorRT-LLM, nor does a Triton with other backends."""
    assert not FAMILY.claims(Look({"/metrics": answer(vllm_page()), "/v1/models": answer(models_of("vllm"))}))
    assert not FAMILY.claims(Look({"/metrics": answer(b"nv_inference_count 3\n")}))
    with pytest.raises(NoReading):
        FAMILY.read("/metrics", answer(triton_page(), 503))
