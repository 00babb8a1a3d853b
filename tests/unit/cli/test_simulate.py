"""`forebay simulate`: what it takes, what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forebay.cli.simulate import command
from forebay.simulate.policies import POLICIES


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
