"""Suggested settings are ones that can be used, and have reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from forebay.cli.main import cli
from forebay.load.synthetic import WORKLOADS
from forebay.report.suggestions import as_yaml, suggest
from forebay.report.verdict import judge
from tests.unit.report.workloads import record, surveyed


def configuration(*sources: str | Path) -> dict[str, Any]:
    """What is suggested, as it would be read; `forebay check` takes it without a warning."""
    seen = surveyed(*sources)
    suggestions = suggest(seen, judge(seen))
    assert all(one.reason for one in suggestions)
    text = as_yaml(suggestions)
    checked = CliRunner().invoke(cli, ["check", "-"], input=text)
    assert 0 == checked.exit_code, checked.output + text
    assert "warning" not in checked.output, checked.output
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_gets_a_configuration_that_can_be_used(name: str) -> None:
    """Whatever the shape."""
    assert "shadow" == configuration(f"synthetic:{name}")["mode"]


def test_pools_are_as_recorded(tmp_path: Path) -> None:
    """Endpoints are known, and answers are bounded by the longest that was seen or asked for."""
    found = configuration(record(tmp_path / "r", 300, lambda _: {"limit_tokens": 700}))
    assert [{"name": "p", "endpoints": ["http://10.0.0.1:8000"], "max_output_tokens": 1024}] == found["pools"]


def test_objectives_that_the_engines_cannot_keep_are_widened(tmp_path: Path) -> None:
    """The time that engines take alone is the least that can be promised."""
    slow = configuration(record(tmp_path / "r", 300, lambda _: {"ttft_s": 8.0, "tpot_s": 0.09, "met": False}))
    assert {"ttft": "15s", "tpot": "100ms", "weight": 10, "value": 1} == slow["classes"]["standard"]
    quick = configuration(record(tmp_path / "r", 300))
    assert "5s" == quick["classes"]["standard"]["ttft"]


def test_classes_are_ranked_by_how_long_they_may_wait(tmp_path: Path) -> None:
    """The most urgent comes first, whatever its name; the first class is worth most."""
    budgets = {"slow": 30.0, "urgent": 1.0, "usual": 6.0}
    names = list(budgets)

    def changes(number: int) -> dict[str, Any]:
        name = names[number % 3]
        return {"class_name": name, "wait_budget_s": budgets[name]}

    found = configuration(record(tmp_path / "r", 300, changes))
    assert ["urgent", "usual", "slow"] == list(found["classes"])
    assert [3, 2, 1] == [entry["value"] for entry in found["classes"].values()]
    assert found["default_class"] in budgets


def test_a_plan_that_ordinary_tenants_do_not_feel(tmp_path: Path) -> None:
    """The largest is above it, all others are below."""
    found = configuration(record(tmp_path / "r", 600, lambda n: {"tenant": "big" if n % 4 else f"t{n % 40}"}))
    rate = found["plans"]["usual"]["tokens_per_second"]
    assert 0.75 * 2 * 150 > rate >= 2 * 150 / 40
    assert {"big", "t0"} <= {tenant["name"] for tenant in found["tenants"]}


def test_large_ones_get_a_class_of_their_own(tmp_path: Path) -> None:
    """Where nobody names classes and a tenth has most of the work, a rule takes it out of the way."""
    rows = "".join(f"{n},{200 if n % 11 else 20000},{50 if n % 11 else 2000}\n" for n in range(1000))
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    found = configuration(file)
    assert ["standard", "batch"] == list(found["classes"])
    assert {"class": "batch"} == found["rules"][0]["then"]


def test_names_of_clients_do_no_harm(tmp_path: Path) -> None:
    """What somebody calls a tenant or a class cannot break the file."""
    nasty = ["a: b", "'\"{}[]", "x\n- y", "#", "&a *b", "é", "", "true", "~", "(others)"]
    found = configuration(
        record(
            tmp_path / "r",
            400,
            lambda n: {"tenant": "big" if n % 2 else nasty[n // 2 % 10], "class_name": nasty[n % 10]},
        )
    )
    assert found["pools"]
