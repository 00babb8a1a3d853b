"""One run from its parts."""

from __future__ import annotations

import json

import pytest

from forebay.admission.settings import PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.load.synthetic import synthetic
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.policies import POLICIES, UnknownPolicy
from forebay.simulate.run import Setup, run
from forebay.simulate.scenario import build, standard_classes

PROFILE = load_profile("llama3-8b-h100x1-bf16")
KEYS = {
    "policy", "load", "seed", "replicas", "slo_met_rps", "utility", "false_refusals", "classes", "refused",
    "displaced", "preemptions", "gpu_seconds", "wasted_gpu_seconds", "wait_error_median", "wait_error_p90",
    "fairness_gap_gpu_seconds",
}  # fmt: skip
CLASS_KEYS = {"offered", "completed", "refused", "met_slo", "ttft_p50_s", "ttft_p99_s", "attainment"}


def setup(load: float = 1.5, seconds: float = 40.0) -> Setup:
    """A short overload by chats."""
    settings = Settings(pools=(PoolSettings("p"),), classes=standard_classes())
    engines = fleet("p", PROFILE, EngineConfig.from_profile(PROFILE), 1)
    return Setup(
        settings, engines, build(synthetic("chat", seconds=seconds), settings, engines, seed=1, load=load)
    )


def test_a_run_says_what_the_interface_promises() -> None:
    """Every name is there, and it is JSON."""
    told: list[tuple[str, float]] = []
    done = run(setup(), on_progress=lambda doing, part: told.append((doing, part)))
    said = json.loads(json.dumps(done.to_json()))
    assert set(said) >= KEYS
    assert all(set(one) >= CLASS_KEYS for one in said["classes"].values())
    assert ("forebay", 1.5, 1) == (said["policy"], said["load"], said["replicas"])
    assert () == done.faults
    assert {"running"} <= {doing for doing, _ in told}
    assert all(0.0 <= part <= 1.0 for _, part in told)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_the_contract(policy: str) -> None:
    """Each request has one outcome, and nothing is left at the end."""
    done = run(setup(2.0, 20.0), policy, look_at_refusals=False)
    assert () == done.faults
    assert done.score.offered == sum(one.offered for one in done.score.classes.values())
    assert done.score.tries == len(done.tried)


def test_the_same_seed_is_the_same_run() -> None:
    """To the last digit."""
    assert run(setup(), look_at_refusals=False).to_json() == run(setup(), look_at_refusals=False).to_json()


def test_an_unknown_policy_is_said_before_anything_runs() -> None:
    """With the names that there are."""
    with pytest.raises(UnknownPolicy, match="pass-through"):
        run(setup(), "none")
