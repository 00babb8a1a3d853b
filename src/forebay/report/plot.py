"""A picture of a workload, drawn with matplotlib, which is an extra and imported only here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.report.survey import Survey
from forebay.report.tally import Spread, share

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PlotFailed", "draw"]

_TENANTS = 10


class PlotFailed(Exception):
    """There is no picture; the message says what to do."""


def draw(survey: Survey, path: Path) -> None:
    """Write the picture; its kind goes by the name (`.png`, `.svg`, `.pdf`). Raises: PlotFailed."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotFailed("--plot needs matplotlib, which is an extra: pip install 'forebay[plot]'") from None
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lstrip(".").lower() not in known:
        raise PlotFailed(f"{path}: the name must end with one of .{', .'.join(known)}")
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    _distribution(axes[0][0], (("prompt", survey.prompt), ("output", survey.output)), "tokens")
    _distribution(
        axes[0][1],
        (("GPU-seconds", survey.work), ("seconds at an engine", survey.service)),
        "work and service",
    )
    _busiest(axes[1][0], survey)
    _tenants(axes[1][1], survey)
    figure.suptitle(f"{survey.requests} requests, {survey.tens.mean_per_s:.3g} a second")
    try:
        figure.savefig(path)
    except OSError as failure:
        raise PlotFailed(f"{path}: cannot be written: {failure.strerror or failure}") from None


def _distribution(axis: Any, spreads: Sequence[tuple[str, Spread]], title: str) -> None:
    for name, spread in spreads:
        seen, at, part = 0, [], []
        for value, count in spread.histogram():
            seen += count
            at.append(max(value, 1e-6))
            part.append(seen / spread.count)
        if at:
            axis.step(at, part, where="post", label=name)
    axis.set(xscale="log", title=f"part of the requests by {title}", ylim=(0, 1))
    axis.legend()
    axis.grid(alpha=0.3)


def _busiest(axis: Any, survey: Survey) -> None:
    ratios = {
        "requests in 1 s": survey.seconds.peak_over_mean,
        "requests in 10 s": survey.tens.peak_over_mean,
        "work in 10 s": survey.work_tens.peak_over_mean,
    }
    axis.barh(list(ratios), list(ratios.values()))
    axis.axvline(1, color="grey", linewidth=1)
    axis.set(title="bursts: the worst over the mean")


def _tenants(axis: Any, survey: Survey) -> None:
    largest = sorted(survey.tenants.items(), key=lambda pair: pair[1].work_s, reverse=True)[:_TENANTS]
    rows = range(len(largest), 0, -1)  # two names may look alike once they are short
    axis.barh(rows, [share(tally.work_s, survey.work.total) for _, tally in largest])
    axis.set_yticks(rows, [_plain(name) for name, _ in largest])
    axis.set(title="part of the work by tenant")


def _plain(name: str) -> str:
    """Clients choose names: no mark-up, and no letters that a font may lack."""
    return (name or "(none)")[:20].encode("ascii", "replace").decode().replace("$", "?")
