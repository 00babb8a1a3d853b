"""Requests that are passed to an engine as they are, outside admission.

A short list of `GET`s, the counting of tokens, and what an operator lists under `passthrough`. They cost an engine
nothing worth counting, so they neither wait in a queue nor touch the books, and how many run at once is bounded.
Endpoints are tried in order until one answers; of what may change something, only one that was reached is tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay.admission.outcomes import Outcome
from forebay.gateway.asks import BadRequest
from forebay.gateway.body_answers import answer_to
from forebay.gateway.desk import Desk
from forebay.gateway.headers import Claims, answer_headers, engine_target, without_limits
from forebay.gateway.identity import Denied
from forebay.gateway.ports import EndpointView
from forebay.gateway.refusals import Answer, early_refusal, plain_error
from forebay.gateway.routing import Unroutable
from forebay.http.client import Call, CallFailure
from forebay.http.exchange import BodyFailure, Exchange
from forebay.http.message import ResponseHead

__all__ = ["MOST_AT_ONCE", "Passage", "Passed"]

MOST_AT_ONCE: Final = 256
TRIES: Final = 3
_NOT_REACHED: Final = (CallFailure.CONNECT, CallFailure.CONNECT_TIMEOUT)


@dataclass(frozen=True, slots=True)
class Passed:
    """What is passed, and where to."""

    choose: Callable[[bytes], list[EndpointView]]
    """The endpoints to try, by the body. Raises: BadRequest, Unroutable, Denied."""
    answer_error: Callable[[Exchange, Answer], None]
    claims: Claims | None = None
    """Whose headers go on; None: none do."""
    silence_s: float = 60.0
    """Longest time without a byte of the answer."""
    repeatable: bool = True
    """It changes nothing, so that another endpoint may be asked after one that failed."""


class Passage:
    """One such request; the sink of its calls."""

    def __init__(self, desk: Desk, exchange: Exchange, passed: Passed) -> None:
        self._desk = desk
        self._exchange = exchange
        self._passed = passed
        self._left: list[EndpointView] = []
        self._body = b""
        self._reserved_bytes = 0
        self._call: Call | None = None
        self._relaying = False
        self._our_account = False
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Reads the body, if there may be one, and asks the first endpoint."""
        desk, exchange = self._desk, self._exchange
        if desk.passing >= MOST_AT_ONCE:
            message = f"{MOST_AT_ONCE} such requests are under way, the most at once. Try again in 1 to 2 s."
            self._over = True
            self._passed.answer_error(
                exchange,
                early_refusal(
                    desk.settings.overload_status,
                    Outcome.QUEUE_FULL,
                    message,
                    retry_after_s=desk.bodies.promise_s(),
                    bound="passed_requests",
                ),
            )
            return
        desk.passing += 1
        exchange.on_disconnect = self._give_up
        exchange.on_drain_change = self._drain_changed
        limit_bytes = min(desk.settings.max_body_bytes, desk.settings.max_waiting_bytes)
        exchange.read_body(limit_bytes, self._arrived, self._body_failed, self._reserve)

    # The request

    def _reserve(self, piece_bytes: int) -> bool:
        if not self._desk.bodies.reserve(piece_bytes, self._reserved_bytes + piece_bytes):
            return False
        self._reserved_bytes += piece_bytes
        return True

    def _body_failed(self, failure: BodyFailure) -> None:
        self._fail(answer_to(failure, self._desk.settings, self._desk.bodies))

    def _arrived(self, body: bytes) -> None:
        self._body = body
        try:
            endpoints = self._passed.choose(body)
        except BadRequest as error:
            self._fail(plain_error(400, "invalid_request", error.message, error.param))
            return
        except (Unroutable, Denied) as refused:
            self._fail(refused.answer)
            return
        if endpoints:
            self._desk.turn += 1
            start = self._desk.turn % len(endpoints)
            self._left = (endpoints[start:] + endpoints[:start])[:TRIES]
        self._timer = asyncio.get_running_loop().call_later(self._passed.silence_s, self._too_late)
        self._next()

    def _next(self) -> None:
        if self._over:
            return
        head = self._exchange.head
        claims = self._passed.claims
        while self._left:
            target = self._desk.upstreams.get(self._left.pop(0).id)
            if target is not None:
                forward = b"" if claims is None else claims.forward
                if claims is not None and claims.credentials and target.view.takes_credentials:
                    forward += claims.credentials
                self._our_account = bool(target.view.own_key)
                method = b"GET" if head.method == b"HEAD" else head.method
                path = engine_target(head, with_keys=target.view.takes_credentials)
                sent = target.head(method, path, forward, len(self._body))
                self._call = target.upstream.send(sent, self._body, self)
                return
        self._fail(plain_error(502, "upstream_failed", "No engine answered."))

    # The answer

    def on_head(self, head: ResponseHead) -> None:
        if self._over:
            return
        self._relaying = True
        self._let_go()
        kind = next((value for name, value in head.headers if name == b"content-type"), b"")
        told = without_limits(head.headers) if self._our_account else head.headers
        headers = answer_headers(told, [], sse=kind[:17].lower() == b"text/event-stream")
        self._exchange.start(head.status, headers, content_length=head.content_length)
        self._arm()

    def on_data(self, data: bytes) -> None:
        if not self._over:
            self._exchange.write(data)
            self._arm()

    def on_end(self) -> None:
        if not self._over:
            self._call = None
            self._close()
            self._exchange.finish()

    def on_failure(self, kind: CallFailure, detail: str) -> None:
        self._call = None
        if self._over:
            return
        if self._relaying:
            self._close()
            self._exchange.abort()
        elif self._passed.repeatable or kind in _NOT_REACHED:
            self._next()
        else:
            self._fail(plain_error(502, "upstream_failed", "The engine gave no answer."))

    # Ends and small parts

    def _arm(self) -> None:
        """Each byte gives it more time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._passed.silence_s, self._too_late)

    def _drain_changed(self, paused: bool) -> None:
        if self._call is not None:
            if paused:
                self._call.pause()
            else:
                self._call.resume()
        if self._timer is not None:
            self._arm()

    def _too_late(self) -> None:
        self._timer = None
        if self._relaying:
            self._give_up()
            self._exchange.abort()
        else:
            message = f"No engine answered within {self._passed.silence_s:g} s."
            self._fail(plain_error(504, "upstream_failed", message))

    def _fail(self, answer: Answer) -> None:
        if not self._over:
            self._give_up()
            self._passed.answer_error(self._exchange, answer)

    def _give_up(self) -> None:
        call = self._call
        self._close()
        if call is not None:
            call.abort()

    def _let_go(self) -> None:
        """The body is not needed any more."""
        self._body = b""
        if self._reserved_bytes:
            self._desk.bodies.remove(self._reserved_bytes)
            self._reserved_bytes = 0

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._desk.passing -= 1
        self._call = None
        self._let_go()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
