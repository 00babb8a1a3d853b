"""A configuration that is known to be usable: all that can fail because of it has been done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.admission.settings import Settings
from forebay.config import Config, Loaded, memory_limit_bytes, to_settings
from forebay.config.tls import TlsContexts, tls_contexts

if TYPE_CHECKING:
    from forebay.enginemodel.profile import EngineProfile

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was written, and the core's settings that follow from it."""

    loaded: Loaded
    settings: Settings
    tls: TlsContexts

    @property
    def config(self) -> Config:
        """What was written."""
        return self.loaded.config


def prepare(loaded: Loaded) -> Prepared:
    """Everything that can fail because of the configuration. Raises: ConfigError."""
    settings = to_settings(loaded, memory_limit_bytes=memory_limit_bytes(), read_profile=_read_profile)
    return Prepared(loaded, settings, tls_contexts(loaded))


def _read_profile(name: str) -> EngineProfile:
    from forebay.profiles import load_profile  # only configurations that name one need them

    return load_profile(name)
