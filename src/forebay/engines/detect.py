"""Finds out what an engine is by looking at it; no configuration is needed.

Two looks at most, each with all its questions asked at once. The first, `/metrics` and `/v1/models`, settles nearly
every engine; `/props` (llama.cpp) and `/info` (TGI) are asked only of one that nobody claimed. Then the family is asked
for what it wants to see besides. An engine that answers anything at all is served: one that nobody claims is an
OpenAI-compatible server without metrics.

An engine may answer some questions and hang on others (a stuck `/metrics` beside completions that work), so a
question without an answer delays the rest only a little, and the finding says that it has holes: whoever asked looks
again soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from forebay.admission.model import EngineInfo, EngineKind
from forebay.engines.base import EngineFamily
from forebay.engines.mapped import Mapped, MetricMap
from forebay.engines.reading import ANSWER_BYTES, Answer, EngineReader, Look, ReadFailed
from forebay.engines.registry import FALLBACK, all_families, family_of

__all__ = ["Finding", "find_out"]

MODELS: Final = "/v1/models"
FIRST_LOOK: Final = ("/metrics", MODELS)
SECOND_LOOK: Final = ("/props", "/info")
STRAGGLER_S: Final = 0.5
"""How much longer than the quickest answer the others are waited for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an engine was found to be."""

    family: EngineFamily
    info: EngineInfo
    sample_path: str
    sample: Answer | None
    """What it answered to `sample_path` just now, so that the first sample costs no further scrape."""
    has_holes: bool
    """True if a question failed in a way that may pass (no answer, a 5xx): look again before long."""
    doubt: str = ""
    """Why this may be no inference engine at all, for people; it is served all the same."""


async def find_out(
    reader: EngineReader,
    *,
    kind: EngineKind | None = None,
    names: MetricMap | None = None,
    timeout_s: float = 2.0,
) -> Finding:
    """Looks at an engine; with a `kind` nothing is guessed, and `names` say which series to read.

    Takes two or three times `timeout_s` at the very most, and that only from an engine that hangs on every question.

    Raises:
        ReadFailed: it cannot be reached, or answers nothing, or says of everything that it is not ready yet (503).
    """
    family = family_of(kind) if kind is not None else None
    needed = FIRST_LOOK if family is None else family.describing_paths
    questions = _Questions(reader, timeout_s)
    look = await questions.ask(needed)
    if all(answer.status == 503 for answer in look.answers.values()):
        raise ReadFailed("the engine says that it is not ready (503)", unreachable=False)
    if family is None:
        family = _claimant(look)
        if family is None:
            look = await questions.ask(SECOND_LOOK)
            family = _claimant(look) or family_of(FALLBACK)
        look = await questions.ask(family.describing_paths)
    if names is not None:
        family = Mapped(family, names)
        look = await questions.ask(family.describing_paths)
    path = family.sample_path(look)
    return Finding(
        family=family,
        info=family.describe(look),
        sample_path=path,
        sample=look.answers.get(path),
        has_holes=any(_is_hole(look.answers.get(path)) for path in (*needed, *family.describing_paths)),
        doubt=_doubt(look) if family.kind is FALLBACK and names is None else "",
    )


def _is_hole(answer: Answer | None) -> bool:
    """True if the answer may be another one soon; 501 is how llama.cpp says that it was started without metrics."""
    return answer is None or (answer.status >= 500 and answer.status != 501)


def _doubt(look: Look) -> str:
    """What speaks against an inference engine: any web server answers, and most tell no list of models."""
    answer = look.answers.get(MODELS)
    if answer is None or answer.status >= 500 or answer.status in (401, 403):
        return ""  # unwell, or not for us to see: says nothing about what it is
    if answer.status != 200:
        return f"{MODELS} answered {answer.status}"
    listed = look.json(MODELS)
    return (
        "" if isinstance(listed, dict) and "data" in listed else f"{MODELS} answered with no list of models"
    )


def _claimant(look: Look) -> EngineFamily | None:
    return next((family for family in all_families() if family.claims(look)), None)


class _Questions:
    """The questions of one attempt to find out what an engine is; none is asked twice."""

    def __init__(self, reader: EngineReader, timeout_s: float) -> None:
        self._reader = reader
        self._timeout_s = timeout_s
        self._asked: list[str] = []
        self._answers: dict[str, Answer] = {}

    async def ask(self, paths: Iterable[str]) -> Look:
        """All answers so far, those to these paths included.

        Raises:
            ReadFailed: if there is none at all.
        """
        asked = [path for path in paths if path not in self._asked]
        if not asked:
            return Look(self._answers)
        self._asked += asked
        tasks = [asyncio.ensure_future(self._get(path)) for path in asked]
        try:
            await _most(set(tasks), self._timeout_s)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, ReadFailed | asyncio.CancelledError
            ):
                raise outcome
        if not self._answers:
            failures = [outcome for outcome in outcomes if isinstance(outcome, ReadFailed)]
            raise ReadFailed(
                str(failures[0]) if failures else "the engine gave no answer in time",
                unreachable=bool(failures) and all(failure.unreachable for failure in failures),
            )
        return Look(self._answers)

    async def _get(self, path: str) -> None:
        self._answers[path] = await self._reader.get(path, timeout_s=self._timeout_s, max_bytes=ANSWER_BYTES)


async def _most(tasks: set[asyncio.Future[None]], timeout_s: float) -> None:
    """Waits until all are done, or until one has an answer and the others have had `STRAGGLER_S` more."""
    deadline_s = timeout_s + STRAGGLER_S
    pending = tasks
    while pending:
        done, pending = await asyncio.wait(pending, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return
        if any(task.exception() is None for task in done):
            deadline_s = STRAGGLER_S
