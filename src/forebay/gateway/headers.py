"""What request headers claim, which of them go on to the engine, and what is put on answers.

One pass over each head; header blocks are bytes from end to end. Names are lower case already (the parser's duty).

Never forwarded: hop-by-hop headers, `x-forebay-*`, and what is said anew for the engine (`host`, framing). Credentials
are kept apart unless every pool gets them.
`accept-encoding` is dropped as well: a compressed stream could not be looked into, and a proxy in front may
compress as it likes. `expect` is dropped since the body is sent at once.
"""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from typing import Final

from forebay.gateway.asks import BadRequest
from forebay.gateway.identity import CREDENTIALS, Access, Tenant
from forebay.http.message import Headers, RequestHead, end_to_end_headers

__all__ = [
    "LIMITS",
    "Claims",
    "answer_headers",
    "claims_of",
    "engine_target",
    "read_claims",
    "safe_id",
    "without_limits",
]

ID_LENGTH: Final = 128
_SAFE: Final = (string.ascii_letters + string.digits + "-_.:/+=@,~").encode()
_UNSAFE: Final = bytes(code for code in range(256) if code not in _SAFE)

RETRY_DIGITS: Final = 9
MOST_RETRIES: Final = 9999
"""Larger counts mean nothing more."""

STAINLESS_SHARE: Final = 0.95
"""Part of an SDK's own timeout that is used: the rest is for the way there and back."""

_DROP: Final = 0
_CONNECTION: Final = 1
_CLASS: Final = 2
_OBJECTIVE: Final = 3
_DEADLINE: Final = 4
_SDK_TIMEOUT: Final = 5
_ENVOY_TIMEOUT: Final = 6
_SESSION: Final = 7
_RETRY: Final = 8
_EXPLAIN: Final = 9
_REQUEST_ID: Final = 10
_CREDENTIAL: Final = 11
_OWN_RETRY: Final = 12

_KNOWN: Final = {
    b"connection": _CONNECTION,
    b"keep-alive": _DROP,
    b"proxy-connection": _DROP,
    b"proxy-authorization": _DROP,
    b"te": _DROP,
    b"trailer": _DROP,
    b"transfer-encoding": _DROP,
    b"upgrade": _DROP,
    b"http2-settings": _DROP,
    b"host": _DROP,
    b"content-length": _DROP,
    b"expect": _DROP,
    b"accept-encoding": _DROP,
    b"x-forebay-class": _CLASS,
    b"x-gateway-inference-objective": _OBJECTIVE,
    b"x-llm-d-inference-objective": _OBJECTIVE,
    b"x-forebay-deadline-ms": _DEADLINE,
    b"x-slo-ttft-ms": _DEADLINE,
    b"x-stainless-timeout": _SDK_TIMEOUT,
    b"x-stainless-read-timeout": _SDK_TIMEOUT,
    b"x-envoy-expected-rq-timeout-ms": _ENVOY_TIMEOUT,
    b"x-forebay-session": _SESSION,
    b"x-stainless-retry-count": _RETRY,
    b"x-forebay-explain": _EXPLAIN,
    b"x-request-id": _REQUEST_ID,
    **dict.fromkeys(CREDENTIALS, _CREDENTIAL),
    # No keys of ours, but of other services and of web pages: they end where keys end.
    b"api-key": _CREDENTIAL,
    b"x-goog-api-key": _CREDENTIAL,
    b"cookie": _CREDENTIAL,
}
_KEY_PARAMETERS: Final = frozenset((b"key", b"api_key", b"api-key", b"apikey", b"token", b"access_token"))
"""Parameters in a URL under which some clients send a key."""
_OWN_ONLY: Final = frozenset({_CLASS, _OBJECTIVE, _SESSION, _EXPLAIN})
"""Claims that are ours alone and end here; the others are standard or somebody else's and go on."""


@dataclass(slots=True)
class Claims:
    """What the headers of one request say. Shared by requests with the same headers; times count from arrival."""

    access: Access
    """By which it was read."""
    tenant: Tenant
    class_name: str = ""
    """As claimed, or the default, and as the tenant's plan grants it."""
    forward: bytes = b""
    """Header lines for the engine, each with its CRLF; without host and framing."""
    credentials: bytes = b""
    """More such lines, for pools that take what clients send as keys; empty where all do."""
    first_token_within_s: float | None = None
    patience_s: float | None = None
    session: str | None = None
    retry_count: int = 0
    explain: bool = False
    class_claimed: bool = False
    """A class was named."""
    request_id: bytes | None = None

    def __repr__(self) -> str:
        return f"Claims({self.tenant.name!r}, {self.class_name!r})"  # without keys, wherever it may be shown


def claims_of(head: RequestHead, access: Access, address: str | None) -> Claims:
    """What a request claims: from its head's digest if the client said the same before. Raises: BadRequest, Denied.

    Args:
        address: where the connection comes from.
    """
    claims = head.digest
    if type(claims) is not Claims or claims.access is not access:
        claims = head.digest = read_claims(head.headers, access, address)
    return claims


def engine_target(head: RequestHead, *, with_keys: bool) -> bytes:
    """Path and query for an engine. A target in absolute form names our host, which is not for the engine.

    Args:
        with_keys: the engine gets what clients send as keys; without, no parameter in which there may be one.
    """
    query = head.query
    if (with_keys or not query) and head.target.startswith(b"/"):
        return head.target
    if not with_keys:
        kept = [part for part in query.split(b"&") if part.partition(b"=")[0].lower() not in _KEY_PARAMETERS]
        query = b"&".join(kept)
    path = head.path.encode("ascii")
    return path + b"?" + query if query else path


