"""Errors of the core. A refusal is never one of these: refusals are values (`effects`)."""

from __future__ import annotations


class CoreError(Exception):
    """Base of everything the core raises."""


class MisuseError(CoreError):
    """The caller broke the contract: time went back, a ticket was used twice, a pool does not exist."""


class InvariantError(CoreError):
    """Our own bug: the books do not balance. Never caught inside the core."""


class ConfigRefused(CoreError):
    """New settings cannot be applied as things stand; nothing was changed."""


def invariant(holds: bool, why: str) -> None:
    """Raise `InvariantError` unless `holds`. Unlike `assert` it is there under `-O` too."""
    if not holds:
        raise InvariantError(why)
