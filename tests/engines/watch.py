"""A poller on a real engine, and load to be seen by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from forebay.admission.model import EndpointId, EngineKind
from forebay.engines import EndpointPoller, Rhythm
from forebay.load.chat import prompt_text
from forebay.load.felt import End, Felt
from forebay.load.generator import OpenLoop, Target
from forebay.load.workload import Arrival
from forebay.runtime.polling import EngineClient
from tests.engines.real import RealEngine
from tests.unit.engines.watching import EventLog

CLOSE = Rhythm(interval_s=0.05, scrape_multiple=3.0, timeout_s=2.0)
"""Closer than in earnest, so that a short test sees something."""


@asynccontextmanager
async def watching(
    engine: RealEngine, kind: EngineKind | None = None, rhythm: Rhythm = CLOSE
) -> AsyncIterator[EventLog]:
    """What a poller tells of this engine."""
    log = EventLog()
    client = EngineClient("127.0.0.1", engine.port)
    poller = EndpointPoller(EndpointId(engine.name), client, log.took, kind=kind, rhythm=rhythm)
    poller.start()
    try:
        yield log
    finally:
        await poller.stop()
        client.close()


async def offer(
    url: str,
    count: int,
    *,
    prompt_tokens: int,
    output_tokens: int,
    stream: bool = True,
    tail_s: float = 120.0,
) -> list[Felt]:
    """Chats that all arrive at once, each with an answer of exactly this length."""
    planned = [
        Arrival(index, 0.0, "standard", prompt_tokens, output_tokens, output_tokens, stream)
        for index in range(count)
    ]
    loop = OpenLoop([Target.parse(url)], _body)
    return await loop.run(planned, tail_s=tail_s)


def _body(arrival: Arrival) -> bytes:
    text = prompt_text(f"{arrival.index}. ", arrival.prompt_tokens)
    body = {
        "model": "small",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": arrival.output_tokens,
        "ignore_eos": True,  # random weights would end an answer anywhere
        "stream": arrival.stream,
    }
    return msgspec.json.encode(body)


def all_completed(felt: list[Felt]) -> bool:
    """True if every request got its whole answer."""
    return bool(felt) and all(one.end is End.COMPLETED for one in felt)
