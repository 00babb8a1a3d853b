"""Claims about one call as its owner sees it; the wire is in `test_upstream_connection`."""

from __future__ import annotations

from typing import cast

from forebay.http.call import Call, CallFailure
from forebay.http.client import Upstream
from tests.unit.http.peers import Collected, FakePool


def make(head: bytes = b"GET / HTTP/1.1\r\n\r\n") -> tuple[FakePool, Call, Collected]:
    """A call that has no connection yet."""
    pool, sink = FakePool(), Collected()
    pool.calls = 1
    return pool, Call(cast(Upstream, pool), head, b"body", sink), sink


def test_a_call_ends_once() -> None:
    """Of an end, a failure and an abort only the first has an effect."""
    for first in (Call.finish, Call.abort, lambda call: call.fail(CallFailure.CONNECT, "refused")):
        pool, call, sink = make()
        first(call)
        told = (sink.ends, len(sink.failures))
        call.finish()
        call.fail(CallFailure.CONNECT, "refused")
        call.abort()
        assert told == (sink.ends, len(sink.failures))
        assert call.over
        assert pool.calls == 0


def test_an_ended_call_holds_nothing() -> None:
    """A call that is over lets go of the request it might have had to send again."""
    _, call, _ = make()
    call.finish()
    assert (b"", b"", None) == (call.head, call.body, call.connection)


def test_a_pause_before_there_is_a_connection_is_kept() -> None:
    """A call can be paused while it is still being connected."""
    _, call, _ = make()
    paused = []
    for change in (Call.pause, Call.resume, Call.abort, Call.pause):
        change(call)
        paused.append(call.paused)
    assert paused == [True, False, False, False]


def test_a_head_request_knows_that_its_answer_has_no_body() -> None:
    """Whether the answer can have a body is read from the request itself."""
    assert make(b"HEAD / HTTP/1.1\r\n\r\n")[1].answers_no_body
    assert not make(b"HEADER / HTTP/1.1\r\n\r\n")[1].answers_no_body
