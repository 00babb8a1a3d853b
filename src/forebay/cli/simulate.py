"""`forebay simulate`: what-if in virtual time. Parses, shows progress, prints the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from forebay.runtime.simulation import Asked
    from forebay.simulate.run import Run, Setup
    from forebay.simulate.run_bound import RunBound

_EPILOG = """
\b
Try it:
  forebay simulate synthetic:chat --load 1.5
  forebay simulate synthetic:chat --load 1.5 --policy forebay --policy pass-through
  forebay simulate trace.csv.gz --replicas 4 -c forebay.yaml

TRACE is a file in any format that `forebay report` reads, or synthetic:NAME for a made one. The engines are modelled
from a measured profile; Forebay is not told it, and learns their speed and how long answers are, as it does in
production. Without -c the standard scenario applies: half of the requests are realtime, three tenths standard, a fifth
batch. What is modelled and what is not: docs/explanation/simulation.md.
"""
_RETURNS: Final = ("heed", "ignore", "none")


@click.command("simulate", epilog=_EPILOG, short_help="Try a policy on a trace in virtual time.")
@click.argument("trace")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    default=None,
    help="A configuration file, as for serve.",
)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    default=None,
    help="Measured engine to model; `list` prints the known names.  [default: the pool's, or llama3-8b-h100x1-bf16]",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1000),
    default=None,
    help="Engines in each pool.  [default: as configured, or 1]",
)
@click.option(
    "--load",
    type=click.FloatRange(0.01, 100),
    default=None,
    help="Offered work over capacity; arrivals are compressed to reach it.  [default: as the trace has them]",
)
@click.option(
    "--policy",
    "policies",
    metavar="NAME",
    multiple=True,
    help="Who decides; repeat it to compare. `list` prints the known names.  [default: forebay]",
)
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Take the first N requests only.")
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same run.")
@click.option(
    "--returns",
    type=click.Choice(_RETURNS),
    default="heed",
    show_default=True,
    help="Refused clients come back once: when they are told (heed), after about a second (ignore), or not (none).",
)
@click.option(
    "--fault",
    "faults",
    metavar="FAULT",
    multiple=True,
    help="lost:0@60-120, slow:0@60-120x2 or deaf:0@60-120 (no metrics): replica 0 from second 60 to 120; repeatable.",
)
@click.option(
    "--bound",
    "with_bound",
    is_flag=True,
    help="Add the clairvoyant bound: what nobody could have done better. It says most with --returns none.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout instead of the tables."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Draw the result into this file.",
)
def command(**options: Any) -> None:
    """Try a policy on a trace in virtual time.

    The very code that decides in production decides here, in front of modelled engines: an hour of traffic takes a
    minute or so. Exits with 1 if a run broke its own rules: books that do not balance, or more than its bound.
    """
    if options["profile"] == "list":
        from forebay.cli.profiles import print_profiles

        print_profiles()
        return
    if "list" in options["policies"]:
        _print_policies()
        return
    runs, bound = _simulate(
        _asked(options), options["policies"] or ("forebay",), with_bound=options["with_bound"]
    )
    if options["plot"] is not None:
        _plot(runs, options["plot"])
    if options["as_json"]:
        limits = {} if bound is None else {"bound_rps": bound.rps, "bound_utility": bound.utility}
        click.echo(json.dumps({"runs": [{**one.to_json(), **limits} for one in runs]}))
    else:
        _print(runs)
        if bound is not None:
            click.echo(
                f"Bound: nobody could do more than {bound.rps:.2f} on time /s, or {bound.utility:.2f} utility /s."
            )
    wrong = [f"{one.policy}: {fault}" for one in runs for fault in one.faults]
    wrong += [
        f"{one.policy}: more than its bound, so one of the two is wrong"
        for one in runs
        if bound is not None and bound.is_exceeded_by(one.score.slo_met_rps, one.score.utility)
    ]
    if wrong:
        raise click.ClickException("\n".join(wrong[:10]))


def _print_policies() -> None:
    from forebay.simulate.policies import POLICIES

    for name, entry in POLICIES.items():
        click.echo(f"{name:16} {entry.summary}")


def _asked(options: dict[str, Any]) -> Asked:
    from forebay.runtime.simulation import Asked, fault_of
    from forebay.simulate.request import Habits

    try:
        faults = tuple(fault_of(text) for text in options["faults"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--fault") from error
    returns = options["returns"]
    return Asked(
        trace=options["trace"],
        config=options["config"],
        profile=options["profile"],
        replicas=options["replicas"],
        load=options["load"],
        limit=options["limit"],
        seed=options["seed"],
        habits=Habits(come_back=returns != "none", heed_retry_after=returns == "heed"),
        faults=faults,
    )


def _simulate(
    asked: Asked, policies: tuple[str, ...], *, with_bound: bool
) -> tuple[list[Run], RunBound | None]:
    """All runs, and their bound if it is wanted. Whatever is wrong with what was asked for is said before the first."""
    import gc

    from forebay.simulate.policies import UnknownPolicy, find_policy
    from forebay.simulate.run import run

    for policy in policies:
        try:
            find_policy(policy)
        except UnknownPolicy as error:
            raise click.BadParameter(str(error), param_hint="--policy") from error
    setup = _setup(asked)
    bound = _bound(setup) if with_bound else None
    # Millions of short-lived records and hardly a cycle: collecting often takes a tenth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    runs = []
    with _Screen() as screen:
        screen.say(_what(setup))
        for policy in policies:
            runs.append(run(setup, policy, on_progress=screen.of(policy)))
            screen.done(policy)
    return runs, bound


def _bound(setup: Setup) -> RunBound:
    from forebay.simulate.bound import BoundFailed, LabMissing
    from forebay.simulate.run_bound import CannotBound, bound_of

    try:
        return bound_of(setup)
    except CannotBound as error:
        raise click.UsageError(str(error)) from error
    except (BoundFailed, LabMissing) as error:
        raise click.ClickException(str(error)) from error


def _setup(asked: Asked) -> Setup:
    from forebay.config import ConfigError
    from forebay.load.traces import TraceError
    from forebay.profiles import ProfileError
    from forebay.runtime.simulation import CannotSimulate, setup_of

    try:
        return setup_of(asked)
    except ProfileError as error:
        raise click.BadParameter(str(error), param_hint="--profile") from error
    except (ConfigError, TraceError, CannotSimulate) as error:
        raise click.UsageError(str(error)) from error


def _what(setup: Setup) -> str:
    workload = setup.workload
    said = [
        (
            f"{len(workload.requests):,} requests in {workload.duration_s:,.0f} s, "
            f"{workload.load:.2f} times what {len(setup.fleet)} of {setup.fleet[0].profile.name} can do"
        )
    ]
    if workload.compression != 1.0:
        said.append(f"{workload.compression:.3g} times as fast as in the trace")
    if workload.left_out:
        said.append(f"{workload.left_out} were left out: they fit no engine")
    return "; ".join(said) + "."


class _Screen:
    """Progress on stderr: a moving bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console: Console = Console(stderr=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description:36}"),
            BarColumn(bar_width=30),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._said = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def of(self, policy: str) -> Any:
        """Whoever is told how far a run has got."""
        bar = self._bars.add_task(policy, total=1.0)
        self._said = 0.0

        def tell(doing: str, part: float) -> None:
            self._bars.update(bar, description=f"{policy}: {doing}", completed=part)
            if not self._console.is_terminal and part >= self._said + 0.25:
                self._said = part
                self._console.print(f"{policy}: {doing}, {part:.0%}")

        return tell

    def done(self, policy: str) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{policy}: done")


