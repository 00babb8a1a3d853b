"""A short list of `GET`s that are passed to an engine as they are, outside admission.

They cost an engine nothing worth counting, so they neither wait in a queue nor touch the books. Endpoints are tried
in order until one answers; the answer is small and given whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from forebay.gateway.headers import answer_headers
from forebay.gateway.ports import EndpointView
from forebay.gateway.refusals import Answer, plain_error
from forebay.gateway.upstreams import Upstreams
from forebay.http.client import Call, CallFailure
from forebay.http.exchange import Exchange
from forebay.http.message import ResponseHead

__all__ = ["PassedGet"]

LARGEST_BYTES: Final = 1024 * 1024
TIMEOUT_S: Final = 5.0
"""For all tries together."""
TRIES: Final = 3


class PassedGet:
    """One such request; the sink of its calls."""

    def __init__(
        self,
        exchange: Exchange,
        endpoints: list[EndpointView],
        upstreams: Upstreams,
        answer_error: Callable[[Exchange, Answer], None],
    ) -> None:
        self._exchange = exchange
        self._answer_error = answer_error
        self._left = endpoints[:TRIES]
        self._upstreams = upstreams
        self._call: Call | None = None
        self._head: ResponseHead | None = None
        self._pieces: list[bytes] = []
        self._kept_bytes = 0
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Asks the first endpoint."""
        self._exchange.on_disconnect = self._give_up
        self._timer = asyncio.get_running_loop().call_later(TIMEOUT_S, self._too_late)
        self._next()

    def on_head(self, head: ResponseHead) -> None:
        self._head = head

    def on_data(self, data: bytes) -> None:
        self._kept_bytes += len(data)
        if self._kept_bytes > LARGEST_BYTES:
            self._fail(502, "The engine's answer is larger than what is passed here.")
        else:
            self._pieces.append(data)

    def on_end(self) -> None:
        head = self._head
        if head is None or self._over:
            return
        exchange = self._exchange
        self._close()
        exchange.respond(head.status, answer_headers(head.headers, [], sse=False), b"".join(self._pieces))

    def on_failure(self, kind: CallFailure, detail: str) -> None:
        self._call = self._head = None
        self._pieces.clear()
        self._kept_bytes = 0
        self._next()

    def _next(self) -> None:
        if self._over:
            return
        while self._left:
            target = self._upstreams.get(self._left.pop(0).id)
            if target is not None:
                self._call = target.upstream.send(target.get_head(self._target(), b""), b"", self)
                return
        self._fail(502, "No engine answered.")

    def _target(self) -> bytes:
        head = self._exchange.head
        path = head.path.encode("ascii")
        return path + b"?" + head.query if head.query else path

    def _too_late(self) -> None:
        self._timer = None
        self._fail(504, f"No engine answered within {TIMEOUT_S:g} s.")

    def _fail(self, status: int, message: str) -> None:
        if not self._over:
            answer = plain_error(status, "upstream_failed", message)
            self._give_up()
            self._answer_error(self._exchange, answer)

    def _give_up(self) -> None:
        call = self._call
        self._close()
        if call is not None:
            call.abort()

    def _close(self) -> None:
        self._over = True
        self._call = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
