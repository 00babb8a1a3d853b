"""Text of others on a terminal: what a trace, an engine or a client chose must not move the cursor or set a title.

Owns what is shown in place of such characters. Whatever is printed as JSON or by `repr` needs none of this.
"""

from __future__ import annotations

__all__ = ["plain"]


def plain(text: str) -> str:
    """The text with `?` for each character that is not printed; line breaks stay."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
