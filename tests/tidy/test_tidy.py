"""The house rules as tests: what review would otherwise have to say again and again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy import rules
from tests.tidy.sources import (
    PURE_PACKAGES,
    ROOT,
    SRC,
    files_with_suffix,
    project_files,
    project_settings,
    pure_modules,
    shown,
    source_modules,
    tree_of,
)

MODULE_LINES_MAX = 500
BANNED_MODULE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "stuff"}

# Packages whose every module has a test file of its own, at the same place under tests/unit.
MIRRORED_PACKAGES = ("admission",)

# Hashes of integers are the same under every hash seed; this module hashes nothing else.
HASHES_INTEGERS = ("src/forebay/enginemodel/prefix.py",)

# Both read an allowlist: this one sees dotted names and typing-only imports, the one of import-linter sees chains.
PURE_IMPORTS = frozenset(
    {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
        "typing",
    }
)

# In parts, so that this file does not find itself.
MACHINE_PATHS = re.compile("/" + r"(?:work|root)/|\.\./" + "shared")
LEFTOVER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b(?!\(#\d+\))")
ADDRESS = re.compile(r"[a-z]+://|^\s*--(?:index|extra-index|find-links|trusted)", re.MULTILINE)

TEXT_SUFFIXES = (".py", ".md", ".toml", ".yaml", ".yml", ".json", ".sh", ".lock", ".cfg", ".txt", ".lua", "")


def complaints(paths: list[Path], rule: rules.Rule) -> list[str]:
    """What a rule says about these files."""
    return [f"{shown(path)}:{line}: {text}" for path in paths for line, text in rule(tree_of(path))]


def texts() -> list[tuple[Path, str]]:
    """The project's text files with their content."""
    found = []
    for path in project_files():
        if path.suffix in TEXT_SUFFIXES:
            try:
                found.append((path, path.read_text(encoding="utf-8")))
            except UnicodeDecodeError:
                continue
    return found


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    """Places in the project's text files where a pattern occurs."""
    return [
        f"{shown(path)}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_modules_are_short() -> None:
    """No module has more than 500 lines."""
    counted = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in source_modules()}
    assert {name: lines for name, lines in counted.items() if lines > MODULE_LINES_MAX} == {}


@pytest.mark.parametrize("rule", [rules.long_functions, rules.missing_docstring, rules.missing_future_import])
def test_every_module_keeps(rule: rules.Rule) -> None:
    """Every module says what it is for, and its functions fit a screen."""
    assert complaints(source_modules(), rule) == []


def test_only_the_command_line_prints() -> None:
    """Nothing but the command line prints."""
    assert (
        complaints([path for path in source_modules() if SRC / "cli" not in path.parents], rules.prints) == []
    )


def test_no_module_is_called_utils() -> None:
    """Module names say what is inside."""
    assert [
        shown(path) for path in source_modules() if BANNED_MODULE_NAMES & {path.stem, path.parent.name}
    ] == []


@pytest.mark.parametrize("rule", [rules.impure_calls, rules.set_iterations])
def test_pure_packages_keep(rule: rules.Rule) -> None:
    """The pure packages reach nothing outside, and nothing in them depends on the hash seed."""
    assert [
        line
        for line in complaints(pure_modules(), rule)
        if not ("hash()" in line and line.startswith(HASHES_INTEGERS))
    ] == []


def test_every_folder_of_modules_is_a_package() -> None:
    """Every folder with modules has an `__init__.py`: without one the import contracts would not see it."""
    folders = {path.parent for path in source_modules()}
    assert sorted(shown(folder) for folder in folders if not (folder / "__init__.py").is_file()) == []


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_pure_packages_import_only_the_list(package: str) -> None:
    """The pure packages import a short list of the standard library and themselves."""
    rule = rules.impure_imports(PURE_IMPORTS, f"forebay.{package}")
    assert complaints(source_modules(package), rule) == []


def test_import_contract_covers_every_pure_package() -> None:
    """The allowlist contract of import-linter names every pure package that exists."""
    contracts = {c["id"]: c for c in project_settings()["tool"]["importlinter"]["contracts"]}
    existing = {f"forebay.{name}" for name in PURE_PACKAGES if (SRC / name).is_dir()}
    assert existing == set(contracts["pure"]["source_modules"])
    allowed = {line.removeprefix("** -> ") for line in contracts["pure"]["ignore_imports"]}
    assert {name.partition(".")[0] for name in PURE_IMPORTS} == allowed


@pytest.mark.parametrize("package", MIRRORED_PACKAGES)
def test_every_module_has_its_own_tests(package: str) -> None:
    """Each module of these packages has a test file of its own at the same place under tests/unit."""
    missing = [
        f"tests/unit/{path.relative_to(SRC).parent.as_posix()}/test_{path.stem}.py"
        for path in source_modules(package)
        if path.name != "__init__.py"
    ]
    assert [name for name in missing if not (ROOT / name).is_file()] == []


def test_no_leftover_markers() -> None:
    """A marker of work to be done names its issue, as in `TO-DO(#12)` without the dash."""
    assert lines_matching(LEFTOVER) == []


def test_no_paths_of_one_machine() -> None:
    """No file names a folder that only its author's machine has."""
    assert lines_matching(MACHINE_PATHS) == []


def test_locks_hold_hashes_and_no_addresses() -> None:
    """The lock files pin every package by hash and name no package index."""
    locks = files_with_suffix(".lock")
    names = [path.name for path in locks]
    assert names == ["litellm.lock", "smg.lock", "vllm-router.lock", "base.lock", "dev.lock"]
    for path in locks:
        text = path.read_text(encoding="utf-8")
        assert ADDRESS.findall(text) == [], path.name
        for entry in re.split(r"\n(?=\S)", text.strip()):
            assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
            assert "--hash=sha256:" in entry, entry


def test_base_lock_is_part_of_dev_lock() -> None:
    """What is set up for development is set up for use: the same versions of the same packages."""
    base, dev = (
        set(
            re.findall(
                r"^[a-z0-9._-]+==\S+", (ROOT / "requirements" / f"{name}.lock").read_text(), re.MULTILINE
            )
        )
        for name in ("base", "dev")
    )
    assert base - dev == set()


def test_locks_name_every_dependency() -> None:
    """A dependency added to pyproject.toml is in the lock files too."""

    def names(requirements: list[str]) -> set[str]:
        found = [re.match(r"[A-Za-z0-9._-]+", line) for line in requirements]
        return {re.sub(r"[-_.]+", "-", match.group().lower()) for match in found if match}

    settings = project_settings()
    groups = settings["dependency-groups"]
    base = names(settings["project"]["dependencies"]) | names(groups["build"])
    for lock, wanted in (("base", base), ("dev", base | names(groups["test"]) | names(groups["lint"]))):
        text = (ROOT / "requirements" / f"{lock}.lock").read_text()
        assert wanted - set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE)) == set(), lock
