"""Decisions as they are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from forebay.admission.model import DecisionRecord, TicketId
from forebay.observe.decision_stream import BUFFER, READERS, DecisionStream, TooManyReaders
from tests.unit.observe.records import record


class Source:
    """Where decisions come from."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[DecisionRecord], None]] = []

    def watch(self, on_record: Callable[[DecisionRecord], None]) -> Callable[[], None]:
        self.watchers.append(on_record)
        return lambda: self.watchers.remove(on_record)

    def decide(self, *numbers: int) -> None:
        for number in numbers:
            for watcher in self.watchers:
                watcher(record(ticket=TicketId(number)))


def show(made: DecisionRecord) -> dict[str, Any]:
    """As little as a test needs."""
    return {"ticket": made.ticket}


async def next_of(events: AsyncIterator[bytes]) -> bytes:
    """The next piece, which comes soon."""
    async with asyncio.timeout(5.0):
        return await anext(events)


async def close(events: AsyncIterator[bytes]) -> None:
    """The reader goes away."""
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_reader_gets_what_is_decided_from_then_on() -> None:
    """And decisions are listened for only while somebody reads."""
    source = Source()
    stream = DecisionStream(source.watch)
    source.decide(1)
    events = stream.open(show)
    assert (await next_of(events)).startswith(b":")
    assert 1 == len(source.watchers)
    source.decide(2, 3)
    assert b'event: decision\ndata: {"ticket":2}\n\nevent: decision\ndata: {"ticket":3}\n\n' == await next_of(
        events
    )
    await close(events)
    assert (0, []) == (stream.readers, source.watchers)


async def test_a_slow_reader_skips_the_oldest_and_is_told_how_many() -> None:
    """Its buffer is bounded; another reader misses nothing."""
    source = Source()
    stream = DecisionStream(source.watch)
    slow, quick = stream.open(show), stream.open(show)
    await next_of(slow)
    await next_of(quick)
    source.decide(*range(BUFFER))
    assert b'{"ticket":0}' in await next_of(quick)
    source.decide(*range(BUFFER, BUFFER + 7))
    first = await next_of(slow)
    assert first.startswith(b'event: skipped\ndata: {"skipped": 7}\n\nevent: decision\ndata: {"ticket":7}')
    assert b"skipped" not in await next_of(slow)
    await close(slow)
    await close(quick)


async def test_silence_is_broken_by_comments() -> None:
    """So that proxies do not take the connection for dead."""
    stream = DecisionStream(Source().watch, quiet_s=0.01)
    events = stream.open(show)
    await next_of(events)
    assert (await next_of(events)).startswith(b": ")
    await close(events)


async def test_streams_end_with_the_process() -> None:
    """After what they still hold; and none is opened any more."""
    source = Source()
    stream = DecisionStream(source.watch)
    events = stream.open(show)
    await next_of(events)
    source.decide(1)
    stream.close()
    assert b'{"ticket":1}' in await next_of(events)
    with pytest.raises(StopAsyncIteration):
        await next_of(events)
    assert 0 == stream.readers
    with pytest.raises(TooManyReaders):
        stream.open(show)


async def test_readers_are_bounded() -> None:
    """One that leaves makes room; one that never reads takes none."""
    stream = DecisionStream(Source().watch)
    for _ in range(READERS * 2):
        stream.open(show)
    open_ones = [stream.open(show) for _ in range(READERS)]
    for events in open_ones:
        await next_of(events)
    with pytest.raises(TooManyReaders):
        stream.open(show)
    await close(open_ones.pop())
    stream.open(show)
    for events in open_ones:
        await close(events)
