"""No control, but balanced: each request goes at once to the engine with the fewest requests in flight.

What a load balancer with `least_request` does, seen by a single balancer that knows all that is in flight (Envoy draws
two at random and takes the better; with few engines that is nearly the same). What cannot be served waits in engines.
"""

from __future__ import annotations

from forebay.simulate.baselines.pool_law import PoolLaw, Request

__all__ = ["LeastRequest"]


class LeastRequest(PoolLaw):
    """Lets everything through."""

    def arrived(self, request: Request, now: float) -> None:
        """Start it where the least is going on."""
        place = self.least_loaded()
        if place is not None:
            self.start(request, place, now)
