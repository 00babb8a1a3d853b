"""`forebay report LOG`: what a workload looks like, and what it needs. Parses, reads, prints."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

import click

from forebay.cli.printing import plain

__all__ = ["command"]

_QUIET_S: Final = 2.0
"""Who is done sooner says nothing of progress."""
_EPILOG: Final = """
\b
Try it:
  forebay report /var/log/forebay/requests.jsonl*
  forebay report trace.csv.gz --plot trace.png -o forebay.yaml
"""


@click.command(
    "report",
    epilog=_EPILOG,
    short_help="Say what a recorded workload looks like, and what it needs.",
    context_settings={"max_content_width": 110},
)
@click.argument("log", nargs=-1, required=True, metavar="LOG...")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON document on stdout.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw a picture (.png, .svg, .pdf); needs forebay[plot].",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the suggested configuration to this file, which must not exist.",
)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    help="Engine that the work of a trace is computed for. [default: llama3-8b-h100x1-bf16]",
)
@click.option("--limit", type=click.IntRange(1), help="Look at the first N requests only.")
def command(
    *,
    log: tuple[str, ...],
    as_json_: bool,
    plot: Path | None,
    output: Path | None,
    profile: str | None,
    limit: int | None,
) -> None:
    """Say what a recorded workload looks like, and what it needs.

    LOG is a file of Forebay's recorder (`record:` in the configuration; several are taken as one record), or a trace:
    the common CSV, Azure, BurstGPT, Mooncake, packed or not, or synthetic:NAME. The answer opens with a verdict:
    whether this traffic needs admission control, and which part of it. Then come the numbers that it rests on, and a
    configuration to begin with, with the reason for each setting.
    """
    from forebay.config.mapping import law_of
    from forebay.load.traces import TraceError
    from forebay.profiles import DEFAULT_PROFILE, ProfileError, load_profile
    from forebay.report.plot import PlotFailed, draw
    from forebay.report.suggestions import as_yaml, suggest
    from forebay.report.survey import survey
    from forebay.report.verdict import judge
    from forebay.report.wording import as_json, as_text

    try:
        engine = load_profile(profile or DEFAULT_PROFILE)
    except ProfileError as error:
        raise click.UsageError(f"--profile: {error}") from None
    if output is not None and output.exists():
        raise click.UsageError(f"--output: {output} exists; choose another name")
    progress = _Progress()
    try:
        seen = survey(log, law_of(engine), engine.name, limit=limit, progress=progress.tell)
    except TraceError as error:
        raise click.UsageError(str(error)) from None
    finally:
        progress.end()
    verdict = judge(seen)
    suggestions = suggest(seen, verdict)
    if plot is not None:
        try:
            draw(seen, plot)
        except PlotFailed as failure:
            raise click.ClickException(str(failure)) from None
    if output is not None:
        try:
            output.write_text(as_yaml(suggestions), encoding="utf-8")
        except OSError as failure:
            raise click.ClickException(f"{output}: cannot be written: {failure.strerror}") from None
    click.echo(
        json.dumps(as_json(seen, verdict, suggestions))
        if as_json_
        else plain(as_text(seen, verdict, suggestions))
    )


class _Progress:
    """How many requests were read, on stderr, when it takes long."""

    def __init__(self) -> None:
        self._began_s = self._said_s = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def tell(self, count: int) -> None:
        now = time.monotonic()
        if now - self._began_s > _QUIET_S and now - self._said_s > (0.2 if self._on_terminal else 5.0):
            self._said_s = now
            click.echo(
                f"\rread {count} requests" if self._on_terminal else f"read {count} requests",
                nl=not self._on_terminal,
                err=True,
            )

    def end(self) -> None:
        if self._on_terminal and self._said_s > self._began_s:
            click.echo("", err=True)
