"""Which headers an operator may give a meaning. Pure."""

from __future__ import annotations

import re
from typing import Final

from forebay.config.secret_keys import quoted

__all__ = ["TAKEN_HEADERS", "free_header"]

TAKEN_HEADERS: Final = frozenset(
    {
        "accept-encoding",
        "api-key",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
        "x-envoy-expected-rq-timeout-ms",
        "x-forebay-class",
        "x-forebay-deadline-ms",
        "x-forebay-explain",
        "x-forebay-session",
        "x-forebay-tenant",
        "x-gateway-inference-objective",
        "x-goog-api-key",
        "x-llm-d-inference-objective",
        "x-request-id",
        "x-slo-ttft-ms",
        "x-stainless-read-timeout",
        "x-stainless-retry-count",
        "x-stainless-timeout",
    }
)
"""They have a meaning of their own."""

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


def free_header(value: str) -> str:
    """The name in lower case. Raises: ValueError, if it is none, or one that means something else."""
    if _NAME.fullmatch(value) is None or value.lower() in TAKEN_HEADERS:
        raise ValueError(f"found {quoted(value)}, expected the name of a header that means nothing else here")
    return value.lower()
