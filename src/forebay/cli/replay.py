"""`forebay replay TRACE`: sends a trace to an endpoint and says what users felt. Parses, shows progress, prints."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from forebay.cli.printing import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.load.felt import Report
    from forebay.load.replay import Objectives, Plan, Replay, Replayed

__all__ = ["command"]

_LATE_S: Final = 0.1
"""By which one request in a hundred may be sent late without a warning."""
_OPEN_FILES: Final = 16_384
_EPILOG: Final = """
\b
Try it:
  forebay replay synthetic:chat,seconds=60 --target http://127.0.0.1:8080
  forebay replay requests.jsonl --target https://llm.example.com --speed 2 --json
"""


@click.command(
    "replay",
    epilog=_EPILOG,
    short_help="Send a trace to an endpoint, and say what users felt.",
    context_settings={"max_content_width": 110},
)
@click.argument("trace")
@click.option(
    "--target",
    "targets",
    required=True,
    multiple=True,
    metavar="URL",
    help="Where to send it; several are asked in turn.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0.001, 1000),
    default=1,
    show_default=True,
    help="2 sends it in half the time.",
)
@click.option("--limit", type=click.IntRange(1), help="Send the first N requests only.")
@click.option(
    "--slo",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Objectives: a file with `classes`, as in the configuration. [default: those of zero configuration]",
)
@click.option(
    "--model", metavar="NAME", help="Model to ask for. [default: the only one that the target serves]"
)
@click.option(
    "--exact", is_flag=True, help="Answers as long as the trace says, by ignore_eos: for vLLM and SGLang."
)
@click.option(
    "--tail",
    type=click.FloatRange(0, 3600),
    default=60,
    show_default=True,
    help="Seconds to wait for answers after the last request.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="A header of every request; may be repeated.",
)
@click.option("--key", envvar="FOREBAY_API_KEY", metavar="KEY", help="API key; better in FOREBAY_API_KEY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(
    *,
    trace: str,
    targets: tuple[str, ...],
    speed: float,
    limit: int | None,
    slo: Path | None,
    model: str | None,
    exact: bool,
    tail: float,
    headers: tuple[str, ...],
    key: str | None,
    as_json: bool,
) -> None:
    """Send a trace to an endpoint, and say what users felt.

    Each request goes out at its moment, whatever became of those before it, with synthetic text of the right number of
    tokens. TRACE is any trace that `forebay report` reads, or synthetic:NAME. This is real load: an endpoint that
    is too small for it will be overloaded. A first request measures the target's tokenizer. Ctrl-C ends it early, with
    a report on what was sent.
    """
    import uvloop

    from forebay.config import ConfigError
    from forebay.load.generator import Target, WrongTarget
    from forebay.load.replay import Replay, ReplayFailed, read_objectives, read_plan
    from forebay.load.traces import TraceError

    try:
        where = [Target.parse(target) for target in targets]
        objectives = read_objectives(slo)
        plan = read_plan(trace, objectives, speed=speed, limit=limit)
    except (WrongTarget, TraceError) as error:
        raise click.UsageError(str(error)) from None
    except ConfigError as error:
        raise click.UsageError(f"--slo: {error}") from None
    replay = Replay(plan, where, model=model, headers=_headers(headers, key), exact=exact)
    _allow_open_files()
    try:
        done = uvloop.run(_run(replay, plan, objectives, tail))
    except ReplayFailed as failure:
        raise click.ClickException(plain(str(failure))) from None
    _show(done, speed if as_json else None)


def _show(done: Replayed, speed: float | None) -> None:
    """The report, as JSON if the speed is to be told; then what is to be doubted, and the exit code."""
    report = done.report
    if speed is None:
        click.echo(_table(report))
    else:
        click.echo(json.dumps(report.to_json() | {"speed": speed, "stopped": done.stopped}))
    if report.late_p99_s > _LATE_S:
        late = f"one request in a hundred was sent {report.late_p99_s:.1f} s late"
        click.echo(f"warning: {late}: this machine is too busy", err=True)
    if done.stopped:
        sys.exit(130)
    if report.offered and report.errors == report.offered:
        raise click.ClickException("not one request was answered")


async def _run(replay: Replay, plan: Plan, objectives: Objectives, tail_s: float) -> Replayed:
    await replay.prepare()
    watching = asyncio.ensure_future(_watch(replay, plan))
    try:
        return await replay.run(objectives, tail_s=tail_s)
    finally:
        watching.cancel()


async def _watch(replay: Replay, plan: Plan) -> None:
    """A line that is written over on a terminal; one now and then elsewhere."""
    on_terminal = sys.stderr.isatty()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        while True:
            await asyncio.sleep(0.5 if on_terminal else 10.0)
            counts = replay.counts
            line = (
                f"{loop.time() - began_s:.0f} of {plan.duration_s:.0f} s: {counts.sent} of {len(plan.arrivals)} sent, "
                f"{counts.open} open, {counts.completed} answered, {counts.refused} refused, {counts.failed} failed"
            )
            click.echo(f"\r{line}\033[K" if on_terminal else line, nl=not on_terminal, err=True)
    finally:
        if on_terminal:
            click.echo("", err=True)


def _headers(given: Sequence[str], key: str | None) -> list[tuple[str, str]]:
    made = []
    for header in given:
        name, colon, value = (part.strip() for part in header.partition(":"))
        plain = value.isprintable() and value.isascii() and name.replace("-", "").isalnum() and name.isascii()
        if not colon or not plain:
            raise click.UsageError(
                f"--header: found {header[:60]!r}, allowed is 'NAME: VALUE' in printable ASCII"
            )
        if name.lower() in {"host", "content-length", "content-type", "transfer-encoding", "x-forebay-class"}:
            raise click.UsageError(f"--header: {name} is set by replay itself")
        made.append((name, value))
    if key:
        if not (key.isascii() and key.isprintable()):
            raise click.UsageError("--key: a key has printable ASCII characters only")
        made.append(("authorization", f"Bearer {key}"))
    return made


def _table(report: Report) -> str:
    heads = ("offered", "on time", "refused", "failed", "open", "ttft half", "99 of 100")
    lines = [f"{'class':16}" + "".join(f"{head:>11}" for head in heads)]
    for name, one in report.classes.items():
        cells = (
            one.offered, one.met_slo, one.refused, one.failed, one.unanswered,
            _seconds(one.ttft_p50_s), _seconds(one.ttft_p99_s),
        )  # fmt: skip
        lines.append(f"{name:16}" + "".join(f"{cell:>11}" for cell in cells))
    told = f" ({report.refusals_with_retry_after} told when to come back)" if report.refusals else ""
    lines += [
        "",
        f"{report.met_slo} of {report.offered} on time ({report.slo_attainment:.1%})",
        f"{report.goodput_rps:.2f} a second on time",
        f"{report.admitted_attainment:.1%} of those that were not refused",
        f"{report.refusals} refused{told}, {report.errors} failed, {report.unanswered} not answered in the end",
    ]
    if report.failures:
        lines.append(
            "failed: " + ", ".join(f"{count} × {plain(how)}" for how, count in report.failures.items())
        )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}s"


def _allow_open_files() -> None:
    """Each open request is a connection."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
