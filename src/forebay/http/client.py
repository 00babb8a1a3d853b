"""Calls to one origin, over a pool of connections that has no cap of its own.

For: the gateway (one `Upstream` per endpoint) and the pollers (`fetch`). It owns every connection to its origin,
idle or in use, and the tasks that are making one. How many calls run at once is decided above, by admission; a
second, hidden limit here would be a queue that nobody sees.

Idle connections are reused last in, first out, for `idle_s`, which is shorter than the 5 s after which engines
close theirs unannounced. If one turns out to be closed before a byte of the answer came, the request is sent once
more on a fresh connection; that is the only retry here. It is made only if the engine cannot have begun: a part of
the request was never sent, or the end came at once (`STALE_S`), as it does when one side closes while the other
sends. An engine that ends the connection later has read the request and may have worked on it. A task is made only
to connect; timers only for that and one per upstream while connections lie idle.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from forebay.http.call import Call, CallFailure, Sink
from forebay.http.fetching import FetchFailed, fetch
from forebay.http.repeated import response_heads
from forebay.http.upstream_connection import UpstreamConnection

__all__ = ["Call", "CallFailure", "FetchFailed", "Sink", "Upstream", "fetch"]

STALE_S: Final = 1.0
"""A connection that ends so soon after it was used again had ended before: an engine's word of that takes no longer."""
_SWEEP_MIN_S: Final = 0.05
"""Shortest time between two looks at the idle connections."""


class Upstream:
    """One origin, `http://host:port` or with TLS, on one event loop.

    Args:
        host: A name, an IPv4 address, or an IPv6 address with or without brackets.
        connect_timeout_s: Longest time for a connection to be made, with TLS its handshake included.
        idle_s: Longest time that a connection lies idle before it is closed here.
        tls: What to encrypt with, and whom to trust; None for plain HTTP.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout_s: float = 2.0,
        idle_s: float = 4.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host = host.removeprefix("[").removesuffix("]")
        self.port = port
        literal = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = f"{literal}:{port}".encode("idna" if not literal.isascii() else "ascii")
        """For the Host field of requests to this origin."""
        self.connect_timeout_s = connect_timeout_s
        self.tls = tls
        self.idle_s = idle_s
        self.heads = response_heads()
        """The last head of an answer: an engine's answers look alike on all its connections."""
        self._idle: list[UpstreamConnection] = []
        self._connections: set[UpstreamConnection] = set()
        self._connecting: dict[Call, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls = 0
        self._closed = False

    # --- For the owner --------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """Calls that are not over."""
        return self._calls

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        return len(self._connections)

    @property
    def idle_connections(self) -> int:
        """Open connections without a call."""
        return len(self._idle)

    def send(self, head: bytes, body: bytes, sink: Sink, *, reuse: bool = True) -> Call:
        """Sends a request. The sink is called later, never from inside this method.

        Args:
            head: The complete request head with its empty line (see `encode_request_head`). It must frame
                `body`, and should not say `connection: close`.
            reuse: False to use a fresh connection, which also means that nothing is sent a second time.

        Raises:
            RuntimeError: the upstream is closed.
        """
        if self._closed:
            raise RuntimeError(f"upstream {self.authority.decode()} is closed")
        call = Call(self, head, body, sink)
        self._calls += 1
        connection = self._take_idle() if reuse else None
        if connection is not None:
            connection.carry(call)
        else:
            self._connect(call)
        return call

    def close(self) -> None:
        """Closes every connection at once. Calls that are not over end with CLOSED failures."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._idle.clear()
        for connection in tuple(self._connections):
            connection.abandon()
        for call, task in tuple(self._connecting.items()):
            task.cancel()
            call.fail(CallFailure.CONNECT, "the pool was closed")

    # --- Called by calls ------------------------------------------------------------------------------

    def call_over(self) -> None:
        """A call ended."""
        self._calls -= 1

    def call_aborted(self, call: Call, connection: UpstreamConnection | None) -> None:
        """A call was given up by its owner."""
        self._calls -= 1
        if connection is not None:
            connection.drop()
        else:
            task = self._connecting.pop(call, None)
            if task is not None:
                task.cancel()

    # --- Called by connections ------------------------------------------------------------------------

    def connection_opened(self, connection: UpstreamConnection) -> None:
        """A socket is connected."""
        self._connections.add(connection)

    def connection_closed(self, connection: UpstreamConnection) -> None:
        """A socket is gone."""
        self._connections.discard(connection)

    def connection_free(self, connection: UpstreamConnection) -> None:
        """An answer ended cleanly: the connection may carry another call."""
        loop = self._running_loop()
        connection.idle_since_s = loop.time()
        self._idle.append(connection)
        if self._timer is None:
            self._timer = loop.call_later(self.idle_s, self._sweep)

    def connection_useless(self, connection: UpstreamConnection) -> None:
        """An idle connection was closed by the engine."""
        if connection in self._idle:
            self._idle.remove(connection)

    def retry(self, call: Call, connection: UpstreamConnection) -> bool:
        """A reused connection ended before a byte of the answer. True if the request is sent once more."""
        if not call.reused or call.retried or self._closed:
            return False
        if not connection.has_unsent and self._running_loop().time() > connection.taken_s + STALE_S:
            return False
        call.retried = True
        call.connection = None
        self._connect(call)
        return True

    # --- Connections ----------------------------------------------------------------------------------

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        return loop

    def _take_idle(self) -> UpstreamConnection | None:
        """The connection used last, if it is young enough to be open still."""
        now = self._running_loop().time()
        oldest_s = now - self.idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since_s >= oldest_s:
                connection.taken_s = now
                return connection
            connection.drop()
        return None

    def _sweep(self) -> None:
        """Closes what has been idle for too long. The list is in order of age: it is used as a stack."""
        loop = self._running_loop()
        self._timer = None
        now = loop.time()
        old_count = 0
        for connection in self._idle:
            if now - connection.idle_since_s < self.idle_s:
                break
            connection.drop()
            old_count += 1
        del self._idle[:old_count]
        if self._idle:
            delay_s = self._idle[0].idle_since_s + self.idle_s - now
            self._timer = loop.call_later(max(_SWEEP_MIN_S, delay_s), self._sweep)

    def _connect(self, call: Call) -> None:
        self._connecting[call] = self._running_loop().create_task(self._carry_on_fresh(call))

    async def _carry_on_fresh(self, call: Call) -> None:
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await self._running_loop().create_connection(
                    lambda: connection, self.host, self.port, ssl=self.tls
                )
        except TimeoutError:
            connection.drop()
            self._connections.discard(connection)
            call.fail(
                CallFailure.CONNECT_TIMEOUT,
                f"no connection{' with TLS' if self.tls is not None else ''} within {self.connect_timeout_s} s",
            )
        except (OSError, UnicodeError) as error:
            # UnicodeError: a host name that cannot be one, such as a label that is too long.
            connection.drop()
            call.fail(CallFailure.CONNECT, str(error))
        except asyncio.CancelledError:
            # Perhaps connected already, in the same round of the loop; then uvloop closes the socket itself and
            # does not say `connection_lost`.
            connection.drop()
            self._connections.discard(connection)
            raise
        else:
            if call.over:
                connection.drop()
            elif connection.usable:
                connection.carry(call)
            else:
                call.fail(CallFailure.CONNECT, "closed as soon as it was connected")
        finally:
            self._connecting.pop(call, None)
