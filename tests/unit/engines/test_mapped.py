from __future__ import annotations

import pytest

from forebay.admission.model import EngineKind, EngineSample
from forebay.engines.base import NoReading
from forebay.engines.detect import find_out
from forebay.engines.exposition import PAGE_BYTES
from forebay.engines.families.openai import FAMILY as OPENAI
from forebay.engines.families.vllm import FAMILY as VLLM
from forebay.engines.mapped import Mapped, MetricMap
from forebay.engines.reading import Look
from tests.unit.engines.pages import answer, vllm_page
from tests.unit.engines.scripted import ScriptedEngine, run

PAGE = b"""
my_requests{state="active",worker="0"} 3
my_requests{state="active",worker="1"} 4
my_requests{state="queued"} 2
my_kv 0.25
my_kv_tokens 9000
my_out_total 812
"""
NAMES = MetricMap(
    path="/stats",
    running='my_requests{state="active"}',
    waiting='my_requests{state="queued"}',
    kv="my_kv",
    kv_capacity="my_kv_tokens",
    output_tokens="my_out_total",
)


def test_any_names_are_read() -> None:
    """Series of any name, told apart by labels, are the engine's load; sums are made over what is left."""
    reading = Mapped(OPENAI, NAMES).read("/stats", answer(PAGE))
    assert reading is not None
    assert reading.sample == EngineSample(
        at_s=10.0, took_s=0.005, running=7, waiting=2, kv_usage=0.25, output_tokens_total=812
    )


def test_the_server_is_described_with_them() -> None:
    """Load is told from then on, and the capacity is found; that a counter stands still proves nothing."""
    family = Mapped(OPENAI, NAMES)
    look = Look({"/stats": answer(PAGE), "/v1/models": answer(b'{"data":[{"id":"m"}]}')})
    info = family.describe(look)
    assert (info.kind, info.models, info.kv_tokens) == (EngineKind.OPENAI, ("m",), 9000)
    assert (info.reports_load, info.counts_while_running) == (True, False)
    assert (family.sample_path(look), family.least_interval_s, family.claims(look)) == ("/stats", 0.0, False)


def test_what_is_not_named_is_read_as_usual() -> None:
    """One name in place of another leaves all else to the family underneath."""
    family = Mapped(VLLM, MetricMap(kv="my_kv"))
    reading = family.read("/metrics", answer(vllm_page() + PAGE))
    assert reading is not None
    assert reading.process is not None
    assert (reading.sample.running, reading.sample.steps_total, reading.sample.kv_usage) == (6, 2060, 0.25)
    assert family.describe(Look({"/metrics": answer(vllm_page())})).counts_while_running


def test_nonsense_is_unknown_and_named() -> None:
    """A percentage where a share is meant, and a missing series, are unknown."""
    names = MetricMap(kv="my_kv", running="absent", waiting="bad")
    reading = Mapped(OPENAI, names).read("/metrics", answer(b"my_kv 45\nbad x\n"))
    assert reading is not None
    assert (reading.sample.kv_usage, reading.sample.running, reading.sample.waiting) == (None, None, None)
    assert reading.sample.doubtful == ("bad", "my_kv")


def test_an_error_or_a_page_without_end_is_no_sample() -> None:
    """What cannot be read is no sample, and describes nothing."""
    family = Mapped(OPENAI, NAMES)
    endless = answer(b"x 1\n" * (PAGE_BYTES // 4 + 1))
    with pytest.raises(NoReading):
        family.read("/stats", answer(PAGE, 500))
    with pytest.raises(NoReading):
        family.read("/stats", endless)
    assert family.describe(Look({"/stats": endless})).kv_tokens is None


def test_looking_asks_for_the_path_as_well() -> None:
    """With a map the path is asked for, and the first sample comes from it."""
    reader = ScriptedEngine(**{"/v1/models": answer(b'{"data":[{"id":"m"}]}'), "/stats": answer(PAGE)})
    finding = run(find_out(reader, names=NAMES))
    assert (finding.info.kind, finding.sample_path, finding.doubt) == (EngineKind.OPENAI, "/stats", "")
    assert finding.sample is not None
    assert finding.info.kv_tokens == 9000
