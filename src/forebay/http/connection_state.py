"""The states of a client's connection, and what a byte from the client means in each.

    HEAD     part of a request head, or the first byte of the next
    HELD     read ahead: the request is with its owner (its body is complete, or not asked for)
    BODY     part of the body that the owner asked for
    DRAIN    left-over body of an answered request; dropped, then the connection lives on
    LINGER   we have answered and closed our side; dropped, so that the answer is not lost to a reset
    CLOSING  nothing more is read; what is unsent goes out
    CLOSED   gone

Plain integers, for `connection`: an enum member costs an attribute lookup at each use.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BODY", "CLOSED", "CLOSING", "DRAIN", "HEAD", "HELD", "LINGER"]

HEAD: Final = 0
HELD: Final = 1
BODY: Final = 2
DRAIN: Final = 3
LINGER: Final = 4
CLOSING: Final = 5
CLOSED: Final = 6
