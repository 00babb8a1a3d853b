from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from forebay.emulator.metrics import Histogram, MetricsText, RequestMetrics, go_float, token_bounds
from forebay.enginemodel import Engine, EngineConfig, EngineProfile, Request, StepLaw

LAW = StepLaw(10.0, 8, 1.0, 2.0, 0.01, 0.001, 0.1, 0.5, 0.25)
PROFILE = EngineProfile("toy", "toy", "none", 1, "bf16", "bf16", LAW, 400, 4, 8, 16, 200, "made up")


def _text(model: str = "toy") -> str:
    config = EngineConfig.from_profile(PROFILE)
    engine = Engine(PROFILE, config)
    engine.submit(Request(1, 20, 3))
    engine.submit(Request(2, 8, 30))
    now = 0.0
    for _ in range(6):
        result = engine.step(now)
        assert result is not None
        now = result.end_s
    requests = RequestMetrics(config.context_tokens)
    requests.token_gap_s.observe(0.012, 5)
    requests.finished["length"] += 1
    text = MetricsText(model=model, config=config, created_s=1_700_000_000.5)
    return text.render(engine.statistics(), requests, 0.25).decode()


def _samples(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f"|{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_engines_state_is_in_vllms_names() -> None:
    """Gauges and counters carry the labels engine and model_name and the engine's numbers."""
    samples = _samples(_text())
    labels = "|engine=0|model_name=toy"
    assert samples[f"vllm:num_requests_running{labels}"] == 1
    assert samples[f"vllm:num_requests_waiting{labels}"] == 0
    assert samples[f"vllm:kv_cache_usage_perc{labels}"] == pytest.approx(3 / 100)
    assert samples[f"vllm:prompt_tokens_total{labels}"] == 28
    assert samples[f"vllm:generation_tokens_total{labels}"] == 3 + 5
    assert samples[f"vllm:iteration_tokens_total_count{labels}"] == 5
    assert samples[f"vllm:iteration_tokens_total_sum{labels}"] == 28 + 8
    assert samples[f"vllm:num_preemptions_total{labels}"] == 0
    assert samples["vllm:request_success_total|engine=0|finished_reason=length|model_name=toy"] == 1
    assert samples[f"emulator:lag_seconds_total{labels}"] == 0.25


def test_the_cache_settings_tell_the_size_of_the_cache() -> None:
    """`cache_config_info` carries blocks, block size and tokens as labels."""
    text = _text()
    assert 'num_gpu_blocks="100"' in text
    assert 'kv_cache_size_tokens="400"' in text
    assert 'block_size="4"' in text


def test_every_counter_and_histogram_has_a_created_series() -> None:
    """`_created` lines stand beside the totals, so that prefix matching finds too much, as with vLLM."""
    lines = _text().splitlines()
    created = [line for line in lines if "_created{" in line]
    totals = [line for line in lines if "_total{" in line and not line.startswith("emulator")]
    assert len(created) >= len(totals)
    assert all(line.endswith(" 1.7000000005e+09") for line in created)
    assert sum(line.startswith("# TYPE") for line in lines) == sum(
        line.startswith("# HELP") for line in lines
    )


def test_histogram_buckets_are_cumulative_and_end_at_infinity() -> None:
    """Buckets never fall, and the last one is the count."""
    samples = _samples(_text())
    buckets = [
        value for name, value in samples.items() if name.startswith("vllm:inter_token_latency_seconds_bucket")
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == samples["vllm:inter_token_latency_seconds_count|engine=0|model_name=toy"] == 5
    assert samples["vllm:inter_token_latency_seconds_sum|engine=0|model_name=toy"] == pytest.approx(0.06)


def test_a_model_name_is_escaped() -> None:
    """Quotes, backslashes and commas in the model's name survive the text format."""
    samples = _samples(_text('a "b", \\c'))
    assert any('model_name=a "b", \\c' in name for name in samples)


@pytest.mark.parametrize("value", [0, 1, 0.1, 123456.5, 999999, 1e6, 1234567.25, 1.7e9, 123456789012, 1e22])
def test_numbers_are_written_as_the_client_library_writes_them(value: float) -> None:
    """From a million up numbers have an exponent, so that parsers of the emulator can parse vLLM."""
    assert go_float(value) == floatToGoString(value)  # type: ignore[no-untyped-call]


def test_token_buckets_reach_up_to_the_context() -> None:
    """Bounds go 1, 2, 5, 10 … and stop at the context."""
    assert token_bounds(600) == (1, 2, 5, 10, 20, 50, 100, 200, 500)


def test_a_value_on_a_bound_falls_under_it() -> None:
    """Upper bounds are inclusive, as Prometheus has them."""
    histogram = Histogram((1, 2))
    for value in (1, 1.5, 2, 3):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum) == ([1, 2, 1], 7.5)
