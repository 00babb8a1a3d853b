from __future__ import annotations

import asyncio

import pytest

from forebay.engines.health import HealthWatch, unready_by
from forebay.engines.reading import Answer
from tests.unit.engines.pages import answer
from tests.unit.engines.scripted import HANGS, REFUSED, ScriptedEngine, run


class Story:
    """A scripted engine, and when its word changed."""

    def __init__(self, health: Answer) -> None:
        self.engine = ScriptedEngine(**{"/health": health})
        self.changes: list[tuple[float, str]] = []
        self.watch = HealthWatch(self.engine, 2.0, self._changed)

    def _changed(self) -> None:
        self.changes.append((round(asyncio.get_running_loop().time() - 100.0, 3), self.watch.unready))

    def run(self, seconds: float, interval_s: float = 2.0, **later: Answer) -> None:
        """Watches for so long; what comes later (`at_3=…`) is answered from that second on."""

        async def story() -> None:
            loop = asyncio.get_running_loop()
            for key, health in later.items():
                loop.call_at(100.0 + float(key[3:]), self.engine.answers.update, {"/health": health})
            self.watch.follow(interval_s)
            self.watch.follow(interval_s)
            await asyncio.sleep(seconds)
            await self.watch.stop()

        run(story())


def test_an_engine_that_says_no_is_believed_until_it_says_otherwise() -> None:
    """A 503 is its own word, and so is the 200 that follows."""
    story = Story(answer(status=503))
    story.run(7, at_3=answer())
    assert [(0.005, "its /health says 503"), (4.015, "")] == story.changes
    assert len(story.engine.times("/health")) == 4


@pytest.mark.parametrize("status", [200, 204, 302, 429, 502, 504])
def test_other_answers_say_nothing(status: int) -> None:
    """What a proxy says, or a busy engine, is no word of the engine's."""
    story = Story(answer(status=status))
    story.run(5)
    assert [] == story.changes
    assert len(story.engine.times("/health")) == 3


def test_f064_a_slow_health_check_proves_nothing() -> None:
    """F064: an engine whose check takes 6 s is not taken for one that does no work; one question is open at a time."""
    story = Story(answer())
    story.engine.delays_s["/health"] = HANGS
    story.run(20)
    assert ([], 1) == (story.changes, story.engine.most_in_flight)
    story = Story(answer())
    story.engine.down = REFUSED
    story.run(5)
    assert [] == story.changes


@pytest.mark.parametrize("status", [401, 404, 405, 501])
def test_where_there_is_no_such_path_nobody_asks_again(status: int) -> None:
    """One question is enough; after a new look at the engine there is another."""
    story = Story(answer(status=status))
    story.run(9)
    assert [0.0] == story.engine.times("/health")


def test_without_an_interval_nothing_is_asked() -> None:
    """A family that is sampled there needs no watch."""
    story = Story(answer(status=503))
    story.run(5, interval_s=0.0)
    assert [] == story.engine.asked


def test_what_a_process_said_does_not_hold_for_the_next() -> None:
    """A process that is gone takes its word with it."""
    story = Story(answer(status=503))

    async def tell() -> None:
        story.watch.follow(2.0)
        await asyncio.sleep(1.0)
        assert story.watch.unready
        story.watch.forget()
        await asyncio.sleep(5.0)
        assert story.watch.unready == ""
        story.watch.follow(2.0)
        await asyncio.sleep(1.0)
        assert story.watch.unready
        await story.watch.stop()
        await story.watch.stop()

    run(tell())


def test_the_reason_names_the_status() -> None:
    """For the log."""
    assert ("its /health says 500", "", "") == (unready_by(500), unready_by(200), unready_by(404))
