"""The seam: what a simulated run asks of whoever decides, and the words in which it is answered.

A policy is told events and answers with effects, those of `admission.events` and `admission.effects`, under the
contract of `admission.controller`: `Controller` is a policy as it is. A baseline is another object behind the same
seam. It may leave out `Settle`, which only tells of predictions; everything else holds for it too:

- `Arrived` is answered at once by `Dispatch`, `Hold` or `Refuse`; what is held is later dispatched or evicted.
- `Ended`, `ClientLeft` and `AttemptFailed` come exactly once for each `Dispatch`; `ClientLeft` also for those held.
- Engines are named by `EndpointsChanged`; `Described` and `Sampled` tell of them what an engine's metrics would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from forebay.admission.effects import Dispatch, Effect, Evict, Hold, Refuse
from forebay.admission.events import Event
from forebay.admission.model import Check, DecisionRecord, Demand, EndpointId, Refusal
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings

PASSED = "passed"


class Policy(Protocol):
    """Whoever decides."""

    def handle(self, event: Event, now: float) -> Sequence[Effect]: ...

    def wake(self, now: float) -> Sequence[Effect]: ...

    def next_deadline(self) -> float | None: ...


PolicyMaker = Callable[[Settings, float], Policy]
"""Makes one for a run, from the settings and the time of its start. `Controller` is one."""


def dispatch(
    demand: Demand, endpoint: EndpointId, now: float, *, came_s: float, attempt: int = 1
) -> Dispatch:
    """The effect that sends a request which came at `came_s` to an endpoint."""
    return Dispatch(
        demand.ticket,
        endpoint,
        attempt,
        plain_record(demand, now, "dispatch", came_s=came_s, endpoint=endpoint),
    )


def hold(demand: Demand, now: float) -> Hold:
    """The effect that lets a request wait."""
    return Hold(demand.ticket, plain_record(demand, now, "hold", came_s=now))


def refuse(
    demand: Demand, now: float, outcome: Outcome, check: Check, *, retry_after_s: float | None = None
) -> Refuse:
    """The effect that turns a request away at its arrival."""
    record = plain_record(demand, now, "refuse", came_s=now, outcome=outcome, check=check)
    return Refuse(demand.ticket, Refusal(outcome, retry_after_s, 0.0, record))


def evict(
    demand: Demand,
    now: float,
    outcome: Outcome,
    check: Check,
    *,
    came_s: float,
    retry_after_s: float | None = None,
) -> Evict:
    """The effect that turns a request away that has waited since `came_s`."""
    record = plain_record(demand, now, "evict", came_s=came_s, outcome=outcome, check=check)
    return Evict(demand.ticket, Refusal(outcome, retry_after_s, 0.0, record))


def plain_record(
    demand: Demand,
    now: float,
    action: str,
    *,
    came_s: float,
    outcome: Outcome | None = None,
    check: Check | None = None,
    endpoint: EndpointId | None = None,
) -> DecisionRecord:
    """The record of a decision by a policy that predicts nothing."""
    return DecisionRecord(
        ticket=demand.ticket,
        at_s=now,
        pool=demand.pool,
        class_name=demand.class_name,
        tenant=demand.tenant,
        model=demand.model,
        action=action,
        outcome=outcome,
        decided_by=PASSED if check is None else check.name,
        checks=() if check is None else (check,),
        cost_gpu_s=0.0,
        kv_tokens=0,
        predicted_wait_s=0.0,
        wait_budget_s=0.0,
        waited_s=now - came_s,
        position=0,
        endpoint=endpoint,
        learning=False,
    )
