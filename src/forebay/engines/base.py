"""What an engine family has to say about itself; one module in `families` says it for one family.

A family is stateless: it turns text into records. It never waits, reads no clock and raises nothing but `NoReading` on
what an engine says. When to ask is the poller's business, which family to ask is detection's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.exposition import Page, PageReader, PageTooLarge
from forebay.engines.reading import ANSWER_BYTES, Answer, Look

__all__ = [
    "EngineFamily",
    "NoReading",
    "Reading",
    "largest",
    "page_of",
    "positive",
    "sign_of_life",
    "text_of",
]


class NoReading(Exception):
    """An answer says nothing of its engine; why, for people. Holds nothing that the engine wrote."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A sample, and a mark that changes when the engine's process is another one."""

    sample: EngineSample
    process: str | None = None
    """Opaque; None when the engine gives no such mark."""
    doubts: tuple[str, ...] = ()
    """What was wrong with the series in `sample.doubtful`, for people."""


class EngineFamily(Protocol):
    """One kind of engine. A module of `families` offers one as `FAMILY`."""

    @property
    def kind(self) -> EngineKind: ...

    @property
    def describing_paths(self) -> tuple[str, ...]:
        """Paths whose answers `describe` and `sample_path` look at."""
        ...

    @property
    def least_interval_s(self) -> float:
        """Never sampled more often than this; 0 where the configured interval is fine."""
        ...

    @property
    def health_interval_s(self) -> float:
        """How often `/health` is asked whether the engine takes work; 0: never."""
        ...

    def claims(self, look: Look) -> bool:
        """True if these answers can only come from this family."""
        ...

    def describe(self, look: Look) -> EngineInfo:
        """All that can be told from these answers; fields stay at their defaults where they say nothing."""
        ...

    def sample_path(self, look: Look) -> str:
        """The path to read for samples."""
        ...

    def read(self, path: str, answer: Answer) -> Reading:
        """What an answer to that path says.

        Raises:
            NoReading: it is no reading at all (an error status, unreadable).
        """
        ...


def positive(value: object) -> int | None:
    """The value if it is a whole number above zero, given as a number or as digits; else None."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 2**53:
        return value
    return None


def largest(page: Page, generations: Iterable[str]) -> int | None:
    """The largest whole number above zero that any series of these names has; None if none has one."""
    values = [value for name in generations for value in page.values(name)]
    return max((int(value) for value in values if 0 < value <= 2**53 and value == int(value)), default=None)


def page_of(answer: Answer, pages: PageReader) -> Page:
    """What an answer has of these series.

    Raises:
        NoReading: the answer is no page of metrics.
    """
    try:
        return pages.read(text_of(answer))
    except PageTooLarge as error:
        raise NoReading(str(error)) from None


def text_of(answer: Answer) -> bytes:
    """The body of a 200 answer. Raises: NoReading."""
    if answer.status != 200:
        raise NoReading(f"it answers with status {answer.status}")
    body = answer.plain_body()
    if body is None:
        raise NoReading(
            f"its answer is encoded in a way that cannot be undone, or has more than {ANSWER_BYTES} bytes"
        )
    return body


def sign_of_life(answer: Answer) -> Reading:
    """A sample without numbers, from any answer but one that says that the server is not well (NoReading)."""
    if answer.status >= 500:
        raise NoReading(f"it answers with status {answer.status}")
    return Reading(EngineSample(at_s=answer.at_s, took_s=answer.took_s))
