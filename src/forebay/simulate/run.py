"""One run from its parts: a workload, engines and a policy in, scores out.

Owns how long a run goes on and what is checked at its end. It reads no files and prints nothing; `forebay simulate`
and the benchmarks call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forebay.admission.controller import Controller
from forebay.admission.settings import Settings
from forebay.simulate.counterfactual import FalseRefusals, false_refusals, with_exemption
from forebay.simulate.faults import Fault
from forebay.simulate.place import EngineSetup
from forebay.simulate.policies import find_policy
from forebay.simulate.request import Habits, Planned
from forebay.simulate.scenario import Workload
from forebay.simulate.scoring import Score, score
from forebay.simulate.world import World

TAIL_S: Final = 300.0
"""How long answers are waited for after the last arrival. What is open then counts as left: an overload that nobody
turns away would take hours to work off."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated, whoever decides."""

    settings: Settings
    fleet: Sequence[EngineSetup]
    workload: Workload
    seed: int = 1
    habits: Habits = field(default_factory=Habits)
    faults: Sequence[Fault] = ()

    def world(self, policy: str, on_progress: Callable[[float], None] | None = None) -> World:
        """The run before its first request. Raises: UnknownPolicy."""
        return World(
            with_exemption(self.settings),
            self.fleet,
            policy=find_policy(policy),
            habits=self.habits,
            faults=self.faults,
            seed=self.seed,
            on_progress=on_progress,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one policy."""

    policy: str
    setup: Setup
    score: Score
    tried: tuple[Planned, ...]
    """Every request as it came, returns included."""
    false_refusals: FalseRefusals | None
    """None if nobody looked, or only Forebay could have told."""
    faults: tuple[str, ...]
    """What does not balance at the end: empty if all is well."""

    def to_json(self) -> dict[str, object]:
        """The run as one JSON object."""
        looked = self.false_refusals
        return {
            "policy": self.policy,
            "load": round(self.setup.workload.load, 4),
            "seed": self.setup.seed,
            "replicas": len(self.setup.fleet),
            **self.score.to_json(),
            "false_refusals": None if looked is None else looked.estimated,
            "refusals_looked_at": 0 if looked is None else looked.looked_at,
            "left_out": self.setup.workload.left_out,
        }


def run(
    setup: Setup,
    policy: str = "forebay",
    *,
    look_at_refusals: bool = True,
    on_progress: Callable[[str, float], None] | None = None,
) -> Run:
    """Simulate one policy.

    Args:
        setup: what is simulated.
        policy: by name.
        look_at_refusals: count the false ones, which takes up to as long again several times over.
        on_progress: told what goes on, and how much of it is done (0 to 1).

    Raises:
        UnknownPolicy: none has that name.
        BrokenPolicy: it broke the contract.
    """
    requests, duration_s = setup.workload.requests, setup.workload.duration_s

    def tell(now: float) -> None:
        if on_progress is not None:
            on_progress("running", min(now / max(duration_s, 1.0), 1.0))

    world = setup.world(policy, tell)
    world.run(requests, duration_s + TAIL_S, stop_when_done=True)
    scored = score(world, duration_s)
    looked = None
    if look_at_refusals and isinstance(world.policy, Controller):
        looked = false_refusals(
            world,
            requests,
            lambda: setup.world(policy),
            seed=setup.seed,
            on_progress=lambda done, of: on_progress and on_progress("looking at refusals", done / of),
        )
    tried = tuple(one.planned for one in world.tries)
    return Run(policy, setup, scored, tried, looked, tuple(world.end()))
