"""`forebay schema`: the shape of the configuration, for editors and other tools."""

from __future__ import annotations

import json

import click

__all__ = ["command"]


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of the configuration."""
    from forebay.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
