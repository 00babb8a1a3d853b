"""Integration tests run on the event loop that the product runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The one loop that asynchronous tests of this folder run on."""
    return {"uvloop": uvloop.new_event_loop}
