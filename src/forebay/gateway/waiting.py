"""Signs of life for the client of a streamed request that waits (`waiting_comments`).

After a while without a byte some clients and proxies give up on a connection. So the answer is begun before it is known
what it will be: a head that promises events, and an SSE comment, which clients skip, every so often. From then on the
status is 200 whatever comes: a refusal is told as an event with the code that it would have had, and the core lets
nobody push the request out any more.

Owns the timer of one waiting request. It never reads a clock: it counts from the moment at which the wait began.
"""

from __future__ import annotations

import asyncio
from typing import Final

from forebay.admission.events import WaitTold
from forebay.admission.model import DecisionRecord, TicketId
from forebay.gateway.headers import answer_headers
from forebay.gateway.ports import Core
from forebay.gateway.refusals import decision_header, predicted_wait
from forebay.http.exchange import Exchange
from forebay.http.message import Headers

__all__ = ["WaitingComments"]

COMMENT: Final = b": waiting\n\n"
_EVENTS: Final[Headers] = [(b"content-type", b"text/event-stream; charset=utf-8")]


class WaitingComments:
    """The comments of one wait."""

    __slots__ = ("_core", "_every_s", "_exchange", "_headers", "_ticket", "_timer")

    def __init__(self, exchange: Exchange, core: Core, ticket: TicketId, every_s: float) -> None:
        self._exchange = exchange
        self._core = core
        self._ticket = ticket
        self._every_s = every_s
        self._headers: Headers = []
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, identity: Headers, hold: DecisionRecord | None, *, explain: bool) -> None:
        """The wait begins.

        Args:
            identity: headers that say which request this is.
            hold: why it waits.
            explain: its client has asked why.
        """
        own = list(identity)
        if hold is not None:
            own += predicted_wait(hold.predicted_wait_s)
            own.append((b"x-queue-position", b"%d" % hold.position))
            if explain:
                own.append((b"x-forebay-decision", decision_header(hold)))
        self._headers = answer_headers(_EVENTS, own, sse=True)
        self._again()

    def stop(self) -> None:
        """The wait is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._send)

    def _send(self) -> None:
        exchange = self._exchange
        if exchange.over:
            return
        if not exchange.started:
            exchange.begin_events(self._headers)
            self._core.feed(WaitTold(self._ticket))
        exchange.write(COMMENT)
        self._again()
