"""What a pool has learned, as plain data for a state file, and back.

What comes back is somebody's file: it may be of another version, another engine, or nonsense. Each part is taken if it
is sound and left out if not, with a line that says so; nothing that is wrong here can do more than start a pool
from other estimates, which it corrects as it would its own.
"""

from __future__ import annotations

from dataclasses import fields

from forebay.admission.learning import Learning
from forebay.admission.pools import Pool
from forebay.admission.quantiles import finite
from forebay.admission.settings import SpeedLaw
from forebay.admission.speed import FASTEST, SLOWEST

SLOWEST_S = 10.0
"""No coefficient of a law of speed is larger."""
LARGEST_KV = 10**9
"""No engine holds more tokens or requests."""


def export_pool(pool: Pool) -> dict[str, object]:
    """All that a next start can use."""
    law = pool.pricing.law
    return {
        "law": {field.name: getattr(law, field.name) for field in fields(law)},
        "pricing": pool.pricing.export(),
        "learning": pool.learning.export(),
        "waits": {name: state.waits.export() for name, state in pool.classes.items()},
        "speeds": {endpoint.id: endpoint.meter.speed for endpoint in pool.endpoints.values()},
    }


def restore_pool(pool: Pool, data: object, now: float) -> list[str]:
    """Take up what `export_pool` gave. Returns what could not be used, in words for a log."""
    if not isinstance(data, dict):
        return ["it is no object"]
    faults = []
    if pool.settings.law is None and "law" in data:
        law = _law(data["law"])
        if law is None:
            faults.append("its law of speed makes no sense")
        else:
            pool.pricing.law = law
    try:
        pool.pricing.restore(data.get("pricing"))
    except ValueError as fault:
        faults.append(f"what it knows of lengths: {fault}")
    waits = data.get("waits")
    for name, state in pool.classes.items():
        known = waits.get(name) if isinstance(waits, dict) else None
        if known is not None and not state.waits.restore(known):
            faults.append(f"what it knows of waits of class {name!r} makes no sense")
    learning = data.get("learning")
    if not faults and not Learning(speed_known=True).restore(learning, now):
        faults.append("how far it had learned makes no sense")
    elif not faults:
        # Trust is of these engines: it comes back with the first of them, and never to others at other addresses.
        pool.kept_learning = (learning, now)
    speeds = data.get("speeds")
    if isinstance(speeds, dict):
        pool.known_speeds = {
            name: speed
            for name, value in speeds.items()
            if isinstance(name, str) and (speed := finite(value)) is not None and SLOWEST <= speed <= FASTEST
        }
    return faults


def _law(data: object) -> SpeedLaw | None:
    if not isinstance(data, dict):
        return None
    seconds = [data.get(name) for name in ("c0_s", "c1_s", "c2_s", "c3_s", "c4_s")]
    good = [s for s in map(finite, seconds) if s is not None and 0.0 <= s <= SLOWEST_S]
    kv_tokens, max_requests = data.get("kv_tokens"), data.get("max_requests")
    if len(good) != len(seconds) or not sum(good) > 0.0:
        return None
    if not isinstance(kv_tokens, int) or not isinstance(max_requests, int):
        return None
    if not (1 <= kv_tokens <= LARGEST_KV and 1 <= max_requests <= LARGEST_KV):
        return None
    c0_s, c1_s, c2_s, c3_s, c4_s = good
    return SpeedLaw(c0_s, c1_s, c2_s, c3_s, c4_s, kv_tokens, max_requests)
