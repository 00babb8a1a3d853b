"""Answers requests with an ASGI application, behind our own HTTP server.

For: the admin port. The bounds of the data plane (heads, slow clients, unread answers, idle connections) then hold
there too, and whoever reaches that port cannot fill the memory or block the readiness of the process. Owns one task per
request, from the time its body is there until the application is done. Never looks into a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from forebay.http.exchange import BodyFailure, Exchange
from forebay.http.message import Headers

__all__ = ["Application", "AsgiHandler"]

_log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

BODY_BYTES: Final = 64 * 1024
"""Largest request body; nothing that is asked of the admin API needs more."""
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_SAID_BY_THE_SERVER: Final = frozenset((b"connection", b"content-length", b"date", b"transfer-encoding"))
_STATUS: Final = {BodyFailure.TOO_LARGE: 413, BodyFailure.TIMEOUT: 408}


class AsgiHandler:
    """Handler of a server (`http.server.Handler`)."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()

    def on_request(self, exchange: Exchange) -> None:
        answering = _Answering(self._app, exchange)
        exchange.on_disconnect = answering.client_left

        def arrived(body: bytes) -> None:
            task = asyncio.ensure_future(answering.run(body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def failed(failure: BodyFailure) -> None:
            exchange.respond(_STATUS.get(failure, 400), [_TEXT], b"the request body cannot be read\n")

        exchange.read_body(BODY_BYTES, arrived, failed)

    def protocol_error(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        return [_TEXT], f"{code}: {message}\n".encode()


class _Answering:
    """One run of the application."""

    def __init__(self, app: Application, exchange: Exchange) -> None:
        self._app = app
        self._exchange = exchange
        self._body: bytes | None = None
        self._head: tuple[int, Headers] | None = None
        self._left = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def client_left(self) -> None:
        """Ends what waits for the client."""
        self._left.set()
        self._writable.set()

    async def run(self, body: bytes) -> None:
        """The application, to its end; a client is never left without one."""
        self._body = body
        exchange = self._exchange
        exchange.on_drain_change = self._drain_changed
        try:
            await self._app(self._scope(), self._receive, self._send)
        except Exception:  # noqa: BLE001 - the application's bug must not leave its client without an answer
            _log.exception("answering a request of the admin port failed")
        if exchange.started:
            exchange.abort()
        else:
            exchange.respond(500, [_TEXT], b"the answer could not be made; see the log\n")

    def _scope(self) -> Message:
        head = self._exchange.head
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": f"1.{head.http_minor}",
            "method": head.method.decode("ascii"),
            "scheme": "http",
            "path": unquote(head.path),
            "raw_path": head.path.encode("ascii"),
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self._exchange.peer,
            "server": None,
        }

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        exchange = self._exchange
        if message["type"] == "http.response.start":
            fields = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            self._head = message["status"], [pair for pair in fields if pair[0] not in _SAID_BY_THE_SERVER]
            return
        if message["type"] != "http.response.body" or self._head is None:
            raise RuntimeError(f"{message['type']} cannot be sent here")
        data, more = message.get("body", b""), message.get("more_body", False)
        if not exchange.started:
            if not more:
                exchange.respond(*self._head, data)
                return
            exchange.start(*self._head, content_length=None)
        exchange.write(data)
        if not more:
            exchange.finish()
        await self._writable.wait()

    def _drain_changed(self, paused: bool) -> None:
        if paused:
            self._writable.clear()
        else:
            self._writable.set()
