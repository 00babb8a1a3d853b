"""Claims about the chunked coding."""

from __future__ import annotations

import pytest

from forebay.http.chunked import (
    LAST_CHUNK,
    LINE_BYTES,
    OVERHEAD_BYTES,
    BadChunk,
    ChunkedDecoder,
    encode_chunk,
)


def decode(*pieces: bytes) -> tuple[bytes, ChunkedDecoder]:
    """What a decoder makes of some pieces."""
    decoder = ChunkedDecoder()
    body = b"".join([decoder.feed(piece) for piece in pieces if not decoder.done])
    return body, decoder


def test_a_body_is_decoded_whole_and_in_bytes() -> None:
    """One piece or a thousand give the same body, and what follows it is kept apart."""
    wire = encode_chunk(b"hello") + encode_chunk(b" world") + LAST_CHUNK
    body, decoder = decode(wire + b"NEXT")
    assert (body, decoder.done, decoder.rest) == (b"hello world", True, b"NEXT")
    body, decoder = decode(*[wire[at : at + 1] for at in range(len(wire))])
    assert (body, decoder.done, decoder.rest) == (b"hello world", True, b"")


def test_one_whole_chunk_per_piece_is_the_same_as_any_other_way() -> None:
    """The shape in which streamed tokens come is decoded chunk by chunk."""
    decoder = ChunkedDecoder()
    assert decoder.feed(encode_chunk(b"data: x\n\n")) == b"data: x\n\n"
    assert decoder.feed(encode_chunk(b"a" * 300)) == b"a" * 300
    assert not decoder.done
    assert decoder.feed(LAST_CHUNK) == b""
    assert decoder.done


def test_what_is_one_chunk_and_nothing_else_is_said() -> None:
    """It may be sent on as it came; a part of a chunk, two, an extension, blanks or a last chunk may not."""
    decoder = ChunkedDecoder()
    for wire, body in (
        (b"00A\r\n0123456789\r\n", b"0123456789"),
        (b"a\r\n01234567\r\n\r\n", b"01234567\r\n"),
        (encode_chunk(b"x" * 70_000), b"x" * 70_000),
        (b"fF\r\n" + b"y" * 255 + b"\r\n", b"y" * 255),
    ):
        assert (body, True) == (decoder.feed(wire), decoder.one_chunk)
    for wire, body in (
        (b"1\r\n!\r\n", b"!"),  # so short that it is not looked for
        (b"A;x=1\r\n0123456789\r\n", b"0123456789"),
        (b"0000000A\r\n0123456789\r\n", b"0123456789"),
        (encode_chunk(b"0123456789") * 2, b"0123456789" * 2),
        (b"10\r\n012345", b"012345"),
        (b"6789abcdef\r\n", b"6789abcdef"),
        (LAST_CHUNK, b""),
    ):
        assert (body, False) == (decoder.feed(wire), decoder.one_chunk)


def test_f074_extensions_and_trailers_are_dropped() -> None:
    """Chunk extensions, upper case sizes, leading zeros and trailers do not change the body."""
    wire = b'00A;name="v;x"\r\n0123456789\r\n1 ;q\r\n!\r\n0;last\r\nX-Trailer: 1\r\nY: 2\r\n\r\nrest'
    body, decoder = decode(wire)
    assert (body, decoder.done, decoder.rest) == (b"0123456789!", True, b"rest")


@pytest.mark.parametrize(
    "wire",
    [
        b"+5\r\nhello\r\n",
        b"-1\r\n",
        b"0x5\r\nhello\r\n",
        b"5_0\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"\r\nhello",
        b";x\r\n",
        b"g\r\n",
        b"5\nhello\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhello\n",
        b"5\r\nhello\r\r\n",
        b"fffffffffffff\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"5;a\0b\r\nhello\r\n",
        b"0\r\nX: a\nY: b\r\n\r\n",
    ],
    ids=repr,
)
def test_f075_a_broken_coding_is_refused(wire: bytes) -> None:
    """Odd sizes, bare line feeds and chunks of the wrong length are refused, however they are cut."""
    with pytest.raises(BadChunk):
        decode(wire)
    with pytest.raises(BadChunk):
        decode(*[wire[at : at + 1] for at in range(len(wire))])


def test_a_chunk_longer_than_it_says_is_refused_at_once() -> None:
    """The byte after a chunk is judged without waiting for a line end that may never come."""
    with pytest.raises(BadChunk):
        decode(b"5\r\nhello", b"!")


def test_endless_lines_are_bounded() -> None:
    """A size line or trailer that never ends is refused; memory stays bounded."""
    with pytest.raises(BadChunk, match="too long"):
        decode(b"5;" + b"x" * (LINE_BYTES + 1))
    with pytest.raises(BadChunk, match="too long"):
        decode(*[b"5;" + b"x" * 100] + [b"x" * 100] * (LINE_BYTES // 100 + 1))
    with pytest.raises(BadChunk, match="too long"):
        decode(b"0\r\nX: " + b"x" * LINE_BYTES + b"\r\n\r\n")


def test_extensions_and_trailers_are_bounded_in_sum() -> None:
    """A body that is mostly extensions, or endless trailers, is refused."""
    with pytest.raises(BadChunk, match="too many bytes"):
        decode(
            b"1;" + b"x" * 1000 + b"\r\na\r\n",
            *[b"1;" + b"x" * 1000 + b"\r\na\r\n"] * (OVERHEAD_BYTES // 1000),
        )
    with pytest.raises(BadChunk, match="too many bytes"):
        decode(b"0\r\n", *[b"X: " + b"x" * 1000 + b"\r\n"] * (OVERHEAD_BYTES // 1000 + 1))
