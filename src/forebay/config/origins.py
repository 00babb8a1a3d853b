"""Which web pages an operator names. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator

from forebay.config.secret_keys import quoted

__all__ = ["Origin"]

_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._~-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")


def _origin(value: str) -> str:
    """As a browser writes it. Raises: ValueError."""
    if value == "*":
        return value
    text = value.lower().removesuffix("/")
    if _ORIGIN.fullmatch(text) is None:
        raise ValueError(
            f"found {quoted(value)}, expected the origin of a page such as https://chat.example.com, or '*' for any"
        )
    for scheme, port in (("http", ":80"), ("https", ":443")):
        if text.startswith(scheme + "://"):
            text = text.removesuffix(port)  # browsers leave it out
    return text


Origin = Annotated[str, AfterValidator(_origin)]
