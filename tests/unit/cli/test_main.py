"""The command line as a whole: help, versions, exit codes, and what it does not import."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pkgutil import iter_modules

import click
import pytest
from click.testing import CliRunner

import forebay.cli as package
from forebay import __version__
from forebay.cli.main import COMMANDS, build, cli

HEAVY = (
    "asyncio",
    "httptools",
    "msgspec",
    "prometheus_client",
    "pydantic",
    "rich",
    "starlette",
    "structlog",
    "uvicorn",
    "uvloop",
    "yaml",
)


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with these arguments."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=30, check=False
    )


def test_help_lists_every_command() -> None:
    """The help names every command with its line."""
    result = CliRunner().invoke(cli, ["--help"], terminal_width=200)
    assert result.exit_code == 0
    for name, line in COMMANDS.items():
        assert f"  {name} " in result.output
        assert line in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_stand_on_lines_of_their_own(name: str) -> None:
    """They are for copying: none is filled into a paragraph."""
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "\\b" not in result.output
    for line in result.output.splitlines():
        assert line.count(f"forebay {name} ") < 2, line


def test_help_imports_nothing_heavy() -> None:
    """Asking for help loads neither the commands nor the libraries that they use."""
    code = (
        "import sys\n"
        "from forebay.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        f"heavy = {HEAVY!r}\n"
        "commands = [f'forebay.cli.{name}' for name in " + repr(tuple(COMMANDS)) + "]\n"
        "print('loaded:', [name for name in (*heavy, *commands) if name in sys.modules])\n"
    )
    result = run_python("-c", code)
    assert result.stdout.splitlines()[-1] == "loaded: []", result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_line_in_help_is_the_commands_own(name: str) -> None:
    """A command's line in the list is the first sentence of its own help."""
    command = importlib.import_module(f"forebay.cli.{name}").command
    assert isinstance(command, click.Command)
    assert COMMANDS[name].rstrip(".") == command.get_short_help_str(limit=200).rstrip(".")


def test_every_command_module_is_listed() -> None:
    """A module of the command line that holds a command is in the list."""
    found = [
        module.name
        for module in iter_modules(package.__path__)
        if module.name != "main" and hasattr(importlib.import_module(f"forebay.cli.{module.name}"), "command")
    ]
    assert sorted(COMMANDS) == sorted(found)


def test_unknown_command_is_wrong_usage() -> None:
    """An unknown command exits with 2 and says so."""
    result = CliRunner().invoke(cli, ["sevre"])
    assert result.exit_code == 2
    assert "No such command 'sevre'" in result.output


def test_python_dash_m_is_the_command() -> None:
    """`python -m forebay` answers as `forebay` does."""
    result = run_python("-m", "forebay", "--version")
    assert (result.returncode, result.stdout) == (0, f"forebay, version {__version__} ({build()})\n")
