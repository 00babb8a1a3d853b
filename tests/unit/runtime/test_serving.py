"""The view of pools and models that the gateway looks things up in."""

from __future__ import annotations

import pytest

from forebay.admission.model import EndpointId, EngineInfo, EngineKind
from forebay.gateway.identity import Access
from forebay.gateway.ports import EndpointView
from forebay.runtime.serving import ConfiguredPool, ServingDirectory

A = EndpointView(EndpointId("http://a:1"), "a", 1)
B = EndpointView(EndpointId("http://b:1"), "b", 1)


def directory(**pool: object) -> ServingDirectory:
    """One pool of two endpoints."""
    configured = ConfiguredPool("p", (A, B), **pool)  # type: ignore[arg-type]
    return ServingDirectory([configured], Access(("fast", "slow"), "slow"))


def test_configured_endpoints_are_there_before_anything_is_known() -> None:
    """Requests can be routed before the first look at an engine."""
    serving = directory().serving
    (pool,) = serving.pools
    assert (("fast", "slow"), "slow", False) == (
        serving.access.classes,
        serving.access.default_class,
        serving.draining,
    )
    assert ((A, B), (), False) == (pool.endpoints, pool.models, pool.checks_model_names)


def test_models_are_those_that_the_engines_list() -> None:
    """The models of all endpoints are merged, each once, in order."""
    view = directory()
    view.describe(
        A.id, EngineInfo(EngineKind.VLLM, models=("m", "lora"), checks_model_names=True, context_tokens=8192)
    )
    view.describe(
        B.id, EngineInfo(EngineKind.VLLM, models=("n", "m"), checks_model_names=True, context_tokens=4096)
    )
    (pool,) = view.serving.pools
    assert (("m", "lora", "n"), True, 4096, "vllm") == (
        pool.models,
        pool.checks_model_names,
        pool.context_tokens,
        pool.engine,
    )


def test_configured_models_are_not_replaced() -> None:
    """Names that an operator wrote stay, whatever the engines list."""
    view = directory(models=("ft-*",))
    view.describe(A.id, EngineInfo(EngineKind.VLLM, models=("m",)))
    assert ("ft-*",) == view.serving.pools[0].models


def test_one_engine_that_takes_any_name_is_enough_to_check_none() -> None:
    """Unknown names are refused only where every engine would refuse them."""
    view = directory()
    view.describe(A.id, EngineInfo(EngineKind.VLLM, checks_model_names=True))
    view.describe(B.id, EngineInfo(EngineKind.LLAMACPP, checks_model_names=False))
    assert not view.serving.pools[0].checks_model_names


def test_habits_of_an_engine_reach_its_endpoint() -> None:
    """Connections are treated as the engine behind them needs it."""
    view = directory()
    view.describe(A.id, EngineInfo(EngineKind.LLAMACPP, closes_after_stream=True, aborts_unstreamed=False))
    first, second = view.serving.pools[0].endpoints
    assert not first.reuse_after_stream
    assert second.reuse_after_stream


def test_view_is_the_same_object_until_something_changes() -> None:
    """Readers see a change by identity, and no change where there is none."""
    view = directory()
    info = EngineInfo(EngineKind.VLLM, models=("m",))
    before = view.serving
    view.describe(A.id, info)
    after = view.serving
    assert after is not before
    view.describe(A.id, EngineInfo(EngineKind.VLLM, models=("m",)))
    assert after is view.serving


def test_draining_stays_when_an_engine_changes() -> None:
    """What is learned of an engine while draining does not end the draining."""
    view = directory()
    view.start_draining()
    view.describe(A.id, EngineInfo(EngineKind.VLLM))
    assert view.serving.draining


def test_a_model_of_two_pools_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """All its requests go to the first pool: a second one that gets none should not be found out by chance."""
    pools = [ConfiguredPool("first", (A,)), ConfiguredPool("second", (B,))]
    view = ServingDirectory(pools, Access(("only",), "only"))
    assert [] == caplog.messages
    for endpoint in (A, B, A):
        view.describe(
            endpoint.id, EngineInfo(EngineKind.VLLM, models=("m",), linger_s=float(len(caplog.messages)))
        )
    (message,) = caplog.messages
    assert "'m' is served by pools first and second: requests for it go to first" in message


def test_a_configured_model_that_the_engine_does_not_have_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Where engines refuse unknown names; a pattern may match what is loaded later."""
    view = directory(models=("lama", "m", "ft-*"))
    view.describe(B.id, EngineInfo(EngineKind.LLAMACPP, models=("other",)))
    assert [] == caplog.messages
    view.describe(A.id, EngineInfo(EngineKind.VLLM, models=("m", "n"), checks_model_names=True))
    (message,) = caplog.messages
    assert "configured to serve 'lama', and http://a:1 does not: it serves m, n" in message
