"""Whatever clients and engines send, every reader gives an answer or the error that is documented.

The inputs of `tests/corpus` are read as they are, and then cut, spliced with one another and spoilt.
"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.base import NoReading
from forebay.engines.exposition import PageReader
from forebay.engines.mapped import Mapped, MetricMap
from forebay.engines.reading import Answer, Look
from forebay.engines.registry import all_families
from forebay.gateway.asks import Ask, BadRequest
from forebay.gateway.engine_answers import answer_from_event, gave_up, usage_of_body, usage_of_object
from forebay.gateway.routes import ADMITTED
from forebay.http.limits import ServerLimits
from forebay.http.sse import SseScanner
from tests.unit.http.peers import Owner, Served, echo

CORPUS = Path(__file__).parent.parent / "corpus"
PATHS = ("/metrics", "/v1/models", "/props", "/slots", "/health", "/info", "/prometheus/metrics")
NAMES = MetricMap(
    running='vllm:num_requests_running{engine="0"}', kv="sglang_token_usage", output_tokens="tgi_queue_size"
)


def inputs(kind: str) -> dict[str, bytes]:
    """The files of one folder."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / kind).iterdir())}


def each(kind: str) -> pytest.MarkDecorator:
    """One test for each file of a folder."""
    found = inputs(kind)
    return pytest.mark.parametrize("data", found.values(), ids=found.keys())


@st.composite
def spoilt(draw: st.DrawFn, kind: str) -> bytes:
    """An input with pieces taken out, put in, repeated, or taken from another one."""
    seeds = list(inputs(kind).values())
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["cut", "put", "again", "other", "flip"])):
            case "cut":
                del data[start:end]
            case "put":
                data[start:start] = draw(st.one_of(st.binary(max_size=8), st.sampled_from(TOKENS)))
            case "again":
                data[start:start] = data[start:end]
            case "other":
                other = draw(st.sampled_from(seeds))
                data[start:] = other[draw(st.integers(0, len(other))) :]
            case _ if start < len(data):
                data[start] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


