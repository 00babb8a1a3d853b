"""Predicted wait: how long an arriving request will queue before it starts.

Two predictors, chosen by `wait_predictor`:

- `backlog` (default): work queued ahead of it in our order, plus the mean work of one running request (the
  time until something is freed), divided by the drain rate. While the endpoints are full they drain work at
  that rate, so a queue of B endpoint-seconds in front is gone after B ÷ rate seconds.
- `plain`: all work in flight and ahead, divided by the drain rate. It takes an engine for a pipe that must run
  empty first, and so predicts too long a wait for a continuous batch, where a place is freed at every ending.

Both ignore what may still arrive in classes above; that is the error that `WaitErrors` measures and exports.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from forebay.admission.ledger import PoolBooks

COUNTED_FROM_S: Final = 0.1
"""Waits shorter than this are not judged: a relative error of nothing says nothing."""
REMEMBERED: Final = 64


def predict_wait_s(predictor: str, books: PoolBooks, ahead_us: int, drain_us_per_s: float) -> float:
    """Seconds until a request with `ahead_us` queued before it would start. Infinite if nothing drains."""
    if drain_us_per_s <= 0:
        return float("inf")
    running = books.in_flight
    if predictor == "plain":
        return (running.work_us + ahead_us) / drain_us_per_s
    first_release = running.work_us / running.requests if running.requests else 0
    return (ahead_us + first_release) / drain_us_per_s


class WaitErrors:
    """How far predictions were off, over the last waits that mattered."""

    __slots__ = ("_relative", "count")

    def __init__(self) -> None:
        self._relative: deque[float] = deque(maxlen=REMEMBERED)
        self.count = 0

    def observe(self, predicted_s: float, actual_s: float) -> None:
        """One request that had to wait was dispatched."""
        if actual_s < COUNTED_FROM_S:
            return
        self._relative.append(abs(predicted_s - actual_s) / actual_s)
        self.count += 1

    @property
    def median(self) -> float | None:
        """Median relative error; None while fewer than 16 waits were seen."""
        if len(self._relative) < 16:
            return None
        return sorted(self._relative)[len(self._relative) // 2]
