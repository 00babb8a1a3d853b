"""What others chose is shown, and does nothing to a terminal."""

from __future__ import annotations

import pytest

from forebay.cli.printing import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("class  offered\nstandard  3\n", "class  offered\nstandard  3\n"),
        ("Größe – 日本", "Größe – 日本"),
        ("\x1b[31mred\x1b]0;title\x07", "?[31mred?]0;title?"),
        ("a\rb\x9bc\u202ed", "a?b?c?d"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    """Line breaks and every script stay."""
    assert shown == plain(text)
