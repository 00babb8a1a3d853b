"""What a run was worth: scores made from what became of each request, and of each client.

A client is offered once, and is met if its request, or its return after a refusal, was answered in full within the
objectives of its class, counted from the arrival of that try (`load.felt` owns what *met* means). So a refusal costs
the client unless coming back when it was told to helped it. `tries` counts requests as the gateway sees them.

- Utility: the value of the clients met, by their classes, per second of offered time.
- GPU-seconds are the time for which engines worked. The wasted ones are the part of it that was spent, by the closed
  form, on requests that missed, failed or were left.
- Wait errors are relative, over requests that had to wait and did so for half a second or more, real and predicted
  waits clipped at what the request might wait. One that was turned away or left is censored: it would have waited at
  least so long, so it errs by what the prediction fell short of that, and by nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, pstdev
from typing import Final

from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.load.felt import End, Felt, quantile
from forebay.simulate.tries import Try
from forebay.simulate.world import World

SHORTEST_WAIT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ClassScore:
    """The clients of one class."""

    offered: int
    completed: int
    refused: int
    left: int
    """Gone without an answer, or without one at the end."""
    failed: int
    met_slo: int
    ttft_p50_s: float | None
    """Over the tries that were not refused and did not fail; one without a first token counts at its age."""
    ttft_p99_s: float | None

    def to_json(self) -> dict[str, object]:
        return {
            "offered": self.offered,
            "completed": self.completed,
            "refused": self.refused,
            "left": self.left,
            "failed": self.failed,
            "met_slo": self.met_slo,
            "attainment": _rounded(self.met_slo / self.offered if self.offered else None),
            "ttft_p50_s": _rounded(self.ttft_p50_s),
            "ttft_p99_s": _rounded(self.ttft_p99_s),
        }


@dataclass(frozen=True, slots=True)
class Returners:
    """Clients that came back after a refusal."""

    came: int
    admitted: int
    """Of those, tries that were not refused again."""
    met: int
    gap_cv: float | None
    """Standard deviation of the gaps between their arrivals over the mean: 1 as good as at random, more is bunched."""

    def to_json(self) -> dict[str, object]:
        return {
            "came": self.came,
            "admitted": self.admitted,
            "met_slo": self.met,
            "gap_cv": _rounded(self.gap_cv),
        }


@dataclass(frozen=True, slots=True)
class WaitErrors:
    """Predicted waits against real ones."""

    judged: int
    median: float | None
    p90: float | None
    coverage: Mapping[float, tuple[int, int]]
    """By stated quantile, the waits that it was stated for and those that were no longer."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a run was worth."""

    classes: Mapping[str, ClassScore]
    duration_s: float
    """Offered time."""
    offered: int
    met_slo: int
    slo_met_rps: float
    utility: float
    tries: int
    refused: int
    """Tries, the displaced ones included."""
    displaced: int
    preemptions: int
    gpu_seconds: float
    wasted_gpu_seconds: float
    waits: WaitErrors
    fairness_gap_gpu_seconds: float | None
    returners: Returners

    def to_json(self) -> dict[str, object]:
        return {
            "slo_met_rps": round(self.slo_met_rps, 4),
            "utility": round(self.utility, 4),
            "offered": self.offered,
            "met_slo": self.met_slo,
            "attainment": _rounded(self.met_slo / self.offered if self.offered else None),
            "duration_s": round(self.duration_s, 3),
            "classes": {name: score.to_json() for name, score in self.classes.items()},
            "tries": self.tries,
            "refused": self.refused,
            "displaced": self.displaced,
            "preemptions": self.preemptions,
            "gpu_seconds": round(self.gpu_seconds, 3),
            "wasted_gpu_seconds": round(self.wasted_gpu_seconds, 3),
            "wait_error_median": _rounded(self.waits.median),
            "wait_error_p90": _rounded(self.waits.p90),
            "waits_judged": self.waits.judged,
            "wait_coverage": {
                f"{stated:g}": {"waits": waits, "held": held}
                for stated, (waits, held) in self.waits.coverage.items()
            },
            "fairness_gap_gpu_seconds": _rounded(self.fairness_gap_gpu_seconds),
            "returners": self.returners.to_json(),
        }


