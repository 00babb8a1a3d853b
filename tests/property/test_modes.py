"""Modes that change under load: nobody waits unasked, nothing is lost, and the books balance."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from forebay.admission.events import EndpointDrained, ModeChanged
from forebay.admission.model import EndpointId, Mode
from forebay.admission.settings import Settings
from tests.unit.admission.build import Scenario, pool_settings, settings_for, with_class

CLASSES = ("realtime", "standard", "batch")
MODES = (*Mode, None)


def some_settings(draw: random.Random) -> Settings:
    """Tight bounds, and any modes."""
    pool = pool_settings(
        max_inflight_requests=draw.choice([1, 2, 5]),
        max_queue=draw.choice([0, 2, 50]),
        max_gpu_s=draw.choice([None, 4.0, 40.0]),
        mode=draw.choice([None, None, *Mode]),
    )
    settings = replace(settings_for(pool), mode=draw.choice([*Mode]))
    return with_class("batch", settings, mode=draw.choice([None, None, *Mode]))


class Run:
    """One gateway's day, in no order at all."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.scenario = Scenario(endpoints=("a", "b"), settings=some_settings(draw))
        self.number = 0
        self.drained: set[str] = set()

    def step(self, now: float) -> None:
        """Something happens; then nobody waits whom no decision holds."""
        scenario, draw = self.scenario, self.draw
        scenario.run_until(now)
        what = draw.random()
        if what < 0.5:
            self.number += 1
            scenario.arrive(self.number, now, class_name=draw.choice(CLASSES))
        elif what < 0.75 and scenario.running:
            scenario.end(draw.choice(list(scenario.running)), now)
        elif what < 0.8 and scenario.waiting:
            scenario.leave(draw.choice(list(scenario.waiting)), now)
        elif what < 0.9:
            scenario.tell(
                ModeChanged(draw.choice(MODES), draw.choice(["", "llama"]), draw.choice(["", *CLASSES])), now
            )
        elif what < 0.95:
            scenario.reconfigure(some_settings(draw), now)
        else:
            name, out = draw.choice("ab"), draw.random() < 0.5
            scenario.tell(EndpointDrained(EndpointId(name), out), now)
            scenario.sample(name, now)
            (self.drained.add if out else self.drained.discard)(name)
        self.look()

    def look(self) -> None:
        """While an endpoint is there, those who wait are of classes that are enforced."""
        if len(self.drained) == 2:
            return
        modes = {view.name: view.mode for view in self.scenario.pool_view().classes}
        waiting = [self.scenario.demands[number].class_name for number in self.scenario.waiting]
        assert [] == [name for name in waiting if modes[name] is not Mode.ENFORCE]


@pytest.mark.parametrize("seed", range(60))
def test_modes_change_under_load(seed: int) -> None:
    """Every request ends once, and what is left on the books is nothing."""
    draw = random.Random(seed)
    run, now = Run(draw), 0.0
    for _ in range(150):
        now += draw.expovariate(8.0)
        run.step(now)
    run.scenario.close()
