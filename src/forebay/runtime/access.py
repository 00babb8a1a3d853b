"""What is needed of a configuration beside the core: who is let in, which pools there are, and which engines to watch.

Pure. Keys leave the configuration here and nowhere else: tenants' as digests, engines' own as header values.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import replace

from forebay.admission.model import ANONYMOUS, EndpointId, EngineKind
from forebay.admission.settings import Settings
from forebay.config import Config
from forebay.config.schema import Pool
from forebay.config.tenancy import PlanEntry
from forebay.config.tls import TlsContexts
from forebay.engines import MetricMap
from forebay.gateway.counting import PromptCounter
from forebay.gateway.identity import NOBODY, Access, Plan, Tenant, nearest_classes
from forebay.gateway.ports import EndpointView
from forebay.runtime.polling import Polled
from forebay.runtime.serving import ConfiguredPool

__all__ = ["access_of", "configured_pools", "key_of", "polled_endpoints"]


def access_of(config: Config, settings: Settings) -> Access:
    """Who is let in, and what they may ask for."""
    classes = tuple(entry.name for entry in settings.classes)
    plans = {name: _plan(name, entry, classes) for name, entry in (config.plans or {}).items()}
    tenants = {
        entry.name: Tenant(entry.name, None if entry.plan is None else plans[entry.plan])
        for entry in config.tenants
    }
    keys = {bytes.fromhex(digest): tenants[entry.name] for entry in config.tenants for digest in entry.keys}
    anonymous: Tenant | None = None
    if config.anonymous is not None and config.anonymous.plan is not None:
        anonymous = Tenant(ANONYMOUS, plans[config.anonymous.plan])
    elif config.anonymous is None and not keys:
        anonymous = NOBODY
    return Access(
        classes,
        settings.default_class,
        tenants=tenants,
        keys=keys,
        anonymous=anonymous,
        trusted=tuple(config.trusted_proxies),
        retry_header=config.retry_header,
        passes_credentials=all(_takes_credentials(pool, has_keys=bool(keys)) for pool in config.pools),
    )


def configured_pools(
    config: Config, tls: TlsContexts, counters: Mapping[str, PromptCounter] | None = None
) -> list[ConfiguredPool]:
    """The pools, with what each engine is sent for a key, and how connections to it are encrypted.

    Args:
        counters: of pools that have a tokenizer, by name.
    """
    has_keys = any(entry.keys for entry in config.tenants)
    found = counters or {}
    return [
        replace(_configured_pool(pool, context, has_keys=has_keys), counter=found.get(pool.name))
        for pool, context in zip(config.pools, tls.engines, strict=True)
    ]


def key_of(pool: Pool) -> bytes:
    """Our own API key at the engines of a pool; empty if none is needed."""
    return b"" if pool.upstream_key is None else pool.upstream_key.get_secret_value().encode("ascii")


def _plan(name: str, entry: PlanEntry, classes: tuple[str, ...]) -> Plan:
    granted = classes if entry.classes is None else tuple(entry.classes)
    return Plan(
        name,
        nearest_classes(classes, granted),
        None if entry.models is None else tuple(entry.models),
        entry.require_max_tokens,
    )


def _takes_credentials(pool: Pool, *, has_keys: bool) -> bool:
    return pool.upstream_key is None and (pool.forward_authorization or not has_keys)


def _configured_pool(pool: Pool, tls: ssl.SSLContext | None, *, has_keys: bool) -> ConfiguredPool:
    own_key, takes = key_of(pool), _takes_credentials(pool, has_keys=has_keys)
    return ConfiguredPool(
        name=pool.name,
        endpoints=tuple(
            EndpointView(
                EndpointId(str(url)),
                url.host,
                url.port,
                takes_credentials=takes,
                own_key=own_key,
                tls=tls if url.tls else None,
            )
            for url in pool.endpoints
        ),
        models=tuple(pool.models or ()),
        engine="openai" if pool.engine.family == "auto" else pool.engine.family,
        passthrough=tuple(pool.passthrough),
    )


def polled_endpoints(config: Config, tls: TlsContexts) -> list[Polled]:
    """The engines to watch, and how."""
    return [
        Polled(
            pool.name,
            EndpointId(str(endpoint)),
            endpoint.host,
            endpoint.port,
            None if pool.engine.family == "auto" else EngineKind(pool.engine.family),
            pool.poll_interval,
            key_of(pool),
            _metric_map(pool),
            context if endpoint.tls else None,
        )
        for pool, context in zip(config.pools, tls.engines, strict=True)
        for endpoint in pool.endpoints
    ]


def _metric_map(pool: Pool) -> MetricMap | None:
    names = pool.engine.metrics
    if names is None:
        return None
    found = MetricMap(path=pool.engine.metrics_path, **names.model_dump())
    return found if found.texts else None
