"""Watching endpoints for silence, and giving back room that engines hold for requests that are gone.

One timer per endpoint with work in flight. When it fires: is the endpoint stalled (no byte on any stream for
too long)? has one request been silent for longer than it may? A stalled endpoint gets no new work; requests
without a first token are sent elsewhere if they can be; the others end when their own patience is over, which is
the same for all once the engine's own counters show that it stands still.
A stall ends with the next sign of life. If nothing of ours runs there any more, none can come, so the next
reading of its metrics lets one request at a time try it (`Endpoint.trial`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from forebay.admission.endpoints import Endpoint
from forebay.admission.events import Failure
from forebay.admission.ledger import DrainingBooking
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.model import Check, EndpointState, EngineSample
from forebay.admission.outcomes import Outcome
from forebay.admission.outliers import speak_against
from forebay.admission.pools import Pool
from forebay.admission.silence import STALLED_AFTER_S, silence_limit_s, silent_since_s, stands_still
from forebay.admission.tickets import Phase, Ticket
from forebay.admission.timers import Timers

MAY_STALL: Final = (EndpointState.STARTING, EndpointState.UP)
"""States in which silence changes something; the others give no new work already."""


@dataclass(slots=True, eq=False)
class Lingering:
    """What a timer is set for: an abandoned request that its engine may still be at."""

    endpoint: Endpoint
    pool: Pool
    draining: DrainingBooking


class PlaceAgain(Protocol):
    """How the controller sends a request elsewhere, or ends it."""

    def __call__(
        self, ticket: Ticket, now: float, detail: str, *, unreached: bool, engine_goes_on: bool
    ) -> None: ...


class Watch:
    """The silence of endpoints."""

    def __init__(
        self,
        life: Lifecycle,
        timers: Timers,
        after_leaving: Callable[[Endpoint, Pool, float], None],
        place_again: PlaceAgain,
    ) -> None:
        self._life = life
        self._timers = timers
        self._after_leaving = after_leaving
        self._place_again = place_again
        self.shortest_s = STALLED_AFTER_S
        """The shortest silence that can matter."""
        self.reconfigure()

    def arm(self, endpoint: Endpoint, pool: Pool, now: float) -> None:
        """Call after a dispatch to, or a leave from, the endpoint."""
        for draining in endpoint.draining:
            if not draining.armed:
                draining.armed = True
                self._timers.at(draining.until_s, self._linger_over, Lingering(endpoint, pool, draining))
        if not endpoint.running:
            return
        if endpoint.watch_due_s is None:
            self._set(endpoint, now)
            return
        # What began since may fall silent sooner than what the time was set for: look again soon, and reckon anew.
        soon = now + self.shortest_s
        if soon < endpoint.watch_due_s:
            endpoint.watch_due_s = soon
            self._timers.at(soon, self._look, endpoint)

    def reconfigure(self) -> None:
        """The settings have changed."""
        self.shortest_s = min(STALLED_AFTER_S, *(c.idle_stream_s for c in self._life.settings.classes))

    def _set(self, endpoint: Endpoint, now: float) -> None:
        due = min(
            self._silent_from_s(ticket, endpoint, now) + self._patience_s(ticket, endpoint, now)
            for ticket in endpoint.running.values()
        )
        silence = silence_limit_s(endpoint)
        if silence is not None and endpoint.state in MAY_STALL:
            due = min(due, silent_since_s(endpoint) + silence)
        endpoint.watch_due_s = max(due, now)
        self._timers.at(endpoint.watch_due_s, self._look, endpoint)

    def _patience_s(self, ticket: Ticket, endpoint: Endpoint, now: float) -> float:
        """How long it may be silent: long only before an unstreamed answer begins, unless its engine stands still."""
        if ticket.demand.stream or ticket.first_token_s is not None or stands_still(endpoint, now):
            return ticket.settings.idle_stream_s
        return self._life.settings.unstreamed_timeout_s

    def _silent_from_s(self, ticket: Ticket, endpoint: Endpoint, now: float) -> float:
        if ticket.demand.stream or not stands_still(endpoint, now):
            return ticket.last_byte_s
        return max(ticket.last_byte_s, silent_since_s(endpoint))

    def _look(self, endpoint: Endpoint, now: float) -> None:
        if endpoint.watch_due_s is None or now < endpoint.watch_due_s:
            return  # set before an earlier look, which has reckoned anew
        endpoint.watch_due_s = None
        if not endpoint.running:
            return
        pool = next(iter(endpoint.running.values())).pool
        silence = silence_limit_s(endpoint)
        if silence is not None and endpoint.state in MAY_STALL and now >= silent_since_s(endpoint) + silence:
            endpoint.state = EndpointState.STALLED
            endpoint.count("stalled")
            self._rescue(endpoint, now)
        for ticket in list(endpoint.running.values()):
            patience = self._patience_s(ticket, endpoint, now)
            since = self._silent_from_s(ticket, endpoint, now)
            # The same sum as in `_set`: a difference may be rounded to less than the patience, for ever.
            if ticket.phase is Phase.RUNNING and now >= since + patience:
                detail = f"The engine sent nothing for {patience:g} s."
                began = ticket.first_token_s is not None
                outcome = Outcome.UPSTREAM_FAILED
                if not began:
                    endpoint.count(Failure.TIMEOUT.value)
                    speak_against(endpoint, pool, now)
                    if self._goes_elsewhere(ticket, endpoint, now, detail):
                        continue
                else:  # with its engine gone or stalled, or alone while others there move
                    stalled = endpoint.state is not EndpointState.UP or stands_still(endpoint, now)
                    outcome = Outcome.UPSTREAM_INTERRUPTED if stalled else Outcome.NO_PROGRESS
                check = Check("silence", now - since, patience, False)
                self._life.give_up(ticket, outcome, now, check, detail, engine_goes_on=True)
        self._after_leaving(endpoint, pool, now)

    def _rescue(self, endpoint: Endpoint, now: float) -> None:
        """Send what has not begun on a stalled endpoint elsewhere, where there is an elsewhere.

        Of an answer that is not streamed that is not known, unless the engine's own counters stand still.
        """
        proven = stands_still(endpoint, now)
        for ticket in list(endpoint.running.values()):
            if ticket.first_token_s is None and (ticket.demand.stream or proven):
                self._goes_elsewhere(ticket, endpoint, now, "The engine stalled.")

    def _goes_elsewhere(self, ticket: Ticket, endpoint: Endpoint, now: float, detail: str) -> bool:
        """Send one that has not begun to another endpoint. False if there is none, or it was tried often enough."""
        others = any(
            e.is_up and e.id not in ticket.tried for e in ticket.pool.endpoints.values() if e is not endpoint
        )
        if not others or ticket.attempts >= self._life.settings.max_attempts:
            return False
        ticket.tried |= {endpoint.id}
        self._place_again(ticket, now, detail, unreached=False, engine_goes_on=True)
        return True

    def try_again(self, endpoint: Endpoint) -> None:
        """Let a stalled endpoint on which nothing of ours runs be tried by one request at a time."""
        if endpoint.state is EndpointState.STALLED and not endpoint.running:
            endpoint.state = EndpointState.UP
            endpoint.trial = True

    def settle_draining(self, endpoint: Endpoint, sample: EngineSample) -> None:
        """A sample shows that the engine runs no more than what is ours: what was abandoned before it is gone."""
        if not endpoint.draining or sample.running is None:
            return
        # What was dispatched after the reading began is not in it.
        ours = sum(t.demand.samples for t in endpoint.running.values() if t.dispatched_s <= sample.at_s)
        if sample.running + (sample.waiting or 0) > ours:
            return
        for draining in list(endpoint.draining):
            if draining.since_s < sample.at_s:
                self._life.release_draining(endpoint, draining)

    def _linger_over(self, lingering: Lingering, now: float) -> None:
        if not lingering.draining.released:
            self._life.release_draining(lingering.endpoint, lingering.draining)
            self._after_leaving(lingering.endpoint, lingering.pool, now)
