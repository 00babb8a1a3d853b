"""Looks along a stream of server-sent events (SSE) while it is relayed, without touching a byte of it.

For: the relay, which passes on exactly what came and asks here what was in it: how many data events, whether the
stream said its end, the usage, an error in place of an answer. Owns the bytes of one unfinished event, at most
`EVENT_BYTES`; a longer event is counted and not looked into. Never decodes text: lines are split as bytes, so
it does not matter where a read cuts a character.

The grammar is the whole of the WHATWG one: lines end with LF, CRLF or CR, `data:` with or without a blank, several
data lines to an event, comments, unknown fields, a byte order mark at the start. The usual shape (whole events of
one `data:` line, LF) is recognised first and costs about a microsecond; everything else goes the general way.

What is searched for is found by its quoted key, which cannot occur inside a JSON string (there the quotes are
escaped), and then decoded from that event alone.
"""

from __future__ import annotations

import contextlib
from typing import Final

from forebay.http.repeated_event import RepeatedEvent
from forebay.http.sse_fields import UNREADABLE, decode_event, decode_usage

__all__ = ["EVENT_BYTES", "SseScanner"]

EVENT_BYTES: Final = 262144
"""Longest event that is looked into. Bytes beyond it are passed over until the event ends."""
_BOM: Final = b"\xef\xbb\xbf"
_DONE: Final = b"[DONE]"
_USAGE: Final = b'"usage"'
_REASON: Final = b'_reason"'
_ERROR: Final = b'"error"'
_PING: Final = b'{"type":"ping"}'
_STOPPED: Final = b'"message_stop"'
_RESPONSE_ENDS: Final = (b'"response.completed"', b'"response.incomplete"')
_SHORT_BYTES: Final = 64
"""The ends of streams that are no chunk of an answer are shorter."""
_ABORTS: Final = (b'"abort"', b'{"type":"abort"', b'{"type": "abort"')
_MOST_ENDS: Final = 256
_NO_ERROR: Final = (b"", b"null", b"false")
_NULLS: Final = (b":null", b": null")
_LARGEST_COUNT: Final = 2**53
_FIELD_BYTES: Final = 5
_LF: Final = 10


