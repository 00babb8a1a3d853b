"""`forebay size`: options, what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from forebay.cli.main import cli

PROFILE = ("--profile", "llama3-8b-h100x1-bf16")


def size(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["size", *arguments])


def test_report_has_every_part() -> None:
    """Figures with their formulas, and the settings of all layers."""
    result = size(*PROFILE, "--prompt-tokens", "1000", "--output-tokens", "250", "--rate", "40")
    assert (0, "") == (result.exit_code, result.stderr)
    for words in (
        "Capacity",
        "P-K",
        "Little",
        "drain rate × L",
        "sustained × GPUs × 0.7",
        "budget × GPUs ÷ 2",
    ):
        assert words in result.stdout
    for words in ("--- edge", "--- forebay", "--- engine", "--- keda", "on 3 engines (3 GPUs)"):
        assert words in result.stdout


def test_json_is_one_document() -> None:
    """Everything, the settings too; what is infinite is null."""
    result = size("--model", "llama3-70b", "--gpu", "h100", "--tensor-parallel", "4", "--json")
    body = json.loads(result.stdout)
    assert result.stderr == ""
    assert (4, None) == (body["engine"]["gpus"], body["idle_wait_s"])
    assert {"edge", "forebay", "engine", "keda"} == set(body["settings"])
    assert 2 == len(body["notes"])
    assert (
        body["workload"]["capacity_rps"] if "capacity_rps" in body["workload"] else body["capacity_rps"] > 0
    )


@pytest.mark.parametrize("layer", ["edge", "forebay", "keda"])
def test_settings_alone_are_yaml(layer: str) -> None:
    """What `--only` prints can be written to a file."""
    result = size(*PROFILE, "--only", layer)
    assert (0, "") == (result.exit_code, result.stderr)
    assert yaml.safe_load(result.stdout)


def test_forebay_settings_pass_check(tmp_path: Path) -> None:
    """With a profile and without, for one engine and for many: nothing to complain of, nothing to warn of."""
    for arguments in (
        PROFILE,
        (*PROFILE, "--rate", "500", "--policy", "latency", "--ttft", "800ms", "--tpot", "50ms"),
        ("--model", "llama3-8b", "--gpu", "a100", "--mig", "3g.40gb", "--prompt-tokens", "500"),
    ):
        path = tmp_path / "forebay.yaml"
        path.write_text(size(*arguments, "--only", "forebay").stdout, encoding="utf-8")
        result = CliRunner().invoke(cli, ["check", str(path)])
        assert (0, "") == (result.exit_code, result.stderr)


def test_more_than_the_engines_can_serve_is_said() -> None:
    """A rate above capacity gives a note, and figures all the same."""
    result = size(*PROFILE, "--rate", "100", "--endpoints", "1", "--prompt-tokens", "1000")
    assert result.exit_code == 0
    assert "cannot serve 100 requests/s" in result.stderr
    assert "for ever" in result.stdout


def test_list_of_profiles() -> None:
    """`--profile list` prints them."""
    assert "llama3-8b-h100x1-bf16" in size("--profile", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say which engine"),
        ((*PROFILE, "--model", "llama3-8b"), "say which engine"),
        ((*PROFILE, "--gpu", "h100"), "--gpu belongs to --model"),
        (("--model", "llama3-8b"), "needs the GPU"),
        (
            ("--model", "llama3-8b", "--gpu", "h100", "--mig", "1g.10gb", "--tensor-parallel", "2"),
            "MIG slice",
        ),
        (("--model", "llama3-70b", "--gpu", "h100"), "no room for a KV cache"),
        (("--model", "llama3-8b", "--gpu", "tpu"), "no GPU 'tpu'"),
        (("--profile", "nothing"), "no engine profile 'nothing'"),
        ((*PROFILE, "--ttft", "soon"), "--ttft"),
        ((*PROFILE, "--tpot", "0s"), "above 0"),
        ((*PROFILE, "--trace", "none.csv"), "none.csv"),
        ((*PROFILE, "--trace", "none.csv", "--prompt-tokens", "5"), "--trace has the lengths"),
        ((*PROFILE, "--output-tokens", "900000"), "131,072 at most"),
    ],
)
def test_wrong_use_is_told(arguments: tuple[str, ...], message: str) -> None:
    """Exit code 2, and a line that names the fix."""
    result = size(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
