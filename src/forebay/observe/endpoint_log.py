"""One log line for each change of an endpoint's state, with why, and of how far a pool trusts its predictions.

Told after whatever may have changed one: a reading of an engine, a failed attempt, an answer that broke off. Then it
looks at a snapshot, at most every `LOOK_S`, and writes about what is not as it was. An ordinary request costs nothing
here. Never decides anything; owns only what it saw last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from forebay.admission.events import Event, Sampled, SampleMissed
from forebay.admission.learning import LEARNING, LearningPhase
from forebay.admission.model import DecisionRecord, EndpointId, EndpointState, Settlement
from forebay.admission.outcomes import Outcome
from forebay.admission.snapshot import EndpointView, PoolView, Snapshot

__all__ = ["EndpointLog"]

_log = logging.getLogger("forebay.endpoints")

LOOK_S: Final = 0.05
"""Failures come in bursts, one per request that ran there; one look tells as much."""
TOLD_REJECTIONS: Final = 20
_TRUST: Final = {
    LearningPhase.LEARNING: "predictions were far off, or all is new; nobody is refused on a predicted wait meanwhile",
    LearningPhase.CAUTIOUS: "enough is known to refuse on a predicted wait, at its low quantile",
    LearningPhase.CONFIDENT: "predictions have held; each class refuses at the quantile of its own confidence",
}
"""What each phase means for requests."""
_UNUSED: Final = (EndpointState.DOWN, EndpointState.STALLED, EndpointState.UNREADY)


class EndpointLog:
    """Remembers the states and writes about changes."""

    def __init__(self, snapshot: Callable[[], Snapshot | None], clock: Callable[[], float]) -> None:
        self._snapshot = snapshot
        self._clock = clock
        self._looked_s = float("-inf")
        self._known: dict[EndpointId, tuple[str, EndpointState]] = {}
        self._trust: dict[str, tuple[LearningPhase, int]] = {}
        self._rejecting: set[EndpointId] = set()
        self._reasons: dict[EndpointId, str] = {}
        """What last spoke against an endpoint."""

    def on_event(self, event: Event) -> None:
        """A poller has told the core something."""
        if isinstance(event, SampleMissed):
            self._reasons[event.endpoint] = (
                "no connection can be made" if event.unreachable else "its last reading failed"
            )
        elif isinstance(event, Sampled):
            self._reasons.pop(event.endpoint, None)
            if event.sample.unready:
                self._reasons[event.endpoint] = event.sample.unready
        self._look()

    def on_record(self, record: DecisionRecord) -> None:
        """A decision: of interest if a running attempt was given up."""
        if record.action == "abort" or record.decided_by == "attempt_failed":
            if record.endpoint is not None and record.detail:
                self._reasons[record.endpoint] = record.detail.rstrip(".")
            self._look()

    def on_settlement(self, settlement: Settlement) -> None:
        """A closed ticket: of interest if its answer broke off, or was an error of the engine's own."""
        if settlement.outcome is Outcome.ENGINE_REJECTED:
            self._look()
            return
        if settlement.outcome is Outcome.UPSTREAM_INTERRUPTED and settlement.endpoint is not None:
            self._reasons[settlement.endpoint] = "its answers break off"
            self._look()

    def _look(self) -> None:
        now = self._clock()
        if now < self._looked_s + LOOK_S:
            return
        snapshot = self._snapshot()
        if snapshot is None:
            return
        self._looked_s = now
        seen = {view.id: (pool.name, view.state) for pool in snapshot.pools for view in pool.endpoints}
        for of_pool in snapshot.pools:
            for of_endpoint in of_pool.endpoints:
                self._tell_rejections(of_endpoint, of_pool.name)
        for endpoint, (pool, state) in seen.items():
            _, was = self._known.get(endpoint, (pool, EndpointState.STARTING))
            if state is not was:
                self._tell(endpoint, pool, was, state)
        for endpoint, (pool, was) in self._known.items():
            if endpoint not in seen and was is not EndpointState.REMOVED:
                self._tell(endpoint, pool, was, EndpointState.REMOVED)
        self._known = seen
        for view in snapshot.pools:
            self._tell_trust(view)

    def _tell_trust(self, pool: PoolView) -> None:
        """How far a pool's predictions are trusted has changed, or the guard has tripped."""
        phase, trips = self._trust.get(pool.name, (LEARNING, 0))
        learned = pool.learned
        if learned.guard_trips > trips:
            _log.warning(
                "pool %s refused requests on predictions while an endpoint stood idle: it learns anew",
                pool.name,
                extra={"pool": pool.name, "guard_trips": learned.guard_trips},
            )
        elif learned.phase is not phase:
            _log.info(
                "pool %s is %s now, and was %s: %s",
                pool.name,
                learned.phase.value,
                phase.value,
                _TRUST[learned.phase],
                extra={"pool": pool.name, "phase": learned.phase.value, "was": phase.value},
            )
        self._trust[pool.name] = (learned.phase, learned.guard_trips)

    def _tell_rejections(self, view: EndpointView, pool: str) -> None:
        """An engine gives nothing but errors of its own: a wrong model or address more often than wrong requests."""
        if view.rejections_in_row < TOLD_REJECTIONS:
            self._rejecting.discard(view.id)
        elif view.id not in self._rejecting:
            self._rejecting.add(view.id)
            _log.warning(
                "endpoint %s has answered the last %d requests with errors of its own (4xx): others are used before it",
                view.id,
                view.rejections_in_row,
                extra={"endpoint": view.id, "pool": pool, "rejections": view.rejections_in_row},
            )

    def _tell(self, endpoint: EndpointId, pool: str, was: EndpointState, state: EndpointState) -> None:
        reason = self._reasons.pop(endpoint, "") if state is not EndpointState.STALLED else ""
        _log.log(
            logging.WARNING if state in _UNUSED else logging.INFO,
            "endpoint %s is %s: %s",
            endpoint,
            state.value,
            _why(was, state, reason),
            extra={"endpoint": endpoint, "pool": pool, "state": state.value, "was": was.value},
        )


def _why(was: EndpointState, state: EndpointState, reason: str) -> str:
    if state is EndpointState.UP:
        return "it works again" if was in _UNUSED else "it answers"
    if state is EndpointState.DOWN:
        return f"{reason or 'attempts failed'}; it gets no requests until it answers again"
    if state is EndpointState.STALLED:
        return "requests run there and nothing has come of any for too long; it gets no new ones"
    if state is EndpointState.UNREADY:
        return f"{reason or 'it says so'}; it gets no requests until it says otherwise"
    if state is EndpointState.DRAINED:
        return "an operator took it out of use; what runs there may finish"
    if state is EndpointState.STARTING:
        return "it is configured and has not answered yet"
    return "it is configured no more; what runs there may finish"
