"""Composition of `forebay simulate`: a trace, a configuration and a profile become the setup of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from forebay.admission.settings import PoolSettings, Settings
from forebay.config import Config, load
from forebay.enginemodel.profile import EngineConfig, EngineProfile
from forebay.load.synthetic import read_source
from forebay.profiles import DEFAULT_PROFILE, load_profile
from forebay.runtime.prepared import prepare
from forebay.simulate.faults import Fault, MetricsLost, ReplicaLost, ReplicaSlow
from forebay.simulate.place import EngineSetup, fleet
from forebay.simulate.request import Habits
from forebay.simulate.run import Setup
from forebay.simulate.scenario import CannotSimulate, build, standard_classes

__all__ = ["MOST_REQUESTS", "MOST_SECONDS", "Asked", "CannotSimulate", "fault_of", "setup_of"]

MOST_REQUESTS: Final = 1_000_000
"""Of one run: they are held in memory, a kilobyte and a half each."""
MOST_SECONDS: Final = 366 * 86_400
"""Of one run: engines are asked how they are each second, also where nothing comes for days."""
_POOL: Final = "simulated"
_FAULT: Final = re.compile(
    r"(?P<kind>lost|slow|deaf):(?P<endpoint>\d{1,4})@(?P<at>\d+(?:\.\d+)?)"
    r"(?:-(?P<until>\d+(?:\.\d+)?))?(?:x(?P<factor>\d+(?:\.\d+)?))?"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asks to have simulated."""

    trace: str
    config: Path | None = None
    profile: str | None = None
    replicas: int | None = None
    load: float | None = None
    limit: int | None = None
    seed: int = 1
    habits: Habits = Habits()  # noqa: RUF009 - frozen
    faults: tuple[Fault, ...] = ()


def setup_of(asked: Asked) -> Setup:
    """Everything that can fail because of what was asked for.

    Raises:
        ConfigError: of the configuration.
        ProfileError: of the profile.
        TraceError: of the trace.
        CannotSimulate: they do not fit together.
    """
    loaded = None if asked.config is None else load(asked.config)
    if loaded is None:
        profile = load_profile(asked.profile or DEFAULT_PROFILE)
        settings = Settings(pools=(PoolSettings(_POOL, gpus=profile.gpus),), classes=standard_classes())
        engines = fleet(_POOL, profile, EngineConfig.from_profile(profile), asked.replicas or 1)
        plans: dict[str, str] = {}
    else:
        settings = prepare(loaded).settings
        engines = _configured_fleet(loaded.config, asked)
        plans = _plans(loaded.config)
    for fault in asked.faults:
        if fault.endpoint >= len(engines):
            raise CannotSimulate(
                f"there is no replica {fault.endpoint}: the {len(engines)} are numbered from 0"
            )
    rows = read_source(asked.trace, min(asked.limit or MOST_REQUESTS + 1, MOST_REQUESTS + 1))
    workload = build(rows, settings, engines, seed=asked.seed, load=asked.load, plans=plans)
    if len(workload.requests) > MOST_REQUESTS:
        raise CannotSimulate(f"the trace has more than {MOST_REQUESTS:,} requests; take fewer with --limit")
    if workload.duration_s > MOST_SECONDS:
        raise CannotSimulate(
            f"the requests come over {workload.duration_s / 86_400:,.3g} days, allowed are {MOST_SECONDS // 86_400}: "
            "take the first with --limit, or compress them with --load"
        )
    return Setup(
        settings,
        _without_cache(engines, workload.shares_prompts),
        workload,
        asked.seed,
        asked.habits,
        asked.faults,
    )


def _without_cache(engines: Sequence[EngineSetup], shares_prompts: bool) -> Sequence[EngineSetup]:
    """Where no prompt begins as another does, engines need not look: a sixth less to work out."""
    if shares_prompts:
        return engines
    return [replace(one, config=replace(one.config, prefix_caching=False)) for one in engines]


def _configured_fleet(config: Config, asked: Asked) -> list[EngineSetup]:
    """As many engines in each pool as it has endpoints, or as were asked for."""
    engines: list[EngineSetup] = []
    for pool in config.pools:
        profile = _profile_of(asked.profile or pool.profile.name, asked.config)
        count = asked.replicas or len(pool.endpoints)
        engines += fleet(pool.name, profile, EngineConfig.from_profile(profile), count)
    return engines


def _profile_of(name: str | None, config: Path | None) -> EngineProfile:
    if name is not None and config is not None and ("/" in name or ".json" in name):
        name = str(config.parent / name)
    return load_profile(name or DEFAULT_PROFILE)


def _plans(config: Config) -> dict[str, str]:
    """Of tenants by name; under the empty name that of everybody else."""
    plans = {tenant.name: tenant.plan for tenant in config.tenants if tenant.plan is not None}
    if config.anonymous is not None and config.anonymous.plan is not None:
        plans[""] = config.anonymous.plan
    return plans


def fault_of(text: str) -> Fault:
    """`lost:0@60-120`, `slow:0@60-120x2`, `deaf:0@60-120`: what happens to which replica, from when to when.

    Raises: `ValueError`, with what it would take.
    """
    found = _FAULT.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text[:40]!r} is not a fault; write lost:0@60-120, slow:0@60-120x2 or deaf:0@60-120: "
            "what happens, to which replica (from 0), from which second to which"
        )
    endpoint, at_s = int(found["endpoint"]), float(found["at"])
    until_s = float(found["until"]) if found["until"] else float("inf")
    if until_s <= at_s:
        raise ValueError(f"{text!r} ends before it begins")
    if (found["factor"] is not None) != (found["kind"] == "slow"):
        raise ValueError(
            f"{text!r}: `x2`, how much longer its steps take, belongs to slow, and to nothing else"
        )
    if found["kind"] == "lost":
        return ReplicaLost(endpoint, at_s, until_s)
    if found["kind"] == "deaf":
        return MetricsLost(endpoint, at_s, until_s)
    factor = float(found["factor"])
    if not 0.01 <= factor <= 100.0:
        raise ValueError(f"{text!r}: a step can take from a hundredth to a hundred times as long")
    return ReplicaSlow(endpoint, at_s, factor, until_s)