def read_claims(headers: Headers, access: Access, address: str | None = None) -> Claims:
    """Reads the headers of a request.

    Raises:
        BadRequest: A header of ours has a value that cannot be meant.
        Denied: It comes from nobody who may ask here.
    """
    claims = Claims(access, access.identify(headers, address))
    known = _KNOWN if access.retry_header is None else {**_KNOWN, access.retry_header: _OWN_RETRY}
    lines: list[bytes] = []
    credentials: list[bytes] = []
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        kind = known.get(name)
        if kind is None:
            if not name.startswith((b"x-forebay-", b"x_forebay_")):
                lines.append(b"%b: %b\r\n" % (name, value))
        elif kind == _CONNECTION:
            if value not in (b"keep-alive", b"close"):
                named |= {part.strip().lower() for part in value.split(b",")}
        elif kind == _REQUEST_ID:
            claims.request_id = safe_id(value) or None
        elif kind == _CREDENTIAL:
            (lines if access.passes_credentials else credentials).append(b"%b: %b\r\n" % (name, value))
        elif kind != _DROP:
            _read(claims, kind, (name, value))
            if kind not in _OWN_ONLY and not name.startswith(b"x-forebay-"):
                lines.append(b"%b: %b\r\n" % (name, value))
    if claims.request_id is not None:
        lines.append(b"x-request-id: %b\r\n" % claims.request_id)
    if named:
        lines = [line for line in lines if line.partition(b":")[0] not in named]
        credentials = [line for line in credentials if line.partition(b":")[0] not in named]
    claims.forward = b"".join(lines)
    claims.credentials = b"".join(credentials)
    claims.class_claimed = bool(claims.class_name)
    claims.class_name = access.class_for(claims.tenant, claims.class_name or None)
    return claims


def safe_id(value: bytes) -> bytes:
    """At most 128 characters of a value, and only those that are harmless in logs, headers and labels."""
    if len(value) <= ID_LENGTH and value.replace(b"-", b"").isalnum():  # as nearly all are
        return value
    return value[:ID_LENGTH].translate(None, _UNSAFE)


def _read(claims: Claims, kind: int, field: tuple[bytes, bytes]) -> None:
    """One header that says something to us. Deadlines only tighten."""
    name, value = field
    if kind in (_CLASS, _OBJECTIVE):
        claimed = value.decode("latin-1").strip()
        if claimed in claims.access.classes:
            if kind == _CLASS or not claims.class_name:
                claims.class_name = claimed
        elif kind == _CLASS:
            there = ", ".join(claims.access.classes)
            raise BadRequest(f"x-forebay-class must be one of: {there}.", "x-forebay-class")
        # Objectives of other systems may have names that mean nothing here: they are not an error.
    elif kind == _DEADLINE:
        within_s = _positive(value, 1e-3)
        if within_s is None:
            said = name.decode("ascii")
            raise BadRequest(f"{said} must be a positive number of milliseconds.", said)
        claims.first_token_within_s = _sooner(claims.first_token_within_s, within_s)
    elif kind in (_SDK_TIMEOUT, _ENVOY_TIMEOUT):
        # Set by libraries, which also send words here: what is no number says nothing.
        within_s = _positive(value, STAINLESS_SHARE if kind == _SDK_TIMEOUT else 1e-3)
        if within_s is not None:
            claims.patience_s = _sooner(claims.patience_s, within_s)
    elif kind == _SESSION:
        claims.session = safe_id(value).decode("ascii") or None
    elif kind in (_RETRY, _OWN_RETRY):
        claims.retry_count = max(claims.retry_count, _retries(kind, value))
    elif kind == _EXPLAIN:
        claims.explain = value.strip() not in (b"", b"0")


def _retries(kind: int, value: bytes) -> int:
    """Which retry a header says this is. In the operator's own one what is no number means the first."""
    if value.isdigit():
        return min(int(value[:RETRY_DIGITS]), MOST_RETRIES)
    return 1 if kind == _OWN_RETRY and value.strip() else 0


def _sooner(known_s: float | None, other_s: float) -> float:
    return other_s if known_s is None or other_s < known_s else known_s


def _positive(value: bytes, unit_s: float) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number * unit_s if math.isfinite(number) and number > 0 else None


_SAID_ANEW: Final = frozenset(
    {
        b"content-length",
        b"date",
        b"x-forebay-id",
        b"x-forebay-decision",
        b"x-forebay-model",
        b"x-forebay-reason",
        b"x-queue-time",
        b"x-queue-predict-wait",
        b"x-queue-position",
        b"x-request-id",
    }
)
"""Said by our own server (framing, `date`), or by us even if another gateway behind us said it too."""

_AGAINST_BUFFERING: Final[Headers] = [
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


LIMITS: Final = (b"x-ratelimit-", b"anthropic-ratelimit-")
"""How the names of headers begin that tell what is left of an account at whoever answers."""


def without_limits(headers: Headers) -> Headers:
    """Without what is left of an account: it is no business of those who do not own it."""
    return [field for field in headers if not field[0].startswith(LIMITS)]


def answer_headers(engine: Headers, own: Headers, *, sse: bool) -> Headers:
    """The headers of a relayed answer: the engine's, then ours.

    A stream is marked against being buffered by proxies in front, unless the engine said so itself.
    """
    headers = end_to_end_headers(engine, _SAID_ANEW)
    if sse:
        names = {name for name, _ in headers}
        headers += [pair for pair in _AGAINST_BUFFERING if pair[0] not in names]
    headers += own
    return headers
