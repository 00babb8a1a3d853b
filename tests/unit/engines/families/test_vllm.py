from __future__ import annotations

import gzip

import pytest

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading
from forebay.engines.exposition import PAGE_BYTES
from forebay.engines.families.vllm import FAMILY
from forebay.engines.reading import Look
from tests.unit.engines.pages import answer, llamacpp_page, vllm_models, vllm_page

KV, OLD_KV = "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"


def sample(page: bytes) -> EngineSample:
    """The sample that a page makes."""
    reading = FAMILY.read("/metrics", answer(page))
    assert reading is not None
    return reading.sample


def described(page: bytes = b"", models: bytes = b"") -> EngineInfo:
    """What is told of a server with these answers."""
    return FAMILY.describe(Look({"/metrics": answer(page), "/v1/models": answer(models)}))


def test_reads_a_whole_page() -> None:
    """Every number that the core knows is read from a page of a current vLLM."""
    assert EngineSample(
        at_s=10.0,
        took_s=0.005,
        running=6,
        waiting=1,
        kv_usage=1.0,
        preemptions_total=71,
        prompt_tokens_total=5600,
        output_tokens_total=14527,
        steps_total=2060,
        step_tokens_total=20127,
        cached_tokens_total=17,
    ) == sample(vllm_page(kv_usage={KV: (1.0,)}, cached=(17.0,)))


@pytest.mark.parametrize(
    ("gauges", "expected"),
    [
        ({OLD_KV: (0.7,)}, 0.7),
        ({KV: (0.4,)}, 0.4),
        ({OLD_KV: (0.7,), KV: (0.4,)}, 0.4),
        ({KV: (0.4,), OLD_KV: (0.7,)}, 0.4),
        ({}, None),
    ],
    ids=["old", "new", "both", "both-reversed", "neither"],
)
def test_f059_renamed_gauge(gauges: dict[str, tuple[float]], expected: float | None) -> None:
    """F059: the KV gauge is read under either name, the new one wins, and where there is none it is unknown, not 0."""
    found = sample(vllm_page(kv_usage=gauges))
    assert (expected, 6, 1, ()) == (found.kv_usage, found.running, found.waiting, found.doubtful)


