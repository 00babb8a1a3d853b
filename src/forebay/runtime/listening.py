"""The certificate of a listener that stays open while the certificate is replaced."""

from __future__ import annotations

import ssl

__all__ = ["ListenerTls"]


class ListenerTls:
    """A TLS context for a listener. New connections get the certificate given last; those there keep theirs."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        """For the listener. It is asked first, and hands each connection on to the newest one."""
        self._newest = context
        context.sni_callback = self._on_hello

    def replace(self, context: ssl.SSLContext) -> None:
        """From now on this one."""
        self._newest = context

    def _on_hello(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: object
    ) -> None:
        connection.context = self._newest
