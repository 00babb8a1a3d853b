"""Reads traces of requests: who asked for how much, and when.

Owns the formats: which there are, how each is recognised (by its content, never by its name; `.gz` too) and what
its columns mean. A file is streamed row by row, so that memory does not grow with it.

Rows come out in the order of time. They are sorted within a window of `WINDOW` rows, since recorders write a request
when it ends; a row that is out of order by more than that comes at the time of the row before it, and none is lost.
What is wrong in a file is said with file, line, key, what was found and what is allowed.

Formats: the common CSV (`arrival_s,prompt_tokens,output_tokens`, and if it likes `tenant`, `session_id`, `model`,
`reusable_prefix_tokens`, `class`, `limit_tokens`, `stream`); Azure 2023 and 2024 CSV; BurstGPT CSV; Mooncake JSON
lines; our recorder's JSON lines.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import io
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec

from forebay.load.record_line import LINE_VERSION, RecordLine

__all__ = ["FORMATS", "Lines", "TraceError", "TraceRow", "format_of", "number", "read_records", "read_trace"]

WINDOW: Final = 32_768
"""Rows that are held to put them in order: at a hundred requests a second, answers of five minutes."""
MAX_TOKENS: Final = 100_000_000
"""More than any model takes: whatever is above is a mistake in the file."""
MAX_TIME_S: Final = 1e11
"""Three thousand years, or the year 5138 where times count from 1970: whatever is above is a mistake in the file."""
_MAX_LIMIT: Final = (1 << 31) - 1
"""Of what a client may state: no limit at all, written as a number."""
_MAX_NAME: Final = 256
"""Characters kept of a tenant's name and the like: a window of rows is held in memory."""
_MAX_LINE: Final = 4 << 20
"""Characters of a line. Mooncake's rows carry a number per 512 tokens of their prompts."""
_MAX_PREFIXES: Final = 1 << 20
"""Blocks of prompts that are remembered to tell which prompts begin alike; the oldest are forgotten."""
_MOONCAKE_BLOCK_TOKENS: Final = 512


class TraceError(ValueError):
    """A trace cannot be read; the message names file, line and key."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    at_s: float
    """Seconds from the first row."""
    prompt_tokens: int
    output_tokens: int
    """What the answer came to. 0 where the request failed or generated nothing."""
    tenant: str = ""
    session: str = ""
    model: str = ""
    cached_tokens: int | None = None
    """Of the prompt, what a prefix cache could hold already; None where the source does not say."""
    class_name: str = ""
    limit_tokens: int | None = None
    """The client's own limit of output tokens."""
    stream: bool = True


_Line = TypeVar("_Line")
_Row = TypeVar("_Row")

_RowReader: TypeAlias = Callable[["Lines"], Iterator[TraceRow]]


def read_trace(path: str | Path, limit: int | None = None) -> Iterator[TraceRow]:
    """The rows of a trace in order of time, the first at 0; at most `limit`.

    Raises `TraceError` while reading, at the row that is wrong.
    """
    with _opened(path) as lines:
        reader = _READERS[_recognise(lines)]
        start_s: float | None = None
        for count, (at_s, row) in enumerate(_in_order(reader(lines), lambda row: row.at_s)):
            if count == limit:
                return
            start_s = at_s if start_s is None else start_s
            yield replace(row, at_s=at_s - start_s)


def read_records(*paths: str | Path) -> Iterator[tuple[float, RecordLine]]:
    """The lines of our own recorder with the seconds since 1970 of their arrival, in order of those.

    Several files are read one after the other, the earliest first. Raises `TraceError` if one is something else.
    """

    def chained() -> Iterator[RecordLine]:
        starts = []
        for path in paths:
            _check_rereadable(path)
            with _opened(path) as lines:
                found = _recognise(lines)
                if found != "forebay":
                    raise TraceError(f"{path}: this is a trace ({found}), not a record of forebay's recorder")
                starts.append((next(_record_lines(lines)).time, path))
        for _, path in sorted(starts, key=lambda start: start[0]):
            with _opened(path) as lines:
                yield from _record_lines(lines)

    return _in_order(chained(), lambda line: line.time)


