"""The verdict follows from what was seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.report.verdict import Verdict, judge
from tests.unit.report.workloads import record, surveyed


def verdict_of(path: Path, count: int, changes: Any = lambda _: {}) -> Verdict:
    """On a record of so many."""
    return judge(surveyed(record(path / "r", count, changes)))


def needed(verdict: Verdict) -> dict[str, str]:
    """What is said of each part."""
    return {part.name: part.needed for part in verdict.parts}


def test_traffic_that_goes_well_needs_nothing(tmp_path: Path) -> None:
    """Nobody waited, all was met: no, and all parts no."""
    verdict = verdict_of(tmp_path, 400)
    assert "no" == verdict.needed
    assert verdict.text.startswith(
        "You do not need admission control for this traffic: only 0% of 400 requests"
    )
    assert {"queue": "no", "refusals": "no", "classes": "no", "tenants": "no", "limits": "no"} == needed(
        verdict
    )


def test_overload_needs_it(tmp_path: Path) -> None:
    """Those who waited and those who were refused are its reason."""

    def changes(number: int) -> dict[str, Any]:
        if number % 5 == 0:
            return {"decision": "refuse", "outcome": "deadline_unreachable", "met": False, "endpoint": ""}
        return {"decision": "hold", "waited_s": 1.0} if number % 5 == 1 else {}

    verdict = verdict_of(tmp_path, 400, changes)
    assert "yes" == verdict.needed
    assert "40% of 400 requests had to wait or were refused" in verdict.text
    assert ("yes", "yes") == (needed(verdict)["queue"], needed(verdict)["refusals"])


def test_slow_engines_are_not_mended_by_admission(tmp_path: Path) -> None:
    """Missed without a wait: the engines or the objectives are to blame."""
    verdict = verdict_of(tmp_path, 400, lambda number: {"met": number % 2 == 0, "ttft_s": 9.0})
    assert "no" == verdict.needed
    assert "would not help this traffic much" in verdict.text
    assert "too slow for the objectives" in verdict.text


def test_shadow_and_bypass_are_told_as_such(tmp_path: Path) -> None:
    """In shadow it says what would have been; in bypass nothing is known."""
    shadow = verdict_of(
        tmp_path, 400, lambda _: {"mode": "shadow", "would_be": "queue_full", "decision": "refuse"}
    )
    assert "yes" == shadow.needed
    assert "or would have, were it enforced" in shadow.text
    bypass = verdict_of(tmp_path, 400, lambda _: {"mode": "bypass"})
    assert "unknown" == bypass.needed
    assert "bypass, where nothing is decided" in bypass.text


def test_a_tenant_that_has_most_of_busy_times(tmp_path: Path) -> None:
    """It is named, with its part."""
    verdict = verdict_of(tmp_path, 400, lambda number: {"tenant": "big" if number % 4 else f"t{number % 12}"})
    (tenants,) = [part for part in verdict.parts if part.name == "tenants"]
    assert "yes" == tenants.needed
    assert tenants.reason.startswith("big has 75% of the work in the busiest times")


def test_large_ones_among_small_ones(tmp_path: Path) -> None:
    """A tenth of the requests with most of the work, and answers that nobody limits."""

    def changes(number: int) -> dict[str, Any]:
        return {"cost_gpu_s": 9.0, "output_length": 9000} if number % 11 == 0 else {}

    verdict = verdict_of(tmp_path, 400, changes)
    assert ("yes", "yes") == (needed(verdict)["classes"], needed(verdict)["limits"])


@pytest.mark.parametrize(("rows", "asked"), [("even", "unknown"), ("bursts", "yes")])
def test_of_a_trace_the_shape_is_judged(tmp_path: Path, rows: str, asked: str) -> None:
    """It says that it knows nothing of engines, and what the work would come to."""
    file = tmp_path / "t.csv"
    times = [n / 2 if rows == "even" else n // 100 * 100 + n % 100 / 100 for n in range(1000)]
    file.write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at_s},500,100\n" for at_s in times)
    )
    verdict = judge(surveyed(file))
    assert asked == verdict.needed
    assert "it says what was asked for, and nothing of engines" in verdict.text
    assert "unknown" == needed(verdict)["refusals"]


def test_few_requests_are_told_as_few(tmp_path: Path) -> None:
    """Nobody should rely on ten requests, nor on none."""
    assert "too few to rely on" in verdict_of(tmp_path, 10).text
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n")
    assert ("unknown", ()) == (judge(surveyed(file)).needed, judge(surveyed(file)).parts)
