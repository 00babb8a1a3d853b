"""An engine that answers as a test says, and an event loop whose time passes only while nobody has anything to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from forebay.engines.reading import Answer, ReadFailed

T = TypeVar("T")

REFUSED = ReadFailed("connection refused", unreachable=True)
HANGS = 1e9
"""A time to answer that nobody waits for."""


class _Idle(selectors.SelectSelector):
    """Instead of waiting for a timer, moves the clock to it."""

    now_s = 100.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for something that will never come"
            self.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that starts at second 100 and does not wait."""

    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now_s


def run(story: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in virtual time; fails if it leaves a task behind."""
    loop = VirtualLoop()
    try:
        told = loop.run_until_complete(story)
        assert asyncio.all_tasks(loop) == set()
        return told
    finally:
        loop.close()


class ScriptedEngine:
    """An `EngineReader`: answers each path at once or after a while, with what it was last told for it."""

    def __init__(self, **answers: Answer | ReadFailed) -> None:
        self.answers: dict[str, Answer | ReadFailed] = dict(answers)
        self.delays_s: dict[str, float] = {}
        self.down: ReadFailed | None = None
        """While set, every question fails with it."""
        self.asked: list[tuple[float, str]] = []
        """When which path was asked for."""
        self.in_flight = 0
        self.most_in_flight = 0

    async def get(self, path: str, *, timeout_s: float, max_bytes: int) -> Answer:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self.asked.append((round(began_s, 6), path))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            delay_s = self.delays_s.get(path, 0.005)
            await asyncio.sleep(min(delay_s, timeout_s))
            if delay_s > timeout_s:
                raise ReadFailed(f"no answer within {timeout_s} s", unreachable=False)
            answer = self.down or self.answers.get(path, Answer(404, b"{}"))
            if isinstance(answer, ReadFailed):
                raise answer
            if len(answer.body) > max_bytes:
                raise ReadFailed("answer too large", unreachable=False)
            return Answer(answer.status, answer.body, answer.headers, at_s=began_s, took_s=delay_s)
        finally:
            self.in_flight -= 1

    def times(self, path: str) -> list[float]:
        """When this path was asked for, in seconds since the start."""
        return [round(at_s - 100.0, 6) for at_s, asked in self.asked if asked == path]
