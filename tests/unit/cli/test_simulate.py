"""`forebay simulate`: what it takes, what it prints, how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forebay.cli.main import cli
from forebay.cli.simulate import command
from forebay.simulate.policies import POLICIES
from forebay.simulate.run_bound import RunBound


def simulate(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_json_is_one_document_on_stdout_and_the_rest_goes_to_stderr() -> None:
    """Progress and what is simulated are said, but not there."""
    result = simulate("synthetic:chat,seconds=20", "--load", "1.2", "--json", "--policy", "pass-through")
    assert 0 == result.exit_code
    (run,) = json.loads(result.stdout)["runs"]
    assert ("pass-through", 1.2, 1) == (run["policy"], run["load"], run["seed"])
    assert "1.20 times what 1 of llama3-8b-h100x1-bf16 can do" in result.stderr
    assert "pass-through: done" in result.stderr


def test_policies_are_compared_in_tables() -> None:
    """A row each, and what the columns mean."""
    result = simulate("synthetic:chat,seconds=15", "--policy", "forebay", "--policy", "pass-through")
    assert 0 == result.exit_code
    for text in ("forebay", "pass-through", "realtime", "On time: answered in full", "TTFT p50 / p99"):
        assert text in result.stdout


def test_lists_say_what_there_is() -> None:
    """Policies and profiles."""
    policies = simulate("-", "--policy", "list")
    assert all(name in policies.stdout for name in POLICIES)
    assert "llama3-8b-h100x1-bf16" in simulate("-", "--profile", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("synthetic:none",), "chat"),
        (("no-such-file.csv",), "no-such-file.csv"),
        (("synthetic:chat", "--policy", "none"), "Known: forebay, pass-through"),
        (("synthetic:chat", "--profile", "none"), "llama3-8b-h100x1-bf16"),
        (("synthetic:chat", "--fault", "lost:9@3"), "there is no replica 9"),
        (("synthetic:chat", "--fault", "x"), "write lost:0@60-120"),
        (("synthetic:chat", "--load", "0"), "0.01<=x<=100"),
        (("synthetic:chat", "-c", "no-such-file.yaml"), "no-such-file.yaml"),
    ],
)
def test_wrong_usage_is_said_at_once(arguments: tuple[str, ...], said: str) -> None:
    """With 2 for an exit code, before anything is simulated."""
    result = simulate(*arguments)
    assert 2 == result.exit_code
    assert said in result.stderr
    assert "running" not in result.stderr


def test_a_picture_needs_an_extra_where_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and nothing is written."""

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("forebay.simulate.plot.import_module", missing)
    file = tmp_path / "runs.png"
    result = simulate("synthetic:chat,seconds=5", "--policy", "pass-through", "--plot", str(file))
    assert 1 == result.exit_code
    assert "forebay[plot]" in result.stderr
    assert not file.exists()


BOUNDED = ("simulate", "synthetic:chat,seconds=60,rate=2", "--limit", "40", "--returns", "none", "--bound")


def test_the_bound_is_beside_what_a_run_came_to() -> None:
    """In the document as in the text, and no run is above it."""
    result = CliRunner().invoke(cli, [*BOUNDED, "--json"])
    (one,) = json.loads(result.stdout)["runs"]
    assert result.exit_code == 0
    assert one["slo_met_rps"] <= one["bound_rps"] * 1.0001
    assert one["utility"] <= one["bound_utility"] * 1.0001
    assert "Bound: nobody could do more than" in CliRunner().invoke(cli, [*BOUNDED]).stdout


def test_a_run_above_its_bound_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two must be wrong, and the exit code says so."""
    monkeypatch.setattr("forebay.simulate.run_bound.bound_of", lambda _: RunBound(0.01, 0.01))
    result = CliRunner().invoke(cli, [*BOUNDED])
    assert result.exit_code == 1
    assert "more than its bound" in result.stderr


def test_the_bound_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SciPy it says what to install, before anything is simulated."""
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    result = CliRunner().invoke(cli, [*BOUNDED])
    assert result.exit_code == 1
    assert "forebay[lab]" in result.stderr
