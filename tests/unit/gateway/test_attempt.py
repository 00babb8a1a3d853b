from __future__ import annotations

import json

import pytest

from forebay.admission.events import AttemptFailed, Ended, Failure
from forebay.admission.model import TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.gateway import attempt
from forebay.gateway.progress import HELD_HEAD_S
from forebay.http.client import CallFailure, Sink
from tests.unit.gateway.doubles import STREAM, Desk, ScriptedExchange, chat_body, plain_head

TICKET = TicketId(1)
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
ERROR = b'data: {"error": {"message": "busy", "code": 503}}\n\n'


class Bench:
    """One dispatched request."""

    def __init__(self, *, stream: bool = True) -> None:
        self.desk = Desk()
        self.core = self.desk.core
        self.core.on_arrival = self.core.dispatch
        self.exchange: ScriptedExchange = self.desk.request(chat_body(stream=stream))

    @property
    def sink(self) -> Sink:
        """Of the last call."""
        return self.desk.calls[-1].sink

    def failures(self) -> list[Failure]:
        """Kinds of failed attempts told."""
        return [event.failure for event in self.core.events if isinstance(event, AttemptFailed)]

    def ends(self) -> list[Ended]:
        """Endings told."""
        return [event for event in self.core.events if isinstance(event, Ended)]


@pytest.fixture
async def bench() -> Bench:
    """A dispatched stream, on a running loop for the reports' timer."""
    return Bench()


@pytest.mark.parametrize(
    ("kind", "failure", "goes_on"),
    [
        (CallFailure.CONNECT, Failure.CONNECT, False),
        (CallFailure.CONNECT_TIMEOUT, Failure.CONNECT, False),
        (CallFailure.CLOSED_BEFORE_ANSWER, Failure.CLOSED, False),
        (CallFailure.MALFORMED, Failure.MALFORMED, True),
    ],
)
async def test_failures_of_the_call_keep_their_kind(
    bench: Bench, kind: CallFailure, failure: Failure, goes_on: bool
) -> None:
    """The core is told what failed, and whether the engine may still be at work."""
    bench.sink.on_failure(kind, "why")
    (told,) = bench.core.told(AttemptFailed)
    assert isinstance(told, AttemptFailed)
    assert (failure, goes_on) == (told.failure, told.engine_goes_on)


async def test_an_error_first_is_a_failed_attempt(bench: Bench) -> None:
    """A stream that begins with an error has not begun: its call is cut and the attempt has failed."""
    bench.sink.on_head(STREAM)
    bench.sink.on_data(ERROR)
    assert [Failure.REFUSED] == bench.failures()
    assert bench.desk.calls[0].aborted
    assert bench.exchange.status is None


async def test_an_error_in_the_same_read_as_tokens_is_not_first(bench: Bench) -> None:
    """An error behind a token in one read belongs to a stream that has begun."""
    bench.sink.on_head(STREAM)
    bench.sink.on_data(EVENT + ERROR)
    bench.sink.on_end()
    assert bench.failures() == []
    assert bench.exchange.sent == EVENT + ERROR
    assert [Outcome.UPSTREAM_INTERRUPTED] == [end.outcome for end in bench.ends()]
    bench.desk.gateway.close()


async def test_an_event_cut_anywhere_is_held_until_it_is_whole() -> None:
    """However the first event is cut, an error in it is seen before anything is sent."""
    for cut in range(1, len(ERROR) - 1):
        bench = Bench()
        bench.sink.on_head(STREAM)
        bench.sink.on_data(ERROR[:cut])
        assert bench.exchange.status is None
        bench.sink.on_data(ERROR[cut:])
        assert [Failure.REFUSED] == bench.failures()
        bench.desk.gateway.close()


async def test_comments_are_held_for_a_while(bench: Bench) -> None:
    """After 15 s of comments head and comments go out, and the core hears that the first byte has passed."""
    bench.sink.on_head(STREAM)
    bench.sink.on_data(b": ping\n\n")
    bench.core.clock_s += HELD_HEAD_S - 1
    bench.desk.gateway.progress.flush()
    assert bench.exchange.status is None
    bench.core.clock_s += 1
    bench.desk.gateway.progress.flush()
    assert bench.exchange.sent == b": ping\n\n"
    bench.sink.on_data(ERROR)
    bench.sink.on_end()
    assert [Outcome.UPSTREAM_INTERRUPTED] == [end.outcome for end in bench.ends()]
    bench.desk.gateway.close()


