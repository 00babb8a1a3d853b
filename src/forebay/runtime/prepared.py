"""A configuration that is known to be usable: all that can fail because of it has been done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.admission.settings import Settings
from forebay.config import Config, ConfigError, Loaded, memory_limit_bytes, to_settings
from forebay.config.tls import TlsContexts, tls_contexts
from forebay.gateway.counting import PromptCounter
from forebay.gateway.identity import Access
from forebay.gateway.ports import GatewaySettings
from forebay.gateway.routes import allowed_methods
from forebay.runtime.access import access_of, configured_pools
from forebay.runtime.serving import ConfiguredPool
from forebay.runtime.tokenizer_files import counters_of

if TYPE_CHECKING:
    from forebay.enginemodel.profile import EngineProfile

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was written, and the core's settings that follow from it."""

    loaded: Loaded
    settings: Settings
    tls: TlsContexts
    counters: Mapping[str, PromptCounter]
    """Of pools that have a tokenizer."""
    access: Access
    """Who is let in."""

    @property
    def config(self) -> Config:
        """What was written."""
        return self.loaded.config

    def pools(self) -> list[ConfiguredPool]:
        """The pools as the data plane knows them."""
        return configured_pools(self.config, self.tls, self.counters)


def prepare(loaded: Loaded) -> Prepared:
    """Everything that can fail because of the configuration. Raises: ConfigError."""
    settings = to_settings(loaded, memory_limit_bytes=memory_limit_bytes(), read_profile=_read_profile)
    _check_passthrough(loaded)
    return Prepared(
        loaded, settings, tls_contexts(loaded), counters_of(loaded), access_of(loaded.config, settings)
    )


def _check_passthrough(loaded: Loaded) -> None:
    """A path that is served anyway is not passed besides: whoever lists it believes something that is not so."""
    problems = [
        loaded.document.problem(
            ("pools", index, "passthrough", place), f"{path} is served anyway: take it out"
        )
        for index, pool in enumerate(loaded.config.pools)
        for place, path in enumerate(pool.passthrough)
        if allowed_methods(path, GatewaySettings().passed_gets) is not None
    ]
    if problems:
        raise ConfigError(problems)


def _read_profile(name: str) -> EngineProfile:
    from forebay.profiles import load_profile  # only configurations that name one need them

    return load_profile(name)
