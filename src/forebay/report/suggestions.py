"""Settings that would suit a workload, each with its reason, as a configuration that `forebay check` takes.

Owns the rules of thumb. Numbers are rounded up to round ones: they are where to begin, in shadow, and not the optimum.
What a trace does not say (endpoints, objectives) stands there as a placeholder, and its reason says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import yaml

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES
from forebay.report.survey import ClassTally, Survey
from forebay.report.tally import nice_up, share
from forebay.report.verdict import UNEQUAL, YES, Verdict

__all__ = ["Suggestion", "as_yaml", "suggest"]

_DEFAULTS: Final = {entry.name: entry for entry in ZERO_CONFIGURATION_CLASSES}
_RANK: Final = {name: rank for rank, name in enumerate(_DEFAULTS)}
_PLACEHOLDER: Final = "http://127.0.0.1:8000"
_TENANTS: Final = 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,99}")
_TENANT: Final = re.compile(r"[!-~]([ -~]{0,98}[!-~])?")
_ENOUGH: Final = 20
"""Values, below which a high quantile says nothing."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One setting, by its place in the file."""

    path: tuple[str, ...]
    value: Any
    reason: str


def suggest(survey: Survey, verdict: Verdict) -> list[Suggestion]:
    """What to write into a configuration, in the order of the file."""
    needed = {part.name for part in verdict.parts if part.needed == YES}
    made = [Suggestion(("mode",), "shadow", "to see what it would do before it does it; then enforce")]
    made += _pools(survey)
    made += _classes(survey, "classes" in needed)
    if "tenants" in needed:
        made += _plans(survey)
    return made


def as_yaml(suggestions: list[Suggestion]) -> str:
    """The configuration, each setting under its reason."""
    lines: list[str] = []
    open_path: tuple[str, ...] = ()
    for one in suggestions:
        *above, key = one.path
        common = next(
            (n for n, pair in enumerate(zip(above, open_path, strict=False)) if pair[0] != pair[1]),
            min(len(above), len(open_path)),
        )
        lines += [f"{'  ' * depth}{above[depth]}:" for depth in range(common, len(above))]
        open_path = tuple(above)
        indent = "  " * len(above)
        lines.append(f"{indent}# {one.reason}")
        flow = yaml.safe_dump(one.value, default_flow_style=True, width=10_000, sort_keys=False).strip()
        lines.append(f"{indent}{key}: {flow.removesuffix('...').strip()}")
    return "\n".join(lines) + "\n"


def _pools(survey: Survey) -> list[Suggestion]:
    pools: list[dict[str, Any]] = []
    for name, endpoints in survey.endpoints.items():
        if _NAME.fullmatch(name) and all(re.match(r"https?://[^ ]+$", endpoint) for endpoint in endpoints):
            pools.append({"name": name, "endpoints": list(endpoints)})
    reason = "as recorded"
    if not pools:
        pools = [{"endpoints": [_PLACEHOLDER]}]
        reason = "a placeholder: your engines"
    longest = max(survey.output.high, survey.limits.high)
    if longest >= 1:
        most = max(256, 1 << (int(longest) - 1).bit_length())
        for pool in pools:
            pool["max_output_tokens"] = most
        reason += f"; no answer was over {survey.output.high:.0f} tokens"
        if survey.limits.count:
            reason += f" and no stated limit over {survey.limits.high:.0f}"
        reason += ", so a request without a limit is counted with no more"
    return [Suggestion(("pools",), pools, reason)]


