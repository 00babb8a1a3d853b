"""A report in words and as JSON: the verdict first, then what it rests on, then the settings. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from forebay.report.suggestions import Suggestion, as_yaml
from forebay.report.survey import ClassTally, Survey
from forebay.report.tally import Bursts, Spread, share
from forebay.report.verdict import Verdict

__all__ = ["as_json", "as_text"]

_QUANTILES: Final = (0.5, 0.9, 0.99)
_TENANTS: Final = 10
_WIDTH: Final = 24


def as_text(survey: Survey, verdict: Verdict, suggestions: Sequence[Suggestion]) -> str:
    """For people."""
    lines = [verdict.text, ""]
    lines += [f"  {part.name:9} {part.needed:8} {part.reason}" for part in verdict.parts]
    if survey.requests:
        lines += ["", *_traffic(survey), "", *_spreads(survey), "", *_classes(survey)]
        lines += [*_tenants(survey), *_predictions(survey), "", *_unknown(survey)]
        lines += [
            "A configuration to begin with (see `forebay check`):",
            "",
            as_yaml(list(suggestions)).rstrip(),
        ]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def as_json(survey: Survey, verdict: Verdict, suggestions: Sequence[Suggestion]) -> dict[str, Any]:
    """For programs."""
    return {
        "verdict": {
            "needed": verdict.needed,
            "text": verdict.text,
            "parts": [
                {"name": part.name, "needed": part.needed, "reason": part.reason} for part in verdict.parts
            ],
        },
        "sources": list(survey.sources),
        "format": survey.format,
        "work_by": survey.work_by or None,
        "requests": survey.requests,
        "span_s": round(survey.span_s, 3),
        "prompt_tokens": _spread(survey.prompt),
        "output_tokens": _spread(survey.output),
        "work_gpu_s": _spread(survey.work),
        "service_s": _spread(survey.service) if survey.recorded else None,
        "cached_ratio": _ratio(survey.cached_tokens, survey.cached_of_tokens),
        "gaps_cv": round(survey.gaps.cv, 3),
        "arrivals": {"1s": _bursts(survey.seconds), "10s": _bursts(survey.tens)},
        "work": {"10s": _bursts(survey.work_tens)},
        "classes": {name: _class(tally, survey) for name, tally in survey.classes.items()},
        "tenants": {
            name: {
                "requests": tally.requests,
                "tokens": tally.tokens,
                "work_share": _ratio(tally.work_s, survey.work.total),
                "peak_minute_tokens_per_s": round(tally.minute.peak_per_s, 2),
            }
            for name, tally in survey.tenants.items()
        },
        "modes": survey.modes,
        "outcomes": survey.outcomes,
        "predictions": {
            "wait_error": _spread(survey.wait_error),
            "output_ratio": _spread(survey.length_ratio),
            "cost_ratio": _spread(survey.cost_ratio),
            "learning_ratio": _ratio(survey.learning, survey.requests),
        }
        if survey.recorded
        else None,
        "suggestions": [
            {"setting": ".".join(one.path), "value": one.value, "reason": one.reason} for one in suggestions
        ],
        "yaml": as_yaml(list(suggestions)),
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _spread(values: Spread) -> dict[str, float] | None:
    if not values.count:
        return None
    told = {"count": values.count, "mean": values.mean, "cv": values.cv, "max": values.high}
    told |= {f"p{part * 100:g}": values.quantile(part) for part in _QUANTILES}
    return {key: float(f"{value:.5g}") for key, value in told.items()} | {"count": values.count}


def _bursts(bursts: Bursts) -> dict[str, float]:
    told = {"mean": bursts.mean_per_s, "peak": bursts.peak_per_s, "peak_over_mean": bursts.peak_over_mean}
    return {key: float(f"{value:.5g}") for key, value in told.items()}


def _class(tally: ClassTally, survey: Survey) -> dict[str, Any]:
    told: dict[str, Any] = {"offered": tally.offered, "work_share": _ratio(tally.work_s, survey.work.total)}
    if survey.recorded:
        told |= {
            "completed": tally.completed,
            "refused": tally.refused,
            "would_be_refused": tally.would_refuse,
            "contended": tally.contended,
            "met_slo": tally.met,
            "attainment": _ratio(tally.met, tally.judged),
            "wait_budget_s": tally.wait_budget_s,
            "ttft_s": _spread(tally.ttft),
            "tpot_s": _spread(tally.tpot),
            "waited_s": _spread(tally.waited),
        }
    return told


# In words


def _traffic(survey: Survey) -> Iterator[str]:
    yield (
        f"{survey.requests} requests in {_time(survey.span_s)}, {survey.tens.mean_per_s:.3g} a second on average "
        f"({', '.join(survey.sources)}: {survey.format})"
    )
    yield (
        f"in the worst second {survey.seconds.peak_over_mean:.1f} times as many, in the worst ten "
        f"{survey.tens.peak_over_mean:.1f} times, and {survey.work_tens.peak_over_mean:.1f} times the work; "
        f"gaps vary by {survey.gaps.cv:.2f} (1 is a Poisson process)"
    )
    by = f", computed for {survey.work_by}" if survey.work_by else ""
    yield f"work: {survey.work_tens.mean_per_s:.3g} GPU-seconds a second, peak {survey.work_tens.peak_per_s:.3g}{by}"
    if survey.cached_of_tokens:
        cached = survey.cached_tokens / survey.cached_of_tokens
        yield f"of all prompt tokens {cached:.0%} were, or could be, in a prefix cache"


def _spreads(survey: Survey) -> Iterator[str]:
    yield f"{'':{_WIDTH}}{'mean':>10}{'half':>10}{'9 of 10':>10}{'99 of 100':>10}{'most':>10}"
    for name, values in (
        ("prompt tokens", survey.prompt),
        ("output tokens", survey.output),
        ("GPU-seconds", survey.work),
        ("seconds at an engine", survey.service),
    ):
        if values.count:
            yield _row(name, values)


def _row(name: str, values: Spread) -> str:
    cells = [values.mean, *(values.quantile(part) for part in _QUANTILES), values.high]
    return f"{name:{_WIDTH}}" + "".join(f"{_short(cell):>10}" for cell in cells)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _classes(survey: Survey) -> Iterator[str]:
    if not survey.recorded:
        if len(survey.classes) > 1:
            for name, tally in survey.classes.items():
                part = f"{share(tally.work_s, survey.work.total):.0%}"
                yield f"class {name or '(none)'}: {tally.offered} requests, {part} of the work"
            yield ""
        return
    heads = ("offered", "refused", "no room", "met", "ttft half", "99 of 100", "waited 99")
    yield f"{'class':{_WIDTH}}" + "".join(f"{head:>10}" for head in heads)
    for name, tally in survey.classes.items():
        cells = (
            str(tally.offered),
            str(tally.refused + tally.would_refuse),
            f"{share(tally.contended, tally.offered):.1%}",
            f"{share(tally.met, tally.judged):.1%}" if tally.judged else "-",
            _time(tally.ttft.quantile(0.5)) if tally.ttft.count else "-",
            _time(tally.ttft.quantile(0.99)) if tally.ttft.count else "-",
            _time(tally.waited.quantile(0.99)),
        )
        yield f"{name or '(none)':{_WIDTH}}" + "".join(f"{cell:>10}" for cell in cells)
    yield ""


def _tenants(survey: Survey) -> Iterator[str]:
    if len(survey.tenants) < 2:
        return
    largest = sorted(survey.tenants.items(), key=lambda pair: pair[1].work_s, reverse=True)
    yield f"{'tenant':{_WIDTH}}{'requests':>10}{'work':>10}{'tokens/s in its fullest minute':>32}"
    for name, tally in largest[:_TENANTS]:
        part = f"{share(tally.work_s, survey.work.total):.1%}"
        shown = (name or "(none)")[: _WIDTH - 1]
        yield f"{shown:{_WIDTH}}{tally.requests:>10}{part:>10}{tally.minute.peak_per_s:>32.0f}"
    if len(largest) > _TENANTS:
        rest = sum(tally.work_s for _, tally in largest[_TENANTS:])
        yield f"and {len(largest) - _TENANTS} more with {share(rest, survey.work.total):.1%} of the work"
    yield ""


def _predictions(survey: Survey) -> Iterator[str]:
    if not survey.recorded:
        return
    if survey.wait_error.count:
        yield (
            f"predicted waits (of half a second or more) were off by {survey.wait_error.quantile(0.5):.0%} for half of "
            f"{survey.wait_error.count}, and by {survey.wait_error.quantile(0.9):.0%} or less for nine of ten"
        )
    for name, ratios in (("answers", survey.length_ratio), ("costs", survey.cost_ratio)):
        if ratios.count:
            yield (
                f"{name} came to {ratios.quantile(0.5):.2f} of what was expected for half of {ratios.count}, and to "
                f"{ratios.quantile(0.1):.2f} to {ratios.quantile(0.9):.2f} for eight of ten"
            )
    if survey.learning:
        part = f"{share(survey.learning, survey.requests):.0%}"
        yield f"{part} of the requests came while the pool was learning: their predictions count less"


def _unknown(survey: Survey) -> Iterator[str]:
    if survey.recorded:
        return
    missing = ["decisions, waits and times to first tokens", "whether objectives were met", "predictions"]
    if set(survey.tenants) <= {""}:
        missing.append("tenants")
    if set(survey.classes) <= {""}:
        missing.append("classes")
    if not survey.limits.count:
        missing.append("the limits that clients state")
    yield f"A trace of this kind does not tell: {', '.join(missing)}. A record does (`record:` in the configuration)."
    yield ""


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 120:
        return f"{seconds:.3g}s"
    return f"{seconds / 60:.0f}min" if seconds < 7200 else f"{seconds / 3600:.1f}h"
