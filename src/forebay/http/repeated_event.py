"""Events that come again: the next token of a stream, in an event with the same bytes but for its text.

For: the scanner of streams (`sse`). Nearly all events of a stream are of this kind, and to look for what might be in
each of them costs more than all else that is done with it. So one in which nothing was found is kept as what stands
before its text and what stands behind it. An event fits if it begins and ends so, and what is between is plain: no
quotation mark, no backslash, no control character. Then it is the same event with another text, and as little is in
it as there was before.

The text is the value of a key whose values mean nothing to the scanner (`_TEXT`). Another value could make all the
difference: `"object": "error"`.

Owns one event per stream, if it is of a usual size. Never guesses: whatever differs in any other way is looked into.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["RepeatedEvent"]

KEPT_BYTES: Final = 2048
"""A longer event is not kept: there may be one of them for each stream."""
TEXT_BYTES: Final = 64
"""A longer text is looked into."""
VAIN_MAX: Final = 8
"""After so many in a row that did not fit none are kept any more: keeping costs half of what looking does."""
_TEXT: Final = re.compile(
    rb'(?:content|text|delta|reasoning|thinking|arguments|partial_json)": ?"([^"\\\x00-\x1f]+)"'
)
_QUOTE: Final = 34
_BACKSLASH: Final = 92
_BLANK: Final = 32


class RepeatedEvent:
    """What stands around the text in the events of one stream."""

    __slots__ = ("_after", "_before", "_vain")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self._vain = 0

    def fits(self, data: bytes) -> bool:
        """Is this the event that was kept, with another text?"""
        before = self._before
        at = len(before)
        end = len(data) - len(self._after)
        if not at or end < at or end - at > TEXT_BYTES:
            return False
        if not data.startswith(before) or not data.endswith(self._after):
            return False
        while at < end:
            byte = data[at]
            # Not `in`: compiled, that would make a tuple and search it.
            if byte < _BLANK or byte == _QUOTE or byte == _BACKSLASH:  # noqa: SIM109, PLR1714
                return False
            at += 1
        self._vain = 0
        return True

    def keep(self, data: bytes) -> None:
        """Nothing was found in this one, which did not fit.

        Args:
            data: a whole event, and nothing else.
        """
        if self._vain >= VAIN_MAX:
            self._before = b""
            return
        self._vain += 1
        match = _TEXT.search(data) if len(data) <= KEPT_BYTES else None
        if match is not None:
            self._before, self._after = data[: match.start(1)], data[match.end(1) :]
