"""False refusals: the run without that refusal."""

from __future__ import annotations

from dataclasses import replace

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.profiles import load_profile
from forebay.simulate.counterfactual import MOST, FalseRefusals, false_refusals, with_exemption
from forebay.simulate.place import fleet
from forebay.simulate.request import Planned
from forebay.simulate.world import World

PROFILE = load_profile("llama3-8b-h100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE)


def settings(budget_s: float) -> Settings:
    """One request runs at a time, and nobody may wait: all others are turned away."""
    classes = tuple(replace(c, max_queue=0, wait_budget_s=budget_s) for c in ZERO_CONFIGURATION_CLASSES)
    return with_exemption(Settings(pools=(PoolSettings("p", max_inflight_requests=1),), classes=classes))


def looked_at(budget_s: float, *, every_s: float = 0.5, count: int = 60) -> FalseRefusals:
    """What came of looking at refusals of such a run, in which an answer takes a second."""
    requests = [Planned(n, n * every_s, "standard", 100, 160, 256, 400) for n in range(count)]

    def make() -> World:
        return World(settings(budget_s), fleet("p", PROFILE, CONFIG, 1))

    world = make()
    world.run(requests, every_s * count + 10.0)
    return false_refusals(world, requests, make, seed=1)


def test_a_refusal_was_false_if_the_request_would_have_started_in_time() -> None:
    """Whoever is refused here while another runs for a second would have started soon after it."""
    looked = looked_at(5.0)
    assert (MOST, MOST) == (looked.looked_at, looked.false)
    assert looked.refusals == looked.estimated


def test_a_refusal_was_right_if_it_would_not() -> None:
    """With a budget far shorter than what runs."""
    looked = looked_at(0.01)
    assert (MOST, 0, 0.0) == (looked.looked_at, looked.false, looked.estimated)


def test_looking_is_bounded() -> None:
    """A run with more requests has fewer looked at, and one of more than that none: then nobody knows."""
    assert None is FalseRefusals(0, 0, 7).estimated
    assert 0.0 == FalseRefusals(0, 0, 0).estimated
