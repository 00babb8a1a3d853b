"""Series of one name that mean different things by a label, or the same thing twice: which of them to read.

A `Selector` is a name with conditions on labels, written as Prometheus does: `nv_requests{type="active"}`. Pages are
read by name alone (`exposition`); `picked` then keeps what the selectors want, each under the selector's own text, so
that `plausible.Numbers` finds it there. `counted_once` folds series that tell the same number for several processes of
one engine. Both are for pages of a few dozen series of interest, and neither raises on what an engine writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from forebay.engines.exposition import Page

__all__ = ["Selector", "counted_once", "picked"]

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_CONDITION: Final = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*\"((?:[^\"\\]|\\.)*)\"\s*(?:,|$)")
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Selector:
    """A name of series, and the labels that they must have."""

    text: str
    """As it was written: the name under which the values are found."""
    name: str
    conditions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """`name` or `name{label="value", …}`.

        Raises:
            ValueError: it is neither.
        """
        name, brace, rest = text.strip().partition("{")
        name = name.strip()
        if not _NAME.fullmatch(name):
            raise ValueError(f"{text!r} is no name of a metric")
        if not brace:
            return cls(text, name)
        if not rest.endswith("}"):
            raise ValueError(f"{text!r}: the labels end with a brace")
        inside, at, conditions = rest[:-1], 0, []
        while at < len(inside):
            match = _CONDITION.match(inside, at)
            if match is None:
                raise ValueError(f'{text!r}: labels are written as label="value", with commas between them')
            conditions.append((match[1], _ESCAPED.sub(r"\1", match[2])))
            at = match.end()
        return cls(text, name, tuple(conditions))

    def wants(self, labels: Mapping[str, str]) -> bool:
        """True if a series with these labels is meant."""
        return all(labels.get(label) == value for label, value in self.conditions)


def picked(page: Page, selectors: Iterable[Selector]) -> Page:
    """What the selectors want of a page, by their texts."""
    series: dict[str, Mapping[bytes, float]] = {}
    broken = []
    for selector in selectors:
        found = page.series.get(selector.name, {})
        if selector.conditions:
            found = {raw: value for raw, value in found.items() if selector.wants(page.labels(raw))}
        if found:
            series[selector.text] = found
        if selector.name in page.broken:
            broken.append(selector.text)
    return Page(series, tuple(broken), page.parsed)


def counted_once(
    page: Page, *, copies: frozenset[str], is_total: Callable[[Mapping[str, str]], bool] = lambda _: False
) -> Page:
    """A page on which series count once that differ only in the labels `copies`: processes that tell the same number.

    The largest of such values is kept: one process may be a moment behind. Where a series is the total of others by
    `is_total`, the others are left out.
    """
    return Page(
        {name: _folded(page, found, copies, is_total) for name, found in page.series.items()}, page.broken
    )


def _folded(
    page: Page,
    found: Mapping[bytes, float],
    copies: frozenset[str],
    is_total: Callable[[Mapping[str, str]], bool],
) -> Mapping[bytes, float]:
    if len(found) < 2:
        return found
    labelled = [(page.labels(raw), value) for raw, value in found.items()]
    totals = [(labels, value) for labels, value in labelled if is_total(labels)]
    folded: dict[bytes, float] = {}
    for labels, value in totals or labelled:
        key = repr(sorted((label, text) for label, text in labels.items() if label not in copies)).encode()
        known = folded.get(key)
        if known is None or math.isnan(known) or value > known:
            folded[key] = value
    return folded
