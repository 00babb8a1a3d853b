"""`forebay demo`: the same overload with and without Forebay. Parses, shows progress, prints the result."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final, Self

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table

    from forebay.load.felt import ClassReport, Report
    from forebay.runtime.demo import DemoPlan, DemoResult, Progress

ARMS: Final = {"direct": "straight to the engines", "forebay": "through Forebay"}
CLEARLY: Final = 1.1
"""Goodput must differ by this factor before the verdict speaks of a difference."""
LATE_ENGINES: Final = 0.02
"""Part of the time that the emulated engines may fall behind without a warning."""
LATE_CLIENT_S: Final = 0.1
SHORT_S: Final = 20.0
"""A run of less than this has seen too little of the overload to be judged."""


@click.command("demo", short_help="Show the same overload with and without Forebay, and a result table.")
@click.option(
    "--seconds",
    type=click.FloatRange(4, 3600),
    default=44,
    show_default=True,
    help="Scored time of each arm.",
)
@click.option(
    "--load", type=click.FloatRange(0.1, 10), default=2, show_default=True, help="Offered work over capacity."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same requests.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout instead of the table."
)
@click.option("--no-browser", is_flag=True, help="Do not open a dashboard (there is none to open yet).")
def command(seconds: float, load: float, seed: int, as_json: bool, no_browser: bool) -> None:
    """Show the same overload with and without Forebay, and a result table.

    Two emulated engines get the same bursts of requests twice: first straight, then through `forebay serve` with
    nothing configured. Nothing leaves this machine, no GPU is needed, and nothing is left running. With the
    default settings it takes about two minutes.
    """
    import uvloop
    from rich.console import Console

    from forebay.runtime.children import ChildFailed
    from forebay.runtime.demo import DemoPlan, Stopped, run_demo

    del no_browser  # accepted, so that scripts which say it go on working when there is a dashboard
    screen = Console(stderr=True)
    plan = DemoPlan(seconds_s=seconds, load=load, seed=seed)
    screen.print(
        f"Two emulated engines, together good for {plan.capacity_rps:.1f} requests/s of this mix. "
        f"Offered: {'' if load == 1 else f'{load:g} times '}that, in bursts."
    )
    show = _Screen(screen)
    try:
        with show:
            result = uvloop.run(run_demo(plan, show))
    except Stopped as stop:
        screen.print("Stopped; nothing is left running.")
        sys.exit(128 + stop.number)
    except ChildFailed as failure:
        raise click.ClickException(str(failure)) from None
    if as_json:
        click.echo(json.dumps(result.to_json()))
        return
    output = Console(highlight=False)
    output.print(class_table(result))
    output.print(legend(result))
    output.print(summary_table(result))
    output.print(verdict(result))


class _Screen:
    """Shows the progress: a moving bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(bar_width=24),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._bar: TaskID | None = None
        self._said_s = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def starting(self, arm: str) -> None:
        self._bar = self._bars.add_task(ARMS[arm], total=None, state="starting the engines")
        self._said_s = 0.0
        if not self._console.is_terminal:
            self._console.print(f"{ARMS[arm]}: starting the engines")

    def progress(self, progress: Progress) -> None:
        state = _state(progress)
        if self._bar is not None:
            self._bars.update(self._bar, total=progress.total_s, completed=progress.elapsed_s, state=state)
        if not self._console.is_terminal and progress.elapsed_s >= self._said_s:
            self._said_s += 10
            self._console.print(
                f"{ARMS[progress.arm]}: {progress.elapsed_s:3.0f} s: {state}", highlight=False
            )


def _state(progress: Progress) -> str:
    counts = progress.counts
    if progress.warming_up:
        return f"warming up at half load, not scored · {counts.completed} answered"
    on_time = f"{progress.met / progress.scored:.0%} on time" if progress.scored else "bursts begin"
    return f"{on_time} · {counts.open} open · {counts.refused} refused"


def class_table(result: DemoResult) -> Table:
    """Both arms, one below the other, class by class."""
    from rich import box
    from rich.table import Table

    load = result.plan.load
    times = "as much as" if load == 1 else f"{load:g} times what"
    title = f"{times} the engines can serve, for {result.plan.seconds_s:g} seconds"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("class")
    table.add_column("offered", justify="right")
    table.add_column("")
    for heading in ("on time", "refused", "still open", "TTFT p50 / p99"):
        table.add_column(heading, justify="right")
    for name, direct in result.direct.report.classes.items():
        forebay = result.forebay.report.classes[name]
        table.add_row(name, f"{direct.offered}", "direct", *_cells(direct))
        table.add_row("", "", "Forebay", *_cells(forebay))
    return table


def _cells(one: ClassReport) -> tuple[str, str, str, str]:
    return _on_time(one), f"{one.refused}", f"{one.unanswered}", _ttft(one)


