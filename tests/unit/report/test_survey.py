"""What is counted of records and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.load.synthetic import synthetic
from forebay.load.traces import TraceError
from forebay.report.survey import BUSIEST
from tests.unit.report.workloads import line, record, surveyed


def test_a_record(tmp_path: Path) -> None:
    """Sizes, ends, classes, predictions and who was there in busy times."""

    def changes(number: int) -> dict[str, Any]:
        if number % 10 == 0:
            return {"decision": "hold", "waited_s": 2.0, "wait_predicted_s": 1.0, "class_name": "batch"}
        if number % 10 == 1:
            return {
                "decision": "refuse", "outcome": "queue_full", "met": False, "endpoint": "", "ttft_s": None,
                "tpot_s": None, "output_tokens": None, "cost_gpu_s": None, "tenant": "other",
            }  # fmt: skip
        return {}

    seen = surveyed(record(tmp_path / "r", 100, changes))
    assert seen.recorded
    assert (100, 49.5) == (seen.requests, seen.span_s)
    standard, batch = seen.classes["standard"], seen.classes["batch"]
    assert (90, 80, 10, 80, 90) == (
        standard.offered, standard.completed, standard.refused, standard.met, standard.judged,
    )  # fmt: skip
    assert (10, 10) == (batch.contended, standard.contended)
    assert (80, 0) == (standard.quiet_ttft.count, batch.quiet_ttft.count)
    assert pytest.approx(0.5, rel=0.02) == seen.wait_error.quantile(0.5)
    assert pytest.approx(1.25, rel=0.02) == seen.length_ratio.quantile(0.5)
    assert pytest.approx(1.2, rel=0.02) == seen.cost_ratio.quantile(0.5)
    assert 0.25 == seen.cached_tokens / seen.cached_of_tokens
    assert {"acme": 90, "other": 10} == {name: tally.requests for name, tally in seen.tenants.items()}
    assert {"p": ["http://10.0.0.1:8000"]} == {pool: list(found) for pool, found in seen.endpoints.items()}
    assert 5 == len(seen.busiest)
    assert pytest.approx(90 * 0.12 + 10 * 0.1) == sum(busy.work_s for busy in seen.busiest)


def test_shadow_counts_whom_it_would_have_refused(tmp_path: Path) -> None:
    """Those are contended though they were served; a tenant's own limit is no contention."""
    would = ["queue_full", "rate_limit_exceeded", "queue_timeout"]
    seen = surveyed(record(tmp_path / "r", 3, lambda number: {"mode": "shadow", "would_be": would[number]}))
    assert (2, 3, 3) == (
        seen.classes["standard"].contended, seen.classes["standard"].would_refuse, seen.modes["shadow"],
    )  # fmt: skip


def test_files_of_a_record_are_one(tmp_path: Path) -> None:
    """In any order, and lines in the order of ends."""
    record(tmp_path / "r.1", 50)
    record(tmp_path / "r", 50, lambda number: {"time": 1e9 + 25 + (49 - number) / 2})
    seen = surveyed(tmp_path / "r", tmp_path / "r.1")
    assert (100, 49.5) == (seen.requests, seen.span_s)
    assert pytest.approx(0.5, rel=0.02) == seen.gaps.quantile(0.5)
    assert pytest.approx(0.0, abs=0.01) == seen.gaps.cv


def test_a_trace_is_priced_by_a_profile() -> None:
    """What it does not say is not there; work is computed."""
    seen = surveyed("synthetic:mixed")
    rows = list(synthetic("mixed"))
    assert not seen.recorded
    assert seen.work_by
    assert len(rows) == seen.requests == seen.work.count
    assert sum(row.prompt_tokens for row in rows) == seen.prompt.total
    assert 0 == seen.service.count == seen.wait_error.count
    assert BUSIEST == len(seen.busiest)
    assert sorted(seen.busiest, reverse=True) == seen.busiest
    assert seen.busiest[0].work_s == seen.work_tens.peak


def test_limit_and_progress() -> None:
    """No more than so many; somebody is told how far it got."""
    told: list[int] = []
    assert 3000 == surveyed("synthetic:mixed", limit=3000, progress=told.append).requests
    assert [0, 2048] == told


def test_any_number_of_names_is_bounded(tmp_path: Path) -> None:
    """Tenants and classes beyond the bound are counted together."""
    seen = surveyed(
        record(tmp_path / "r", 2000, lambda number: {"tenant": f"t{number}", "class_name": f"c{number}"})
    )
    assert (1001, 61) == (len(seen.tenants), len(seen.classes))
    assert 2000 == sum(tally.requests for tally in seen.tenants.values())


def test_only_records_are_taken_together(tmp_path: Path) -> None:
    """Two traces have no common clock."""
    with pytest.raises(TraceError, match="only files of one record"):
        surveyed("synthetic:chat", record(tmp_path / "r", 1))
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    with pytest.raises(TraceError, match=r"is a trace \(common\)"):
        surveyed(tmp_path / "r", trace)
    assert line(0).output_length
