"""Heads that come again: the same peer's next message, with the same bytes but for the digits of Content-Length.

For: both kinds of connection. A client that keeps its connection sends nearly the same head with every request, and
an engine with every answer of one second; reading it anew costs more than all else that is done with it. The last
head is known again by comparing bytes, so what is taken for a repetition is one, byte for byte, and can only mean the
same. Owns the last head, if it is of a usual size. Never guesses: whatever differs is read anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from forebay.http.head import LENGTH_DIGITS, parse_request_head, parse_response_head
from forebay.http.message import Headers, RequestHead, ResponseHead

__all__ = ["RepeatedHead", "request_heads", "response_heads"]

KEPT_BYTES: Final = 4096
"""A longer head is not kept: there may be one of them for each connection."""
VAIN_READS: Final = 4
"""After so many heads in a row that were not the last one again (a proxy in front that numbers its requests), only
every `TRIED_EVERY`th is kept: keeping costs a third of what reading does."""
TRIED_EVERY: Final = 16
_FIELD: Final = b"\r\ncontent-length:"

Head = TypeVar("Head", RequestHead, ResponseHead)


class RepeatedHead(Generic[Head]):
    """The last head that came from one peer."""

    __slots__ = ("_after", "_before", "_digits", "_head", "_parse", "_place", "_renew", "_vain")

    def __init__(
        self, parse: Callable[[bytes, int], Head], renew: Callable[[Head, Headers, int], Head]
    ) -> None:
        """For one peer.

        Args:
            parse: reads a head anew.
            renew: the same head with other headers and another Content-Length.
        """
        self._parse: Callable[[bytes, int], Head] = parse
        self._renew: Callable[[Head, Headers, int], Head] = renew
        self._head: Head | None = None
        self._before = self._digits = self._after = b""
        self._place = 0
        self._vain = 0
        """Heads read since one was found."""

    def find(self, data: bytes) -> Head | None:
        """The head at the start of `data`, if it is the last one again."""
        head = self._head
        if head is None:
            return None
        # Slices, since `startswith` costs a call with boxed arguments.
        before, after = self._before, self._after
        start = len(before)
        if data[:start] != before:
            return None
        end = data.find(b"\r", start, start + LENGTH_DIGITS + 1)
        digits = data[start:end]
        if end < 0 or data[end : end + len(after)] != after:
            return None
        if digits != self._digits and not digits.isdigit():
            return None
        self._vain = 0
        if digits != self._digits:
            headers = head.headers.copy()
            headers[self._place] = (b"content-length", digits)
            head = self._head = self._renew(head, headers, int(digits))
            self._digits = digits
        return head

    def read(self, data: bytes, fields_max: int) -> Head:
        """Reads a head that is not the last one again, and keeps it. `data` ends with the empty line.

        Raises:
            HeadRefused: see `head`.
        """
        head = self._parse(data, fields_max)
        self._head = None
        self._vain += 1
        if self._vain > VAIN_READS and self._vain % TRIED_EVERY:
            return head
        if head.content_length and len(data) <= KEPT_BYTES:
            lower = data.lower()
            field = lower.find(_FIELD)
            end = lower.find(b"\r\n", field + len(_FIELD))
            digits = data[field + len(_FIELD) : end].lstrip(b" \t")
            # What a client expects depends on whether a body follows, so such a head is not kept.
            if field > 0 and digits.isdigit() and lower.find(b"\r\nexpect:") < 0:
                self._head, self._digits = head, digits
                self._before, self._after = data[: end - len(digits)], data[end:]
                self._place = [name for name, _ in head.headers].index(b"content-length")
        return head


def request_heads() -> RepeatedHead[RequestHead]:
    """For the requests of one connection."""
    return RepeatedHead(parse_request_head, RequestHead.with_length)


def response_heads() -> RepeatedHead[ResponseHead]:
    """For the answers of one origin."""
    return RepeatedHead(parse_response_head, ResponseHead.with_length)
