"""The benchmark of goodput in its quick form: every scenario is played, and everything balances."""

from __future__ import annotations

import json

import pytest

from benchmarks.goodput import run
from benchmarks.goodput.scenarios import FLOOD, SCENARIOS, Source, setup_of, warped
from benchmarks.goodput.statistics import Mean, mean_of, paired
from forebay.admission.settings import PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.scenario import standard_classes

SETTINGS = Settings(pools=(PoolSettings("p"),), classes=standard_classes())
PROFILE = load_profile(run.PROFILE)
ENGINES = fleet("p", PROFILE, EngineConfig.from_profile(PROFILE), 1)


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_in_every_scenario_everything_balances(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 says that each request had one outcome and that all books were empty at the end."""
    assert 0 == run.main(["--quick", "--json"])
    runs = json.loads(capsys.readouterr().out)
    assert {one.name for one in SCENARIOS} == {one["scenario"] for one in runs}
    assert {"forebay", "pass-through"} == {one["policy"] for one in runs}
    assert all(one["offered"] == run.QUICK_REQUESTS for one in runs)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_answers_that_are_not_streamed_hide_neither_the_engines_speed_nor_its_limit() -> None:
    """Long prompts with whole answers are always there: the law is learned all the same, and streams keep pace."""
    mixed = run.play(run.Cell("load 1.1", "synthetic:mixed", 600, "forebay", 2)).result
    assert mixed["classes"]["realtime"]["attainment"] > 0.8


def test_a_cell_that_does_not_balance_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says which."""
    plain = run.play

    def broken(cell: run.Cell) -> run.Done:
        done = plain(cell)
        return run.Done(cell, done.result, ("something is left",), 0.0)

    monkeypatch.setattr(run, "play", broken)
    assert 1 == run.main(
        ["--quick", "--scenario", "load 0.5", "--policy", "pass-through", "--requests", "20"]
    )


def test_time_is_warped_so_that_the_work_offered_is_what_the_profile_says() -> None:
    """Three equal stretches at 0.5, 2 and 0.5: the middle one has two thirds of the requests."""
    plain = Source("synthetic:mixed", 600).at_load_one(SETTINGS, ENGINES, 1)
    made = warped(plain, [(1 / 3, 0.5), (1 / 3, 2.0), (1 / 3, 0.5)])
    times_s = [one.at_s for one in made.requests]
    assert sorted(times_s) == times_s
    assert pytest.approx(plain.duration_s) == made.duration_s
    assert pytest.approx(made.duration_s) == times_s[-1]
    middle = [at_s for at_s in times_s if made.duration_s / 3 <= at_s < 2 * made.duration_s / 3]
    assert 0.55 < len(middle) / len(times_s) < 0.78


def test_a_flood_is_of_one_tenant_and_comes_in_the_middle() -> None:
    """The others come all the time."""
    scenario = next(one for one in SCENARIOS if one.name == "one-tenant flood")
    workload = setup_of(scenario, Source("synthetic:mixed", 600), SETTINGS, ENGINES, 1).workload
    flood = [one.at_s / workload.duration_s for one in workload.requests if one.tenant == FLOOD]
    others = [one.at_s / workload.duration_s for one in workload.requests if one.tenant != FLOOD]
    assert 1 / 3 <= min(flood) < max(flood) <= 2 / 3
    assert 0.0 <= min(others) < 0.05
    assert 0.95 < max(others) <= 1.0
    assert 600 == len(flood) + len(others)


def test_seeds_are_paired() -> None:
    """What all runs of a seed share falls out of the difference."""
    assert Mean(1.0, 0.0) == paired([2.0, 12.0, 22.0], [1.0, 11.0, 21.0])
    alone = mean_of([2.0, 12.0, 22.0])
    assert 12.0 == alone.value
    assert pytest.approx(24.84, rel=0.01) == alone.half
    assert "3.00" == mean_of([3.0]).words()
