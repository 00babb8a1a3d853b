"""The same bytes mean the same messages, however they are cut into reads."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forebay.http.chunked import LAST_CHUNK, BadChunk, ChunkedDecoder, encode_chunk
from forebay.http.limits import ServerLimits
from tests.unit.http.peers import Owner, Served, echo, request

places = st.lists(st.integers(0, 100_000), max_size=30)
bodies = st.binary(max_size=300)
LIMITS = ServerLimits(head_bytes=2000, read_ahead_bytes=500)


def cut(wire: bytes, at: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    edges = sorted({place % (len(wire) + 1) for place in at} | {0, len(wire)})
    return [wire[start:end] for start, end in pairwise(edges)]


@st.composite
def chunked_wires(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A body, and the same in chunks with extensions and trailers."""
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=8))
    extension = draw(st.sampled_from([b"", b";a=b", b' ;x="y"']))
    trailer = draw(st.sampled_from([b"", b"X-T: 1\r\n", b"A: b\r\nC: d\r\n"]))
    wire = b"".join([b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces])
    return b"".join(pieces), wire + b"0\r\n" + trailer + b"\r\n"


@given(chunked_wires(), st.binary(max_size=20), places)
def test_chunked_bodies_are_decoded_in_any_cut(
    body_and_wire: tuple[bytes, bytes], rest: bytes, at: list[int]
) -> None:
    """A chunked body in any pieces gives the body, and leaves exactly what follows it."""
    body, wire = body_and_wire
    decoder, decoded, left = ChunkedDecoder(), b"", b""
    for piece in cut(wire + rest, at):
        if decoder.done:
            left += piece
        else:
            data = decoder.feed(piece)
            if decoder.one_chunk:
                alone = ChunkedDecoder()
                assert (data, False) == (alone.feed(piece), alone.done), "good to be sent on as it is"
                assert piece.endswith(b"\r\n%b\r\n" % data)
            decoded += data
            left = decoder.rest
    assert (body, True, rest) == (decoded, decoder.done, left)


@given(st.one_of(st.binary(max_size=60), st.text("0123aF;x\r\n +", max_size=30).map(str.encode)), places)
def test_any_bytes_are_a_chunked_body_or_refused(wire: bytes, at: list[int]) -> None:
    """Whatever comes, the decoder gives the same bytes in any cut, or refuses in any cut."""

    def outcome(pieces: list[bytes]) -> tuple[bytes, bool] | None:
        decoder, decoded = ChunkedDecoder(), b""
        try:
            for piece in pieces:
                if not decoder.done:
                    decoded += decoder.feed(piece)
        except BadChunk:
            return None
        return decoded, decoder.done

    assert outcome([wire]) == outcome(cut(wire, at))


@given(st.lists(st.binary(min_size=1, max_size=50)))
def test_encoding_and_decoding_are_inverse(pieces: list[bytes]) -> None:
    """What is encoded chunk by chunk is decoded to the same bytes."""
    decoder = ChunkedDecoder()
    assert decoder.feed(b"".join([encode_chunk(piece) for piece in pieces]) + LAST_CHUNK) == b"".join(pieces)


def ended(served: Served) -> bool:
    """True if the connection takes no more requests."""
    return served.transport.closed or served.transport.half_closed


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A good request, or one that is refused."""
    kind = draw(
        st.sampled_from(["get", "declared", "chunked", "old", "close", "expect", "bad", "long", "lf", "lead"])
    )
    body = draw(bodies)
    match kind:
        case "get":
            return request(b"GET", b"/get?q", b"", b"X-A: " + draw(st.text("ab c", max_size=30)).encode())
        case "declared":
            return request(body=body)
        case "chunked":
            return request(body=draw(chunked_wires())[1], chunked=True)
        case "old":
            return b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        case "close":
            return request(b"POST", b"/close", body, b"Connection: close")
        case "bad":
            return draw(
                st.sampled_from(
                    [
                        request(b"POST", b"/", b"x", b"Content-Length: 2"),
                        request(b"POST", b"/", b"", b"Content-Length: +2"),
                        request(b"GET", b"/", b"", b"X: a", b" b"),
                        b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
                        b"nonsense\r\n\r\n",
                        request(body=b"zz\r\n", chunked=True),
                    ]
                )
            )
        case "long":
            return request(b"GET", b"/long", b"", b"X: " + b"x" * draw(st.integers(1900, 2100)))
        case "lf":
            return b"GET / HTTP/1.1\nHost: h\n\n"
        case "lead":
            return b"\r\n\r\n" + request(b"GET", b"/lead")
        case _:
            return request(b"PUT", b"/expect", body, b"Expect: 100-continue")


@given(st.lists(requests(), max_size=5), places, st.booleans())
def test_any_cut_gives_the_same_requests_and_answers(
    wires: list[bytes], at: list[int], byte_by_byte: bool
) -> None:
    """A client's bytes in any pieces lead to the same requests, the same answers and the same end."""
    wire = b"".join(wires)
    pieces = [wire[start : start + 1] for start in range(len(wire))] if byte_by_byte else cut(wire, at)
    whole, split = Served(Owner(echo), LIMITS), Served(Owner(echo), LIMITS)
    whole.feed(wire)
    split.feed(*pieces)
    # A client that waits for 100 gets it or not, by what has come when its body is asked for.
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert whole.transport.sent.replace(interim, b"") == split.transport.sent.replace(interim, b"")
    assert len(whole.owner.exchanges) == len(split.owner.exchanges)
    assert whole.owner.errors == split.owner.errors
    assert ended(whole) == ended(split)


@given(st.binary(max_size=300), places)
def test_any_bytes_are_answered_or_awaited(wire: bytes, at: list[int]) -> None:
    """Whatever a client sends, the connection does not fail, and the cut does not matter."""
    whole, split = Served(Owner(echo), LIMITS), Served(Owner(echo), LIMITS)
    whole.feed(wire)
    split.feed(*cut(wire, at))
    assert whole.transport.sent == split.transport.sent
