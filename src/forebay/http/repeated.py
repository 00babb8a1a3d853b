"""Heads that come again: the same peer's next message, with the same bytes but for a few values.

For: both kinds of connection. A client that keeps its connection sends nearly the same head with every request, and
an engine with every answer; reading it anew costs more than all else that is done with it. What differs is the
length, and mostly no more than an id or a date. So the last head is kept as a template of bytes with slots:
Content-Length is one, and each field whose value was seen to change becomes another. A head fits if all bytes
between the slots are the same and what is in a slot is a plain value: decimal digits for the length, else printable
characters with no blank at either end. Then reading it could give nothing but the same head with those values. Fields
that say where a message ends, or what becomes of the connection, are never slots.

Owns the last head, if it is of a usual size. Never guesses: whatever differs in any other way is read anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from forebay.http.head import LENGTH_DIGITS, parse_request_head, parse_response_head
from forebay.http.message import HOP_BY_HOP, Headers, RequestHead, ResponseHead

__all__ = ["RepeatedHead", "request_heads", "response_heads"]

KEPT_BYTES: Final = 4096
"""A longer head is not kept: there may be one of them for each connection."""
SLOTS_MAX: Final = 8
VALUE_BYTES: Final = 256
"""A longer value is not looked for in a slot."""
VAIN_READS: Final = 4
"""After so many heads in a row that did not fit, only every `TRIED_EVERY`th is kept: keeping costs a third of what
reading does."""
TRIED_EVERY: Final = 16
_LENGTH: Final = b"content-length"
_FIXED: Final = HOP_BY_HOP | {b"host", b"expect", b"http2-settings"}
"""Fields that are no slots."""
_CR: Final = 13
_BLANK: Final = 32

Head = TypeVar("Head", RequestHead, ResponseHead)


class RepeatedHead(Generic[Head]):
    """The last head that came from one peer."""

    __slots__ = ("_end", "_head", "_literals", "_parse", "_places", "_renew", "_vain", "_values")

    def __init__(
        self, parse: Callable[[bytes, int], Head], renew: Callable[[Head, Headers, int | None], Head]
    ) -> None:
        """For one peer.

        Args:
            parse: reads a head anew.
            renew: the same head with other headers and another Content-Length.
        """
        self._parse: Callable[[bytes, int], Head] = parse
        self._renew: Callable[[Head, Headers, int | None], Head] = renew
        self._head: Head | None = None
        self._literals: list[bytes] = []
        """What stands before each slot."""
        self._values: list[bytes] = []
        """What stood in each."""
        self._places: list[int] = []
        """Which of the headers each is."""
        self._end = b""
        """What follows the last slot, the empty line included."""
        self._vain = 0
        """Heads read since one was found."""

    def find(self, data: bytes) -> Head | None:
        """The head at the start of `data`, if it is the last one again but for the values in its slots."""
        head = self._head
        if head is None:
            return None
        # Slices, since `startswith` costs a call with boxed arguments.
        start, changed, values = 0, 0, self._values
        found: list[bytes] = []
        for slot, literal in enumerate(self._literals):
            stop = start + len(literal)
            if data[start:stop] != literal:
                return None
            known = values[slot]
            start = stop + len(known)
            if start >= len(data) or data[start] != _CR:  # it has another length
                start = data.find(b"\r", stop, stop + VALUE_BYTES)
                if start < 0:
                    return None
            value = data[stop:start]
            if value != known:
                changed += 1
            found.append(value)
        if data[start : start + len(self._end)] != self._end:
            return None
        if not changed:
            self._vain = 0
            return head
        return self._with_values(head, found)

    def _with_values(self, head: Head, found: list[bytes]) -> Head | None:
        """The head with these values in its slots; None if one of them is not plain."""
        headers, length, digest = head.headers.copy(), head.content_length, head.digest
        for slot, value in enumerate(found):
            if value == self._values[slot]:
                continue
            place = self._places[slot]
            name = headers[place][0]
            if name == _LENGTH:
                if not value.isdigit() or len(value) > LENGTH_DIGITS:
                    return None
                length = int(value)
            elif (
                value and value.decode("latin-1").isprintable() and value[0] != _BLANK and value[-1] != _BLANK
            ):
                digest = None
            else:
                return None
            headers[place] = (name, value)
        self._vain = 0
        self._values = found
        renewed = self._head = self._renew(head, headers, length)
        renewed.digest = digest
        return renewed

    def read(self, data: bytes, fields_max: int) -> Head:
        """Reads a head that does not fit, and keeps it. `data` ends with the empty line.

        Raises:
            HeadRefused: see `head`.
        """
        head = self._parse(data, fields_max)
        self._vain += 1
        if self._vain <= VAIN_READS or not self._vain % TRIED_EVERY:
            self._keep(data, head)
        return head

    def _keep(self, data: bytes, head: Head) -> None:
        """Make the template of a head, with a slot for each value that differs from the last one's."""
        last, headers = self._head, head.headers
        lines = data.split(b"\r\n")
        if len(data) > KEPT_BYTES or len(lines) != len(headers) + 3:
            return
        is_alike = last is not None and [name for name, _ in last.headers] == [name for name, _ in headers]
        places: list[int] = []
        literals: list[bytes] = []
        values: list[bytes] = []
        begun = lines[0] + b"\r\n"
        for place, (name, value) in enumerate(headers):
            line = lines[place + 1]
            if name == b"expect":
                return  # what the client expects depends on whether a body follows
            differs = (
                is_alike and last is not None and (place in self._places or last.headers[place][1] != value)
            )
            if name == _LENGTH or (differs and name not in _FIXED):
                if not value or not line.endswith(value):
                    return
                places.append(place)
                literals.append(begun + line[: len(line) - len(value)])
                values.append(value)
                begun = b"\r\n"
            else:
                begun += line + b"\r\n"
        if len(places) <= SLOTS_MAX:
            self._head, self._places, self._literals, self._values = head, places, literals, values
            self._end = begun + b"\r\n"


def request_heads() -> RepeatedHead[RequestHead]:
    """For the requests of one connection."""
    return RepeatedHead(parse_request_head, RequestHead.with_length)


def response_heads() -> RepeatedHead[ResponseHead]:
    """For the answers of one origin."""
    return RepeatedHead(parse_response_head, ResponseHead.with_length)
