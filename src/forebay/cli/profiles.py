"""What `--profile list` prints. Parsing and printing only."""

from __future__ import annotations

import click

__all__ = ["print_profiles"]


def print_profiles() -> None:
    """A line for each profile that comes with the package."""
    from forebay.profiles import list_profiles, load_profile

    for name in list_profiles():
        profile = load_profile(name)
        click.echo(f"{name}  ({profile.gpus} x {profile.gpu}, {profile.kv_tokens} KV tokens)")
