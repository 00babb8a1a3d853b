"""`forebay serve`: reads the options and the configuration, then hands over to the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay.cli.profiles import print_profiles

if TYPE_CHECKING:
    from forebay.runtime.process import Prepared

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
@click.option(
    "--shadow",
    is_flag=True,
    help="Decide and record, but enforce nothing: every request goes to an engine at once.",
)
@click.option(
    "--ssl-certfile",
    metavar="FILE",
    help="Certificate (PEM, with its chain): clients connect by https. A changed file is taken up.",
)
@click.option("--ssl-keyfile", metavar="FILE", help="Its key, if that is not in the same file.")
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
    shadow: bool,
    ssl_certfile: str | None,
    ssl_keyfile: str | None,
    grace: str | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run the gateway in front of one or more inference engines.

    With --upstream alone everything else has a safe default. A changed configuration file is taken over while requests
    go on (SIGHUP does so at once); a wrong one changes nothing. SIGTERM drains: readiness falls, waiting requests
    start or are told to come back, running answers end within the grace time. A second signal ends it at once.
    """
    from forebay.config import ConfigError
    from forebay.runtime.process import StartFailed, run

    if profile == "list":
        print_profiles()
        return
    if profile is not None and not upstreams:
        raise click.UsageError("--profile describes --upstream engines; in a file, set the pool's profile")
    given = {
        "listen": listen,
        "admin": admin,
        "grace": grace,
        # Relative to where the command is given, not to the configuration's folder.
        "ssl_certfile": None if ssl_certfile is None else str(Path(ssl_certfile).absolute()),
        "ssl_keyfile": None if ssl_keyfile is None else str(Path(ssl_keyfile).absolute()),
    }
    source = _Source(
        file, {key: value for key, value in given.items() if value is not None}, upstreams, profile, shadow
    )
    try:
        prepared = source.read()
    except ConfigError as error:
        # There is no log yet, and a misspelt variable may be the reason.
        for warning in error.warnings:
            click.echo(f"warning: {warning}", err=True)
        raise click.UsageError(str(error)) from None
    try:
        code = run(
            prepared,
            announce=click.echo,
            read_again=source.read_again,
            log_format=log_format,
            log_level=log_level,
        )
    except StartFailed as error:
        raise click.ClickException(str(error)) from None
    raise SystemExit(code)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the configuration comes from: a file, the environment, and the options given."""

    file: Path | None
    given: dict[str, str]
    upstreams: tuple[str, ...]
    profile: str | None
    shadow: bool = False

    def read(self) -> Prepared:
        """The configuration as it is now. Raises: ConfigError."""
        from forebay.config import ConfigError, ConfigProblem, load
        from forebay.runtime.process import prepare

        options: dict[str, tuple[str, Any]] = {
            key: (f"--{key.replace('_', '-')}", value) for key, value in self.given.items()
        }
        if self.shadow:
            options["mode"] = ("--shadow", "shadow")
        part_options: dict[tuple[str | int, ...], str] = {}
        if self.upstreams:
            pool: dict[str, Any] = {"endpoints": list(self.upstreams)}
            if self.profile is not None:
                pool["profile"] = self.profile
                part_options["pools", 0, "profile"] = "--profile"
            options["pools"] = ("--upstream", [pool])
        loaded = load(self.file, options=options, part_options=part_options)
        if self.upstreams and loaded.pools_replaced:
            message = "--upstream and pools in the configuration exclude each other; use one of them"
            raise ConfigError([ConfigProblem("--upstream", "", message)], loaded.warnings)
        try:
            return prepare(loaded)
        except ConfigError as error:
            error.warnings = loaded.warnings
            raise

    def read_again(self) -> Prepared:
        """The same later. Raises: ConfigError."""
        from forebay.config import ConfigError, ConfigProblem

        if self.file is not None and str(self.file) == "-":
            raise ConfigError([ConfigProblem("standard input", "", "cannot be read again; restart instead")])
        return self.read()
