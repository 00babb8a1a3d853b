"""How many requests a second an engine sustains when a fixed number of clients send as soon as they are answered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from forebay.http.client import Upstream
from forebay.http.fetching import fetch
from forebay.load.generator import Target

ANSWER_BYTES = 1 << 22
ANSWER_TIMEOUT_S = 120.0


async def sustained_rps(target: Target, bodies: Sequence[bytes], clients: int, seconds: float) -> float:
    """Answers per second over the second half of the time, when all clients are at different points of their requests.

    Raises:
        RuntimeError: if an answer is not a 200: then the figure would mean nothing.
    """
    upstream = Upstream(target.host, target.port)
    turns = itertools.cycle(bodies)
    half_s = time.monotonic() + seconds / 2
    end_s = half_s + seconds / 2
    answered = 0

    async def client() -> None:
        nonlocal answered
        while time.monotonic() < end_s:
            head, body = await fetch(
                upstream,
                b"POST",
                b"/v1/chat/completions",
                timeout_s=ANSWER_TIMEOUT_S,
                max_bytes=ANSWER_BYTES,
                headers=[(b"content-type", b"application/json")],
                body=next(turns),
            )
            if head.status != 200:
                raise RuntimeError(f"the engine answered {head.status}: {body[:500]!r}")
            answered += half_s <= time.monotonic() < end_s

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(client())
    finally:
        upstream.close()
    return answered / (seconds / 2)
