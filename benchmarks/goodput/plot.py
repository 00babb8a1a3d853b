"""Utility against load, a panel for each trace, a line for each policy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.goodput.scenarios import Source
from benchmarks.goodput.statistics import mean_of


def draw(done: Sequence[tuple[str, str, dict[str, Any]]], file: Path) -> None:
    """Of scenario, trace and result: the steady loads."""
    import_module("matplotlib").use("Agg")
    plt = import_module("matplotlib.pyplot")
    lines: dict[str, dict[str, dict[float, list[float]]]] = {}
    for scenario, trace, result in done:
        if scenario.startswith("load "):
            of_policy = lines.setdefault(trace, {}).setdefault(result["policy"], {})
            of_policy.setdefault(float(scenario.removeprefix("load ")), []).append(result["utility"])
    if not lines:
        return
    figure, axes = plt.subplots(1, len(lines), figsize=(4.2 * len(lines), 3.6), squeeze=False)
    for axis, (trace, policies) in zip(axes[0], lines.items(), strict=True):
        for policy, by_load in policies.items():
            means = {load: mean_of(values) for load, values in sorted(by_load.items())}
            axis.errorbar(
                list(means),
                [one.value for one in means.values()],
                yerr=[one.half or 0.0 for one in means.values()],
                label=policy,
                marker="o",
                capsize=2,
            )
        axis.set_title(Source(trace, 0).name)
        axis.set_xlabel("load")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("utility /s")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=150)
