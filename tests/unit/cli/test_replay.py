"""`forebay replay`: what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from forebay.cli.main import cli
from forebay.cli.replay import _headers, _table
from forebay.load.felt import ClassReport, Report

HERE = ["--target", "http://127.0.0.1:9"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["synthetic:chat"], "Missing option '--target'"),
        (["synthetic:chat", "--target", "http://h/v1"], "should look like http://127.0.0.1:8000"),
        (["synthetic:chat", "--target", "http://[h"], "should look like http://127.0.0.1:8000"),
        (["synthetic:chat", "--target", "ftp://h"], "should look like http://127.0.0.1:8000"),
        (["nowhere", *HERE], "nowhere: cannot be read"),
        (["synthetic:chat", *HERE, "--speed", "0"], "--speed"),
        (["synthetic:chat", *HERE, "--slo", "/nowhere.yaml"], "--slo: /nowhere.yaml"),
        (["synthetic:chat", *HERE, "--header", "no colon"], "--header: found 'no colon'"),
        (["synthetic:chat", *HERE, "--header", "a: b\nc: d"], "--header: found"),
        (["synthetic:chat", *HERE, "--header", "Host: x"], "Host is set by replay itself"),
        (["synthetic:chat", *HERE, "--key", "kö"], "--key"),
    ],
)
def test_mistakes(arguments: list[str], said: str) -> None:
    """Wrong usage is exit code 2, with a message that says what is allowed."""
    result = CliRunner().invoke(cli, ["replay", *arguments])
    assert 2 == result.exit_code, result.output
    assert said in result.output
    assert "kö" not in result.output


def test_a_class_without_objectives(tmp_path: Path) -> None:
    """It is named before anything is sent."""
    slo = tmp_path / "slo.yaml"
    slo.write_text("classes: {gold: {ttft: 1s}}\n")
    result = CliRunner().invoke(cli, ["replay", "synthetic:mixed", *HERE, "--slo", str(slo)])
    assert 2 == result.exit_code
    assert "which has no objectives; known are gold (--slo)" in result.output


def test_headers_and_the_key() -> None:
    """The key becomes a bearer credential."""
    assert [("x-a", "b: c"), ("authorization", "Bearer k")] == _headers(["x-a: b: c"], "k")


def test_the_table() -> None:
    """One row per class, then all together."""
    one = ClassReport(10, 7, 2, 1, 0, 6, 0.5, None)
    text = _table(Report({"standard": one}, 5.0, 1.2, 0.6, 0.75, 2, 2, 1, 0, failures={"500 \x1b[2J": 1}))
    assert "standard" in text
    assert "6 of 10 on time (60.0%)" in text
    assert "2 refused (2 told when to come back), 1 failed" in text
    assert "failed: 1 × 500 ?[2J" in text
