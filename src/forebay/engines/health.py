"""Asks an engine's `/health` whether it takes work, beside the samples and on its own rhythm.

The answer counts in one direction only. A 503 (or 500) is an engine that says itself that it takes no work: it is
loading, its core has died, or it is shutting down and lets what runs there finish. A 200 proves nothing, since hung
engines go on giving it; neither does a slow answer, or none, which busy engines are good for; and a server that has no
such path, or asks for a key there, is not asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from forebay.engines.reading import EngineReader, ReadFailed

__all__ = ["HEALTH", "HealthWatch", "unready_by"]

HEALTH: Final = "/health"
ANSWER_BYTES: Final = 64 * 1024
_SAYS_NO: Final = frozenset({500, 503})
_SAYS_NOTHING: Final = frozenset({401, 403, 404, 405, 501})


def unready_by(status: int) -> str:
    """Why an engine whose health check has this status takes no work; empty if that does not follow."""
    return f"its {HEALTH} says {status}" if status in _SAYS_NO else ""


class HealthWatch:
    """One engine's health check, from `follow` to `stop`."""

    def __init__(self, reader: EngineReader, timeout_s: float, changed: Callable[[], None]) -> None:
        """See the class.

        Args:
            reader: asks this engine.
            timeout_s: for one answer.
            changed: told when `unready` has changed; called on the loop, must not block.
        """
        self._reader = reader
        self._timeout_s = timeout_s
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self.unready = ""
        """Why it takes no work; empty if it does not say so."""

    def follow(self, interval_s: float) -> None:
        """Ask now and then every `interval_s`; 0: do not. Does nothing while asking goes on."""
        if interval_s > 0 and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run(interval_s))

    def forget(self) -> None:
        """The process is gone: what it said does not hold for the next."""
        self.unready = ""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Ends it; returns when the question in flight, if any, is given up."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self, interval_s: float) -> None:
        answers = True
        while answers:
            answers = await self._ask()
            await asyncio.sleep(interval_s)

    async def _ask(self) -> bool:
        """One question. False if there is nobody to ask."""
        try:
            answer = await self._reader.get(HEALTH, timeout_s=self._timeout_s, max_bytes=ANSWER_BYTES)
        except ReadFailed:
            return True
        unready = unready_by(answer.status)
        if unready != self.unready:
            self.unready = unready
            self._changed()
        return answer.status not in _SAYS_NOTHING
