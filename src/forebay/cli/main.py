"""Entry point of the `forebay` command: finds the subcommand and hands over.

Owns the list of commands and their one-line descriptions, so that `forebay --help` answers without
importing what the commands are made of. Each command lives in `forebay.cli.<name>` as a click command
called `command`; a test holds the descriptions here against those. Never does work itself.

Exit codes: 0 done, 1 the thing asked for failed, 2 wrong usage or configuration. A command gets 1 by
raising `click.ClickException` and 2 by raising `click.UsageError`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
from typing import Final, NoReturn

import click

from forebay import __version__

COMMANDS: Final[dict[str, str]] = {
    "serve": "Run the gateway in front of one or more inference engines.",
    "engine": "Run the engine emulator: an OpenAI-compatible server with measured timing.",
    "simulate": "Try a policy on a trace in virtual time.",
    "demo": "Show the same overload with and without Forebay, and a result table.",
    "replay": "Send a trace to an endpoint, and say what users felt.",
    "report": "Say what a recorded workload looks like, and what it needs.",
    "size": "Work out capacity, queues and settings for edge, Forebay and engine.",
    "calibrate": "Measure a live engine and write its profile.",
    "explain": "Say why a request was refused, had to wait, or was let in.",
    "mode": "Show or switch what a running gateway does with its decisions.",
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


def build() -> str:
    """How this copy was built: `compiled`, or `pure Python` (from the sources, or without a C compiler)."""
    spec = importlib.util.find_spec("forebay.admission.controller")
    native = spec is not None and str(spec.origin).endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
    return "compiled" if native else "pure Python"


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"forebay, version {__version__} ({build()})")
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="`forebay COMMAND --help` tells more about a command.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version, and whether it is compiled, and exit.",
)
def cli() -> None:
    """Admission control for LLM serving.

    Forebay stands between clients and inference engines and decides for every request: admit, queue or
    refuse.
    """


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    cli.main(prog_name="forebay")
    raise AssertionError("click ends the process")  # pragma: no cover