def format_of(path: str | Path) -> str:
    """The name of the format of a file, one of `FORMATS`. Raises `TraceError` if it could not be read once more."""
    _check_rereadable(path)
    with _opened(path) as lines:
        return _recognise(lines)


class Lines:
    """The lines of a file, plain or gzip, with the number of the last one given and the first one kept in hand."""

    def __init__(self, path: str | Path, file: io.BufferedReader) -> None:
        self.path = path
        self.number = 0
        self.bytes_read: Callable[[], int] = file.tell
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        unpacked = io.BufferedReader(gzip.GzipFile(fileobj=file)) if packed else file
        self._text = io.TextIOWrapper(unpacked, encoding="utf-8-sig", errors="replace")
        self.first = next(self, "").strip()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """The next line that is not empty."""
        while True:
            try:
                line = self._text.readline(_MAX_LINE)
            except (OSError, EOFError, zlib.error) as failure:
                raise TraceError(f"{self.path}: line {self.number + 1}: cannot be read: {failure}") from None
            if not line:
                raise StopIteration
            self.number += 1
            if len(line) >= _MAX_LINE:
                raise self.error(None, f"is longer than {_MAX_LINE} characters")
            if not line.isspace():
                return line

    def error(self, key: str | None, problem: str) -> TraceError:
        """What is wrong with the line that was given last."""
        where = f"{self.path}: line {self.number}: " + (f"{key}: " if key else "")
        return TraceError(where + problem)


@contextmanager
def _opened(path: str | Path) -> Iterator[Lines]:
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - what fails while it is open is no failure to open it
    except OSError as failure:
        raise TraceError(f"{path}: cannot be read: {failure.strerror or failure}") from None
    with file:
        yield Lines(path, file)


def _check_rereadable(path: str | Path) -> None:
    """A pipe gives its content once, and one that nobody writes to is waited for without end."""
    place = Path(path)
    if place.exists() and not place.is_file() and not place.is_dir():
        raise TraceError(f"{path}: is a pipe or a device, and this is read twice: put it into a file first")


def number(
    lines: Lines, key: str, text: str | float | None, low: float = 0, high: float = float("inf")
) -> float:
    """A number of the last line; `TraceError` if it is none, or out of range."""
    try:
        value = float("nan" if text is None or isinstance(text, bool) else text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high or value == float("inf"):
        most = "" if high == float("inf") else f" to {high:g}"
        raise lines.error(key, f"found {_shown(text)}, allowed are numbers from {low:g}{most}")
    return value


def _time(lines: Lines, key: str, text: str | float | None) -> float:
    return number(lines, key, text, 0, MAX_TIME_S)


def _tokens(lines: Lines, key: str, text: str | float | None) -> int:
    value = number(lines, key, text, 0, MAX_TOKENS)
    if value != int(value):
        raise lines.error(key, f"found {_shown(text)}, allowed are whole numbers from 0 to {MAX_TOKENS:g}")
    return int(value)


def _shown(found: object) -> str:
    return "nothing" if found is None or found == "" else repr(found)[:60]


# Order


def _in_order(rows: Iterator[_Row], at_s: Callable[[_Row], float]) -> Iterator[tuple[float, _Row]]:
    """With their times, sorted within a window, and equal times as they came; times never go back."""
    held: list[tuple[float, int, _Row]] = []
    last_s = float("-inf")
    for count, row in enumerate(rows):
        entry = (at_s(row), count, row)
        if len(held) < WINDOW:
            heapq.heappush(held, entry)
            continue
        first_s, _, first = heapq.heappushpop(held, entry)
        last_s = max(last_s, first_s)
        yield last_s, first
    while held:
        first_s, _, first = heapq.heappop(held)
        last_s = max(last_s, first_s)
        yield last_s, first


# CSV


def _columns(lines: Lines) -> list[str]:
    return [name.strip() for name in next(csv.reader([lines.first]), [])]


def _cells(lines: Lines, columns: Sequence[str]) -> Iterator[list[str]]:
    """The cells of each row after the header; a row of another length is an error."""
    reader = csv.reader(lines)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as failure:
            raise lines.error(None, f"is no CSV: {failure}") from None
        if len(cells) != len(columns):
            raise lines.error(
                None, f"found {len(cells)} columns, allowed are {len(columns)}, as in the header"
            )
        yield cells


def _index(columns: Sequence[str], name: str) -> int | None:
    return columns.index(name) if name in columns else None


def _common(lines: Lines) -> Iterator[TraceRow]:
    columns = _columns(lines)
    at, prompt, output = (columns.index(name) for name in _COMMON)
    names = ("tenant", "session_id", "model", "class", "reusable_prefix_tokens", "limit_tokens", "stream")
    optional = [_index(columns, name) for name in names]
    for cells in _cells(lines, columns):
        tenant, session, model, class_name, reusable, limit, stream = (
            "" if place is None else cells[place] for place in optional
        )
        yield TraceRow(
            at_s=_time(lines, "arrival_s", cells[at]),
            prompt_tokens=_tokens(lines, "prompt_tokens", cells[prompt]),
            output_tokens=_tokens(lines, "output_tokens", cells[output]),
            tenant=tenant[:_MAX_NAME],
            session=session[:_MAX_NAME],
            model=model[:_MAX_NAME],
            class_name=class_name[:_MAX_NAME],
            cached_tokens=_tokens(lines, "reusable_prefix_tokens", reusable) if reusable else None,
            limit_tokens=_tokens(lines, "limit_tokens", limit) if limit else None,
            stream=_flag(lines, "stream", stream) if stream else True,
        )


def _flag(lines: Lines, key: str, text: str) -> bool:
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower())
    if value is None:
        raise lines.error(key, f"found {_shown(text)}, allowed are true and false")
    return value


