"""What is never shown of a configuration, however wrong it is: the values of secret keys, and all that lies under them.

For: everything that says what is wrong with one. Keys that are not known count as secret by how they sound: a secret
under a misspelt key is one all the same. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

__all__ = [
    "KeyPath",
    "harmless",
    "in_words",
    "is_secret",
    "is_secret_key",
    "may_be_secret",
    "quoted",
    "shown_path",
]

KeyPath = tuple[str | int, ...]

_SECRET: Final = ("admin_token", "upstream_key", "keys")
_SOUNDS_SECRET: Final = re.compile(r"key|token(?!s|izer)|secret|passw|credential", re.IGNORECASE)
"""No other key of the configuration does (a test holds it to that), but `ssl_keyfile`: a key may be pasted there."""
_TENANT_KEY: Final = re.compile(r"[a-z_]{1,24}")
_HOLDS_SECRET: Final = re.compile(
    rf"(?:{_SOUNDS_SECRET.pattern})[\w-]*['\"]?\s*[:=]|://[^/\s]*@", re.IGNORECASE
)
"""A text into which lines with keys have fallen, as after a quotation mark that is missing; a URL with a password."""
_SHOWN: Final = 60


@lru_cache(maxsize=1000)
def is_secret_key(key: str) -> bool:
    """Is what stands under this key nobody's business?"""
    if _SOUNDS_SECRET.search(key) is not None:
        return True
    return len(key) <= _SHOWN and bool(difflib.get_close_matches(key.lower(), _SECRET, n=1, cutoff=0.8))


def is_secret(path: KeyPath) -> bool:
    """Does it stand under such a key?"""
    return any(isinstance(part, str) and is_secret_key(part) for part in path)


def may_be_secret(path: KeyPath) -> bool:
    """The same, and all that stands where a tenant's keys are by mistake."""
    return is_secret(path) or (path[:1] == ("tenants",) and path[-1] not in ("plan", "name"))


def shown_path(path: KeyPath) -> KeyPath:
    """As much of a path as may be shown: a key under a secret one is a part of the secret."""
    for place, part in enumerate(path):
        if not isinstance(part, str):
            continue
        if is_secret_key(part):
            end = place + 1
            while end < len(path) and isinstance(path[end], int):
                end += 1
            # Below tenants it may be a key itself, written where its name should be.
            return (
                path[:end]
                if path[0] != "tenants" or part in _SECRET or _TENANT_KEY.fullmatch(part)
                else path[:place]
            )
        if place > 1 and path[0] == "tenants" and _TENANT_KEY.fullmatch(part) is None:
            return path[:place]
    return path


def quoted(text: str) -> str:
    """A text as it was found, shortened: a message must not repeat a whole file that was pasted into one value."""
    if _HOLDS_SECRET.search(text) is not None:
        return "a text that may hold a secret"
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


def harmless(text: str, otherwise: str) -> str:
    """The text itself, as a part of what to write instead; another one if it is empty, long, or may hold a secret."""
    return text if 0 < len(text) <= _SHOWN and _HOLDS_SECRET.search(text) is None else otherwise


def in_words(value: object) -> str:
    """What was found, for a person; of lists and mappings only that they are."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {quoted(value)}" if _HOLDS_SECRET.search(value) is None else quoted(value)
        case Mapping():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return str(value)[:_SHOWN]
