"""Composition of `forebay simulate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.profiles import DEFAULT_PROFILE, load_profile
from forebay.runtime.simulation import Asked, CannotSimulate, fault_of, setup_of
from forebay.simulate.faults import MetricsLost, ReplicaLost, ReplicaSlow

CONFIG = """
pools:
  - name: small
    endpoints: [http://127.0.0.1:1, http://127.0.0.1:2]
    models: ["s-*"]
    profile: llama3-8b-a100x1-bf16
  - name: large
    endpoints: [http://127.0.0.1:3]
    models: ["l-*"]
plans: {gold: {}, free: {}}
tenants: [{name: acme, plan: gold}]
anonymous: {plan: free}
"""


def test_without_a_configuration_the_standard_scenario_applies() -> None:
    """One engine of the usual profile, of which Forebay is told nothing."""
    setup = setup_of(Asked("synthetic:chat,seconds=20"))
    assert [DEFAULT_PROFILE] == [one.profile.name for one in setup.fleet]
    assert setup.settings.pools[0].law is None
    assert ["realtime", "standard", "batch"] == [one.name for one in setup.settings.classes]
    assert 0.02 == setup.settings.classes[2].tpot_s


def test_a_configuration_says_pools_replicas_profiles_and_plans(tmp_path: Path) -> None:
    """And a profile in it is one that Forebay is told."""
    file = tmp_path / "forebay.yaml"
    file.write_text(CONFIG)
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,prompt_tokens,output_tokens,tenant,session_id,model,reusable_prefix_tokens\n"
        "0,10,10,acme,,s-1,\n1,10,10,other,,l-1,\n"
    )
    setup = setup_of(Asked(str(trace), config=file))
    assert [("small", "a100"), ("small", "a100"), ("large", "h100")] == [
        (one.pool, one.profile.name.split("-")[2].partition("x")[0]) for one in setup.fleet
    ]
    assert setup.settings.pools[0].law is not None
    assert setup.settings.pools[1].law is None
    assert [("small", "gold"), ("large", "free")] == [(one.pool, one.plan) for one in setup.workload.requests]
    assert 6 == len(setup_of(Asked(str(trace), config=file, replicas=3)).fleet)
    named = setup_of(Asked(str(trace), config=file, profile="llama3-8b-h100x1-bf16"))
    assert {"llama3-8b-h100x1-bf16"} == {one.profile.name for one in named.fleet}


def test_engines_look_for_shared_beginnings_only_where_there_are_some() -> None:
    """Chats go on; documents do not."""
    assert setup_of(Asked("synthetic:chat,seconds=60")).fleet[0].config.prefix_caching
    assert not setup_of(Asked("synthetic:documents,seconds=60")).fleet[0].config.prefix_caching


def test_gpus_are_those_of_the_profile() -> None:
    """A GPU-second is a second of one of them."""
    profile = next(name for name in ("llama3-70b-h100x4-bf16", "llama3-70b-h100x4-fp8") if _known(name))
    setup = setup_of(Asked("synthetic:chat,seconds=20", profile=profile))
    assert 4 == setup.settings.pools[0].gpus


def _known(name: str) -> bool:
    try:
        load_profile(name)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("lost:0@60-120", ReplicaLost(0, 60.0, 120.0)),
        ("lost:3@1.5", ReplicaLost(3, 1.5)),
        ("slow:1@60-120x2.5", ReplicaSlow(1, 60.0, 2.5, 120.0)),
        ("deaf:0@0-9", MetricsLost(0, 0.0, 9.0)),
    ],
)
def test_faults_are_written_in_a_line(text: str, fault: object) -> None:
    """What, which replica, from when to when."""
    assert fault == fault_of(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dead:0@1", "write lost:0@60-120"),
        ("lost:0@9-3", "ends before it begins"),
        ("slow:0@1-3", "belongs to slow"),
        ("lost:0@1-3x2", "belongs to slow"),
        ("slow:0@1-3x0", "from a hundredth to a hundred times"),
        ("lost:-1@3", "is not a fault"),
    ],
)
def test_a_fault_that_is_none_is_said(text: str, said: str) -> None:
    """With how to write one."""
    with pytest.raises(ValueError, match=said):
        fault_of(text)


def test_a_fault_of_a_replica_that_is_not_there_is_said() -> None:
    """They are numbered from 0."""
    with pytest.raises(CannotSimulate, match="there is no replica 1"):
        setup_of(Asked("synthetic:chat,seconds=20", faults=(ReplicaLost(1, 0.0),)))


def test_traces_of_more_than_a_year_are_refused(tmp_path: Path) -> None:
    """Each second of it would be gone through; compressed it may run."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n1e10,10,10\n")
    with pytest.raises(
        CannotSimulate, match=r"come over 1.16e\+05 days, allowed are 366: take the first with --limit"
    ):
        setup_of(Asked(str(trace)))
    setup_of(Asked(str(trace), load=1.0))
    setup_of(Asked(str(trace), limit=1))
