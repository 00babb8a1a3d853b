"""Any stream, cut anywhere, is seen as a plain reading of the grammar sees it."""

from __future__ import annotations

import json
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forebay.http.sse import EVENT_BYTES, SseScanner

CHUNK = b'{"choices":[{"delta":{"content":"x"},"finish_reason":null}]}'
LINES = [
    b"data: " + CHUNK,
    b"data:" + CHUNK,
    b'data: {"choices":[],"usage":{"completion_tokens":3}}',
    b'data: {"usage":null}',
    b'data: {"choices":[{"finish_reason":"stop"}]}',
    b'data: {"error":{"message":"m"}}',
    b'data: {"choices":[{"finish_reason":"abort"}]}',
    b"data: [DONE]",
    b"data:[DONE]",
    b"data:",
    b"data: ",
    b"data",
    b"datax: y",
    b": ping",
    b"event: message",
    b"id",
    b"",
    b"",
    b"",
    "data: 水\U0001f600".encode(),
]


def reference(stream: bytes) -> tuple[list[bytes], bool]:
    """Data of all events, and whether the end mark came: the grammar, line by line, with nothing clever."""
    events: list[bytes] = []
    done = False
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    values: list[bytes] = []
    for line in [*re.split(rb"\r\n|\n|\r", stream), b""]:
        name, colon, value = line.partition(b":")
        if not line:
            data = b"\n".join(values)
            values = []
            if len(data) < 16 and data.strip() == b"[DONE]":
                done = True
            elif data:
                events.append(data)
        elif name == b"data":
            values.append(value.removeprefix(b" ") if colon else b"")
    return events, done


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces."""
    edges = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[start:end] for start, end in pairwise(edges)]


def scan(pieces: list[bytes]) -> SseScanner:
    """A scanner that has seen some pieces and their end."""
    scanner = SseScanner()
    counted = sum([scanner.feed(piece) for piece in pieces]) + scanner.end()
    assert counted == scanner.data_events
    return scanner


def seen(scanner: SseScanner) -> tuple[object, ...]:
    """Everything that a scanner tells."""
    return (
        scanner.data_events,
        scanner.done,
        scanner.usage,
        scanner.finish_reason_seen,
        scanner.aborted,
        scanner.error,
        scanner.first_event,
    )


streams = st.one_of(
    st.binary(max_size=200),
    st.text("da:t \r\n[DONE]x\ufeff", max_size=60).map(str.encode),
    st.builds(
        lambda lines, ends, mark: (
            mark + b"".join([line + end for line, end in zip(lines, ends, strict=True)])
        ),
        st.shared(st.lists(st.sampled_from(LINES), max_size=12), key="lines"),
        st.shared(st.lists(st.sampled_from(LINES), max_size=12), key="lines").flatmap(
            lambda lines: st.lists(
                st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=len(lines), max_size=len(lines)
            )
        ),
        st.sampled_from([b"", b"\xef\xbb\xbf"]),
    ),
)
places = st.lists(st.integers(0, 10_000), max_size=20)


@given(streams, places)
def test_any_cut_is_seen_as_the_grammar_says(stream: bytes, at: list[int]) -> None:
    """Count, first event and end of any stream in any pieces are those of a plain line-by-line reading."""
    events, done = reference(stream)
    scanner = scan(cut(stream, at))
    assert (len(events), done) == (scanner.data_events, scanner.done)
    assert scanner.first_event == (events[0] if events else None)


@given(streams, places)
def test_any_cut_sees_the_same(stream: bytes, at: list[int]) -> None:
    """Usage, errors and reasons do not depend on where a stream is cut."""
    assert seen(scan([stream])) == seen(scan(cut(stream, at)))


@given(st.integers(EVENT_BYTES - 300, EVENT_BYTES + 300), st.integers(0, 5), places, st.booleans())
def test_long_events_are_counted_wherever_they_are_cut(
    size: int, comments: int, at: list[int], crlf: bool
) -> None:
    """Events about the size of the bound are counted once, whole or in pieces, with the events around them."""
    long_event = b": c\n" * comments + b"data: " + b"x" * size + b"\n\n"
    stream = b"data: a\n\n" + long_event + b'data: {"usage":{"completion_tokens":3}}\n\n'
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    step = len(stream) // 20
    whole, pieces = scan([stream]), scan(cut(stream, [place * step for place in at]))
    assert whole.data_events == 3
    assert seen(whole) == seen(pieces)


texts = st.one_of(
    st.sampled_from(
        [" word", "", "usage", "error", "stop", "_reason", "finish_reason", "null", "[DONE]", "\\", '"']
    ),
    st.text(max_size=8),
    st.sampled_from(['"usage":{"completion_tokens":9}', '"error":{"message":"m"}', "x\n\ndata: y"]),
)
"""What a model may say."""


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """One event of a stream as engines send them, with few variations, so that many are alike."""
    key = draw(st.sampled_from(["content", "text", "content", "object", "usage", "error"]))
    ended = draw(st.sampled_from([None, None, None, "stop", "abort"]))
    choice = {"index": 0, "delta": {key: draw(texts)}, "finish_reason": ended}
    value: dict[str, object] = {
        "object": draw(st.sampled_from(["chunk"] * 4 + ["error"])),
        "choices": [choice],
    }
    more = draw(st.sampled_from([None, None, None, "usage", "error"]))
    if more is not None:
        value[more] = draw(st.sampled_from([None, {"completion_tokens": 3}, {"message": "m"}]))
    blanks = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")]))
    return b"data: " + json.dumps(value, separators=blanks, ensure_ascii=False).encode() + b"\n\n"


@given(st.lists(events(), max_size=30), st.booleans())
def test_events_that_are_known_again_have_no_more_in_them(sent: list[bytes], all_ends: bool) -> None:
    """One by one, as they come, is the same as all at once, where each is looked into."""
    one_by_one, at_once = SseScanner(all_ends=all_ends), SseScanner(all_ends=all_ends)
    for event in sent:
        one_by_one.feed(event)
    at_once.feed(b"".join(sent))
    assert seen(at_once) == seen(one_by_one)
    assert (at_once.ends, at_once.first_usage) == (one_by_one.ends, one_by_one.first_usage)