TOKENS = [
    *(
        b"\r\n",
        b"\n\n",
        b"\r",
        b"\x00",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"null",
        b"-1",
        b"1e999",
        b"NaN",
    ),
    *(b'"usage":', b'"error":', b'"finish_reason":"abort"', b"data: ", b"[DONE]", b"content-length: 1\r\n"),
    *(b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800"),
]
places = st.lists(st.integers(0, 100_000), max_size=12)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    """The same in pieces."""
    edges = sorted({place % (len(data) + 1) for place in at} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


# Request bodies


def check_body(data: bytes) -> None:
    """Each route understands it or says what is wrong."""
    for route in ADMITTED.values():
        try:
            ask = route.read(data)
        except BadRequest:
            continue
        check_ask(ask)


def check_ask(ask: Ask) -> None:
    """Sizes that something can be reckoned with."""
    limits = (ask.max_output_tokens, ask.prompt_tokens)
    assert all(limit is None or 0 <= limit < 2**53 for limit in limits)
    assert ask.prompt_bytes >= 0
    assert ask.extra_prompt_tokens >= 0
    assert ask.samples >= 1
    assert ask.prompts >= 1
    assert ask.prefix_hash is None or 0 <= ask.prefix_hash < 2**64


@each("bodies")
def test_a_body_is_understood_or_refused(data: bytes) -> None:
    """As it is in the corpus."""
    check_body(data)


@given(spoilt("bodies"))
def test_a_spoilt_body_is_understood_or_refused(data: bytes) -> None:
    """Whatever is done to it."""
    check_body(data)


# Requests of clients

LIMITS = ServerLimits(head_bytes=2000, read_ahead_bytes=500)


def check_request(data: bytes, at: list[int]) -> None:
    """The connection answers or waits; how the bytes are cut does not matter."""
    whole, split = Served(Owner(echo), LIMITS), Served(Owner(echo), LIMITS)
    whole.feed(data)
    split.feed(*pieces(data, at))
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert whole.transport.sent.replace(interim, b"") == split.transport.sent.replace(interim, b"")
    assert len(whole.owner.exchanges) == len(split.owner.exchanges)


@each("requests")
def test_a_request_is_answered_or_awaited(data: bytes) -> None:
    """As it is in the corpus, whole and byte by byte."""
    check_request(data, list(range(len(data))))


@given(spoilt("requests"), places)
def test_a_spoilt_request_is_answered_or_awaited(data: bytes, at: list[int]) -> None:
    """Whatever is done to it."""
    check_request(data, at)


# Streams of engines


def check_stream(data: bytes, at: list[int]) -> None:
    """It is scanned, with the same result in any cut, and nothing of it is kept without bound."""
    seen = []
    for cut in ([data], pieces(data, at)):
        scanner = SseScanner()
        counted = sum([scanner.feed(piece) for piece in cut]) + scanner.end()
        assert counted == scanner.data_events
        seen.append((scanner.data_events, scanner.done, scanner.usage, scanner.aborted, scanner.error))
        if scanner.usage is not None:
            usage_of_object(scanner.usage)
        if scanner.error is not None:
            assert 400 <= answer_from_event(scanner.error).status < 600
    assert seen[0] == seen[1]


@each("streams")
def test_a_stream_is_scanned(data: bytes) -> None:
    """As it is in the corpus, whole and byte by byte."""
    check_stream(data, list(range(len(data))))


@given(spoilt("streams"), places)
def test_a_spoilt_stream_is_scanned(data: bytes, at: list[int]) -> None:
    """Whatever is done to it."""
    check_stream(data, at)


# Whole answers of engines


def check_whole(data: bytes) -> None:
    """Its usage is one that can be believed, or none."""
    gave_up(data)
    assert 400 <= answer_from_event(data).status < 600
    for usage in (usage_of_body(data), usage_of_object(data)):
        if usage is not None:
            assert 0 <= usage.prompt_tokens < 2**31
            assert 0 <= usage.output_tokens < 2**31
            assert usage.cached_tokens is None or 0 <= usage.cached_tokens <= usage.prompt_tokens


@each("wholes")
def test_a_whole_answer_is_read(data: bytes) -> None:
    """As it is in the corpus."""
    check_whole(data)


@given(spoilt("wholes"))
def test_a_spoilt_whole_answer_is_read(data: bytes) -> None:
    """Whatever is done to it."""
    check_whole(data)


# Pages of engines


def check_page(data: bytes, path: str, coding: bytes) -> None:
    """Each family reads it, or takes it for no sample; no number is one that nobody could believe."""
    answer = Answer(200, data, [(b"content-encoding", coding)] if coding else [])
    look = Look({path: answer})
    for family in (*all_families(), *(Mapped(base, NAMES) for base in all_families())):
        family.claims(look)
        info = family.describe(look)
        assert all(n is None or n > 0 for n in (info.context_tokens, info.kv_tokens, info.max_requests))
        assert info.kv_block_tokens >= 1
        with suppress(NoReading):
            sample = family.read(family.sample_path(look), answer).sample
            assert sample.kv_usage is None or (math.isfinite(sample.kv_usage) and 0 <= sample.kv_usage <= 1)
            assert all(
                n is None or n >= 0 for n in (sample.running, sample.waiting, sample.output_tokens_total)
            )
    PageReader(["vllm:num_requests_running"]).read(data)


@pytest.mark.parametrize("path", PATHS)
@each("pages")
def test_a_page_is_read(data: bytes, path: str) -> None:
    """As it is in the corpus, wherever it was found."""
    check_page(data, path, b"")
    check_page(data, path, b"gzip")


@given(spoilt("pages"), st.sampled_from(PATHS), st.sampled_from([b"", b"gzip", b"deflate", b"br"]))
def test_a_spoilt_page_is_read(data: bytes, path: str, coding: bytes) -> None:
    """Whatever is done to it."""
    check_page(data, path, coding)
