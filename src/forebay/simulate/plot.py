"""A picture of runs: what became of the clients of each class under each policy. Needs the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from forebay.simulate.run import Run

_PARTS: Final = (
    ("on time", "#2e8b57"),
    ("answered late", "#e3a21a"),
    ("refused", "#7a869a"),
    ("left or failed", "#b03a2e"),
)


class PlotMissing(Exception):
    """The library that draws is not installed; the text says how to get it."""


def draw(runs: Sequence[Run], file: Path) -> None:
    """Write the picture; the suffix of the file says of which kind. Raises: PlotMissing, OSError, ValueError."""
    try:
        import_module("matplotlib").use("Agg")
        plt = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise PlotMissing("--plot needs an extra: pip install 'forebay[plot]'") from error
    classes = list(runs[0].score.classes)
    figure, axes = plt.subplots(
        1,
        len(classes),
        figsize=(3.2 * len(classes) + 1.5, 1.6 + 0.45 * len(runs)),
        sharey=True,
        squeeze=False,
    )
    try:
        for axis, name in zip(axes[0], classes, strict=True):
            _bars(axis, name, runs)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(_PARTS), frameon=False)
        figure.suptitle(f"Load {runs[0].setup.workload.load:.2f}, {runs[0].score.offered:,} clients")
        figure.tight_layout(rect=(0, 0.12, 1, 1))
        figure.savefig(file, dpi=150)
    finally:
        plt.close(figure)


def _bars(axis: Any, name: str, runs: Sequence[Run]) -> None:
    policies = [one.policy for one in runs]
    left = [0.0] * len(runs)
    for (label, colour), parts in zip(
        _PARTS, zip(*(_parts(one, name) for one in runs), strict=True), strict=True
    ):
        axis.barh(policies, parts, left=left, color=colour, label=label)
        left = [before + part for before, part in zip(left, parts, strict=True)]
    axis.set_title(name)
    axis.set_xlim(0, 1)
    axis.invert_yaxis()


def _parts(run: Run, name: str) -> tuple[float, ...]:
    score = run.score.classes[name]
    late = score.completed - score.met_slo
    counts = (score.met_slo, max(late, 0), score.refused, score.left + score.failed)
    return tuple(count / max(score.offered, 1) for count in counts)
