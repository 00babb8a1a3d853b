"""False refusals: would a request that was turned away have been served in time after all?

The run is made once more: the same seed gives the same run. Just before each request whose refusal is looked at, the
process splits (`fork`), and in the copy that one request is of a plan that is never refused. The copy goes on until the
request starts or its wait budget is over, and says which. A refusal was false if the request would have started within
its budget. All others meet the decisions that they meet then: that is the run *without that refusal*.

It is bounded: at most `MOST` refusals, drawn by seed, whose copies have no more than `MOST_REQUESTS` arrivals among
them, and none in a run of more than that. Only Forebay's own policy can be told not to refuse somebody.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nextafter
from typing import Final

from forebay.admission.outcomes import Group
from forebay.admission.settings import PlanSettings, Settings
from forebay.simulate.request import Planned
from forebay.simulate.scenario import drawn
from forebay.simulate.tries import Try
from forebay.simulate.world import World

MOST: Final = 40
MOST_REQUESTS: Final = 40_000
EXEMPT: Final = "never-refused-in-this-run"
"""Name of the plan."""
_SLICE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class FalseRefusals:
    """Of the refusals looked at, those that were false."""

    looked_at: int
    false: int
    refusals: int
    """All of the run that could be looked at."""

    @property
    def estimated(self) -> float | None:
        """Of all refusals; None if none was looked at while there were some."""
        if not self.refusals:
            return 0.0
        return round(self.refusals * self.false / self.looked_at, 1) if self.looked_at else None


def with_exemption(settings: Settings) -> Settings:
    """The settings with the plan in them: of no effect on who is not of it."""
    return replace(settings, plans=(*settings.plans, PlanSettings(EXEMPT, never_refuse=True)))


def false_refusals(
    world: World,
    requests: Sequence[Planned],
    make: Callable[[], World],
    *,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> FalseRefusals:
    """Look at refusals of a run.

    Args:
        world: the run, which is over.
        requests: those that it began with, in order of time.
        make: the same run anew, before its first request. Its settings have the plan (`with_exemption`).
        seed: of the choice of refusals.
        on_progress: told how many of how many were looked at.
    """
    refused = [one for one in world.tries if _is_contended(one) and not one.planned.returned]
    place = {one.index: number for number, one in enumerate(requests)}
    times_s = [one.at_s for one in requests]
    budgets_s = {one.name: one.wait_budget_s for one in world.settings.classes}

    def until_s(one: Try) -> float:
        budget_s = budgets_s[one.planned.class_name]
        return one.planned.at_s + min(
            budget_s, budget_s if one.planned.deadline_s is None else one.planned.deadline_s
        )

    chosen: list[Try] = []
    left = MOST_REQUESTS
    for one in sorted(refused, key=lambda one: drawn(seed, "counterfactual", one.planned.index)):
        left -= bisect_right(times_s, until_s(one)) - place[one.planned.index]
        if len(chosen) == MOST or left < 0 or len(requests) > MOST_REQUESTS:
            break
        chosen.append(one)
    chosen.sort(key=lambda one: place[one.planned.index])
    false, played = 0, 0
    again = make()
    for number, one in enumerate(chosen):
        on_progress(number, len(chosen))
        at = place[one.planned.index]
        again.advance(requests[played:at], nextafter(one.planned.at_s, 0.0))
        played = at
        end = bisect_right(times_s, until_s(one))
        coming = [replace(requests[at], plan=EXEMPT, patience_s=None), *requests[at + 1 : end]]
        false += _in_a_copy(lambda coming=coming, one=one: _starts(again, coming, until_s(one)))  # type: ignore[misc]
    return FalseRefusals(len(chosen), false, len(refused))


def _is_contended(one: Try) -> bool:
    return one.outcome is not None and one.outcome.group is Group.CONTENDED


def _starts(world: World, coming: Sequence[Planned], until_s: float) -> bool:
    """Whether the first of these starts by then."""
    number, played = len(world.tries), 0
    times_s = [one.at_s for one in coming]
    while world.now < until_s:
        slice_s = min(until_s, max(world.now, times_s[0]) + _SLICE_S)
        end = bisect_right(times_s, slice_s)
        world.advance(coming[played:end], slice_s)
        played = end
        # Whoever came back meanwhile has a number of its own: the first of these is the first to come.
        if world.tries[number].dispatched_s is not None:
            return True
    return False


def _in_a_copy(ask: Callable[[], bool]) -> bool:
    """The answer of a copy of this process, which changes nothing in this one."""
    with warnings.catch_warnings():
        # The copy touches nothing that another thread might hold: it computes, and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 2
        try:
            code = int(ask())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        raise RuntimeError("a copy of the run failed where the run itself did not")
    return code == 1
