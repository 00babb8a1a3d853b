"""Whether an endpoint is in rotation: the evidence for it and against it.

    STARTING ──come_up──► UP ──fail | doubts | eject──► DOWN ──come_up, after the back-off──► UP
                          UP ──stall──► STALLED ──show_life──► UP                     any ──► REMOVED
                         any ──hear, it is not ready──► UNREADY ──hear, it is──► STARTING

One that was ejected comes back slowly: one request until a byte moves, then room for twice as many with each first
token, up to `ENTERED`.

Owns the state and what it rests on. What counts as evidence is said by those who see it: `roster`, `watch`,
`lifecycle` and the endpoint itself.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EndpointState

DOUBTS: Final = 5
"""Failed attempts in a row, with no good answer between them, that take an endpoint out."""
BACK_OFF_FIRST_S: Final = 0.25
BACK_OFF_LONGEST_S: Final = 10.0
OUTLIER: Final = 5
"""Failures in a row of any kind, with no sign of life between them, that make it an outlier among others."""
EJECT_FIRST_S: Final = 0.5
ENTERED: Final = 64
"""One that came back and has room for so many is as good as any."""
ONLY_REJECTS: Final = 8
"""Errors of its own in a row after which an engine is taken for one that cannot serve at all."""

_STALLED: Final = EndpointState.STALLED
_OUT_FOR_GOOD: Final = (EndpointState.REMOVED, EndpointState.DRAINED)


class Rotation:
    """The state of one endpoint."""

    def __init__(self) -> None:
        self.state = EndpointState.STARTING
        self.last_life_s = 0.0
        self.failures = 0
        """Times in a row that it could not be reached."""
        self.doubts = 0
        """Attempts in a row that reached it and failed."""
        self.up_again_at_s = 0.0
        self.trial = False
        """After a stall: one request at a time until a byte moves."""
        self.failures_in_row = 0
        """Attempts in a row that failed in any way but for want of a connection."""
        self.ejections = 0
        """Times in a row that it was ejected and did not come back wholly."""
        self.entry_limit = 0
        """Requests that it may have while it comes back; 0: as many as there is room for."""
        self.faults: dict[str, int] = {}
        """What was held against it since the start, by kind: a handful of kinds."""
        self.rejections_in_row = 0
        """Answers in a row that were errors which the engine gave itself (4xx)."""

    @property
    def is_up(self) -> bool:
        """True if it may be given new work at all."""
        return self.state is EndpointState.UP

    @property
    def may_come_soon(self) -> bool:
        """True if it is not up and the next reading may well change that."""
        if self.state is EndpointState.DOWN:
            return self.doubts >= DOUBTS
        return self.state is EndpointState.STARTING

    def come_up(self, now: float) -> bool:
        """There is evidence that requests can be sent: a reading later than the last failure's back-off.

        Returns:
            True if that brought it up.
        """
        if self.state is EndpointState.STARTING or (
            self.state is EndpointState.DOWN and now >= self.up_again_at_s
        ):
            if self.ejections:
                self.trial, self.entry_limit = True, 1
            self.state = EndpointState.UP
            self.last_life_s = now
            return True
        return False

    def hear(self, unready: str) -> None:
        """A reading came: what the engine says of itself, empty if it takes work.

        That it would take work is no evidence that it can: it comes up as if it were new.
        """
        if not unready:
            if self.state is EndpointState.UNREADY:
                self.state = EndpointState.STARTING
        elif self.state not in _OUT_FOR_GOOD and self.state is not EndpointState.UNREADY:
            self.state = EndpointState.UNREADY
            self.count("unready")

    def count(self, kind: str) -> None:
        """A fault, for metrics."""
        self.faults[kind] = self.faults.get(kind, 0) + 1

    def drain(self, *, out: bool) -> None:
        """An operator takes it out of use, or puts it back: then it comes up with the next reading."""
        if out and self.state is not EndpointState.REMOVED:
            self.state = EndpointState.DRAINED
        elif not out and self.state is EndpointState.DRAINED:
            self.state = EndpointState.STARTING

    def show_life(self, now: float) -> None:
        """A byte or a counter moved: whatever was held against this endpoint is over."""
        self.last_life_s = now
        self.failures = self.doubts = self.failures_in_row = 0
        self.trial = False
        if self.state is _STALLED:
            self.state = EndpointState.UP

    def rejected(self, now: float) -> None:
        """The engine answered, and it was an error of its own.

        It is alive. One that gives nothing else answers faster than those that work, and would draw all requests:
        others go before it (`placement`) until it has given a good answer.
        """
        self.show_life(now)
        self.rejections_in_row += 1

    @property
    def only_rejects(self) -> bool:
        """True if its last answers were all such errors."""
        return self.rejections_in_row >= ONLY_REJECTS

    def fail(self, now: float) -> None:
        """The engine cannot be reached: out of rotation until a later sample says that it is there."""
        if self.state is not EndpointState.DOWN:
            # What was in flight when it went down fails by the same cause: one incident, one step of back-off.
            self.failures += 1
        if self.state is not EndpointState.REMOVED and self.state is not EndpointState.DRAINED:
            self.state = EndpointState.DOWN
        self.doubts = 0
        self.up_again_at_s = now + min(BACK_OFF_FIRST_S * 2 ** min(self.failures - 1, 10), BACK_OFF_LONGEST_S)

    @property
    def is_outlier(self) -> bool:
        """True if its last attempts all failed, in whatever way."""
        return self.failures_in_row >= OUTLIER and self.state is EndpointState.UP

    def eject(self, now: float) -> None:
        """Out of rotation, twice as long each time: for where others are there to do its work."""
        self.count("ejected")
        self.ejections += 1
        self.failures_in_row = self.doubts = 0
        self.state = EndpointState.DOWN
        self.up_again_at_s = now + min(EJECT_FIRST_S * 2 ** min(self.ejections - 1, 10), BACK_OFF_LONGEST_S)

    def enter(self) -> None:
        """A first token came while it was coming back: room for more."""
        self.entry_limit *= 2
        if self.entry_limit > ENTERED:
            self.entry_limit = self.ejections = 0

    def doubt(self, now: float) -> None:
        """An attempt reached the engine and failed. The request may be at fault, so it takes several in a row.

        And then the time out is short and does not grow: somebody whose requests break engines must not be able
        to keep an endpoint away from everybody else. Any good answer in between clears it.
        """
        self.doubts += 1
        if self.doubts >= DOUBTS and self.state is EndpointState.UP:
            self.state = EndpointState.DOWN
            self.up_again_at_s = now + BACK_OFF_FIRST_S