class SseScanner:
    """Scans one stream. Feed it every body byte in order, then call `end`."""

    __slots__ = (
        "_after_cr",
        "_all_ends",
        "_begun",
        "_clean",
        "_held_bytes",
        "_parts",
        "_preludes",
        "_reason",
        "_repeated",
        "_skipping",
        "_skipping_after_lf",
        "_skipping_data",
        "_usage_count",
        "aborted",
        "data_events",
        "done",
        "ends",
        "error",
        "finish_reason_seen",
        "first_event",
        "first_usage",
        "usage",
    )

    def __init__(
        self, reason: bytes = _REASON, *, all_ends: bool = False, preludes: tuple[bytes, ...] = ()
    ) -> None:
        """See the class.

        Args:
            reason: the end of the key, with its quotation mark, of what says why an answer ended.
            all_ends: several answers with their own ends may be in one stream.
            preludes: what marks events that come before there is anything of an answer; they are not counted.
        """
        self._preludes = preludes
        self._reason = reason
        self._all_ends = all_ends
        self.data_events = 0
        """Data events completed so far. Comments, pings, events with empty data, and what begins or ends a stream do
        not count."""
        self.done = False
        """True once the stream said its end: `data: [DONE]`, `message_stop`, or a response that is complete. It may
        be all that a stream has: whoever waits for the first data event must look here too."""
        self.usage: bytes | None = None
        """JSON text of the usage object that counts: the last one that was not null, except that totals which
        fall (a count begun anew) do not replace larger ones."""
        self.first_usage: bytes | None = None
        """The first usage object: Anthropic's has the prompt, and the last one may not."""
        self.ends: list[bytes] = []
        """Data of the events that said why an answer ended: the first, or with `all_ends` every one."""
        self.finish_reason_seen = False
        """True once a `finish_reason` or `stop_reason` was a string, or a response said that it is complete."""
        self.aborted = False
        """True if that reason was `abort`: the engine gave the answer up, as it does when it is shut down."""
        self.error: bytes | None = None
        """Data of the first event that is an error object: a top-level `error` that is not null, or
        `"object": "error"`."""
        self.first_event: bytes | None = None
        """Data of the first data event; only its first bytes if it was too long to be looked into."""
        self._usage_count = -1.0
        self._repeated = RepeatedEvent()
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self._skipping = False
        self._skipping_data = False
        self._skipping_after_lf = False
        self._after_cr = False
        self._begun = False
        # True if the next byte begins an event, with nothing to remember from before.
        self._clean = False

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished event that are kept."""
        return self._held_bytes

    def feed(self, data: bytes) -> int:
        """Looks at a piece of the stream. Returns the number of data events that it completed."""
        before = self.data_events
        if self._clean:
            if self._repeated.fits(data):
                self.data_events = before + 1
                return 1
            if _is_one_event(data):
                end = len(data) - 2
                if self._data_event(data[6:end] if data[5] == 32 else data[5:end]):
                    self._repeated.keep(data)
                return self.data_events - before
        if data:
            self._feed_any(data)
            self._clean = self._begun and not (self._held_bytes or self._skipping or self._after_cr)
        return self.data_events - before

    def end(self) -> int:
        """The stream is over: an event that lacks its empty line counts as well. Returns 1 if there was one."""
        before = self.data_events
        if self._skipping:
            self._skipping = False
            self.data_events += self._skipping_data
        elif self._held_bytes:
            block = b"".join(self._parts)
            self._hold(b"")
            self._block(block)
        return self.data_events - before

    def lacks_only_its_empty_line(self) -> bool:
        """True if the unfinished event may be a whole one: its last line is whole, or it is the mark of the end."""
        held = b"".join(self._parts)
        return held.endswith(b"\n") or held.startswith((b"data: [DONE]", b"data:[DONE]"))

    # --- Lines and events -----------------------------------------------------------------------------

    def _feed_any(self, data: bytes) -> None:
        if self._after_cr:
            self._after_cr = False
            if data.startswith(b"\n"):
                data = data[1:]
        if data.find(b"\r") >= 0:
            # A CR ends its line at once; the LF that may follow in the next piece belongs to it.
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._skipping:
            data = self._skip(data)
        elif self._held_bytes:
            if data.find(b"\n") < 0:
                # Nothing can have ended: joining now would make a long line cost the square of its length.
                self._parts.append(data)
                self._held_bytes += len(data)
                self._bound_held()
                return
            self._parts.append(data)
            data = b"".join(self._parts)
        if not self._begun:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._hold(data)
                return
            self._begun = True
            data = data.removeprefix(_BOM)
        if data:
            *blocks, tail = data.split(b"\n\n")
            for block in blocks:
                self._block(block)
            # Line ends at the start of a block are empty lines with nothing to dispatch.
            self._hold(tail.lstrip(b"\n"))
            self._bound_held()

    def _hold(self, tail: bytes) -> None:
        self._parts = [tail] if tail else []
        self._held_bytes = len(tail)

    def _bound_held(self) -> None:
        """Lets go of an event that has become too long, and passes over the rest of it."""
        if self._held_bytes > EVENT_BYTES:
            held = b"".join(self._parts)
            self._skipping = True
            self._skipping_data = self._is_long_data(held)
            self._skipping_after_lf = held.endswith(b"\n")
            self._hold(b"")

    def _skip(self, data: bytes) -> bytes:
        """Passes over the rest of a long event; returns what follows it."""
        if self._skipping_after_lf and data.startswith(b"\n"):
            end = 1
        else:
            end = data.find(b"\n\n") + 2
            if end < 2:
                if data:
                    self._skipping_after_lf = data.endswith(b"\n")
                return b""
        self._skipping = False
        self.data_events += self._skipping_data
        return data[end:]

    def _block(self, block: bytes) -> None:
        """One event, without its empty line; lines end with LF."""
        block = block.lstrip(b"\n")
        if len(block) > EVENT_BYTES:
            self.data_events += self._is_long_data(block)
            return
        if block.startswith(b"data:") and block.find(b"\n") < 0:
            payload = block[5:].removeprefix(b" ")
        else:
            payload = b"\n".join(_data_lines(block))
        self._data_event(payload)

    def _is_long_data(self, block: bytes) -> bool:
        """Whether an event too long to be looked into is a data event.

        Only its first bytes decide, so that the answer does not depend on how it was cut into pieces.
        """
        lines = _data_lines(block[:EVENT_BYTES])
        if lines and self.first_event is None:
            self.first_event = b"\n".join(lines)
        return bool(lines)

    # --- What is in an event --------------------------------------------------------------------------

    def _data_event(self, payload: bytes) -> bool:
        """Looks into an event. True if it is one more, after the first, and nothing is in it."""
        if len(payload) < _SHORT_BYTES:
            if not payload:
                return False
            if payload.strip() == _DONE or payload.find(_STOPPED) >= 0:
                self.done = True
                return False
            if payload.replace(b" ", b"") == _PING:
                return False
        if self.first_event is None:
            if self._preludes and self._is_prelude(payload):
                return False
            self.first_event = payload
            self.data_events += 1
            self._look_into(payload)
            return False
        self.data_events += 1
        return not self._look_into(payload)

    def _look_into(self, payload: bytes) -> bool:
        """What an event may say beside its text. True if it says something, perhaps."""
        something = False
        if not self.finish_reason_seen or self._all_ends:
            at = payload.find(self._reason)
            something = at >= 0 and self._look_for_reason(payload, at)
        at = payload.find(_USAGE)
        while at >= 0:
            at += len(_USAGE)
            if not payload.startswith(_NULLS, at):
                self._take_usage(payload)
                something = True
                break
            at = payload.find(_USAGE, at)
        if payload.find(_ERROR) >= 0:
            something = True
            if self.error is None:
                self._look_for_error(payload)
        return something

    def _is_prelude(self, payload: bytes) -> bool:
        return any(payload.find(mark) >= 0 for mark in self._preludes)

    def _look_for_reason(self, payload: bytes, at: int) -> bool:
        """True if there is one. Several choices have several reasons: one that is set is enough."""
        while at >= 0:
            after = at + len(self._reason)
            if not payload.startswith(_NULLS, after) and payload[:at].endswith((b'"finish', b'"stop')):
                value = payload[after : after + 24].lstrip(b": \t\n")
                if value.startswith((b'"', b"{")):
                    self.finish_reason_seen = True
                    # A `stop_reason` may be a client's own stop string.
                    if value.startswith(_ABORTS) and payload[:at].endswith(b"finish"):
                        self.aborted = True
                    if len(self.ends) < _MOST_ENDS:
                        self.ends.append(payload)
                    return True
            at = payload.find(self._reason, after)
        return False

    def _take_usage(self, payload: bytes) -> None:
        try:
            event = decode_event(payload)
            usage = bytes(event.usage)
            for outer in (event.message, event.response):
                if not usage.startswith(b"{") and bytes(outer).startswith(b"{"):
                    usage = bytes(decode_event(outer).usage)
            if not usage.startswith(b"{"):
                return
        except UNREADABLE:
            return
        if bytes(event.response).startswith(b"{"):
            self.finish_reason_seen = True
            if bytes(event.type) in _RESPONSE_ENDS:
                self.done = True
                self.data_events -= 1
        if self.first_usage is None:
            self.first_usage = usage
        count = _count_of(usage)
        if count >= self._usage_count:
            self._usage_count = count
            self.usage = usage

    def _look_for_error(self, payload: bytes) -> None:
        try:
            event = decode_event(payload)
        except UNREADABLE:
            return
        if bytes(event.error) not in _NO_ERROR or _ERROR in (bytes(event.object), bytes(event.type)):
            self.error = payload
        elif bytes(event.response).startswith(b"{"):
            # A response that failed has it inside.
            with contextlib.suppress(*UNREADABLE):
                if bytes(decode_event(event.response).error) not in _NO_ERROR:
                    self.error = payload


def _data_lines(block: bytes) -> list[bytes]:
    """Values of the data fields of an event."""
    values: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            values.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            values.append(b"")
    return values


def _count_of(usage: bytes) -> float:
    """The number by which two usages of one stream are compared: the output, or else the total."""
    try:
        counts = decode_usage(usage)
    except UNREADABLE:
        return 0.0
    for count in (counts.completion_tokens, counts.output_tokens, counts.total_tokens):
        if count is not None:
            # A whole number of any length may stand there, and a float cannot hold it.
            return float(min(count, _LARGEST_COUNT))
    return 0.0


def _is_one_event(data: bytes) -> bool:
    """Is it a whole event, one `data:` line with LF, and nothing else?

    Most of it byte by byte: compiled, five comparisons take less than a call of `startswith`.
    """
    end = len(data) - 2
    if end < _FIELD_BYTES or end > EVENT_BYTES or data[end] != _LF or data[end + 1] != _LF:
        return False
    if data[0] != 100 or data[1] != 97 or data[2] != 116 or data[3] != 97 or data[4] != 58:  # data:
        return False
    return data.find(b"\n") == end and data.find(b"\r") < 0
