"""Which paths are served, and what everything else is told.

A path is matched as it was sent: other spellings (a slash too many, percent signs, upper case) are not the same path
and get the 404 of any unknown one. Nothing is ever redirected, since a redirected POST is lost or sent twice.
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import replace
from typing import Final

from forebay.gateway.apis import ADMITTED, PASSED_POSTS, TRITON, AdmittedRoute
from forebay.gateway.error_shapes import ErrorShape
from forebay.gateway.native_bodies import triton_reader
from forebay.gateway.refusals import Answer, plain_error

__all__ = [
    "ADMITTED",
    "HEALTH_PATH",
    "MODELS_PATH",
    "PASSED_POSTS",
    "AdmittedRoute",
    "admitted_route",
    "allowed_methods",
    "errors_of",
    "not_allowed",
    "not_found",
]

MODELS_PATH: Final = "/v1/models"
HEALTH_PATH: Final = "/healthz"

_TRITON_START: Final = "/v2/models/"
_TRITON_PATH: Final = re.compile(
    r"/v2/models/(?P<model>[A-Za-z0-9._%-]{1,512})(?:/versions/[0-9]{1,9})?/generate(?P<stream>_stream)?"
)
_SHOWN: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")


def admitted_route(path: str) -> AdmittedRoute | None:
    """The route of a path whose requests pass admission; None if it is none."""
    route = ADMITTED.get(path)
    if route is None and path.startswith(_TRITON_START):
        found = _TRITON_PATH.fullmatch(path)
        if found is not None:
            model = urllib.parse.unquote(found["model"])
            return replace(TRITON, read=triton_reader(model, stream=found["stream"] is not None))
    return route


def errors_of(path: str) -> ErrorShape:
    """The shape of errors on this path."""
    return ErrorShape.ANTHROPIC if path.startswith("/v1/messages") else ErrorShape.OPENAI


def allowed_methods(path: str, passed_gets: tuple[str, ...]) -> bytes | None:
    """The `Allow` header of a path; None if the path is unknown."""
    if path in PASSED_POSTS or admitted_route(path) is not None:
        return b"POST, OPTIONS"
    if path in (MODELS_PATH, HEALTH_PATH) or path.startswith(MODELS_PATH + "/") or path in passed_gets:
        return b"GET, HEAD, OPTIONS"
    return None


def not_found(path: str, passed_gets: tuple[str, ...]) -> Answer:
    """404 for an unknown path. The path is not repeated, unless it is one that everybody knows."""
    gets = (MODELS_PATH, HEALTH_PATH, *passed_gets)
    served = f"Served here: {', '.join(f'POST {one}' for one in _SHOWN)}, {', '.join(f'GET {one}' for one in gets)}"
    served += ", and what the reference of HTTP lists."
    if (with_version := "/v1" + path) in ADMITTED or with_version == MODELS_PATH:
        message = f"Unknown path: put /v1 before it (a client's base URL ends in /v1). {served}"
    elif path.rstrip("/") in ADMITTED:
        message = f"Unknown path: leave out the slash at its end. {served}"
    else:
        message = f"Unknown path. {served}"
    return plain_error(404, "not_found", message)


def not_allowed(allow: bytes) -> Answer:
    """405 for a known path with another method."""
    message = f"This path takes {allow.decode('ascii')}."
    return plain_error(405, "method_not_allowed", message, headers=[(b"allow", allow)])
