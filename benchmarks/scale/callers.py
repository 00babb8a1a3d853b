"""Very many clients in one process: each has a connection of its own, sends one request, and counts what comes back.

For: the parts of this benchmark, and a test. A caller knows the status of its answer, why it was refused, and how many
events it got; no byte of an answer is kept. Connections come from several addresses of loopback, since one address has
only some 28,000 ports towards one listener.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
from collections import Counter
from typing import Final, cast

__all__ = ["Caller", "Callers", "open_files"]

PER_ADDRESS: Final = 10_000
"""Connections from one address of loopback."""
AT_ONCE: Final = 200
"""Connections that are being made at one time: more would only fill the listener's backlog."""
_BIND_ADDRESS_NO_PORT: Final = 24
"""IP_BIND_ADDRESS_NO_PORT of Linux: the port is chosen once the other side is known; ports to others do not count."""
_REASON: Final = re.compile(rb"\r\nx-forebay-reason: ([^\r]*)", re.IGNORECASE)


def open_files(wanted: int) -> int:
    """Lets this process, and those it starts, open so many files if it may; returns how many it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class Caller(asyncio.Protocol):
    """One request on its connection."""

    __slots__ = ("_callers", "_last", "events", "status", "transport")

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._last = b""
        self.transport: asyncio.Transport | None = None
        self.status = 0
        """Of the answer; 0 while there is none."""
        self.events = 0
        """That came so far, with the `[DONE]` of a stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its base class
        self.transport.write(self._callers.request)

    def data_received(self, data: bytes) -> None:
        if not self.status and data.startswith(b"HTTP/1.1 "):
            self.status = int(data[9:12])
            reason = _REASON.search(data)
            self._callers.answers[self.status, reason[1].decode() if reason else ""] += 1
        # An event ends with an empty line, which two reads may share.
        events = data.count(b"\n\n") + (self._last == b"\n" and data[:1] == b"\n")
        self._last = data[-1:]
        self.events += events
        self._callers.events += events

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._callers.gone += 1


class Callers:
    """All clients. Each sends as it connects, and stays until the other side ends its connection or `close`."""

    def __init__(self, port: int, request: bytes) -> None:
        self.request = request
        self.answers: Counter[tuple[int, str]] = Counter()
        """By status and `x-forebay-reason`."""
        self.events = 0
        """Of all answers so far."""
        self.gone = 0
        """Connections that have ended."""
        self.all: list[Caller] = []
        self._port = port

    @property
    def unanswered(self) -> int:
        """Those who have got nothing yet and still wait for it."""
        return sum(caller.transport is not None and not caller.status for caller in self.all)

    async def call(self, count: int) -> None:
        """So many more clients connect and send."""
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                await places.acquire()
                caller, address = Caller(self), f"127.0.0.{2 + len(self.all) // PER_ADDRESS}"
                self.all.append(caller)
                task = tasks.create_task(self._connect(caller, address))
                task.add_done_callback(lambda _task: places.release())

    async def _connect(self, caller: Caller, address: str) -> None:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        sock.bind((address, 0))
        await loop.sock_connect(sock, ("127.0.0.1", self._port))
        await loop.create_connection(lambda: caller, sock=sock)

    def close(self) -> None:
        """Everybody leaves."""
        for caller in self.all:
            if caller.transport is not None:
                caller.transport.abort()
