from __future__ import annotations

import pytest

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading
from forebay.engines.exposition import PAGE_BYTES
from forebay.engines.families.sglang import FAMILY
from forebay.engines.reading import Look
from tests.unit.engines.pages import answer, models_of, sglang_models, sglang_page, vllm_page

REALTIME = {"prefill_compute": 24056.0, "decode": 7614.0, "prefill_cache": 170.0}


def sample(page: bytes) -> EngineSample:
    """The sample that a page makes."""
    reading = FAMILY.read("/metrics", answer(page))
    assert reading is not None
    return reading.sample


def described(page: bytes | None = b"", models: bytes = b"") -> EngineInfo:
    """What is told of a server with these answers."""
    metrics = answer(status=404) if page is None else answer(page)
    return FAMILY.describe(Look({"/metrics": metrics, "/v1/models": answer(models)}))


@pytest.mark.parametrize("separator", [":", "_"])
def test_f059_either_spelling_is_read(separator: str) -> None:
    """F059: every number is read under names with a colon and under names with an underscore."""
    found = sample(sglang_page(separator=separator, retracted=6.0))
    assert found == EngineSample(
        at_s=10.0,
        took_s=0.005,
        running=31,
        waiting=1,
        kv_usage=0.99,
        preemptions_total=6,
        prompt_tokens_total=24224,
        output_tokens_total=7752,
        cached_tokens_total=170,
    )


def test_f059_with_both_spellings_the_newer_one_wins() -> None:
    """F059: a page with both spellings is read by the newer names."""
    assert (
        sample(sglang_page(separator=":", running=9.0) + sglang_page(separator="_", running=4.0)).running == 4
    )


def test_f059_without_its_gauges_load_is_unknown() -> None:
    """F059: a page without the gauges says nothing: unknown, and neither 0 nor full."""
    found = sample(b"python_info 1.0\n")
    assert (found.running, found.waiting, found.kv_usage) == (None, None, None)
    assert not described(b"python_info 1.0\n").reports_load


def test_series_of_priorities_do_not_double_the_count() -> None:
    """With priority scheduling each gauge is there once in all and once per priority: the total counts, alone."""
    page = sglang_page(
        running=7.0, queued=3.0, priorities={"-9223372036854775808": (5.0, 1.0), "10": (2.0, 2.0)}
    )
    found = sample(page)
    assert (found.running, found.waiting, found.kv_usage) == (7, 3, 0.99)
    assert described(page).kv_tokens == 8192


def test_f060_ranks_of_one_replica_count_once_and_replicas_add_up() -> None:
    """F060: tensor-parallel ranks tell of the same requests, data-parallel ranks of others, which add up."""
    page = sglang_page(running=4.0, queued=2.0, token_usage=0.5, dp_ranks=3, tp_ranks=4)
    found = sample(page)
    assert (found.running, found.waiting, found.kv_usage) == (12, 6, 0.5)
    assert described(page).kv_tokens == 3 * 8192


def test_f061_a_bad_value_is_unknown_and_named_and_spoils_nothing_else() -> None:
    """F061: NaN at idle, and usage as a percentage, are unknown; the rest of the page is used."""
    found = sample(sglang_page(token_usage=45.0))
    assert (found.kv_usage, found.running, found.doubtful) == (None, 31, ("sglang:token_usage",))
    assert sample(sglang_page(running="NaN", tp_ranks=2)).running is None


def test_a_copy_that_is_nan_does_not_hide_the_others() -> None:
    """Of several processes that tell the same number one that says NaN is passed over."""
    page = sglang_page(running=4.0) + b'sglang:num_running_reqs{model_name="tiny",pid="7"} NaN\n'
    page = page.replace(b',tp_rank="0"', b"").replace(b',moe_ep_rank="0",pp_rank="0"', b"")
    page = page.replace(b'engine_type="unified",', b"")
    assert sample(page).running == 4


def test_an_idle_engine_uses_no_cache_whatever_a_stale_gauge_says() -> None:
    """With nothing running and nothing waiting the gauge of KV usage keeps its last value: that is not believed."""
    assert sample(sglang_page(running=0.0, queued=0.0, token_usage=0.15)).kv_usage == 0.0
    assert sample(sglang_page(running=0.0, queued=1.0, token_usage=0.15)).kv_usage == 0.15


def test_counters_that_move_at_once_are_preferred() -> None:
    """Where tokens are counted as they are made these counters are read: a standstill then shows a hang."""
    page = sglang_page(realtime=REALTIME)
    found = sample(page)
    assert (found.prompt_tokens_total, found.output_tokens_total, found.cached_tokens_total) == (
        24226,
        7614,
        170,
    )
    assert described(page).counts_while_running
    assert not described(sglang_page()).counts_while_running


def test_capacity_window_and_models_are_found() -> None:
    """KV cache, context window, block and model come from the server; it takes any model's name."""
    info = described(sglang_page(), sglang_models())
    assert info == EngineInfo(
        EngineKind.SGLANG,
        models=("tiny",),
        context_tokens=2048,
        kv_tokens=8192,
        linger_s=4.0,
        reports_load=True,
    )
    assert described(sglang_page(), sglang_models(length=None)).context_tokens == 2048


def test_without_metrics_it_is_served_by_its_list_of_models() -> None:
    """Started without `--enable-metrics` it is recognised, and its list of models is the sign of life."""
    look = Look({"/metrics": answer(status=404), "/v1/models": answer(sglang_models())})
    assert FAMILY.claims(look)
    assert (FAMILY.sample_path(look), FAMILY.describe(look).reports_load) == ("/v1/models", False)
    reading = FAMILY.read("/v1/models", answer(sglang_models()))
    assert reading is not None
    assert EngineSample(at_s=10.0, took_s=0.005) == reading.sample
    with pytest.raises(NoReading):
        FAMILY.read("/v1/models", answer(status=503))


def test_claims_only_its_own() -> None:
    """Its names or its word claim it; those of others do not."""
    assert FAMILY.claims(Look({"/metrics": answer(sglang_page())}))
    assert not FAMILY.claims(Look({"/metrics": answer(vllm_page()), "/v1/models": answer(models_of("vllm"))}))


@pytest.mark.parametrize("status", [204, 404, 500, 503])
def test_an_error_is_no_sample(status: int) -> None:
    """Only a 200 carries a sample of the metrics."""
    with pytest.raises(NoReading):
        FAMILY.read("/metrics", answer(sglang_page(), status))


def test_f061_page_without_end() -> None:
    """F061: a page beyond the size limit is no sample, and describes nothing."""
    page = b"x 1\n" * (PAGE_BYTES // 4 + 1)
    with pytest.raises(NoReading):
        FAMILY.read("/metrics", answer(page))
    assert described(page).kv_tokens is None
