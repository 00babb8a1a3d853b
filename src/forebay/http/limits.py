"""The bounds of the HTTP server, all in one place.

For: whoever starts a server; every wait and every buffer on the client's side of the gateway is bounded by one
of these. Owns nothing. Never read from configuration here: the layer above fills it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServerLimits"]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one server. Times are checked by a sweep: late by up to twice `sweep_s`, never early."""

    head_bytes: int = 65536
    """Longest request head. A longer one is answered 431."""
    head_fields: int = 100
    """Most field lines in a head. More are answered 431."""
    head_timeout_s: float = 10.0
    """From the first byte of a head to its last. Slower ones are answered 408."""
    body_timeout_s: float = 30.0
    """Longest time without one byte of a body that is being read."""
    body_total_s: float = 600.0
    """Longest time for a whole body: bounds a client that sends one byte just before each timeout."""
    keep_alive_s: float = 75.0
    """How long a connection may stay without a request."""
    write_timeout_s: float = 30.0
    """Longest time in which a reader may take nothing of what is waiting for it."""
    write_buffer_bytes: int = 65536
    """High-water mark of unsent bytes per connection: above it the owner is asked to pause."""
    read_ahead_bytes: int = 65536
    """Most bytes read beyond what the current request needs; then reading stops until it is answered."""
    drain_bytes: int = 65536
    """An unread rest of a body up to this size is read and dropped, and the connection lives on."""
    drain_s: float = 1.0
    """Time for that."""
    linger_s: float = 1.0
    """After an answer that closes the connection while the client still sends: how long input is read and
    dropped, so that the client gets to see the answer and not a reset."""
    linger_bytes: int = 64 * 1024 * 1024
    """Most bytes dropped in that time. Dropping costs no memory; a client that sends its whole body before it
    reads needs all of it taken to see the answer at all."""
    connections: int = 16384
    """Most connections at once, TLS handshakes included. For one beyond, the one is closed that has been idle longest,
    else the one that has been longest about its handshake, head or body; if there is none it is closed itself."""

    handshakes: int = 1024
    """Most TLS handshakes at once: each takes twice the memory of an open connection (52 kB against 27, measured). For
    one beyond, the oldest is ended. An honest one is over in a moment."""

    @property
    def sweep_s(self) -> float:
        """Time between two looks at the clocks of all connections: half of the shortest bound."""
        shortest = min(
            self.head_timeout_s,
            self.body_timeout_s,
            self.keep_alive_s,
            self.write_timeout_s,
            self.drain_s,
            self.linger_s,
        )
        return min(0.5, max(0.01, shortest / 2))
