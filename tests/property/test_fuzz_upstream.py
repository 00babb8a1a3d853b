"""Whatever an engine sends as HTTP, a call ends once: with a whole answer or with a failure that says why."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_fuzz import each, pieces, places, spoilt
from tests.unit.http.peers import Calling, Collected


def outcome(cut: list[bytes]) -> tuple[list[int], bytes, int, bool]:
    """Heads, body, ends and whether it failed, once the engine has closed."""
    calling = Calling()
    for piece in cut:
        if calling.call.over:
            break
        calling.feed(piece)
    if not calling.call.over:
        calling.end()
        calling.connection.connection_lost(None)
    sink: Collected = calling.sink
    assert calling.call.over
    assert sink.ends + len(sink.failures) == 1
    assert calling.pool.calls == 0
    # Of an answer that fails, how much was given on before depends on the reads.
    body = b"" if sink.failures else sink.body
    return [head.status for head in sink.heads], body, sink.ends, bool(sink.failures)


@each("answers")
def test_an_answer_ends_a_call_once(data: bytes) -> None:
    """As it is in the corpus, whole and byte by byte."""
    assert outcome([data]) == outcome([data[at : at + 1] for at in range(len(data))])


@given(spoilt("answers"), places)
def test_a_spoilt_answer_ends_a_call_once(data: bytes, at: list[int]) -> None:
    """Whatever is done to it, and in any cut."""
    assert outcome([data]) == outcome(pieces(data, at))


@given(st.binary(max_size=200), places)
def test_any_bytes_end_a_call_once(data: bytes, at: list[int]) -> None:
    """Bytes that are no HTTP at all."""
    assert outcome([data]) == outcome(pieces(data, at))
