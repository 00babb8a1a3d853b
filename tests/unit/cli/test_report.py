"""`forebay report`: its options and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forebay.cli.main import cli
from tests.unit.report.workloads import record


def report(*arguments: str | Path) -> Result:
    """Run it."""
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


def test_words_and_json(tmp_path: Path) -> None:
    """One document on stdout, in either form; the configuration is written where asked."""
    path = record(tmp_path / "r", 300)
    words = report(path, "-o", tmp_path / "s.yaml")
    assert 0 == words.exit_code, words.output
    assert words.stdout.startswith("You do not need admission control")
    told = json.loads(report(path, "--json").stdout)
    assert told["yaml"] == (tmp_path / "s.yaml").read_text()
    assert 0 == CliRunner().invoke(cli, ["check", str(tmp_path / "s.yaml")]).exit_code


def test_profile_and_limit() -> None:
    """The work of a trace goes by the engine that is named."""
    slow = json.loads(
        report("synthetic:chat", "--json", "--limit", "100", "--profile", "llama3-8b-a100x1-bf16").stdout
    )
    fast = json.loads(report("synthetic:chat", "--json", "--limit", "100").stdout)
    assert 100 == slow["requests"]
    assert slow["work_gpu_s"]["mean"] > fast["work_gpu_s"]["mean"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.csv"], 2, "nowhere.csv: cannot be read: No such file"),
        (["synthetic:no"], 2, "there is no workload 'no'"),
        (["synthetic:chat", "--profile", "h900"], 2, "--profile: there is no engine profile 'h900'"),
        (["synthetic:chat", "-o", "/"], 2, ""),
        (["synthetic:chat", "-o", "/nowhere/x.yaml"], 1, "/nowhere/x.yaml: cannot be written"),
        (["synthetic:chat", "--limit", "0"], 2, "--limit"),
        ([], 2, "LOG"),
    ],
)
def test_mistakes(arguments: list[str], code: int, said: str) -> None:
    """Wrong usage is 2, what fails is 1, and the message says what is wrong."""
    result = report(*arguments)
    assert code == result.exit_code
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """The suggestions go to a new file."""
    (tmp_path / "mine.yaml").write_text("mine")
    result = report("synthetic:chat", "-o", tmp_path / "mine.yaml")
    assert 2 == result.exit_code
    assert "mine" == (tmp_path / "mine.yaml").read_text()


def test_names_of_tenants_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    """Whoever names a tenant may be anybody."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,tenant\n0,9,9,\x1b[31mred\n1,9,9,b\n")
    result = report(trace)
    assert 0 == result.exit_code
    assert "?[31mred" in result.stdout
    assert "\x1b" not in result.stdout
