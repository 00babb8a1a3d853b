"""A report in words and in JSON says the same."""

from __future__ import annotations

import json
from pathlib import Path

from forebay.report.suggestions import suggest
from forebay.report.verdict import judge
from forebay.report.wording import as_json, as_text
from tests.unit.report.workloads import record, surveyed


def test_the_verdict_comes_first(tmp_path: Path) -> None:
    """Then parts, traffic, spreads, classes, predictions, and a configuration."""
    seen = surveyed(
        record(
            tmp_path / "r",
            400,
            lambda n: {"waited_s": 1.0, "wait_predicted_s": 0.9, "decision": "hold", "learning": n < 40},
        )
    )
    verdict = judge(seen)
    text = as_text(seen, verdict, suggest(seen, verdict))
    assert text.startswith(verdict.text)
    for expected in (
        "400 requests in 3min, 2 a second on average",
        "25% were, or could be, in a prefix cache",
        "prompt tokens",
        "seconds at an engine",
        "standard                       400         0    100.0%    100.0%",
        "predicted waits (of half a second or more) were off by 10% for half of 400",
        "answers came to 1.25 of what was expected",
        "10% of the requests came while the pool was learning",
        "A configuration to begin with",
        "mode: shadow",
    ):
        assert expected in text, text


def test_what_a_trace_cannot_tell_is_said() -> None:
    """Instead of zeros."""
    seen = surveyed("synthetic:chat")
    verdict = judge(seen)
    text = as_text(seen, verdict, suggest(seen, verdict))
    assert "A trace of this kind does not tell: decisions, waits and times to first tokens" in text
    told = as_json(seen, verdict, [])
    assert told["service_s"] is None
    assert told["predictions"] is None


def test_json_has_everything(tmp_path: Path) -> None:
    """It is one document, with numbers under stable names."""
    seen = surveyed(record(tmp_path / "r", 400))
    verdict = judge(seen)
    told = json.loads(json.dumps(as_json(seen, verdict, suggest(seen, verdict)), allow_nan=False))
    assert ("no", 400, 199.5) == (told["verdict"]["needed"], told["requests"], told["span_s"])
    assert {"count", "mean", "cv", "max", "p50", "p90", "p99"} == told["prompt_tokens"].keys()
    assert 1.0 == told["classes"]["standard"]["attainment"]
    assert 1.0 == told["tenants"]["acme"]["work_share"]
    assert "mode" == told["suggestions"][0]["setting"]
    assert told["yaml"].endswith("\n")


def test_nothing_at_all(tmp_path: Path) -> None:
    """A file with a header only is told as that."""
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n")
    seen = surveyed(file)
    assert as_text(seen, judge(seen), []).startswith("There is not one request in it.")
    json.dumps(as_json(seen, judge(seen), []), allow_nan=False)