def legend(result: DemoResult) -> str:
    """What the columns mean, and why the least important class fares as it does."""
    from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES

    objectives = [one for one in ZERO_CONFIGURATION_CLASSES if one.name in result.direct.report.classes]
    limits = ", ".join(f"{one.name} {one.ttft_s:g} s" for one in objectives)
    lines = [
        f"On time: answered in full, the first token within its class's objective ({limits}) and the rest at its pace."
    ]
    if len(objectives) > 1:
        lines.append(
            f"Forebay shares the engines by the classes' weights: {objectives[0].name} needs less than its share and "
            f"is on time; of {objectives[-1].name} as much is served as its share holds."
        )
    lines.append("Still open: unanswered at the end; not on time, and in the TTFT at its age by then.")
    return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _on_time(one: ClassReport) -> str:
    return f"{one.met_slo / one.offered:.0%}" if one.offered else "–"


def _ttft(one: ClassReport) -> str:
    if one.ttft_p50_s is None or one.ttft_p99_s is None:
        return "–"
    return f"{_short(one.ttft_p50_s)} / {_short(one.ttft_p99_s)} s"


def _short(value_s: float) -> str:
    return f"{value_s:.2f}" if value_s < 10 else f"{value_s:.1f}"


def summary_table(result: DemoResult) -> Table:
    """Both arms as a whole."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("all classes")
    for heading in ("direct", "Forebay"):
        table.add_column(heading, justify="right")
    reports = (result.direct.report, result.forebay.report)
    rows: list[tuple[str, Callable[[Report], str]]] = [
        ("goodput: requests on time per second", lambda report: f"{report.goodput_rps:.1f}"),
        ("on time, of all offered", lambda report: f"{report.slo_attainment:.0%}"),
        ("on time, of those not refused", lambda report: f"{report.admitted_attainment:.0%}"),
        ("refused", lambda report: f"{report.refusals}"),
        ("… and told when to come back", lambda report: f"{report.refusals_with_retry_after}"),
        ("still waiting or running at the end", lambda report: f"{report.unanswered}"),
        ("failed", lambda report: f"{report.errors}"),
        ("thrown out of engine memory (preemptions)", lambda report: f"{report.preemptions}"),
    ]
    for label, cell in rows:
        table.add_row(label, *(cell(report) for report in reports))
    return table


def verdict(result: DemoResult) -> str:
    """The result in words, and what to doubt about it."""
    direct, forebay = result.direct.report, result.forebay.report
    said = [_comparison(direct, forebay, result.plan)]
    if forebay.refusals:
        told = forebay.refusals_with_retry_after
        everyone = "each was" if told == forebay.refusals else f"only {told} {'was' if told == 1 else 'were'}"
        if forebay.refusals == 1:
            everyone = "it was" if told else "it was not"
        said.append(f"It turned {forebay.refusals} away, and {everyone} told when to come back.")
    if direct.preemptions:
        said.append(
            f"Straight, the engines threw running requests out of their memory "
            f"{_times(direct.preemptions)} and did that work again; "
            f"behind Forebay {_times(forebay.preemptions or 0)}."
        )
    said += _doubts(result)
    return " ".join(said)


def _doubts(result: DemoResult) -> list[str]:
    """What the machine could not keep up with, in either arm."""
    behind_s = max(result.direct.engine_late_s, result.forebay.engine_late_s)
    late_s = max(result.direct.report.late_p99_s, result.forebay.report.late_p99_s)
    doubts = []
    if behind_s > LATE_ENGINES * result.plan.seconds_s:
        doubts.append(f"the emulated engines fell {behind_s:.1f} s behind what they emulate")
    if late_s > LATE_CLIENT_S:
        doubts.append(f"one request in a hundred was sent {late_s:.1f} s late or more")
    if not doubts:
        return []
    return [f"But this machine was too busy: {' and '.join(doubts)}. Try again with nothing else running."]


def _comparison(direct: Report, forebay: Report, plan: DemoPlan) -> str:
    shares = f"{forebay.slo_attainment:.0%} of all with Forebay, {direct.slo_attainment:.0%} without"
    if forebay.goodput_rps > direct.goodput_rps * CLEARLY:
        if direct.goodput_rps > 0:
            factor = forebay.goodput_rps / direct.goodput_rps
            return f"With Forebay {factor:.1f} times as many requests were on time: {shares}."
        return f"Only with Forebay was any request on time: {shares}."
    short = plan.seconds_s < SHORT_S
    too_short = f" But {plan.seconds_s:g} seconds are too short to tell: try --seconds 40." if short else ""
    if forebay.goodput_rps >= direct.goodput_rps / CLEARLY:
        return f"No clear difference in requests on time: {shares}.{too_short or ' Try a higher --load.'}"
    return f"Forebay did worse here. Requests on time: {shares}.{too_short}"
