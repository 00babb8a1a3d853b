"""Serves the admin API with uvicorn on the event loop of the gateway.

Owns the listening socket of the admin port. Signals are the process's business: uvicorn would take them for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from forebay.config.units import Address

__all__ = ["AdminServer"]

_BACKLOG = 128
_CONNECTIONS = 256
"""More are answered 503 by uvicorn: scrapes and people need a handful."""
_STOP_S = 1


class AdminServer:
    """One ASGI application on one address."""

    def __init__(self, app: Any, address: Address) -> None:
        self._address = address
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=_STOP_S,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.port = address.port

    async def start(self) -> None:
        """Bind and serve. Raises: OSError."""
        infos = await asyncio.get_running_loop().getaddrinfo(
            self._address.host, self._address.port, type=socket.SOCK_STREAM
        )
        family, _, _, _, where = infos[0]
        listener = socket.create_server((where[0], where[1]), family=family, backlog=_BACKLOG)
        self.port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        await self._server.up.wait()

    async def stop(self) -> None:
        """Stop listening; answers under way have a second."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.up.set()
