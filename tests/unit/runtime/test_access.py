"""What the data plane is told of a configuration."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from forebay.config import load
from forebay.config.tls import tls_contexts
from forebay.gateway.identity import Access, Denied
from forebay.runtime.access import access_of, configured_pools, key_of
from forebay.runtime.prepared import prepare

KEY = b"sk-1"
HASHED = f"sha256:{sha256(KEY).hexdigest()}"
POOL = {"name": "a", "endpoints": ["http://10.0.0.1:8000"]}


def made(**keys: Any) -> Access:
    """Access by a configuration with these keys."""
    prepared = prepare(load(None, environ={}, options={key: ("--x", value) for key, value in keys.items()}))
    return access_of(prepared.config, prepared.settings)


def test_keys_lead_to_tenants_and_plans() -> None:
    """With a key somewhere, who has none is refused unless it is said otherwise."""
    plans = {"free": {"classes": ["batch"]}}
    tenants = [
        {"name": "acme", "plan": "free", "keys": [HASHED.upper().replace("SHA", "sha")]},
        {"name": "big"},
    ]
    access = made(pools=[POOL], plans=plans, tenants=tenants)
    tenant = access.identify([(b"x-api-key", KEY)], None)
    assert ("acme", "free") == (tenant.name, tenant.plan.name if tenant.plan else None)
    assert "batch" == access.class_for(tenant, "realtime")
    with pytest.raises(Denied):
        access.identify([], None)
    guests = made(pools=[POOL], plans=plans, tenants=tenants, anonymous={"plan": "free"})
    assert "anonymous" == guests.identify([], None).name


def test_anonymous_is_open_without_keys_and_closed_on_demand() -> None:
    """Nothing configured lets everybody in."""
    assert "anonymous" == made(pools=[POOL]).identify([], None).name
    with pytest.raises(Denied):
        made(pools=[POOL], anonymous="refuse").identify([], None)


@pytest.mark.parametrize(
    ("pool", "has_keys", "takes", "own"),
    [
        ({}, False, True, b""),
        ({}, True, False, b""),
        ({"forward_authorization": True}, True, True, b""),
        ({"upstream_key": "engine"}, False, False, b"engine"),
        ({"upstream_key": "engine"}, True, False, b"engine"),
    ],
)
def test_which_key_an_engine_sees(pool: dict[str, Any], has_keys: bool, takes: bool, own: bytes) -> None:
    """Clients' keys where they are the engine's, its own where there is one; never both, and never shown."""
    tenants = [{"name": "acme", "keys": [HASHED]}] if has_keys else []
    loaded = load(
        None, environ={}, options={"pools": ("--x", [{**POOL, **pool}]), "tenants": ("--x", tenants)}
    )
    config = loaded.config
    (found,) = configured_pools(config, tls_contexts(loaded))
    assert (takes, own) == (found.endpoints[0].takes_credentials, found.endpoints[0].own_key)
    assert own == key_of(config.pools[0])
    assert "engine'" not in repr(found)
    assert takes == made(pools=[{**POOL, **pool}], tenants=tenants).passes_credentials
