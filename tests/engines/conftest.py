"""Real engines for the tests of this folder, started once for each file that wants one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.engines.real import RealEngine, is_installed, running, start_llamacpp, start_sglang, start_vllm


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the product runs on."""
    return {"uvloop": uvloop.new_event_loop}


def _require(name: str) -> None:
    if not is_installed(name):
        pytest.fail(f"{name} is not installed: run scripts/engines.sh {name} and scripts/engines.sh models")


@pytest.fixture(scope="package")
def vllm() -> Iterator[RealEngine]:
    """A vLLM with 2,048 tokens of KV cache, a context of 1,024, and room for 32 requests at once."""
    _require("vllm")
    with running(start_vllm()) as engine:
        yield engine


@pytest.fixture(scope="package")
def llamacpp() -> Iterator[RealEngine]:
    """A llama.cpp with four slots of 2,048 tokens."""
    _require("llamacpp")
    with running(start_llamacpp()) as engine:
        yield engine


@pytest.fixture(scope="package")
def sglang() -> Iterator[RealEngine]:
    """An SGLang with 8,192 tokens of KV cache and a context of 2,048. Left out where it is not installed."""
    if not is_installed("sglang"):
        pytest.skip("SGLang is not installed: scripts/engines.sh sglang")
    with running(start_sglang()) as engine:
        yield engine