def _azure(lines: Lines) -> Iterator[TraceRow]:
    columns = _columns(lines)
    at, prompt, output = (columns.index(name) for name in _AZURE)
    for cells in _cells(lines, columns):
        try:
            when = datetime.fromisoformat(cells[at].strip())
        except ValueError:
            allowed = "allowed is a time such as 2023-11-16 18:17:03.979960"
            raise lines.error("TIMESTAMP", f"found {_shown(cells[at])}, {allowed}") from None
        # Times without a zone are taken as UTC: the reader's own zone could have an hour twice.
        yield TraceRow(
            at_s=(when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp(),
            prompt_tokens=_tokens(lines, "ContextTokens", cells[prompt]),
            output_tokens=_tokens(lines, "GeneratedTokens", cells[output]),
        )


def _burstgpt(lines: Lines) -> Iterator[TraceRow]:
    columns = _columns(lines)
    at, prompt, output = (columns.index(name) for name in _BURSTGPT)
    model, session = _index(columns, "Model"), _index(columns, "Session ID")
    for cells in _cells(lines, columns):
        yield TraceRow(
            at_s=_time(lines, "Timestamp", cells[at]),
            prompt_tokens=_tokens(lines, "Request tokens", cells[prompt]),
            output_tokens=_tokens(lines, "Response tokens", cells[output]),
            model="" if model is None else cells[model][:_MAX_NAME],
            session="" if session is None else cells[session][:_MAX_NAME],
        )


# JSON lines


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    session_id: str | int = ""


def _mooncake(lines: Lines) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(_Mooncake, strict=False)
    seen: OrderedDict[int, None] = OrderedDict()
    for text in _with_first(lines):
        line = _decoded(lines, decoder, text)
        for key in ("input_length", "output_length"):
            _tokens(lines, key, getattr(line, key))
        cached = None
        if line.hash_ids:
            cached = min(line.input_length, _leading(line.hash_ids, seen) * _MOONCAKE_BLOCK_TOKENS)
        yield TraceRow(
            at_s=number(lines, "timestamp", line.timestamp, 0, MAX_TIME_S * 1000) / 1000,
            prompt_tokens=line.input_length,
            output_tokens=line.output_length,
            session=str(line.session_id)[:_MAX_NAME],
            cached_tokens=cached,
        )


def _leading(blocks: Sequence[int], seen: OrderedDict[int, None]) -> int:
    """How many of the first blocks came before; from now on all of them did."""
    known = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
    for block in blocks:
        seen[block] = None
        seen.move_to_end(block)
    while len(seen) > _MAX_PREFIXES:
        seen.popitem(last=False)
    return known


def _recorded(lines: Lines) -> Iterator[TraceRow]:
    for line in _record_lines(lines):
        cached = line.cached_expected if line.cached_tokens is None else line.cached_tokens
        yield TraceRow(
            at_s=line.time,
            prompt_tokens=line.input_length,
            output_tokens=line.output_length,
            tenant=line.tenant[:_MAX_NAME],
            session=line.session[:_MAX_NAME],
            model=line.model[:_MAX_NAME],
            cached_tokens=cached,
            class_name=line.class_name[:_MAX_NAME],
            limit_tokens=line.limit_tokens,
            stream=line.stream,
        )


_RECORD_TOKENS: Final = (
    "input_length", "output_length", "prompt_tokens", "cached_tokens", "output_tokens", "prompt_expected",
    "cached_expected", "output_expected",
)  # fmt: skip
_RECORD_SECONDS: Final = (
    "wait_budget_s", "wait_predicted_s", "waited_s", "ttft_s", "tpot_s", "duration_s", "cost_expected_gpu_s",
    "cost_gpu_s",
)  # fmt: skip


def _record_lines(lines: Lines) -> Iterator[RecordLine]:
    decoder = msgspec.json.Decoder(RecordLine)
    for text in _with_first(lines):
        line = _decoded(lines, decoder, text)
        if line.forebay != LINE_VERSION:
            raise lines.error("forebay", f"found version {line.forebay}, allowed is {LINE_VERSION}")
        _time(lines, "time", line.time)
        if line.limit_tokens is not None:
            number(lines, "limit_tokens", line.limit_tokens, 0, _MAX_LIMIT)
        for key in _RECORD_TOKENS:
            if (tokens := getattr(line, key)) is not None:
                _tokens(lines, key, tokens)
        for key in _RECORD_SECONDS:
            if (seconds := getattr(line, key)) is not None:
                _time(lines, key, seconds)
        yield line


def _with_first(lines: Lines) -> Iterator[str]:
    yield lines.first
    yield from lines


def _decoded(lines: Lines, decoder: msgspec.json.Decoder[_Line], text: str) -> _Line:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as failure:
        raise lines.error(None, str(failure)) from None


# Recognising

_COMMON: Final = ("arrival_s", "prompt_tokens", "output_tokens")
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT: Final = ("Timestamp", "Request tokens", "Response tokens")
_HEADERS: Final = {"common": _COMMON, "azure": _AZURE, "burstgpt": _BURSTGPT}
_READERS: Final[dict[str, _RowReader]] = {
    "common": _common,
    "azure": _azure,
    "burstgpt": _burstgpt,
    "mooncake": _mooncake,
    "forebay": _recorded,
}
FORMATS: Final = tuple(_READERS)


def _recognise(lines: Lines) -> str:
    """By the first line: the keys of a JSON object, or the columns of a header."""
    if not lines.first:
        raise TraceError(f"{lines.path}: is empty")
    if lines.first.startswith("{"):
        keys = _decoded(lines, msgspec.json.Decoder(dict[str, msgspec.Raw]), lines.first).keys()
        if "forebay" in keys:
            return "forebay"
        if {"timestamp", "input_length", "output_length"} <= keys:
            return "mooncake"
        found = ", ".join(keys)
    else:
        columns = _columns(lines)
        for name, wanted in _HEADERS.items():
            if set(wanted) <= set(columns):
                return name
        found = ", ".join(columns)
    allowed = "; ".join(f"{name}: {','.join(header)}" for name, header in _HEADERS.items())
    raise lines.error(
        None,
        f"is no trace: found {_shown(found)}, allowed are CSV headers with the columns of one of {allowed}; or JSON "
        "lines with timestamp, input_length and output_length (Mooncake, or forebay's own)",
    )
