from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.http.head import HeadRefused, parse_request_head
from forebay.http.repeated import KEPT_BYTES, TRIED_EVERY, VAIN_READS, request_heads, response_heads

FIRST = b"POST /v1/x?q=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\nX-A: 1\r\n\r\n"


def test_the_same_bytes_are_the_same_head() -> None:
    """A head that comes again byte for byte is known again, whatever follows it."""
    heads = request_heads()
    assert heads.find(FIRST) is None
    head = heads.read(FIRST, 100)
    assert heads.find(FIRST + b"a body\r\n\r\n") is head


@pytest.mark.parametrize("digits", [b"0", b"7", b"345", b"000012", b"9" * 18])
def test_another_length_gives_what_reading_it_gives(digits: bytes) -> None:
    """Where only the digits differ the head is the one that parsing gives, and what the owner made of it stays."""
    heads = request_heads()
    heads.read(FIRST, 100).digest = "mine"
    other = FIRST.replace(b"12", digits, 1)
    found = heads.find(other)
    assert found is not None
    assert found.digest == "mine"
    found.digest = None
    assert found == parse_request_head(other, 100)
    again = heads.find(FIRST)
    assert again is not None
    assert again.content_length == 12


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST", b"PUT"),
        (b"q=1", b"q=2"),
        (b"X-A: 1", b"X-A: 2"),
        (b"X-A", b"x-a"),
        (b": 12", b":12"),
        (b"12", b"1 2"),
        (b"12", b"+12"),
        (b"12", b""),
        (b"12", b"1" * 19),
        (b"12", b"12\r\nContent-Length: 12"),
        (b"\r\n\r\n", b"\r\nX-B: 1\r\n\r\n"),
        (b"\r\n\r\n", b"\r\n"),
    ],
)
def test_whatever_else_differs_is_read_anew(old: bytes, new: bytes) -> None:
    """A difference outside the digits, or digits that are none, is never taken for a repetition."""
    heads = request_heads()
    heads.read(FIRST, 100)
    assert heads.find(FIRST.replace(old, new, 1)) is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5 \r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX-A: " + b"a" * KEPT_BYTES + b"\r\n\r\n",
    ],
)
def test_some_heads_are_not_kept(head: bytes) -> None:
    """Heads without a length, with an expectation that hangs on it, or of unusual size are read each time."""
    heads = request_heads()
    heads.read(FIRST, 100)
    heads.read(head, 100)
    assert heads.find(head) is None
    assert heads.find(FIRST) is None


def test_a_refused_head_is_refused_again() -> None:
    """Nothing is kept of a head that was refused."""
    heads = request_heads()
    bad = FIRST.replace(b"Host: h\r\n", b"")
    for _ in range(2):
        with pytest.raises(HeadRefused):
            heads.read(bad, 100)
        assert heads.find(bad) is None


def test_heads_that_never_come_again_are_seldom_kept() -> None:
    """Where every head differs only one in sixteen is kept, and that suffices to notice when they come again."""
    heads = request_heads()
    kept = 0
    for number in range(160):
        head = FIRST.replace(b"X-A: 1", b"X-A: %d" % number)
        heads.read(head, 100)
        kept += heads._head is not None
    assert VAIN_READS + 10 == kept
    for _ in range(TRIED_EVERY):
        heads.find(FIRST) or heads.read(FIRST, 100)
    assert heads.find(FIRST) is not None


def test_answers_are_known_again() -> None:
    """An engine's next answer with another length and the same date is the same head."""
    heads = response_heads()
    first = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 1\r\n\r\n"
    heads.read(first, 100)
    found = heads.find(first.replace(b"1\r\n\r\n", b"20\r\n\r\n") + b"x")
    assert found is not None
    assert (200, 20, (b"content-length", b"20")) == (found.status, found.content_length, found.headers[1])
    assert heads.find(first.replace(b"now", b"net")) is None


@given(
    before=st.sampled_from([b"", b"A: content-length: 5\r\n", b"Content-Lengt: 1\r\n", b"B:\r\n"]),
    name=st.sampled_from([b"Content-Length", b"content-length", b"CONTENT-LENGTH"]),
    blank=st.sampled_from([b"", b" ", b"\t ", b"  "]),
    lengths=st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=4),
    after=st.sampled_from([b"", b"Expect: x\r\n", b"Z: 1\r\n", b"Connection: close\r\n"]),
)
def test_repetition_never_changes_what_is_read(
    before: bytes, name: bytes, blank: bytes, lengths: list[int], after: bytes
) -> None:
    """Whatever is found is equal to what parsing those bytes gives, in any run of heads of one connection."""
    heads = request_heads()
    for length in lengths:
        data = b"POST / HTTP/1.1\r\nhost: h\r\n%b%b:%b%d\r\n%b\r\n" % (before, name, blank, length, after)
        try:
            expected = parse_request_head(data, 100)
        except HeadRefused:
            assert heads.find(data) is None
            continue
        assert (heads.find(data) or heads.read(data, 100)) == expected