def score(world: World, duration_s: float) -> Score:
    """Judge a run that is over; `duration_s` is how long requests were offered for."""
    settings, tries = world.settings, world.tries
    classes = {one.name: one for one in settings.classes}
    met = [one.felt().met(classes[one.planned.class_name]) for one in tries]
    clients = _clients(tries, met)
    by_class = {
        name: _class_score(
            [client for client in clients if client.class_name == name],
            [one for one in tries if one.planned.class_name == name],
        )
        for name in classes
        if any(client.class_name == name for client in clients)
    }
    met_clients = [client for client in clients if client.met]
    per_s = 1.0 / duration_s if duration_s > 0 else 0.0
    gpu_s = sum(place.busy_s * place.gpus for place in world.places)
    return Score(
        classes=by_class,
        duration_s=duration_s,
        offered=len(clients),
        met_slo=len(met_clients),
        slo_met_rps=len(met_clients) * per_s,
        utility=sum(classes[client.class_name].value for client in met_clients) * per_s,
        tries=len(tries),
        refused=sum(one.end is End.REFUSED for one in tries),
        displaced=sum(one.outcome is Outcome.DISPLACED for one in tries),
        preemptions=world.preemptions,
        gpu_seconds=gpu_s,
        wasted_gpu_seconds=gpu_s * _wasted_part(tries, met),
        waits=wait_errors(tries, settings),
        fairness_gap_gpu_seconds=world.gaps.gpu_s,
        returners=_returners(tries, met),
    )


@dataclass(slots=True)
class _Client:
    """All tries of one client."""

    class_name: str
    end: End
    met: bool


def _clients(tries: Sequence[Try], met: Sequence[bool]) -> list[_Client]:
    clients: dict[int, _Client] = {}
    for one, was_met in zip(tries, met, strict=True):
        client = clients.get(one.planned.index)
        if client is None:
            clients[one.planned.index] = _Client(one.planned.class_name, one.end, was_met)
        else:
            client.end, client.met = one.end, client.met or was_met
    return list(clients.values())


def _class_score(clients: Sequence[_Client], tries: Sequence[Try]) -> ClassScore:
    ends = [client.end for client in clients]
    ttfts_s = [_ttft_s(one.felt()) for one in tries if one.end in (End.COMPLETED, End.UNANSWERED)]
    return ClassScore(
        offered=len(clients),
        completed=ends.count(End.COMPLETED),
        refused=ends.count(End.REFUSED),
        left=ends.count(End.UNANSWERED),
        failed=ends.count(End.FAILED),
        met_slo=sum(client.met for client in clients),
        ttft_p50_s=quantile(ttfts_s, 0.5),
        ttft_p99_s=quantile(ttfts_s, 0.99),
    )


def _ttft_s(felt: Felt) -> float:
    return felt.duration_s if felt.first_token_s is None else felt.first_token_s


def _wasted_part(tries: Sequence[Try], met: Sequence[bool]) -> float:
    all_s = sum(one.work_s + one.lost_work_s for one in tries)
    useful_s = sum(one.work_s for one, was_met in zip(tries, met, strict=True) if was_met)
    return 1.0 - useful_s / all_s if all_s > 0 else 0.0


def wait_errors(tries: Sequence[Try], settings: Settings) -> WaitErrors:
    """Of all that had to wait, as far as anything was predicted."""
    confidence = {one.name: one.confidence for one in settings.classes}
    errors: list[float] = []
    coverage: dict[float, tuple[int, int]] = {}
    for one in tries:
        if one.held_s is None or one.predicted_wait_s <= 0.0:
            continue
        real_s, censored = one.waited_s, one.dispatched_s is None
        stated_s = one.stated_wait_s
        if stated_s is not None and not (censored and real_s < stated_s):
            quantile_of = confidence[one.planned.class_name]
            waits, held = coverage.get(quantile_of, (0, 0))
            coverage[quantile_of] = waits + 1, held + (real_s <= stated_s)
        if real_s < SHORTEST_WAIT_S:
            continue
        most_s = max(one.budget_s, SHORTEST_WAIT_S)
        error_s = min(one.predicted_wait_s, most_s) - min(real_s, most_s)
        if censored:
            error_s = min(error_s, 0.0)
        errors.append(abs(error_s) / min(real_s, most_s))
    return WaitErrors(
        len(errors), quantile(errors, 0.5), quantile(errors, 0.9), dict(sorted(coverage.items()))
    )


def _returners(tries: Sequence[Try], met: Sequence[bool]) -> Returners:
    returned = [(one, was_met) for one, was_met in zip(tries, met, strict=True) if one.planned.returned]
    times_s = [one.planned.at_s for one, _ in returned]
    gaps_s = [later - earlier for earlier, later in pairwise(times_s)]
    mean_s = mean(gaps_s) if gaps_s else 0.0
    return Returners(
        came=len(returned),
        admitted=sum(one.end is not End.REFUSED for one, _ in returned),
        met=sum(was_met for _, was_met in returned),
        gap_cv=pstdev(gaps_s) / mean_s if mean_s > 0 else None,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
