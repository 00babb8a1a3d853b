"""Which name to ask a pool for when a request was sent there that asked for another model."""

from __future__ import annotations

from dataclasses import replace

from forebay.admission.model import Demand
from forebay.admission.patterns import first_granted, fits_any
from forebay.admission.pools import Pool


def asked_at(demand: Demand, pool: Pool, granted: tuple[str, ...] | None = None) -> Demand:
    """The demand as it goes to this pool: with the name it has if the pool serves that, else with another one.

    That is the first that the tenant's plan grants, or simply the first where it grants none of them. A pool of which
    nobody knows what it serves is asked for what the client named.

    Args:
        granted: models that the plan has; None: all.
    """
    names = pool.settings.models or _listed(pool)
    if fits_any(demand.model, names):
        return demand
    name = first_granted(names, granted) or first_granted(names, None)
    return demand if name is None else with_model(demand, name)


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
