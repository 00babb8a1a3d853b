"""Entry point of the `forebay` command: finds the subcommand and hands over.

Owns the list of commands and their one-line descriptions, so that `forebay --help` answers without
importing what the commands are made of. Each command lives in `forebay.cli.<name>` as a click command
called `command`; a test holds the descriptions here against those. Never does work itself.

Exit codes: 0 done, 1 the thing asked for failed, 2 wrong usage or configuration. A command gets 1 by
raising `click.ClickException` and 2 by raising `click.UsageError`.
"""

from __future__ import annotations

import importlib
from typing import Final, NoReturn

import click

from forebay import __version__

COMMANDS: Final[dict[str, str]] = {
    "serve": "Run the gateway in front of one or more inference engines.",
    "engine": "Run the engine emulator: an OpenAI-compatible server with measured timing.",
    "demo": "Show the same overload with and without Forebay, and a result table.",
    "check": "Validate a configuration file and say what it means.",
    "schema": "Print the JSON Schema of the configuration.",
}
"""Every command with its line in the help, in the order shown."""


class LazyGroup(click.Group):
    """A click group that imports a command's module only to run it or to show its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"forebay.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"forebay.cli.{cmd_name}.command is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="`forebay COMMAND --help` tells more about a command.",
)
@click.version_option(__version__, prog_name="forebay")
def cli() -> None:
    """Admission control for LLM serving.

    Forebay stands between clients and inference engines and decides for every request: admit, queue or
    refuse.
    """


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    cli.main(prog_name="forebay")
    raise AssertionError("click ends the process")  # pragma: no cover
