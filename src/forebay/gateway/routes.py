"""Which paths are served, and what everything else is told.

A path is matched as it was sent: other spellings (a slash too many, percent signs, upper case) are not the same path
and get the 404 of any unknown one. Nothing is ever redirected, since a redirected POST is lost or sent twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay.gateway.demand import Ask, read_chat, read_completion
from forebay.gateway.refusals import Answer, plain_error

__all__ = [
    "ADMITTED",
    "HEALTH_PATH",
    "MODELS_PATH",
    "AdmittedRoute",
    "allowed_methods",
    "not_allowed",
    "not_found",
]

MODELS_PATH: Final = "/v1/models"
HEALTH_PATH: Final = "/healthz"


@dataclass(frozen=True, slots=True)
class AdmittedRoute:
    """An inference path: its requests pass admission."""

    path: str
    read: Callable[[bytes], Ask]
    completion: bool = False
    """True for /v1/completions, whose output limit some engines set themselves."""


ADMITTED: Final = {
    route.path: route
    for route in (
        AdmittedRoute("/v1/chat/completions", read_chat),
        AdmittedRoute("/v1/completions", read_completion, completion=True),
    )
}

_NOT_YET: Final = frozenset(
    {
        "/v1/responses",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/tokenize",
        "/detokenize",
        "/completion",
        "/generate",
        "/inference/v1/generate",
        "/infill",
        "/pooling",
        "/classify",
    }
)


def allowed_methods(path: str, passed_gets: tuple[str, ...]) -> bytes | None:
    """The `Allow` header of a path; None if the path is unknown."""
    if path in ADMITTED:
        return b"POST, OPTIONS"
    if path in (MODELS_PATH, HEALTH_PATH) or path.startswith(MODELS_PATH + "/") or path in passed_gets:
        return b"GET, HEAD, OPTIONS"
    return None


def not_found(path: str, passed_gets: tuple[str, ...]) -> Answer:
    """404 for an unknown path. The path is not repeated, unless it is one that everybody knows."""
    gets = (MODELS_PATH, HEALTH_PATH, *passed_gets)
    served = f"Served here: {', '.join(f'POST {one}' for one in ADMITTED)}, {', '.join(f'GET {one}' for one in gets)}."
    if path in _NOT_YET:
        message = f"{path} is not served by this version. {served}"
    elif (with_version := "/v1" + path) in ADMITTED or with_version == MODELS_PATH:
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
