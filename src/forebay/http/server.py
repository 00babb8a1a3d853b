"""A listening HTTP/1.1 server: accepts, keeps the clock, closes.

For: the gateway, the admin API and the emulator, each with a handler of its own. It owns the listening sockets
from `start` to `stop_accepting`, every accepted connection until it is gone, and one timer: a sweep over all
connections every `sweep_s`, which replaces a timer per connection and per request.
Never looks into a request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

from forebay.http.connection import ServerConnection
from forebay.http.exchange import BodyFailure, Exchange
from forebay.http.limits import ServerLimits
from forebay.http.serving import Handler, Serving
from forebay.http.tls_listener import TlsListener

__all__ = ["BodyFailure", "Exchange", "Handler", "HttpServer", "ServerLimits"]

_BACKLOG = 2048
"""Connections the kernel may hold for us while the loop is busy; the kernel cuts it to its own maximum."""


class HttpServer:
    """One listener and its connections, on the running event loop."""

    def __init__(self, handler: Handler, limits: ServerLimits | None = None) -> None:
        self._serving = Serving(handler, limits or ServerLimits())
        self._listener: asyncio.Server | TlsListener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._port = 0

    async def start(
        self,
        host: str,
        port: int,
        *,
        sock: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Binds and begins to accept.

        Args:
            port: 0 for any free one; `port` tells which.
            sock: A bound socket to use instead of `host` and `port`.
            tls: What to encrypt with; None for plain HTTP.

        Raises:
            OSError: the address is in use, or not ours.
        """
        loop = self._loop = asyncio.get_running_loop()
        serving = self._serving
        serving.call_soon = loop.call_soon
        serving.refresh(loop.time(), time.time())
        if tls is not None:
            encrypted = TlsListener(serving, tls, loop)
            self._port = await encrypted.start(host, port, sock, _BACKLOG)
            self._listener = encrypted
        else:
            if sock is None:
                plain = await loop.create_server(self._connect, host, port, backlog=_BACKLOG)
            else:
                plain = await loop.create_server(self._connect, sock=sock, backlog=_BACKLOG)
            self._port = int(plain.sockets[0].getsockname()[1])
            self._listener = plain
        self._timer = loop.call_later(serving.sweep_s, self._sweep)

    @property
    def port(self) -> int:
        """The port bound; 0 before `start`."""
        return self._port

    @property
    def connections(self) -> int:
        """Open connections, idle ones and TLS handshakes included."""
        return len(self._serving.connections)

    def stop_accepting(self) -> None:
        """Closes the listener. Requests in flight go on; from here on every answer closes its connection."""
        self._serving.closing = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def close(self, grace_s: float) -> None:
        """Stops accepting, closes idle connections, and cuts what is not done after `grace_s`."""
        self.stop_accepting()
        serving = self._serving
        for connection in tuple(serving.connections):
            connection.close_idle()
        if not await self._empty(grace_s):
            for connection in tuple(serving.connections):
                connection.drop()
            # Dropping is told to each connection by the loop, in its next rounds.
            await self._empty(1.0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _empty(self, timeout_s: float) -> bool:
        """Waits until no connection is left. False if some are after `timeout_s`."""
        serving = self._serving
        if not serving.connections:
            return True
        empty = asyncio.Event()
        serving.on_empty = empty.set
        try:
            await asyncio.wait_for(empty.wait(), timeout_s)
        except TimeoutError:
            return not serving.connections
        finally:
            serving.on_empty = None
        return True

    def _connect(self) -> ServerConnection:
        return ServerConnection(self._serving)

    def _sweep(self) -> None:
        loop = self._loop
        if loop is None:
            return
        serving = self._serving
        now = loop.time()
        self._timer = loop.call_later(serving.sweep_s, self._sweep)
        serving.refresh(now, time.time())
        # A copy: a connection that closes leaves the set.
        for connection in tuple(serving.connections):
            connection.on_sweep(now)
