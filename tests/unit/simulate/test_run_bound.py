"""The bound of a run: above every policy, and refused where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.runtime.simulation import Asked, setup_of
from forebay.simulate import run_bound
from forebay.simulate.faults import ReplicaSlow
from forebay.simulate.request import Habits
from forebay.simulate.run import Setup, run
from forebay.simulate.run_bound import CannotBound, RunBound, bound_of


def setup(load: float, *, returns: bool = False) -> Setup:
    """A small run."""
    return setup_of(
        Asked(
            "synthetic:chat,seconds=120,seed=3,rate=2", load=load, limit=150, habits=Habits(come_back=returns)
        )
    )


@pytest.mark.parametrize("load", [0.5, 2.0])
@pytest.mark.parametrize("policy", ["forebay", "pass-through"])
def test_no_policy_is_above_it(load: float, policy: str) -> None:
    """In overload and below, what a run comes to is at most its bound."""
    made = setup(load)
    bound = bound_of(made)
    score = run(made, policy, look_at_refusals=False).score
    assert not bound.is_exceeded_by(score.slo_met_rps, score.utility)
    assert bound.rps <= len(made.workload.requests) / made.workload.duration_s * 1.001


def test_returns_only_raise_it() -> None:
    """Clients that may come back can be met later."""
    never, once = bound_of(setup(3.0)), bound_of(setup(3.0, returns=True))
    assert never.rps <= once.rps * 1.0001
    assert never.utility <= once.utility * 1.0001


def test_more_than_the_bound_is_noticed() -> None:
    """In either of the two figures, with a hair's breadth of room."""
    bound = RunBound(10.0, 20.0)
    assert not bound.is_exceeded_by(10.0005, 20.0)
    assert bound.is_exceeded_by(10.1, 5.0)
    assert bound.is_exceeded_by(5.0, 20.1)


def test_where_there_is_none_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that become faster, a pool of unlike engines, and too many requests."""
    made = setup(1.0)
    with pytest.raises(CannotBound, match="faster"):
        bound_of(replace(made, faults=(ReplicaSlow(0, 0.0, 0.5),)))
    unlike = replace(made.fleet[0], config=replace(made.fleet[0].config, max_num_seqs=8))
    with pytest.raises(CannotBound, match="not alike"):
        bound_of(replace(made, fleet=(made.fleet[0], unlike)))
    monkeypatch.setattr(run_bound, "MOST_REQUESTS", 10)
    with pytest.raises(CannotBound, match="--limit"):
        bound_of(made)
