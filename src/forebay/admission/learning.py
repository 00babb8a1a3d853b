"""Cold start of one pool: when its predictions may refuse, how sure they must be, and when they lose that right.

    LEARNING ──enough steps, answers and a small error──► CAUTIOUS ──coverage in order──► CONFIDENT
        ▲                                                     │                              │
        └───────── error jumped, or the guard tripped ────────┴──────────────────────────────┘

- **Learning** refuses nobody on a predicted wait. It ends when 200 engine steps were learned from, 30 requests have
  finished, and the median relative error of predicted waits is under 30 %. A pool in which nobody has to wait has
  no such error, so it goes on learning, which costs nothing: there is nobody to refuse.
- A configured profile counts as learned speed: it stands for the 200 steps and for nothing else. It says nothing of
  how long answers are nor of whether it is the profile of this engine, and both show in the error of the waits.
- **Cautious** refuses only where even the lower 10 % quantile of the predicted wait is over budget. **Confident**
  uses the class's own confidence. It stays so when coverage moves later: the levels are corrected all the time
  (`wait.WaitModel`), and what that cannot follow shows in the error.
- A median error above 60 % returns the pool to learning.
- **The guard**: an endpoint that was up stood idle for 5 s, and in that time a request was refused on its
  predicted wait. The prediction was wrong whatever its error says, since the error knows only of those who were let
  in. The pool returns to learning, and the trip is counted.

After a return everything is learned anew: steps, finished requests, and waits (the caller forgets the errors).
The guard asks for the endpoint that has been idle longest. Any refusal during the idle time of another one falls into
its idle time too, so no other endpoint needs to be remembered.

It holds no books, reads no clock and decides about no request; `pools` tells it what happened, `gate` asks.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import Final

from forebay.admission.record import record
from forebay.admission.start_rate import StartRate

LEARNED_STEPS: Final = 200
LEARNED_REQUESTS: Final = 30
LEARNED_ERROR: Final = 0.3
"""Median relative error of the predicted wait below which predictions may refuse."""
UNLEARNED_ERROR: Final = 0.6
"""And above which they may not any more. The gap keeps a pool from going to and fro."""
CAUTIOUS_QUANTILE: Final = 0.1
GUARD_S: Final = 5.0


@unique
class LearningPhase(Enum):
    """How far a pool's predictions are trusted; the value is what surfaces show and state files hold."""

    LEARNING = "learning"
    CAUTIOUS = "cautious"
    CONFIDENT = "confident"


# As plain names: up to Python 3.11, looking a member up in its enum costs as much as a call.
LEARNING: Final = LearningPhase.LEARNING
CAUTIOUS: Final = LearningPhase.CAUTIOUS
CONFIDENT: Final = LearningPhase.CONFIDENT


@record
class LearningView:
    """What the snapshot shows of it."""

    phase: LearningPhase
    since_s: float
    """When the phase began."""
    steps: int
    """Engine steps learned from since the last return to learning."""
    finished: int
    """Requests finished since then."""
    lacking: tuple[str, ...]
    """What learning still waits for: `steps`, `finished`, `error`. Empty when it is over."""
    error_jumps: int
    """Returns to learning because predictions went wrong."""
    guard_trips: int
    """Returns because an endpoint stood idle while requests were refused. An alarm."""
    guard_tripped_s: float | None
    """When that last happened."""