def _print(runs: list[Run]) -> None:
    from rich.console import Console

    # Piped into a file, a table has no width to fit.
    output = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    output.print(summary_table(runs))
    output.print(class_table(runs))
    output.print(notes(runs))


def summary_table(runs: list[Run]) -> Table:
    """A row for each policy."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy")
    for heading in (
        "on time /s",
        "utility /s",
        "of all on time",
        "refused",
        "falsely",
        "displaced",
        "preempted",
        "GPU-s",
        "wasted",
        "wait error p50 / p90",
        "fairness gap",
    ):
        table.add_column(heading, justify="right")
    for one in runs:
        score, looked = one.score, one.false_refusals
        table.add_row(
            one.policy,
            f"{score.slo_met_rps:.2f}",
            f"{score.utility:.2f}",
            _percent(score.met_slo, score.offered),
            f"{score.refused}",
            "–" if looked is None or not looked.looked_at else _percent(looked.false, looked.looked_at),
            f"{score.displaced}",
            f"{score.preemptions}",
            f"{score.gpu_seconds:.0f}",
            _percent(score.wasted_gpu_seconds, score.gpu_seconds),
            f"{_part(score.waits.median)} / {_part(score.waits.p90)}",
            "–" if score.fairness_gap_gpu_seconds is None else f"{score.fairness_gap_gpu_seconds:.2f} GPU-s",
        )
    return table


def class_table(runs: list[Run]) -> Table:
    """A row for each class and policy."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("class", "policy"):
        table.add_column(heading)
    for heading in ("clients", "on time", "refused", "left", "failed", "TTFT p50 / p99"):
        table.add_column(heading, justify="right")
    for name in runs[0].score.classes:
        for number, one in enumerate(runs):
            score = one.score.classes[name]
            table.add_row(
                name if number == 0 else "",
                one.policy,
                f"{score.offered}",
                _percent(score.met_slo, score.offered),
                f"{score.refused}",
                f"{score.left}",
                f"{score.failed}",
                f"{_seconds(score.ttft_p50_s)} / {_seconds(score.ttft_p99_s)}",
            )
    return table


def notes(runs: list[Run]) -> str:
    """What the columns mean."""
    said = [
        (
            "On time: answered in full within the objectives of its class; a client that was refused and came "
            "back counts once. Utility: on time, by the value of the class. Falsely: of the refusals looked at, "
            "those that would have started within their budget."
        )
    ]
    for one in runs:
        came = one.score.returners
        if came.came:
            said.append(
                f"{one.policy}: {came.came} came back, {_percent(came.admitted, came.came)} of them were let in."
            )
    return "\n".join(said)


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _part(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _plot(runs: list[Run], file: Path) -> None:
    from forebay.simulate.plot import PlotMissing, draw

    try:
        draw(runs, file)
    except PlotMissing as error:
        raise click.ClickException(str(error)) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot draw into {file}: {error}") from None
