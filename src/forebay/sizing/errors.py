"""What is raised for numbers that no arithmetic can be done with."""

from __future__ import annotations

__all__ = ["SizingError"]


class SizingError(ValueError):
    """A given number is impossible, or two of them are together; the message says which, and what to change."""
