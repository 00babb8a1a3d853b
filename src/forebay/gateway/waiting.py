"""Signs of life for the client of a streamed request until its first event comes (`waiting_comments`).

After a while without a byte some clients and proxies give up on a connection, whether the request waits here or its
long prompt is with an engine. So the answer is begun before it is known what it will be: a head that promises events,
and an SSE comment, which clients skip, every so often. From then on the status is 200 whatever comes: a refusal is told
as an event with the code that it would have had, and the core lets nobody push the request out any more. Another engine
may still be tried: of an answer nothing has passed.

Owns the timer of one request. It never reads a clock: it counts from the moment at which the wait began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from forebay.admission.events import WaitTold
from forebay.admission.model import DecisionRecord, TicketId
from forebay.gateway.headers import answer_headers
from forebay.gateway.ports import Core
from forebay.gateway.refusals import decision_header, predicted_wait
from forebay.http.exchange import Exchange
from forebay.http.message import Headers

__all__ = ["WaitingComments", "hold_headers"]

COMMENT: Final = b": waiting\n\n"
_EVENTS: Final[Headers] = [(b"content-type", b"text/event-stream; charset=utf-8")]


class WaitingComments:
    """The comments of one request."""

    __slots__ = ("_core", "_every_s", "_exchange", "_headers", "_ticket", "_timer")

    def __init__(
        self,
        exchange: Exchange,
        core: Core,
        ticket: TicketId,
        headers: Callable[[], Headers],
        *,
        every_s: float,
    ) -> None:
        """Begins at once.

        Args:
            headers: our headers on an answer that begins now.
        """
        self._exchange = exchange
        self._core = core
        self._ticket = ticket
        self._headers = headers
        self._every_s = every_s
        self._again()

    def stop(self) -> None:
        """The answer begins, or none will."""
        self._timer.cancel()

    def _again(self) -> None:
        self._timer: asyncio.TimerHandle = asyncio.get_running_loop().call_later(self._every_s, self._send)

    def _send(self) -> None:
        exchange = self._exchange
        if exchange.over:
            return
        if not exchange.started:
            exchange.begin_events(answer_headers(_EVENTS, self._headers(), sse=True))
            self._core.feed(WaitTold(self._ticket))
        exchange.write(COMMENT)
        self._again()


def hold_headers(hold: DecisionRecord | None, *, explain: bool) -> Headers:
    """What a client is told of its wait. `explain`: it has asked why it waits."""
    if hold is None:
        return []
    headers = [*predicted_wait(hold.predicted_wait_s), (b"x-queue-position", b"%d" % hold.position)]
    if explain:
        headers.append((b"x-forebay-decision", decision_header(hold)))
    return headers
