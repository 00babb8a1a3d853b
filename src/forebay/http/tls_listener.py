"""Listens for clients that are to speak TLS, and owns their sockets until the handshake is done.

For: `server`. A handshake is counted and bounded like the connection that it is to become, which the event loop's own
listeners do not allow: they show a connection when it has its handshake behind it. At the bound the oldest handshake
gives way, as a half-sent request does, so who never ends it keeps nobody out. Never sees a byte of a request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable
from errno import EAFNOSUPPORT
from math import inf
from typing import Any, Final, cast

from forebay.http.connection import ServerConnection
from forebay.http.serving import Serving

__all__ = ["Handshake", "TlsListener"]

_log = logging.getLogger(__name__)

_HANDSHAKE_S: Final = 5.0
"""Time for a handshake."""
_CLOSE_S: Final = 2.0
"""Time for a client to confirm the end of a TLS connection."""
_AT_ONCE: Final = 16
"""Most sockets accepted before others on the event loop have their turn, and those that gave way are closed."""
_NO_FILES_S: Final = 0.1
"""How long nothing is accepted when the system has no file or no memory for another socket."""
_TELL_AGAIN_S: Final = 60.0


class TlsListener:
    """Accepts until it is closed."""

    def __init__(self, serving: Serving, tls: ssl.SSLContext, loop: asyncio.AbstractEventLoop) -> None:
        self._serving = serving
        self._tls = tls
        self._loop = loop
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tell_again_s = 0.0
        self._open: dict[Handshake, None] = {}
        """Handshakes that go on, the oldest first."""

    async def start(self, host: str, port: int, sock: socket.socket | None, backlog: int) -> int:
        """Begins to accept on all addresses of a host, or on a bound socket; returns the port.

        Raises:
            OSError: an address is in use, or not ours.
        """
        if sock is not None:
            sock.listen(backlog)
            self._sockets.append(sock)
        else:
            found = await self._loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self._listen(dict.fromkeys((entry[0], entry[4]) for entry in found), backlog)
        for one in self._sockets:
            one.setblocking(False)
            self._loop.add_reader(one, self._accept, one)
        return int(self._sockets[0].getsockname()[1])

    def _listen(self, addresses: Iterable[tuple[int, Any]], backlog: int) -> None:
        unspoken: OSError | None = None
        try:
            for family, address in addresses:
                try:
                    self._sockets.append(socket.create_server(address, family=family, backlog=backlog))
                except OSError as error:
                    if (
                        error.errno != EAFNOSUPPORT
                    ):  # a name may have addresses that this machine does not speak
                        raise
                    unspoken = error
            if unspoken is not None and not self._sockets:
                raise unspoken
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Accepts no more. Handshakes go on."""
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()
        for pause in self._pauses.values():
            pause.cancel()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The socket stays ready: without a pause this would be called again and again.
                if self._loop.time() >= self._tell_again_s:
                    self._tell_again_s = self._loop.time() + _TELL_AGAIN_S
                    _log.warning("no connection can be accepted: %s", error.strerror or error)
                self._loop.remove_reader(listening)
                self._pauses[listening] = self._loop.call_later(_NO_FILES_S, self._resume, listening)
                return
            if len(self._open) >= self._serving.limits.handshakes:
                oldest = next(iter(self._open))
                self._serving.unfinished.pop(oldest, None)
                del self._open[oldest]
                oldest.give_way()
            Handshake(self._serving, self._tls, self._loop, self._open).start(accepted)

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        self._loop.add_reader(listening, self._accept, listening)


class Handshake(asyncio.Protocol):
    """One accepted socket, until its handshake is over."""

    def __init__(
        self,
        serving: Serving,
        tls: ssl.SSLContext,
        loop: asyncio.AbstractEventLoop,
        others: dict[Handshake, None],
    ) -> None:
        """Nothing yet. `others`: those that go on; it is among them until it is over."""
        self._serving = serving
        self._tls = tls
        self._loop = loop
        self._open = others
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        """True once the event loop has the socket; before that nobody else would close it."""
        self._unwanted = False

    def start(self, accepted: socket.socket) -> None:
        """Begins, or closes the socket where there is no room."""
        serving = self._serving
        if serving.closing or not serving.has_room():
            accepted.close()
            return
        serving.connections.add(self)
        serving.unfinished[self] = None
        self._open[self] = None
        accepted.setblocking(False)
        self._task = self._loop.create_task(self._shake_hands(accepted))

    async def _shake_hands(self, accepted: socket.socket) -> None:
        if self._unwanted:
            accepted.close()
            self._over()
            return
        self._begun = True
        try:
            await self._loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_S,
                ssl_shutdown_timeout=_CLOSE_S,
            )
        except OSError:
            pass  # no TLS, none in time, or gone: the client's own affair
        finally:
            self._over()

    def _over(self) -> None:
        self._open.pop(self, None)
        self._serving.lost(self)

    # --- Called by the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done: from here on it is a connection."""
        encrypted = cast(asyncio.Transport, transport)
        self._over()
        connection = ServerConnection(self._serving)
        encrypted.set_protocol(connection)
        connection.connection_made(encrypted)

    # --- Called by the server -------------------------------------------------------------------------

    @property
    def idle_until_s(self) -> float:
        """Never idle."""
        return inf

    def on_sweep(self, now: float) -> None:
        """Nothing: the event loop keeps the time of a handshake."""

    def may_give_way(self) -> bool:
        """False: it is among the unfinished."""
        return False

    def close_idle(self) -> bool:
        """Ends it; always True, since no request has come."""
        self.drop()
        return True

    def give_way(self) -> None:
        """Ends it for another connection."""
        self.drop()

    def drop(self) -> None:
        """Closes at once."""
        self._unwanted = True
        if self._begun and self._task is not None:
            self._task.cancel()
