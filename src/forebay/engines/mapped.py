"""A family whose metrics have other names, by configuration: a fork, a proxy's page, or a server that nobody knows.

What is mapped is read from the configured path, everything else as the family underneath reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import EngineFamily, NoReading, Reading, page_of
from forebay.engines.exposition import Page, PageReader, PageTooLarge
from forebay.engines.plausible import Numbers
from forebay.engines.reading import Answer, Look
from forebay.engines.selecting import Selector, picked

__all__ = ["Mapped", "MetricMap"]

HEALTH_INTERVAL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class MetricMap:
    """Which series to read, each a `Selector` as text; None: as the family does."""

    path: str = "/metrics"
    running: str | None = None
    waiting: str | None = None
    kv: str | None = None
    kv_capacity: str | None = None
    preemptions: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    cached_tokens: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All that are set."""
        series = (self.running, self.waiting, self.kv, self.kv_capacity, self.preemptions)
        tokens = (self.prompt_tokens, self.output_tokens, self.cached_tokens)
        return tuple(text for text in (*series, *tokens) if text is not None)


class Mapped:
    """One family, with a map (`EngineFamily`)."""

    def __init__(self, base: EngineFamily, names: MetricMap) -> None:
        self._base = base
        self._names = names
        self._selectors = tuple(Selector.parse(text) for text in dict.fromkeys(names.texts))
        self._pages = PageReader({selector.name: None for selector in self._selectors})

    @property
    def kind(self) -> EngineKind:
        return self._base.kind

    @property
    def describing_paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._base.describing_paths, self._names.path)))

    @property
    def least_interval_s(self) -> float:
        return 0.0

    @property
    def health_interval_s(self) -> float:
        return self._base.health_interval_s or HEALTH_INTERVAL_S

    def claims(self, look: Look) -> bool:
        return self._base.claims(look)

    def describe(self, look: Look) -> EngineInfo:
        info, names = self._base.describe(look), self._names
        page = self._page(look.body(names.path)) or Page({})
        capacity = None if names.kv_capacity is None else Numbers(page).counter(names.kv_capacity)
        return replace(
            info,
            kv_tokens=capacity or info.kv_tokens,
            reports_load=info.reports_load or names.running is not None,
            # Whether a counter of others moves while an answer is made is not known: its standstill proves nothing.
            counts_while_running=info.counts_while_running and names.output_tokens is None,
        )

    def sample_path(self, look: Look) -> str:
        del look  # the configured one
        return self._names.path

    def read(self, path: str, answer: Answer) -> Reading:
        page = picked(page_of(answer, self._pages), self._selectors)
        try:
            base = self._base.read(path, answer)
        except NoReading:
            base = Reading(EngineSample(at_s=answer.at_s, took_s=answer.took_s))
        sample = base.sample
        numbers, names = Numbers(page), self._names
        sample = replace(
            sample,
            running=sample.running if names.running is None else numbers.gauge(names.running),
            waiting=sample.waiting if names.waiting is None else numbers.gauge(names.waiting),
            kv_usage=sample.kv_usage if names.kv is None else numbers.ratio(names.kv),
            preemptions_total=_counted(numbers, names.preemptions, sample.preemptions_total),
            prompt_tokens_total=_counted(numbers, names.prompt_tokens, sample.prompt_tokens_total),
            output_tokens_total=_counted(numbers, names.output_tokens, sample.output_tokens_total),
            cached_tokens_total=_counted(numbers, names.cached_tokens, sample.cached_tokens_total),
        )
        sample = replace(sample, doubtful=(*sample.doubtful, *numbers.doubtful))
        return Reading(sample, base.process, (*base.doubts, *numbers.doubts))

    def _page(self, body: bytes | None) -> Page | None:
        if body is None:
            return None
        try:
            return picked(self._pages.read(body), self._selectors)
        except PageTooLarge:
            return None


def _counted(numbers: Numbers, name: str | None, otherwise: int | None) -> int | None:
    return otherwise if name is None else numbers.counter(name)
