"""The view of pools, models and endpoints that the gateway looks things up in, kept up to date.

Owns the current `Serving`. It is replaced whole when an engine turns out to be something else or when draining
begins; as long as nothing changed it is the same object, which is how readers notice a change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forebay.admission.model import EndpointId, EngineInfo
from forebay.gateway.counting import PromptCounter
from forebay.gateway.identity import Access
from forebay.gateway.ports import EndpointView, PoolView, Serving

__all__ = ["ConfiguredPool", "ServingDirectory"]

_log = logging.getLogger(__name__)

_MOST_TOLD: Final = 100


@dataclass(frozen=True, slots=True)
class ConfiguredPool:
    """What configuration says of a pool, as far as the data plane cares."""

    name: str
    endpoints: tuple[EndpointView, ...]
    models: tuple[str, ...] = ()
    engine: str = "openai"
    passthrough: tuple[str, ...] = ()
    counter: PromptCounter | None = None


class ServingDirectory:
    """What `gateway.ports.Directory` asks for."""

    def __init__(self, pools: Sequence[ConfiguredPool], access: Access) -> None:
        self._pools = tuple(pools)
        self._infos: dict[EndpointId, EngineInfo] = {}
        self._told: set[str] = set()
        """Warnings already written."""
        self.serving = Serving((), access)
        self._rebuild()

    def reconfigure(self, pools: Sequence[ConfiguredPool], access: Access) -> None:
        """From now on these are served. What is known of endpoints that stay, stays."""
        self._pools = tuple(pools)
        served = {endpoint.id for pool in pools for endpoint in pool.endpoints}
        self._infos = {endpoint: info for endpoint, info in self._infos.items() if endpoint in served}
        self.serving = replace(self.serving, access=access)
        self._rebuild()

    def describe(self, endpoint: EndpointId, info: EngineInfo) -> None:
        """An engine was looked at. What was known of it before is replaced."""
        if self._infos.get(endpoint) != info:
            self._infos[endpoint] = info
            self._rebuild()

    def start_draining(self) -> None:
        """From now on nothing new is taken."""
        self.serving = replace(self.serving, draining=True)

    def _rebuild(self) -> None:
        self.serving = replace(self.serving, pools=tuple(self._view(pool) for pool in self._pools))
        for message in self._doubts():
            if message not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(message)
                _log.warning(message)

    def _doubts(self) -> Iterator[str]:
        """What engines say that does not fit what is configured, or what others say."""
        owners: dict[str, str] = {}
        for pool in self.serving.pools:
            for model in pool.models:
                owner = owners.setdefault(model, pool.name)
                if owner != pool.name:
                    yield (
                        f"model {model!r} is served by pools {owner} and {pool.name}: requests for it go to {owner}; "
                        "set `models` to tell them apart"
                    )
        for configured in self._pools:
            for endpoint in configured.endpoints:
                info = self._infos.get(endpoint.id)
                if info is None or not info.checks_model_names or not info.models:
                    continue
                for model in configured.models:
                    if "*" not in model and model not in info.models:
                        yield (
                            f"pool {configured.name} is configured to serve {model!r}, and {endpoint.id} does not: "
                            f"it serves {', '.join(info.models[:20])}"
                        )

    def _view(self, pool: ConfiguredPool) -> PoolView:
        infos = [info for endpoint in pool.endpoints if (info := self._infos.get(endpoint.id)) is not None]
        contexts = [info.context_tokens for info in infos if info.context_tokens is not None]
        listed = dict.fromkeys(model for info in infos for model in info.models)
        return PoolView(
            name=pool.name,
            endpoints=tuple(self._endpoint(endpoint) for endpoint in pool.endpoints),
            models=pool.models or tuple(listed),
            # One engine that takes any name is reason enough to let it answer for itself.
            checks_model_names=bool(infos) and all(info.checks_model_names for info in infos),
            context_tokens=min(contexts, default=None),
            engine=infos[0].kind.value if infos else pool.engine,
            counter=pool.counter,
            passthrough=pool.passthrough,
        )

    def _endpoint(self, endpoint: EndpointView) -> EndpointView:
        info = self._infos.get(endpoint.id)
        if info is None:
            return endpoint
        return replace(
            endpoint,
            reuse_after_stream=not info.closes_after_stream,
        )
