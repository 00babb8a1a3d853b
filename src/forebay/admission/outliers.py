"""When an endpoint is taken out because its attempts fail, and others can do its work.

An engine that answers every request with an error is done sooner than those that work, and would draw them all. So
`rotation.OUTLIER` failures in a row of any kind, with no sign of life between them, eject it: out for 0.5 s, twice as
long each time, up to 10 s, and back by one request at a time. But the requests may be at fault and not the engine, so
at least half of a pool always stays, and the last one is never ejected: there, only attempts that broke off take it
out, for a moment (`Rotation.doubt`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.admission.endpoints import Endpoint
    from forebay.admission.pools import Pool


def speak_against(endpoint: Endpoint, pool: Pool, now: float, *, doubtful: bool = True) -> None:
    """One more attempt failed there, of those that reached the engine.

    Args:
        doubtful: False if the engine refused: it works, and says so.
    """
    endpoint.failures_in_row += 1
    if endpoint.is_outlier and can_spare(endpoint, pool):
        endpoint.eject(now)
    elif doubtful:
        endpoint.doubt(now)


def can_spare(endpoint: Endpoint, pool: Pool) -> bool:
    """True if without it half of the pool or more is up."""
    others = 0
    for other in pool.endpoints.values():
        if other.is_up and other is not endpoint:
            others += 1
    return others > 0 and 2 * others >= len(pool.endpoints)
