"""Which name to ask a pool for when a request was sent there that asked for another model."""

from __future__ import annotations

from dataclasses import replace

from forebay.admission.model import Demand
from forebay.admission.pools import Pool


def asked_at(demand: Demand, pool: Pool) -> Demand:
    """The demand as it goes to this pool: with the name it has if the pool serves that, else the pool's first.

    A pool of which nobody knows what it serves is asked for what the client named.
    """
    names = pool.settings.models or _listed(pool)
    if any(_matches(demand.model, name) for name in names):
        return demand
    for name in names:
        if "*" not in name:
            return with_model(demand, name)
    return demand


def with_model(demand: Demand, model: str) -> Demand:
    """The demand with another model. What the client asked for is kept."""
    asked = demand.model if demand.asked_model is None else demand.asked_model
    return replace(demand, model=model, asked_model=None if model == asked else asked)


def _listed(pool: Pool) -> tuple[str, ...]:
    """What the engines say that they serve."""
    names: dict[str, None] = {}
    for endpoint in pool.endpoints.values():
        for name in endpoint.info.models:
            names[name] = None
    return tuple(names)


def _matches(model: str, pattern: str) -> bool:
    """`*` in a pattern stands for anything, also for nothing."""
    if "*" not in pattern:
        return model == pattern
    first, *middle, last = pattern.split("*")
    if len(model) < len(first) + len(last) or not model.startswith(first) or not model.endswith(last):
        return False
    at, end = len(first), len(model) - len(last)
    for part in middle:
        at = model.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
