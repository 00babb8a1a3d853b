"""Reads a Prometheus or OpenMetrics text page, and of it only the series that were asked for.

An engine's page has hundreds of lines of which we want a dozen, five times a second, so a line that is not asked
for costs a split and one lookup. Names are matched whole: `x_created` and `x_bucket` are never taken for `x`.

The page comes from another process and is not trusted. A line that cannot be read spoils nothing but itself; any
bytes whatever give a `Page` or `PageTooLarge`. Whether a number makes sense is not judged here: NaN, infinities and
negative values are handed on, and `plausible` decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["PAGE_BYTES", "Page", "PageReader", "PageTooLarge", "labels_of"]

PAGE_BYTES: Final = 4 * 1024 * 1024
"""The largest page that is read. A vLLM page has 40 kB per data-parallel rank: this is room for 100 ranks."""

PAGE_LINES: Final = 200_000
"""The most lines that are read: bounds time and memory also for a page of line feeds."""

WANTED_LINES: Final = 5_000
"""The most lines of wanted series that are read: they cost most, and 100 ranks have 2,000."""

LABEL_BYTES: Final = 256 * 1024
"""The most bytes of labels on those lines: 2,000 lines with 128 each. To take labels apart costs more than all else."""

# Possessive quantifiers, so that a hostile line is rejected in one pass. A brace or a comma inside a quoted label
# value belongs to the value. After the value may come a timestamp, an exemplar, or both; neither is of interest.
_LINE = re.compile(
    rb"[ \t]*+[^\s{]++[ \t]*+"
    rb"(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*+\")*+)\})?+"
    rb"[ \t]*+(?P<value>[^\s#]++)(?:[ \t]++[^\s#]++)?+[ \t\r]*+(?:\#.*+)?+",
    re.DOTALL,
)
_LABEL = re.compile(rb"[ \t,]*+([^\s=,\"]++)[ \t]*+=[ \t]*+\"((?:[^\"\\]|\\.)*+)\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class PageTooLarge(ValueError):
    """The page has more bytes, lines or series than any engine's honest page would."""


@dataclass(frozen=True, slots=True)
class Page:
    """The series that were asked for and found."""

    series: Mapping[str, Mapping[bytes, float]]
    """Values by name and then by the labels as they stand on the page; a repeated series counts once, the last wins."""
    broken: tuple[str, ...] = ()
    """Names of series that were there with a line that could not be read."""

    parsed: dict[bytes, dict[str, str]] = field(default_factory=dict, compare=False, repr=False)
    """Labels that were taken apart already, by their text."""

    def labels(self, raw: bytes) -> dict[str, str]:
        """The labels of one of its series, taken apart once whoever asks."""
        known = self.parsed.get(raw)
        if known is None:
            known = self.parsed[raw] = labels_of(raw)
        return known

    def __contains__(self, name: object) -> bool:
        return name in self.series or name in self.broken

    def values(self, name: str) -> list[float]:
        """Values of all series of this name, one per set of labels."""
        return list(self.series.get(name, {}).values())


class PageReader:
    """Reads pages for a fixed set of names, which are looked up many times and prepared once."""

    __slots__ = ("_wanted",)

    def __init__(self, names: Iterable[str]) -> None:
        self._wanted = {name.encode(): name for name in names}

    def read(self, page: bytes) -> Page:
        """The wanted series of this page.

        Raises:
            PageTooLarge: more than `PAGE_BYTES`, `PAGE_LINES`, `WANTED_LINES` or `LABEL_BYTES`.
        """
        if len(page) > PAGE_BYTES:
            raise PageTooLarge(f"the metrics page has {len(page)} bytes; at most {PAGE_BYTES} are read")
        lines = page.split(b"\n", PAGE_LINES)
        if len(lines) > PAGE_LINES:
            raise PageTooLarge(f"the metrics page has more than {PAGE_LINES} lines")
        wanted = self._wanted
        series: dict[str, dict[bytes, float]] = {}
        broken: dict[str, None] = {}
        wanted_lines = label_bytes = 0
        for line in lines:
            brace = line.find(b"{")
            if brace >= 0:
                raw_name = line[:brace].strip()
            else:
                words = line.split(None, 1)
                if not words:
                    continue
                raw_name = words[0]
            name = wanted.get(raw_name)
            if name is None:
                continue
            wanted_lines += 1
            if wanted_lines > WANTED_LINES:
                raise PageTooLarge(
                    f"the metrics page has more than {WANTED_LINES} lines of series that are read"
                )
            label_bytes += len(line) - len(raw_name)
            if label_bytes > LABEL_BYTES:
                raise PageTooLarge(
                    f"the metrics page has more than {LABEL_BYTES} bytes of labels on series that are read"
                )
            match = _LINE.fullmatch(line)
            value = _number(match["value"]) if match else None
            if match is None or value is None:
                broken[name] = None
            else:
                series.setdefault(name, {})[match["labels"] or b""] = value
        return Page(series, tuple(broken))


def labels_of(raw: bytes) -> dict[str, str]:
    """The labels of one series, from their text between the braces; a broken rest is left out."""
    labels: dict[str, str] = {}
    at = 0
    while match := _LABEL.match(raw, at):
        at = match.end()
        labels[match[1].decode(errors="replace")] = _ESCAPE.sub(_unescaped, match[2].decode(errors="replace"))
    return labels


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _number(text: bytes) -> float | None:
    """The value of a sample; None if this is no number of the format."""
    if b"_" in text:  # Python reads 1_0 as 10; the format knows no such thing
        return None
    try:
        return float(text)
    except ValueError:
        return None
