from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.http.head import HeadRefused, parse_request_head
from forebay.http.repeated import (
    KEPT_BYTES,
    SLOTS_MAX,
    TRIED_EVERY,
    VAIN_READS,
    VALUE_BYTES,
    request_heads,
    response_heads,
)

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
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5 \r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX-A: " + b"a" * KEPT_BYTES + b"\r\n\r\n",
    ],
)
def test_some_heads_are_not_kept(head: bytes) -> None:
    """Heads with an expectation that hangs on their length, or of unusual size, are read each time."""
    heads = request_heads()
    heads.read(head, 100)
    assert heads.find(head) is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_heads_without_a_length_come_again_as_well(head: bytes) -> None:
    """The template needs no slot."""
    heads = request_heads()
    read = heads.read(head, 100)
    assert heads.find(head + b"rest") is read
    assert heads.find(head[:-2] + b"X: 1\r\n\r\n") is None


NAMED = b"POST / HTTP/1.1\r\nhost: h\r\nx-id: %b\r\nContent-Length: %d\r\ntrace:%b\r\nz: 1\r\n\r\n"


def test_values_that_change_become_slots() -> None:
    """A client or a proxy in front that numbers its requests: from the third on its heads fit."""
    heads = request_heads()
    heads.read(NAMED % (b"a-1", 7, b"t1"), 100)
    assert heads.find(NAMED % (b"a-2", 7, b"t2")) is None
    heads.read(NAMED % (b"a-2", 7, b"t2"), 100).digest = "of the second"
    for number in range(3, 40):
        data = NAMED % (b"a-%d" % number, number, b"Mon,  30 N\xf6v %d" % number)
        found = heads.find(data + b"a body")
        assert found is not None
        assert found.digest is None
        assert found == parse_request_head(data, 100)
        found.digest = "of the last"
    again = heads.find(NAMED % (b"a-39", 8, b"Mon,  30 N\xf6v 39"))
    assert again is not None
    assert "of the last" == again.digest  # only the length differs


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" a",
        b"a ",
        b"a\tb",
        b"a\nb",
        b"a\x00",
        b"\x80",
        b"\xa0",
        b"a\x0bb",
        b"\x7f",
        b"a\r",
        b"a\r\nx: y",
        b"a" * VALUE_BYTES,
        b"a\r\n\r\nGET / HTTP/1.1\r\n",
    ],
)
def test_only_plain_values_fit_a_slot(value: bytes) -> None:
    """Whatever a parser might read in another way than as it stands is left to the parser."""
    heads = request_heads()
    for number in range(3):
        data = NAMED % (b"a-%d" % number, 7, b"t")
        heads.find(data) or heads.read(data, 100)
    assert heads.find(NAMED % (b"b", 7, b"t")) is not None
    assert heads.find(NAMED % (value, 7, b"t")) is None


@pytest.mark.parametrize(
    "name", [b"connection", b"host", b"transfer-encoding", b"upgrade", b"Keep-Alive", b"TE", b"expect"]
)
def test_fields_that_frame_are_no_slots(name: bytes) -> None:
    """Where a message ends, or what becomes of the connection, is read each time that it changes."""
    heads = response_heads()
    head = b"HTTP/1.1 200 OK\r\nx: 1\r\n%b: %b\r\ncontent-length: 1\r\n\r\n"
    for value in (b"close", b"keep-alive", b"close"):
        if name == b"transfer-encoding":
            continue  # refused beside a length
        assert heads.find(head % (name, value)) is None
        heads.read(head % (name, value), 100)
    heads = response_heads()
    heads.read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 100)
    assert heads.find(b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n") is None


def test_many_values_that_change_are_read_anew() -> None:
    """A template has so many slots and no more."""
    heads = request_heads()
    fields = b"".join(b"x-%d: %%d\r\n" % field for field in range(SLOTS_MAX + 1))
    for number in range(6):
        data = b"POST / HTTP/1.1\r\nhost: h\r\n" + fields % ((number,) * (SLOTS_MAX + 1)) + b"\r\n"
        assert heads.find(data) is None
        assert heads.read(data, 100) == parse_request_head(data, 100)


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
        head = FIRST.replace(b"X-A", b"X-A%d" % number)
        assert heads.find(head) is None
        read = heads.read(head, 100)
        kept += heads.find(head) is read
        heads._vain = number + 1
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
    lengths=st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=12),
    after=st.lists(
        st.sampled_from(
            [
                b"",
                b"Expect: x\r\n",
                b"Z: 1\r\n",
                b"Z: two\r\n",
                b"Z:3 \r\n",
                b"Z: \r\n",
                b"Connection: close\r\n",
            ]
        ),
        min_size=12,
        max_size=12,
    ),
)
def test_repetition_never_changes_what_is_read(
    before: bytes, name: bytes, blank: bytes, lengths: list[int], after: list[bytes]
) -> None:
    """Whatever is found is equal to what parsing those bytes gives, in any run of heads of one connection."""
    heads = request_heads()
    for length, more in zip(lengths, after, strict=False):
        data = b"POST / HTTP/1.1\r\nhost: h\r\n%b%b:%b%d\r\n%b\r\n" % (before, name, blank, length, more)
        try:
            expected = parse_request_head(data, 100)
        except HeadRefused:
            assert heads.find(data) is None
            continue
        assert (heads.find(data) or heads.read(data, 100)) == expected
