"""One log line per request that was refused, failed or was left by its client; of those that went well only at `debug`.

Bounded: at most a few dozen lines per second, the rest is counted and told in the next line, because a flood of
refusals is when the process has the least time to write. Text that came from a client is shortened and stripped of
what could forge a line or steer a terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Final

from forebay.admission.model import DecisionRecord, Mode, Settlement, TicketId
from forebay.admission.outcomes import Group, Outcome

__all__ = ["RequestLog"]

_log = logging.getLogger("forebay.requests")

_LOGGED: Final = (Group.FAILED, Group.LEFT)
LINES_PER_S: Final = 20.0
BURST: Final = 100.0
_TEXT_LENGTH: Final = 128


class RequestLog:
    """Writes about decisions that end a request and about failed settlements."""

    def __init__(
        self, clock: Callable[[], float], ids_of: Callable[[TicketId], Mapping[str, str]] = lambda _: {}
    ) -> None:
        """See the class.

        Args:
            clock: the driver's; only for the rate of lines.
            ids_of: what a client knows its request by; asked only for requests that are written about.
        """
        self._clock = clock
        self._ids_of = ids_of
        self._last_ended: TicketId | None = None
        """The last request that a decision ended; its settlement comes next and is no news."""
        self._allowance = BURST
        self._at_s = clock()
        self._suppressed = 0
        self._tells_all = _log.isEnabledFor(logging.DEBUG)

    def on_record(self, record: DecisionRecord) -> None:
        """A decision: a line if it turned the request away. Of one that failed the settlement tells more."""
        if record.outcome is None or record.outcome.group is Group.FAILED:
            return
        would = record.mode is Mode.SHADOW
        if not would:
            self._last_ended = record.ticket
        if not self._may_write():
            return
        _log.info(
            "request would be refused (shadow)" if would else "request refused",
            extra={
                **self._ids_of(record.ticket),
                "ticket": record.ticket,
                "code": record.outcome.value,
                "decided_by": record.decided_by,
                "pool": record.pool,
                "class": record.class_name,
                "tenant": _plain(record.tenant),
                "model": _plain(record.model),
                "waited_s": round(record.waited_s, 3),
                "predicted_wait_s": round(record.predicted_wait_s, 3),
                "wait_budget_s": round(record.wait_budget_s, 3) if isfinite(record.wait_budget_s) else None,
                "cost_gpu_s": round(record.cost_gpu_s, 3),
                **self._told_suppressed(),
            },
        )

    def on_settlement(self, settlement: Settlement) -> None:
        """A closed ticket: a line if it failed or was left."""
        outcome = settlement.outcome
        if outcome is Outcome.COMPLETED or outcome is Outcome.ENGINE_REJECTED:
            if self._tells_all:
                words = "completed" if outcome is Outcome.COMPLETED else "rejected by the engine"
                self._tell_end(settlement, logging.DEBUG, f"request {words}")
            return
        cut = outcome is Outcome.DRAINING and settlement.ticket != self._last_ended
        if not (cut or outcome.group in _LOGGED):
            return
        message = "request failed"
        if cut:
            message = "request cut at shutdown"
        elif outcome.group is Group.LEFT:
            message = "client left"
        self._tell_end(
            settlement, logging.INFO if outcome is Outcome.CLIENT_GONE else logging.WARNING, message
        )

    def _tell_end(self, settlement: Settlement, level: int, message: str) -> None:
        if not self._may_write():
            return
        ttft_s = settlement.ttft_s
        _log.log(
            level,
            message,
            extra={
                **self._ids_of(settlement.ticket),
                "ticket": settlement.ticket,
                "code": settlement.outcome.value,
                "pool": settlement.pool,
                "class": settlement.class_name,
                "tenant": _plain(settlement.tenant),
                "model": _plain(settlement.model),
                "endpoint": settlement.endpoint,
                "attempts": settlement.attempts,
                "waited_s": round(settlement.waited_s, 3),
                "ttft_s": None if ttft_s is None else round(ttft_s, 3),
                "duration_s": round(settlement.duration_s, 3),
                "prompt_tokens": settlement.prompt_tokens,
                "output_tokens": settlement.output_tokens,
                **self._told_suppressed(),
            },
        )

    def _may_write(self) -> bool:
        now = self._clock()
        self._allowance = min(BURST, self._allowance + (now - self._at_s) * LINES_PER_S)
        self._at_s = now
        if self._allowance < 1.0:
            self._suppressed += 1
            return False
        self._allowance -= 1.0
        return True

    def _told_suppressed(self) -> dict[str, int]:
        suppressed, self._suppressed = self._suppressed, 0
        return {"lines_suppressed": suppressed} if suppressed else {}


def _plain(text: str) -> str:
    shortened = text[:_TEXT_LENGTH]
    return shortened if shortened.isprintable() else "".join(c if c.isprintable() else "?" for c in shortened)
