"""Errors of the engine model. A request that can never fit is not one of these: `Engine.submit` returns that.

They say who is at fault: `MisuseError` the caller, `InvariantError` this package.
"""

from __future__ import annotations


class EngineModelError(Exception):
    """Base of everything that the engine model raises."""


class MisuseError(EngineModelError):
    """The caller broke the contract: a step before the last one ended, an id used twice, an impossible setting."""


class InvariantError(EngineModelError):
    """A bug in here: the block books do not balance."""