@pytest.mark.parametrize(
    "name",
    ["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "vllm:prompt_tokens_cached_total"],
)
def test_f059_renamed_prefix_hits(name: str) -> None:
    """F059: prefix hits are read under each of the names that they have had."""
    assert sample(vllm_page(cached=(40.0,), cached_name=name)).cached_tokens_total == 40


@pytest.mark.parametrize("reverse", [False, True])
def test_f060_two_ranks(reverse: bool) -> None:
    """F060: waiting requests of two ranks are summed, KV usage is that of the worst, in either order of the lines."""
    page = vllm_page(ranks=2, waiting=(5, 0), running=(3, 4), kv_usage={KV: (0.95, 0.10)}, reverse=reverse)
    found = sample(page)
    assert (found.waiting, found.running, found.kv_usage) == (5, 7, 0.95)


def test_f060_sixteen_ranks() -> None:
    """F060: all of sixteen ranks count, in requests, counters and capacity."""
    usage = [rank / 20 for rank in range(16)]
    page = vllm_page(ranks=16, waiting=tuple(range(16)), preemptions=(2.0,), kv_usage={KV: usage})
    found = sample(page)
    assert (found.waiting, found.running, found.kv_usage, found.preemptions_total) == (120, 96, 0.75, 32)
    assert described(page).kv_tokens == 16 * (2048 - 32)


@pytest.mark.parametrize("value", ["NaN", "+Inf", -1, 45])
def test_f061_odd_kv_usage(value: object) -> None:
    """F061: a KV usage that is no ratio is unknown and named, 45 included, and the rest of the page is used."""
    found = sample(vllm_page(kv_usage={KV: (value,)}))
    assert (found.kv_usage, found.doubtful, found.running, found.waiting) == (None, (KV,), 6, 1)


def test_f061_ratio_just_above_one() -> None:
    """F061: 1.0001 is a full cache."""
    found = sample(vllm_page(kv_usage={KV: (1.0001,)}))
    assert (found.kv_usage, found.doubtful) == (1.0, ())


def test_f061_odd_queue() -> None:
    """F061: a NaN queue voids only itself."""
    found = sample(vllm_page(waiting=("NaN",)))
    assert (found.waiting, found.running, found.kv_usage, found.preemptions_total) == (None, 6, 0.5, 71)


def test_f061_odd_pages() -> None:
    """F061: broken lines, a missing last line feed, OpenMetrics trimmings and gzip change nothing."""
    page = vllm_page()
    expected = sample(page)
    assert expected == sample(page.replace(b"\n# TYPE", b"\n}{garbage\n\x00\xff\nvllm: 1\n# TYPE"))
    assert expected == sample(page.rstrip(b"\n"))
    assert expected == sample(
        page.replace(b"71.0\n", b'71.0 # {trace_id="a"} 1.0 1796000000.5\n') + b"# EOF\n"
    )
    assert expected == sample(page.replace(b"\n", b"\r\n"))
    zipped = FAMILY.read("/metrics", answer(gzip.compress(page), content_encoding="gzip"))
    assert zipped is not None
    assert expected == zipped.sample


def test_f061_page_without_end() -> None:
    """F061: a page beyond the size limit is no sample."""
    with pytest.raises(NoReading):
        FAMILY.read("/metrics", answer(b"x 1\n" * (PAGE_BYTES // 4 + 1)))


@pytest.mark.parametrize("status", [204, 404, 500, 503])
def test_error_is_no_sample(status: int) -> None:
    """Only a 200 carries a sample."""
    with pytest.raises(NoReading):
        FAMILY.read("/metrics", answer(vllm_page(), status))


@pytest.mark.parametrize(("awake", "unready"), [(("1.0", "1.0"), ""), (("1.0", "0.0"), "it is asleep")])
def test_sleep_is_told(awake: tuple[str, str], unready: str) -> None:
    """An engine in sleep mode says so, any rank of it; other states of the same series say nothing."""
    lines = [
        f'vllm:engine_sleep_state{{engine="{rank}",model_name="tiny",sleep_state="{state}"}} {value}'
        for rank, value in enumerate(awake)
        for state, value in (("awake", value), ("weights_offloaded", "0.0"), ("discard_all", "0.0"))
    ]
    found = sample(vllm_page(ranks=2) + "\n".join(lines).encode() + b"\n")
    assert (unready, 12) == (found.unready, found.running)


def test_absent_gauges_are_unknown() -> None:
    """A page without the engine's own series, as with statistics turned off, is a sample that knows nothing."""
    assert EngineSample(at_s=10.0, took_s=0.005) == sample(
        b"python_info 1.0\nvllm:num_preemptions_created 5e9\n"
    )


def test_created_series_are_never_counted() -> None:
    """The time at which a counter was made is not taken for its value."""
    lines = [line for line in vllm_page().split(b"\n") if b"preemptions_total{" not in line]
    assert sample(b"\n".join(lines)).preemptions_total is None


def test_process_is_marked_by_its_start() -> None:
    """Two readings of one process carry the same mark, those of two processes do not."""
    marks = []
    for started in (1.5e9, 1.5e9, 1.6e9):
        reading = FAMILY.read("/metrics", answer(vllm_page(started=started)))
        assert reading is not None
        marks.append(reading.process)
    assert marks[0] == marks[1] != marks[2]


def test_describes_itself() -> None:
    """Models, context and KV capacity are read, and what vLLM is known to do is said."""
    assert EngineInfo(
        kind=EngineKind.VLLM,
        models=("tiny", "tiny-adapter"),
        checks_model_names=True,
        context_tokens=2048,
        kv_tokens=2048 - 32,
        kv_block_tokens=32,
        linger_s=1.0,
        aborts_unstreamed=True,
        reports_load=True,
        counts_while_running=True,
        closes_after_stream=False,
    ) == described(vllm_page(), vllm_models("tiny", "tiny-adapter"))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, 63 * 32),
        ({"kv_cache_size_tokens": "None"}, 63 * 32),
        ({"kv_cache_size_tokens": "4096"}, 4096 - 32),
        ({"block_size": "None", "kv_cache_size_tokens": "4096"}, 4096),
        ({"num_gpu_blocks": "None"}, None),
        ({"num_gpu_blocks": "-5"}, None),
        ({"num_gpu_blocks": "9" * 30}, None),
    ],
)
def test_kv_capacity(labels: dict[str, str], expected: int | None) -> None:
    """The capacity is what it says in tokens, else blocks × block size, less the one block that holds nothing."""
    assert expected == described(vllm_page(cache_config=labels)).kv_tokens


def test_describes_without_metrics() -> None:
    """Without a metrics page the models are still known, and no load is promised."""
    found = described(b"", vllm_models("tiny"))
    assert (
        found.models,
        found.context_tokens,
        found.kv_tokens,
        found.reports_load,
        found.counts_while_running,
    ) == (("tiny",), 2048, None, False, False)


def test_claims_its_own() -> None:
    """A page with its gauges, of any generation, or a list signed by it, is vLLM; nothing else is."""
    for page in (vllm_page(), b"vllm:gpu_cache_usage_perc 0.1", b"vllm:num_requests_running NaN"):
        assert FAMILY.claims(Look({"/metrics": answer(page)}))
    assert FAMILY.claims(Look({"/v1/models": answer(vllm_models("tiny"))}))
    assert not FAMILY.claims(Look({"/metrics": answer(llamacpp_page()), "/v1/models": answer(b"{}")}))
    assert not FAMILY.claims(Look({"/metrics": answer(vllm_page(), 500)}))
    assert not FAMILY.claims(Look())
