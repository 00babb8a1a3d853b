"""Origins of web pages, as operators write them and as browsers do."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from forebay.config.origins import Origin

ORIGIN: TypeAdapter[str] = TypeAdapter(Origin)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("*", "*"),
        ("https://chat.example.com", "https://chat.example.com"),
        ("HTTPS://Chat.Example.com/", "https://chat.example.com"),
        ("https://chat.example.com:443", "https://chat.example.com"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:80", "http://[::1]"),
        ("chrome-extension://abcdefgh", "chrome-extension://abcdefgh"),
    ],
)
def test_an_origin_is_what_a_browser_sends(written: str, meant: str) -> None:
    """Lower case, no slash, no port that goes without saying."""
    assert meant == ORIGIN.validate_python(written)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "chat.example.com",
        "https://a/b",
        "https://*.example.com",
        "null",
        "https://a\r\nx: y",
        "https://u@a",
    ],
)
def test_anything_else_is_a_mistake(written: str) -> None:
    """A path, a pattern, no scheme, the origin of nobody."""
    with pytest.raises(ValidationError, match="expected the origin"):
        ORIGIN.validate_python(written)
