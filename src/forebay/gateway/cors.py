"""Which web pages may call the gateway from a browser (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol).

A preflight is answered here: it is nobody's request, so it is not authenticated, counted or queued. Every answer to an
allowed page carries the lines that let its script read it, refusals with their `retry-after` above all.
"""

from __future__ import annotations

import re
from typing import Final

from forebay.gateway.refusals import Answer
from forebay.http.message import Headers, get_header

__all__ = ["CorsPolicy"]

_ANYBODY: Final = b"*"
_FIELD_NAMES: Final = re.compile(rb"[\w!#$%&'*+.^`|~-]+(?:[ \t]*,[ \t]*[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
_LONGEST_LIST_BYTES: Final = 2000
_REMEMBERED_S: Final = 600
"""How long a browser need not ask again."""
_READABLE: Final = (
    b"retry-after, retry-after-ms, x-should-retry, x-request-id, x-forebay-id, x-forebay-reason, x-forebay-decision, "
    b"x-forebay-model, x-queue-time, x-queue-predict-wait, x-queue-position, x-ratelimit-limit-requests, "
    b"x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    b"x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
"""Header fields of an answer that a script may read, beside the few that any may."""


class CorsPolicy:
    """The pages that may."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        """`origins`: as in `https://chat.example.com`; `*` is any page. None: no page may."""
        self._origins = frozenset(origin.encode("ascii") for origin in origins)
        self.is_open = bool(origins)
        """False if no page may, and nothing has to be asked."""

    def lines_for(self, headers: Headers) -> bytes:
        """Header lines for the answer to a request with these headers; empty if it comes from no page that may."""
        origin = get_header(headers, b"origin")
        if origin is None:
            return b""
        if _ANYBODY in self._origins:
            return b"access-control-allow-origin: *\r\naccess-control-expose-headers: %b\r\n" % _READABLE
        if origin not in self._origins:
            return b"vary: origin\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-expose-headers: %b\r\n" % (
            origin,
            _READABLE,
        )

    def preflight(self, headers: Headers, methods: bytes) -> Answer:
        """What is told to a browser that asks whether it may send a request. `methods`: as in `Allow`."""
        said: Headers = [
            (b"allow", methods),
            (b"access-control-allow-methods", methods),
            (b"access-control-max-age", b"%d" % _REMEMBERED_S),
        ]
        wanted = get_header(headers, b"access-control-request-headers")
        if (
            wanted is not None
            and len(wanted) <= _LONGEST_LIST_BYTES
            and _FIELD_NAMES.fullmatch(wanted) is not None
        ):
            # `*` would leave out Authorization.
            said.append((b"access-control-allow-headers", wanted))
        return Answer(204, said, b"")
