"""When a call is sent again, how late, and when it is not. Pure: no I/O, no clock and no chance of its own.

`Call` is the state of one call, from its first attempt to the answer that its caller gets. The four rules:

- What can never pass is not sent again: the server's `x-should-retry` is obeyed, and else the status tells.
- A time that the server told (`retry-after-ms`, `retry-after`) is a slot in a line. It is kept: never earlier, and
  later by a tenth at most, so that clients who were told the same time do not come in the same instant. Where none
  was told, the wait is uniform between zero and an exponentially growing bound (full jitter).
- A call has one deadline over all its attempts: its time-out, or the `x-forebay-deadline-ms` that its caller put on it.
  Each attempt tells the server what is left, and one that would come too late is not made.
- Attempts have a budget: each call adds `ratio` of a retry to it, up to `reserve`, and a retry takes a whole one. So
  n calls make at most reserve + ratio × n retries, whatever the servers do, and overload is not multiplied.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

__all__ = ["Call", "RetryBudget", "RetryPolicy", "may_pass_later", "told_wait_s"]

TOLD_SPREAD: Final = 0.1
"""Part of a told wait by which it is lengthened at most. Small: the gateway has spread its promises itself."""

DEADLINE_SHARE: Final = 0.95
"""Part of the time left that the server is told: the rest is for the way there and back."""

_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
"""Statuses that may be another the next time."""

_TOLERANCE: Final = 1e-9
"""Ten tenths are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how late. Times are in seconds."""

    max_retries: int = 3
    """Attempts after the first one, at most."""
    first_backoff_s: float = 0.5
    """Longest wait before the first retry where the server told no time; doubles with each."""
    longest_backoff_s: float = 8.0
    """What that doubling ends at."""
    longest_told_s: float = 120.0
    """Who is told to wait longer than this gives up at once."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError(f"max_retries must be at least 0, not {self.max_retries}")
        for name in ("first_backoff_s", "longest_backoff_s", "longest_told_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number of seconds, not {value}")


class RetryBudget:
    """Retries that may still be made, shared by all calls of a client; or of several, if they are given the same one.

    Args:
        ratio: retries that each call adds, 0.1 for one in ten.
        reserve: what it starts with and never exceeds, so that a client with few calls can retry at all.
    """

    __slots__ = ("_lock", "_ratio", "_reserve", "_retries")

    def __init__(self, ratio: float = 0.1, reserve: float = 10.0) -> None:
        for name, value in (("ratio", ratio), ("reserve", reserve)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number from 0 on, not {value}")
        self._ratio = ratio
        self._reserve = reserve
        self._retries = reserve
        self._lock = threading.Lock()  # a synchronous client is shared by threads

    @property
    def retries_left(self) -> float:
        """Retries that it would allow now."""
        return self._retries

    def add_call(self) -> None:
        """A call begins."""
        with self._lock:
            self._retries = min(self._retries + self._ratio, self._reserve)

    def take_retry(self) -> bool:
        """Takes a retry, if there is one."""
        with self._lock:
            if self._retries < 1.0 - _TOLERANCE:
                return False
            self._retries = max(self._retries - 1.0, 0.0)
            return True


class Call:
    """One call, which may take several attempts.

    Args:
        now: seconds of a clock that never goes back, the same that is passed to the methods.
        headers: of its request; the names of mappings are looked up in lower case.
        timeout_s: the caller's own; None for one who would wait for ever.
        can_repeat: its body can be sent again.
    """

    __slots__ = (
        "_budget",
        "_can_repeat",
        "_deadline_at",
        "_is_sdk_retry",
        "_policy",
        "_tells_deadline",
        "_timeout_at",
        "retries",
    )

    def __init__(
        self,
        policy: RetryPolicy,
        budget: RetryBudget,
        now: float,
        *,
        headers: Mapping[str, str],
        timeout_s: float | None = None,
        can_repeat: bool = True,
    ) -> None:
        self._policy = policy
        self._budget = budget
        self._can_repeat = can_repeat
        self.retries = 0
        self._timeout_at = math.inf if timeout_s is None else now + timeout_s
        deadline = headers.get("x-forebay-deadline-ms")
        deadline_ms = _number(deadline)
        self._deadline_at = math.inf if deadline_ms is None else now + deadline_ms / 1000
        self._tells_deadline = (
            deadline is None or deadline_ms is not None
        )  # nonsense is the gateway's to refuse
        self._is_sdk_retry = (_number(headers.get("x-stainless-retry-count")) or 0.0) > 0
        if self._is_sdk_retry:
            budget.take_retry()  # after an attempt that got no answer: it counts, and is not multiplied
        else:
            budget.add_call()

    def timeout_left_s(self, now: float) -> float | None:
        """What is left of the caller's time-out."""
        return None if self._timeout_at == math.inf else max(self._timeout_at - now, 0.001)

    def headers(self, now: float) -> dict[str, str]:
        """What the next attempt says of itself."""
        said = {}
        left_s = self.timeout_left_s(now)
        first_token_s = self._deadline_at - now
        if left_s is not None:
            said["x-stainless-read-timeout"] = f"{left_s:.3f}"
            first_token_s = min(first_token_s, left_s * DEADLINE_SHARE)
        if self._tells_deadline and first_token_s < math.inf:
            said["x-forebay-deadline-ms"] = str(max(round(first_token_s * 1000), 1))
        if self.retries:
            said["x-stainless-retry-count"] = str(self.retries)
        return said

    def answered(
        self, status: int, headers: Mapping[str, str], *, now: float, wall: float, chance: float
    ) -> float | None:
        """Seconds until the next attempt after this answer, or None if the caller is to have it.

        Args:
            wall: seconds since 1970, for times that are told as dates.
            chance: from 0 to 1, drawn anew each time.
        """
        if not may_pass_later(status, headers):
            return None
        return self._next_in_s(told_wait_s(headers, wall), now, chance)

    def failed(self, *, now: float, chance: float) -> float | None:
        """The same after an attempt that got no answer and may have one if repeated."""
        return self._next_in_s(None, now, chance)

    def is_last_word(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether an answer that is handed on was worth a retry, which was decided against for the layers above too."""
        return self._can_repeat and may_pass_later(status, headers)

    def _next_in_s(self, told_s: float | None, now: float, chance: float) -> float | None:
        policy = self._policy
        if not self._can_repeat or self._is_sdk_retry or self.retries >= policy.max_retries:
            return None
        if told_s is None:
            doubled_s = policy.first_backoff_s * 2.0 ** min(self.retries, 64)
            wait_s = chance * min(doubled_s, policy.longest_backoff_s)
        elif told_s > policy.longest_told_s:
            return None
        else:
            wait_s = told_s * (1.0 + TOLD_SPREAD * chance)
        if now + wait_s >= min(self._deadline_at, self._timeout_at) or not self._budget.take_retry():
            return None
        self.retries += 1
        return wait_s


def may_pass_later(status: int, headers: Mapping[str, str]) -> bool:
    """Whether the same request may be answered otherwise later: as the server says, or by the status."""
    said = headers.get("x-should-retry", "").strip().lower()
    if said in ("true", "false"):
        return said == "true" and status >= 400
    return status in _PASSING


def told_wait_s(headers: Mapping[str, str], wall: float) -> float | None:
    """Seconds to wait as the server told, in any of the forms in use; None if it told nothing that can be meant."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        number = _number(headers.get(name))
        if number is not None and number > 0:
            return number * unit_s
    try:
        told_s = parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - wall
    except (ValueError, OverflowError):
        return None
    return told_s if told_s > 0 else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if number >= 0 else None  # not a number is not