class Learning:
    """The state of one pool. Calls that may end in a return to learning say True when they did."""

    __slots__ = (
        "_finished",
        "_idle_since_s",
        "_lacking",
        "_refused_s",
        "_steps",
        "error_jumps",
        "guard_tripped_s",
        "guard_trips",
        "phase",
        "phase_since_s",
        "speed_known",
        "starts",
    )

    def __init__(self, *, speed_known: bool, now: float = 0.0) -> None:
        self.speed_known = speed_known
        """True with a configured profile."""
        self.phase = LEARNING
        self.phase_since_s = now
        self.error_jumps = 0
        self.guard_trips = 0
        self.guard_tripped_s: float | None = None
        self._steps = 0
        self._finished = 0
        self._lacking = self._find_lacking(None)
        self._refused_s: float | None = None
        """When a request was last refused on its predicted wait; None if never since the last return."""
        self._idle_since_s: float | None = None
        self.starts = StartRate()
        """Of waiters, while it is learning: what is told of a wait meanwhile."""

    # What it allows

    @property
    def may_refuse(self) -> bool:
        """True if a predicted wait may refuse."""
        return self.phase is not LEARNING

    def quantile_for(self, confidence: float, trusted: bool = True) -> float:
        """The quantile of the predicted wait that is compared with the budget.

        Args:
            confidence: the class's own, 0 to 1.
            trusted: whether the coverage of this class has been in order (`WaitModel.trusted`). The phase is one for
                the pool: a class that has hardly ever waited stays on the careful quantile.
        """
        if self.phase is CONFIDENT and trusted:
            return confidence
        return confidence if confidence < CAUTIOUS_QUANTILE else CAUTIOUS_QUANTILE

    # What it is told

    def is_settled(self, median_error: float | None) -> bool:
        """True if `observed` would change nothing: all is learned, and nothing was unlearned."""
        return self.phase is CONFIDENT and (median_error is None or median_error <= UNLEARNED_ERROR)

    def observed(
        self, steps: int, finished: int, median_error: float | None, coverage_in_order: bool, now: float
    ) -> bool:
        """Something was learned. True if the pool went back to learning.

        After True: forget the wait errors (`WaitErrors.forget`) and doubt the wait models (`WaitModel.doubt`).

        Args:
            steps: engine steps that the pool's speed was learned from since this was told last.
            finished: requests that finished since then.
            median_error: `WaitErrors.median` of the pool; None while too few had to wait.
            coverage_in_order: `wait.coverage_in_order` of the pool's classes.
        """
        self._steps += steps
        self._finished += finished
        if self.phase is LEARNING:
            self._lacking = self._find_lacking(median_error)
            if self._lacking:
                return False
            self._enter(CAUTIOUS, now)
        elif median_error is not None and median_error > UNLEARNED_ERROR:
            self.error_jumps += 1
            self._return_to_learning(now)
            return True
        if coverage_in_order and self.phase is CAUTIOUS:
            self._enter(CONFIDENT, now)
        return False

    def set_speed_known(self, speed_known: bool, now: float) -> bool:
        """The profile was configured or taken away. True if the pool went back to learning."""
        had, self.speed_known = self.speed_known, speed_known
        if had and not speed_known and self._steps < LEARNED_STEPS and self.phase is not LEARNING:
            # What was known of the speed was the profile's, and that is gone.
            self._return_to_learning(now)
            return True
        return False

    def refused_on_prediction(self, now: float) -> bool:
        """A request was refused because of its predicted wait. True if that trips the guard."""
        if self.phase is LEARNING:
            return False
        self._refused_s = now
        return self.check_guard(now)

    def endpoint_idle_since(self, now: float, idle_since_s: float | None) -> bool:
        """Tell since when the longest idle of the endpoints that are up has been idle; None if none of them is.

        Call it when that has changed. True if the guard trips, for the idle time that ends now too.
        """
        tripped = self.check_guard(now)
        self._idle_since_s = idle_since_s
        return self.check_guard(now) or tripped

    # The guard

    def guard_due_s(self) -> float | None:
        """When `check_guard` is to be called if nothing else happens; None if it cannot trip by waiting."""
        idle, refused = self._idle_since_s, self._refused_s
        # A refusal in the very instant in which the endpoint became idle may have come first, with the endpoint full.
        if idle is None or refused is None or refused <= idle:
            return None
        return idle + GUARD_S

    def check_guard(self, now: float) -> bool:
        """Trip the guard if it is due. True if it tripped: do then what `observed` says."""
        due = self.guard_due_s()
        if due is None or now < due:
            return False
        self.guard_trips += 1
        self.guard_tripped_s = now
        self._return_to_learning(now)
        return True

    # Showing and keeping

    def view(self) -> LearningView:
        """For the snapshot."""
        return LearningView(
            self.phase,
            self.phase_since_s,
            self._steps,
            self._finished,
            self._lacking if self.phase is LEARNING else (),
            self.error_jumps,
            self.guard_trips,
            self.guard_tripped_s,
        )

    def export(self) -> dict[str, object]:
        """What a next start may take up, as plain data (JSON). Times are left out: they mean nothing to it."""
        return {
            "phase": self.phase.value,
            "steps": self._steps,
            "finished": self._finished,
            "error_jumps": self.error_jumps,
            "guard_trips": self.guard_trips,
        }

    def restore(self, data: object, now: float) -> bool:
        """Take up what `export` gave. False, and nothing changed, if it is not of that form."""
        if not isinstance(data, dict):
            return False
        phase = data.get("phase")
        counts = [data.get(name) for name in ("steps", "finished", "error_jumps", "guard_trips")]
        known = [count for count in counts if type(count) is int and count >= 0]
        if len(known) != len(counts):
            return False
        for member in LearningPhase:
            if member.value == phase:
                self._enter(member, now)
                self._steps, self._finished, self.error_jumps, self.guard_trips = known
                self._lacking = self._find_lacking(None)
                return True
        return False

    # Steps

    def _find_lacking(self, median_error: float | None) -> tuple[str, ...]:
        lacking: tuple[str, ...] = ()
        if self._steps < LEARNED_STEPS and not self.speed_known:
            lacking += ("steps",)
        if self._finished < LEARNED_REQUESTS:
            lacking += ("finished",)
        if median_error is None or median_error >= LEARNED_ERROR:
            lacking += ("error",)
        return lacking

    def _enter(self, phase: LearningPhase, now: float) -> None:
        if phase is not self.phase:
            self.phase = phase
            self.phase_since_s = now

    def _return_to_learning(self, now: float) -> None:
        self._enter(LEARNING, now)
        self._steps = 0
        self._finished = 0
        self._refused_s = None
        self._lacking = self._find_lacking(None)
