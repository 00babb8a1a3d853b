"""Puts other values into top-level fields of a JSON body, and leaves every other byte as the client sent it.

For: `gateway.relay`, where an operator's rule or a fallback asks for another model, or a priority is passed down. The
body is known to be a JSON object. What it holds below its top level is passed over in one step, however much that is,
so a field of the same name in there, or such text in a string, is never touched.

A body that gives a key twice, or has too many parts for that, gets the field once more at its end instead: engines take
the last one of equal keys, as `gateway.demand` does.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

import msgspec

from forebay.admission.model import BodyChange
from forebay.gateway.apis import AdmittedRoute

__all__ = ["changed_body", "with_fields"]

MOST_PARTS: Final = 200_000
"""Colons in a body whose keys are looked at: each may be a key, and each key becomes an object."""

_KEY: Final = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')
_AFTER: Final = re.compile(rb"[ \t\r\n]*([,}])")
_NO_OBJECT: Final = msgspec.Raw(b"{}")
_decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode
_decode_text: Final = msgspec.json.Decoder(str).decode


def changed_body(body: bytes, change: BodyChange, route: AdmittedRoute) -> bytes:
    """The body as the core wants it sent. What its API has no field for stays unsaid."""
    fields: dict[str, bytes] = {}
    if change.model is not None and route.takes_model:
        fields["model"] = _encode(change.model)
    if change.priority is not None and route.takes_priority:
        fields["priority"] = b"%d" % change.priority
    if change.max_tokens is not None and route.limit_field:
        outer, _, inner = route.limit_field_of(body).rpartition(".")
        limit = _encode(change.max_tokens)
        if outer:
            within = _object_in(body, outer)
            if within is not None:
                fields[outer] = with_fields(within, {inner: limit})
        else:
            fields[inner] = limit
    return with_fields(body, fields) if fields else body


def _object_in(body: bytes, field: str) -> bytes | None:
    """The object under a key, empty if it is not there; None if something else is."""
    try:
        raw = bytes(_decode_object(body).get(field, _NO_OBJECT))
    except (msgspec.DecodeError, RecursionError):
        return None
    return b"{}" if raw == b"null" else raw if raw.startswith(b"{") else None


def with_fields(body: bytes, fields: dict[str, bytes]) -> bytes:
    """The body with these fields.

    Args:
        body: a JSON object.
        fields: by name, each a JSON value.
    """
    pieces = None
    if body.count(b":") <= MOST_PARTS:
        with contextlib.suppress(
            msgspec.DecodeError, RecursionError
        ):  # nested nearly too deeply to be read at all
            pieces = _replaced(body, fields)
    return _at_end(body, fields) if pieces is None else b"".join(pieces)


def _replaced(body: bytes, fields: dict[str, bytes]) -> list[bytes] | None:
    """The body in pieces, with the new values in place of the old ones; None if a key is there twice."""
    known = _decode_object(body)
    start = body.index(b"{") + 1
    at = done = start
    missing = dict(fields)
    pieces: list[bytes] = [body[:start]]
    for _ in range(len(known)):
        key = _KEY.match(body, at)
        if key is None:
            return None
        name = key[1].decode() if key[1].find(b"\\") < 0 else _decode_text(b'"' + key[1] + b'"')
        value = bytes(known[name])
        at = key.end()
        after = _AFTER.match(body, at + len(value))
        if after is None or not body.startswith(value, at):
            return None
        if name in fields:
            pieces += (body[done:at], fields[name])
            missing.pop(name, None)
            done = at + len(value)
        at = after.end()
    if known and body[at - 1 : at] != b"}":
        return None
    if missing:
        added = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in missing.items())
        pieces[0] += added + b"," if known else added
    pieces.append(body[done:])
    return pieces


def _at_end(body: bytes, fields: dict[str, bytes]) -> bytes:
    end = body.rindex(b"}")
    added = b"".join(b',"%b":%b' % (name.encode(), value) for name, value in fields.items())
    return body[:end] + added + body[end:]
