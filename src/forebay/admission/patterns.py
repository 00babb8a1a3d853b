"""Names of models as configuration writes them: `*` stands for anything, also for nothing; all else for itself.

One meaning for pools, plans and routing. A name that clients choose is compared in time that grows with its length,
whatever the pattern.
"""

from __future__ import annotations


def fits(name: str, pattern: str) -> bool:
    """Does the pattern mean this name?"""
    if "*" not in pattern:
        return name == pattern
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def fits_any(name: str, patterns: tuple[str, ...]) -> bool:
    """Does one of them?"""
    return any(fits(name, pattern) for pattern in patterns)


def first_granted(names: tuple[str, ...], granted: tuple[str, ...] | None) -> str | None:
    """The first of these that is a name and no pattern, and that is granted (None: all are). None if there is none."""
    for name in names:
        if "*" not in name and (granted is None or fits_any(name, granted)):
            return name
    return None
