"""How fast one endpoint drains work, relative to the reference endpoint (1.0).

Work is credited as it is done: the prefill part at the first token, the decode part as tokens come, the
rest when the request ends. While the endpoint is saturated, credited work per second is its speed. An
endpoint with room to spare is not measured: it does less than it could.

Learned from windows of at least `WINDOW_S` seconds and `WINDOW_REQUESTS` endings, each pulling a decayed mean.
"""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 1.0
WINDOW_REQUESTS: Final = 4
SMOOTHING: Final = 0.3
"""Weight of a new window: a changed engine is followed within some ten seconds of saturation."""
TRUSTED_WINDOWS: Final = 3
SLOWEST: Final = 1e-4
FASTEST: Final = 1e3
"""Bounds on what one window may claim: a burst of settled work is not a speed."""


class DrainMeter:
    """Measures one endpoint's speed."""

    __slots__ = ("_ended", "_since_s", "_work_us", "speed", "windows")

    def __init__(self) -> None:
        self.speed = 1.0
        self.windows = 0
        self._since_s: float | None = None
        self._work_us = 0
        self._ended = 0

    @property
    def is_trusted(self) -> bool:
        """True when enough saturated windows were seen."""
        return self.windows >= TRUSTED_WINDOWS

    def credit(self, work_us: int, *, ended: bool = False) -> None:
        """Work was done; may be negative when an estimate is settled downwards."""
        self._work_us += work_us
        self._ended += ended

    def observe(self, now: float, *, saturated: bool) -> None:
        """Look at the clock: closes a window when it is long enough. Call it at every event of the endpoint."""
        if not saturated or self._since_s is None:
            self._since_s = now if saturated else None
            self._work_us = 0
            self._ended = 0
            return
        elapsed = now - self._since_s
        if elapsed < WINDOW_S or self._ended < WINDOW_REQUESTS:
            return
        measured = min(max(self._work_us / 1e6 / elapsed, SLOWEST), FASTEST)
        # The first windows of an engine 10 times off the prior must not be averaged with that prior.
        weight = max(SMOOTHING, 1.0 / (self.windows + 1))
        self.speed += weight * (measured - self.speed)
        self.windows += 1
        self._since_s = now
        self._work_us = 0
        self._ended = 0

    def suppose(self, speed: float) -> None:
        """Take this for its speed until it is measured."""
        if not self.windows:
            self.speed = min(max(speed, SLOWEST), FASTEST)

    def rescale(self, factor: float) -> None:
        """Work is counted in a unit that is 1 ÷ `factor` of the old one from now on.

        What was never measured was no speed but a guess, and is guessed anew: the law says what an engine does.
        """
        self.speed = min(max(self.speed * factor, SLOWEST), FASTEST) if self.windows else 1.0
        self._since_s = None
