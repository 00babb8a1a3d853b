"""`forebay mode`: shows or switches what a running gateway does with its decisions."""

from __future__ import annotations

import json
from typing import Any

import click

from forebay.cli.admin_client import AdminClient, admin_option

__all__ = ["command"]

_EPILOG = """
\b
  forebay mode                        what is in force
  forebay mode shadow --class batch   try a policy on batch requests without refusing any
  forebay mode bypass --pool llama    get out of the way of one model
"""


@click.command("mode", epilog=_EPILOG)
@click.argument(
    "mode",
    required=False,
    type=click.Choice(["enforce", "shadow", "bypass", "configured"], case_sensitive=False),
)
@click.option("--pool", metavar="NAME", help="Only this pool.")
@click.option("--class", "class_name", metavar="NAME", help="Only this class.")
@admin_option
@click.option("--json", "as_json", is_flag=True, help="Print what the admin API says.")
def command(
    *, mode: str | None, pool: str | None, class_name: str | None, admin: str | None, as_json: bool
) -> None:
    """Show or switch what a running gateway does with its decisions.

    enforce carries them out. shadow makes and records them, and sends every request to an engine at once. bypass makes
    none. configured takes back what was switched live: the configuration holds again.

    Without MODE the modes in force are shown. What is said of a pool or a class goes before what is said of everything;
    where both say something, the one that interferes less holds. A switch holds until the next one, a restart, or a
    reload that changes what the configuration says there.
    """
    client = AdminClient(admin)
    if mode is None:
        if pool is not None or class_name is not None:
            raise click.UsageError("--pool and --class go with a mode to switch to")
        state = client.get("/api/mode")
    else:
        state = client.post("/api/mode", {"mode": mode, "pool": pool or "", "class": class_name or ""})
    if as_json:
        click.echo(json.dumps(state))
    else:
        for line in _lines(state):
            click.echo(line)


def _lines(state: dict[str, Any]) -> list[str]:
    """One line for each pool whose classes agree, else one for each class."""
    lines = [f"{state['mode']} where nothing else is said"]
    for pool, classes in state["pools"].items():
        modes = set(classes.values())
        if len(modes) == 1:
            lines.append(f"pool {pool}: {modes.pop()}")
        else:
            lines += [f"pool {pool}, class {name}: {mode}" for name, mode in classes.items()]
    for change in state["live"]:
        scope = [f"{key} {change[key]}" for key in ("pool", "class") if change[key]]
        lines.append(f"switched live: {', '.join(scope) or 'everything'} to {change['mode']}")
    return lines
