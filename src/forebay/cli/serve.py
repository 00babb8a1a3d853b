"""`forebay serve`: reads the options and the configuration, then hands over to the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forebay.cli.profiles import print_profiles

__all__ = ["command"]


@click.command("serve")
@click.option(
    "--upstream",
    "upstreams",
    metavar="URL",
    multiple=True,
    help="An engine, as in http://127.0.0.1:8000. Repeat it for several that serve the same models.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where clients connect; PORT alone is this machine only, :PORT all interfaces.  [default: 127.0.0.1:8080]",
)
@click.option("--admin", metavar="HOST:PORT", help="Health, metrics, admin API.  [default: 127.0.0.1:9321]")
@click.option(
    "-c",
    "--config",
    "file",
    metavar="FILE",
    envvar="FOREBAY_CONFIG",
    type=click.Path(path_type=Path),
    help="Configuration (YAML); - is standard input. `forebay check FILE` validates it.",
)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    help="Speed of the --upstream engines; `--profile list` prints the known ones.  [default: learn]",
)
@click.option("--grace", metavar="TIME", help="Longest that a shutdown takes, as in 30s.  [default: 30s]")
@click.option(
    "--log-format",
    envvar="FOREBAY_LOG_FORMAT",
    type=click.Choice(["auto", "console", "json"], case_sensitive=False),
    default="auto",
    show_default=True,
    help="`auto`: for people on a terminal, JSON otherwise.",
)
@click.option(
    "--log-level",
    envvar="FOREBAY_LOG_LEVEL",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="Least important lines that are written, to stderr.",
)
def command(
    *,
    upstreams: tuple[str, ...],
    listen: str | None,
    admin: str | None,
    file: Path | None,
    profile: str | None,
    grace: str | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run the gateway in front of one or more inference engines.

    With --upstream alone everything else has a safe default. SIGTERM drains: readiness falls, waiting requests
    start or are told to come back, running answers end within the grace time. A second signal ends it at once.
    """
    from forebay.config import ConfigError, load
    from forebay.runtime.process import StartFailed, prepare, run

    if profile == "list":
        print_profiles()
        return
    if profile is not None and not upstreams:
        raise click.UsageError("--profile describes --upstream engines; in a file, set the pool's profile")
    options: dict[str, tuple[str, Any]] = {}
    part_options: dict[tuple[str | int, ...], str] = {}
    for key, value in (("listen", listen), ("admin", admin), ("grace", grace)):
        if value is not None:
            options[key] = (f"--{key}", value)
    if upstreams:
        pool: dict[str, Any] = {"endpoints": list(upstreams)}
        if profile is not None:
            pool["profile"] = profile
            part_options["pools", 0, "profile"] = "--profile"
        options["pools"] = ("--upstream", [pool])
    warnings: tuple[str, ...] = ()
    try:
        loaded = load(file, options=options, part_options=part_options)
        warnings = loaded.warnings
        if upstreams and loaded.pools_replaced:
            raise click.UsageError(
                "--upstream and pools in the configuration exclude each other; use one of them"
            )
        prepared = prepare(loaded)
    except ConfigError as error:
        # There is no log yet, and a misspelt variable may be the reason.
        for warning in warnings or error.warnings:
            click.echo(f"warning: {warning}", err=True)
        raise click.UsageError(str(error)) from None
    try:
        code = run(prepared, announce=click.echo, log_format=log_format, log_level=log_level)
    except StartFailed as error:
        raise click.ClickException(str(error)) from None
    raise SystemExit(code)
