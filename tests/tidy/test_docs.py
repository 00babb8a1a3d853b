"""The documentation against the code: nothing that users see is undocumented, and no link leads nowhere."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from forebay.admission.facts import ENGINE_FACTS, REQUEST_FACTS
from forebay.admission.outcomes import Outcome
from forebay.cli.main import COMMANDS
from forebay.profiles import load_profile
from tests.tidy.sources import ROOT, files_with_suffix, shown, source_modules, tree_of

REFERENCE = ROOT / "docs" / "reference"
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page(name: str) -> str:
    """The text of a page of the reference."""
    return (REFERENCE / name).read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A page without its code blocks, in which `#` is a comment and brackets are brackets."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """The anchor that common renderers make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def metric_names() -> set[str]:
    """Every string in the sources that is the name of one of our metrics."""
    return {
        node.value
        for path in source_modules("observe")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"forebay_[a-z0-9_]+", node.value)
    }


def test_every_outcome_is_documented() -> None:
    """Each way a request can end has its row in the table of outcomes."""
    text = page("outcomes.md")
    assert [outcome.value for outcome in Outcome if f"`{outcome.value}`" not in text] == []


def test_every_name_of_rules_is_documented() -> None:
    """Each fact that a condition can name has its row, with its type and its meaning."""
    text = page("rules.md")
    facts = [(f.name, f.kind, f.words) for f in REQUEST_FACTS] + [
        (f.name, f.kind, f.words) for f in ENGINE_FACTS
    ]
    rows = [f"| `{name}` | {kind} | {words} |" for name, kind, words in facts]
    assert [row for row in rows if row not in text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    """Each command has a section, which names each of its arguments and options."""
    text = page("cli.md")
    heading = f"## `forebay {name}`"
    assert heading in text
    section = text.partition(heading)[2].partition("\n## ")[0]
    command = importlib.import_module(f"forebay.cli.{name}").command
    assert isinstance(command, click.Command)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            names = [option for option in parameter.opts if option.startswith("--")] or parameter.opts
            assert [option for option in names if f"`{option}" not in section] == []
        elif isinstance(parameter, click.Argument):
            assert f"`{parameter.human_readable_name.upper()}" in section


def test_reference_names_no_command_that_is_not_there() -> None:
    """The reference of the command line promises nothing that the command line lacks."""
    assert sorted(COMMANDS) == sorted(re.findall(r"^## `forebay ([a-z]+)`", page("cli.md"), re.MULTILINE))


def test_metrics_are_documented_and_documented_ones_exist() -> None:
    """The table of metrics and the code name the same metrics."""
    documented = set(re.findall(r"`(forebay_[a-z0-9_]+)`", page("metrics.md")))
    assert metric_names() == documented


def test_every_setting_is_documented() -> None:
    """The reference of the settings is what the schema makes of it now (`make docs`)."""
    result = subprocess.run(
        [sys.executable, ROOT / "scripts" / "config_reference.py", "--check"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_profile_in_the_reference_is_one(tmp_path: Path) -> None:
    """The example of a profile can be loaded, and the page has a row for each key of it."""
    text = page("profiles.md")
    (example,) = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    path = tmp_path / "own.json"
    path.write_text(example, encoding="utf-8")
    assert load_profile(str(path)).name == "my-8b"
    body = json.loads(example)
    assert [
        key for key in (*body, *body["step_ms"]) if f"| `{key}`" not in text and f", `{key}` |" not in text
    ] == []


@pytest.mark.parametrize("path", files_with_suffix(".md"), ids=shown)
def test_page_has_one_title(path: Path) -> None:
    """A page has one title, and it is its first line."""
    text = prose(path)
    assert len(re.findall(r"^# \S", text, re.MULTILINE)) == 1
    assert text.startswith("# ")


@pytest.mark.parametrize("path", files_with_suffix(".md"), ids=shown)
def test_links_of_page_resolve(path: Path) -> None:
    """Relative links lead to files of the project, and their anchors to headings."""
    broken = []
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        if not linked.exists():
            broken.append(target)
        elif anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", prose(linked), re.MULTILINE)
            if anchor not in {slug(heading) for heading in headings}:
                broken.append(target)
    assert broken == []


def test_architecture_names_modules_that_exist() -> None:
    """The table of places leads to modules that are there."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    places = set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text))
    assert len(places) > 20
    assert (
        sorted(
            place
            for place in places
            if not (ROOT / "src/forebay" / place).exists() and not (ROOT / place).exists()
        )
        == []
    )


def test_readme_names_the_two_commands() -> None:
    """The first page tells how to see it work and how to test it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def test_the_threat_model_names_tests_that_exist() -> None:
    """What is said to stand against a threat is tried somewhere."""
    text = (ROOT / "THREAT_MODEL.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(named) > 10
    assert [] == sorted(name for name in named if not (ROOT / name).exists())


def test_every_field_report_has_its_tests_or_a_reason() -> None:
    """Each row names files that bear its number, or says why there is none; no number is without a row."""
    bearing: dict[str, set[str]] = {}
    folder = ROOT / "tests"
    for path in files_with_suffix(".py"):
        if path.is_relative_to(folder) and not path.is_relative_to(folder / "tidy"):
            for number in re.findall(r"(?:\btest_f|\bF)(0\d\d)(?!\d)", path.read_text()):
                bearing.setdefault(f"F{number}", set()).add(path.relative_to(folder).as_posix())
    rows = dict(
        re.findall(
            r"^\| (F\d+) \| [^|]+ \| (.+) \|$", (folder / "field-reports.md").read_text(), re.MULTILINE
        )
    )
    assert set(bearing) <= set(rows)
    for number, told in rows.items():
        named = set(re.findall(r"`([^`]+\.py)`", told))
        assert named <= bearing.get(number, set()), number
        assert bool(named) == (number in bearing) != told.startswith("none: "), number
