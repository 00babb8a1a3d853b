"""Serves the admin API on the event loop of the gateway.

Owns the listening socket of the admin port.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from forebay.config.units import Address
from forebay.http.server import HttpServer, ServerLimits
from forebay.runtime.asgi import Application, AsgiHandler

__all__ = ["AdminServer"]

_LIMITS: Final = ServerLimits(connections=256, head_bytes=16 * 1024)
"""Scrapes and people need a handful of connections."""
_STOP_S: Final = 1.0


class AdminServer:
    """One ASGI application on one address."""

    def __init__(self, app: Application, address: Address) -> None:
        self._address = address
        self._server = HttpServer(AsgiHandler(app), _LIMITS)
        self.port = address.port

    async def start(self) -> None:
        """Bind and serve. Raises: OSError."""
        infos = await asyncio.get_running_loop().getaddrinfo(
            self._address.host, self._address.port, type=socket.SOCK_STREAM
        )
        family, _, _, _, where = infos[0]
        # One socket, also for a name with several addresses: with port 0 each would get a port of its own.
        listener = socket.create_server((where[0], where[1]), family=family)
        await self._server.start("", 0, sock=listener)
        self.port = self._server.port

    async def stop(self) -> None:
        """Stop listening; answers under way have a second."""
        await self._server.close(_STOP_S)