def _classes(survey: Survey, needed: bool) -> list[Suggestion]:
    named = {name: tally for name, tally in survey.classes.items() if _NAME.fullmatch(name)}
    if named:
        ranked = sorted(named.items(), key=lambda pair: _importance(*pair))
        made = [
            Suggestion(("classes", name), *_class(name, tally, survey, value=len(ranked) - rank))
            for rank, (name, tally) in enumerate(ranked)
        ]
        if "standard" not in named:
            most = max(named, key=lambda name: named[name].offered)
            made.append(Suggestion(("default_class",), most, "most requests are of it"))
        return made
    if not needed or not survey.requests:
        return []
    largest = survey.work.share_above(0.9)
    if largest < UNEQUAL:
        return []
    tally = survey.classes[next(iter(survey.classes))]
    size = int(nice_up(survey.tokens.quantile(0.9)))
    entry, reason = _class("standard", tally, survey, value=2)
    rule = {"name": "large-ones-can-wait", "when": f"request.tokens > {size}", "then": {"class": "batch"}}
    return [
        Suggestion(("classes", "standard"), {**entry, "weight": 8}, reason),
        Suggestion(
            ("classes", "batch"),
            {"weight": 2, "value": 1},
            "for what can wait: it starts when the others leave room",
        ),
        Suggestion(("rules",), [rule], f"the largest tenth of the requests has {largest:.0%} of the work"),
    ]


def _importance(name: str, tally: ClassTally) -> tuple[float, float]:
    budget_s = _DEFAULTS[name].wait_budget_s if name in _DEFAULTS else tally.wait_budget_s
    return (budget_s or 5.0, _RANK.get(name, len(_RANK)))


def _class(name: str, tally: ClassTally, survey: Survey, *, value: int) -> tuple[dict[str, Any], str]:
    """The entry of one class, and why."""
    default = _DEFAULTS.get(name, _DEFAULTS["standard"])
    known = tally.wait_budget_s is not None
    ttft_s = tally.wait_budget_s or default.ttft_s
    why = "the time to the first token is as before" if known else "a usual time to the first token"
    if tally.quiet_ttft.count >= _ENOUGH:
        alone_s = tally.quiet_ttft.quantile(0.95)
        if alone_s * 1.5 > ttft_s:
            ttft_s = alone_s * 1.5
            why = f"the engines alone take {alone_s:.2g}s to the first token for one in twenty, so less cannot be kept"
    entry: dict[str, Any] = {"ttft": f"{nice_up(ttft_s):g}s"}
    if tally.tpot.count >= _ENOUGH:
        entry["tpot"] = f"{nice_up(tally.tpot.quantile(0.95) * 1000):g}ms"
        why += f"; 95% of the streams had {tally.tpot.quantile(0.95) * 1000:.0f}ms per token or less"
    busy = share(
        sum(window.classes.get(name, 0.0) for window in survey.busiest),
        sum(window.work_s for window in survey.busiest),
    )
    # The last class has what the others leave; those before it are promised more than they use, so as to wait little.
    entry["weight"] = max(1, round(10 * busy) if value == 1 else round(15 * busy))
    entry["value"] = value
    return entry, f"{why}; it has {busy:.0%} of the work in the busiest times"


def _plans(survey: Survey) -> list[Suggestion]:
    """One plan for all, that the ordinary ones never feel and the largest does."""
    named = {
        name: tally
        for name, tally in survey.tenants.items()
        if _TENANT.fullmatch(name) and name != "(others)"
    }
    if len(named) < 2:
        return []
    peaks = sorted(tally.minute.peak_per_s for tally in named.values())
    ordinary = peaks[max(0, min(len(peaks) - 2, int(0.9 * len(peaks)) - 1))]
    rate = int(nice_up(max(ordinary, 1.0)))
    plan = {"tokens_per_second": rate, "burst": rate * 60}
    over = sum(peak > rate for peak in peaks)
    reason = (
        f"in its fullest minute one tenant used {peaks[-1]:.0f} tokens a second; {len(peaks) - over} of {len(peaks)} "
        f"never used more than this in any minute"
    )
    largest = sorted(named, key=lambda name: named[name].work_s, reverse=True)[:_TENANTS]
    tenants = [{"name": name, "plan": "usual"} for name in largest if name != "anonymous"]
    made = [Suggestion(("plans", "usual"), plan, reason)]
    if tenants:
        said = "the largest" if len(named) > _TENANTS else "as seen"
        made.append(
            Suggestion(
                ("tenants",), tenants, f"{said}; they need keys, or a proxy that says whose a request is"
            )
        )
        proxy = Suggestion(
            ("trusted_proxies",), ["127.0.0.1/32"], "a placeholder: who may say so (x-forebay-tenant)"
        )
        made.append(proxy)
    return made
