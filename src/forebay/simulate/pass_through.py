"""No control: every request goes to the next engine in turn, at once, as behind a plain load balancer.

What cannot be served waits inside the engines. One that is gone is passed over, as a health check would see to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay.admission.effects import Abort, Effect
from forebay.admission.events import Arrived, AttemptFailed, EndpointsChanged, Event, Sampled, SampleMissed
from forebay.admission.model import Check, Demand, EndpointId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.simulate.policy import dispatch, refuse


class PassThrough:
    """Lets everything through."""

    def __init__(self, settings: Settings, now: float) -> None:
        del settings, now  # it decides nothing
        self._endpoints: dict[str, tuple[EndpointId, ...]] = {}
        self._gone: dict[EndpointId, None] = {}
        self._turn: dict[str, int] = {}

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Arrived(demand):
                endpoint = self._next(demand)
                if endpoint is None:
                    return (refuse(demand, now, Outcome.NO_ENDPOINTS, Check("endpoints", 0, 1, False)),)
                return (dispatch(demand, endpoint, now, came_s=now),)
            case AttemptFailed(ticket):
                return (Abort(ticket, Outcome.UPSTREAM_FAILED, "The engine failed."),)
            case EndpointsChanged(pool, endpoints):
                self._endpoints[pool] = endpoints
            case SampleMissed(endpoint=endpoint, unreachable=True):
                self._gone[endpoint] = None
            case Sampled(endpoint=endpoint):
                self._gone.pop(endpoint, None)
        return ()

    def wake(self, now: float) -> Sequence[Effect]:
        del now
        return ()

    def next_deadline(self) -> float | None:
        return None

    def _next(self, demand: Demand) -> EndpointId | None:
        endpoints = [one for one in self._endpoints.get(demand.pool, ()) if one not in self._gone]
        if not endpoints:
            return None
        turn = self._turn.get(demand.pool, 0)
        self._turn[demand.pool] = turn + 1
        return endpoints[turn % len(endpoints)]
