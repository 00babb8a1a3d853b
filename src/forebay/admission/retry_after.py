"""When a refused client should come back.

The base is the predicted wait: by then the work that stood in its way has drained. It is spread upwards only,
by a golden-ratio sequence on a counter, so that clients refused in the same instant do not return in the same
instant, and none is told to come before there is a chance. No randomness: the core is deterministic.
"""

from __future__ import annotations

from typing import Final

SHORTEST_S: Final = 1.0
LONGEST_S: Final = 60.0
"""SDKs ignore longer waits and use their own short back-off instead."""
SPREAD: Final = 0.3
_GOLDEN: Final = 0.6180339887498949


class RetryAfter:
    """Hands out return times for one pool."""

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals = 0

    def promise_s(self, base_s: float) -> float:
        """Seconds to wait, `base_s` × 1.0 to 1.3, at least 1 and at most 60."""
        self._refusals += 1
        spread = 1.0 + SPREAD * (self._refusals * _GOLDEN % 1.0)
        # A base near the cap is drawn down, so that the cap does not gather everybody in its last second.
        return max(min(base_s, LONGEST_S / (1.0 + SPREAD)), SHORTEST_S) * spread
