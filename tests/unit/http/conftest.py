"""Socket tests of the HTTP layer run on both event loops: what users run, and the standard one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Each asynchronous test runs once per loop."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