async def test_many_comments_are_not_held(bench: Bench) -> None:
    """Held bytes are bounded: beyond 4 KiB they go out."""
    bench.sink.on_head(STREAM)
    for _ in range(5):
        assert bench.exchange.status is None
        bench.sink.on_data(b": " + b"x" * 1000 + b"\n\n")
    assert bench.exchange.status == 200
    assert len(bench.exchange.sent) == 5 * 1004
    bench.desk.gateway.close()


async def test_a_first_event_without_its_empty_line(bench: Bench) -> None:
    """An event that is ended by the end of the stream still counts."""
    bench.sink.on_head(STREAM)
    bench.sink.on_data(b"data: [DONE]")
    bench.sink.on_end()
    assert (["finish"], b"data: [DONE]") == (bench.exchange.ends, bench.exchange.sent)
    assert [Outcome.COMPLETED] == [end.outcome for end in bench.ends()]
    bench.desk.gateway.close()


async def test_a_connection_lost_after_the_end_mark_is_no_failure(bench: Bench) -> None:
    """Once [DONE] was relayed the answer is whole, however the connection ends."""
    bench.sink.on_head(STREAM)
    bench.sink.on_data(EVENT + b"data: [DONE]\n\n")
    bench.sink.on_failure(CallFailure.CLOSED_IN_BODY, "reset")
    assert bench.exchange.ends == ["finish"]
    assert [Outcome.COMPLETED] == [end.outcome for end in bench.ends()]
    bench.desk.gateway.close()


async def test_our_error_event_stands_alone(bench: Bench) -> None:
    """Behind an event that was cut off, ours begins on a line of its own."""
    bench.sink.on_head(STREAM)
    bench.sink.on_data(EVENT)
    bench.sink.on_data(b'data: {"cho')
    bench.sink.on_failure(CallFailure.CLOSED_IN_BODY, "reset")
    tail = bench.exchange.sent.removeprefix(EVENT + b'data: {"cho\n\n')
    assert json.loads(tail.removeprefix(b"data: "))["error"]["code"] == "upstream_interrupted"
    bench.desk.gateway.close()


async def test_an_error_answer_is_kept_up_to_a_bound() -> None:
    """A huge error page is not kept or waited for: the client gets our own words instead."""
    bench = Bench(stream=False)
    bench.core.on_failure = bench.core.abort
    bench.sink.on_head(plain_head(500))
    bench.sink.on_data(b"x" * attempt.ERROR_BODY_BYTES)
    assert bench.failures() == []
    bench.sink.on_data(b"x")
    assert (502, "upstream_failed") == (bench.exchange.status, bench.exchange.error()["code"])
    assert bench.desk.calls[0].aborted
    bench.desk.gateway.close()


async def test_an_error_answer_without_an_end_is_an_error() -> None:
    """An engine that says 500 and then nothing has failed as soon as its body has had its time."""
    bench = Bench(stream=False)
    bench.core.on_failure = bench.core.abort
    bench.sink.on_head(plain_head(500))
    bench.core.clock_s += HELD_HEAD_S
    bench.desk.gateway.progress.flush()
    assert (502, "upstream_failed") == (bench.exchange.status, bench.exchange.error()["code"])
    assert bench.desk.calls[0].aborted
    bench.desk.gateway.close()


async def test_a_large_plain_answer_streams_through() -> None:
    """A plain answer in several pieces is relayed as it comes; its usage is found if it is not too large."""
    bench = Bench(stream=False)
    body = b'{"pad": "' + b"x" * 1000 + b'", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}'
    bench.sink.on_head(plain_head(length=len(body)))
    bench.sink.on_data(body[:500])
    assert bench.exchange.sent == body[:500]
    bench.sink.on_data(body[500:])
    bench.sink.on_end()
    assert (["finish"], body) == (bench.exchange.ends, bench.exchange.sent)
    assert [Usage(1, 2)] == [end.usage for end in bench.ends()]
    bench.desk.gateway.close()


async def test_of_a_huge_answer_the_end_is_kept() -> None:
    """Beyond its bound a plain answer is relayed and not kept, but for the end, where its usage stands."""
    bench = Bench(stream=False)
    bench.sink.on_head(plain_head())
    for _ in range(4):
        bench.sink.on_data(b" " * (attempt.USAGE_BODY_BYTES // 2))
    bench.sink.on_data(b'{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}')
    bench.sink.on_end()
    assert [Usage(1, 2)] == [end.usage for end in bench.ends()]
    bench.desk.gateway.close()
