from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.admission.events import Arrived, AttemptFailed, ClientLeft, Ended, Failure, FirstTokenCame
from forebay.admission.model import TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.gateway.ports import GatewaySettings
from forebay.http.client import CallFailure
from forebay.http.exchange import BodyFailure
from tests.unit.gateway.doubles import STREAM, Desk, ScriptedExchange, chat_body, plain_head

TICKET = TicketId(1)
EVENT = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
ERROR = b'data: {"error":{"message":"broke","code":500}}\n\n'


@pytest.fixture
def desk() -> Desk:
    """A gateway whose core dispatches whatever arrives."""
    made = Desk()
    made.core.on_arrival = made.core.dispatch
    return made


def test_a_request_becomes_a_demand(desk: Desk) -> None:
    """What body and headers say reaches the core in one demand, with the class clamped to the default."""
    body = chat_body(stream=True, max_tokens=9, n=2)
    headers = [(b"x-slo-ttft-ms", b"500"), (b"x-forebay-session", b"s1"), (b"x-stainless-retry-count", b"1")]
    desk.request(body, headers)
    (arrived,) = desk.core.told(Arrived)
    assert isinstance(arrived, Arrived)
    demand = arrived.demand
    assert ("p", "standard", "m", True, 2) == (
        demand.pool, demand.class_name, demand.model, demand.stream, demand.samples,
    )  # fmt: skip
    assert (9, len(body), "s1", 1) == (
        demand.max_output_tokens, demand.body_bytes, demand.session, demand.retry_count,
    )  # fmt: skip
    assert demand.first_token_by_s == pytest.approx(100.5)


def test_the_engine_gets_the_same_bytes(desk: Desk) -> None:
    """The body goes out byte-identical behind a head with one length and the engine's own host."""
    body = b' {"model":  "m"}'
    desk.request(body, [(b"authorization", b"Bearer k")])
    (call,) = desk.calls
    assert body == call.sent_body
    assert call.sent_head == (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8000\r\nauthorization: Bearer k\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )


def test_a_whole_answer_goes_out_at_once(desk: Desk) -> None:
    """A small answer is one write to the client and one word to the core."""
    exchange = desk.request()
    answer = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}'
    sink = desk.calls[0].sink
    sink.on_head(plain_head(length=len(answer)))
    sink.on_data(answer)
    assert exchange.ends == []
    sink.on_end()
    assert (["respond"], 200, answer) == (exchange.ends, exchange.status, exchange.sent)
    assert desk.core.events[1:] == [Ended(TICKET, Outcome.COMPLETED, Usage(3, 4))]


async def test_a_stream_tells_its_first_token_once(desk: Desk) -> None:
    """The first event opens the answer and is told once; the end closes the account with what was counted."""
    exchange = desk.request(chat_body(stream=True))
    sink = desk.calls[0].sink
    sink.on_head(STREAM)
    assert exchange.status is None
    for data in (EVENT, EVENT, LAST, DONE):
        sink.on_data(data)
    sink.on_end()
    assert (["finish"], EVENT + EVENT + LAST + DONE) == (exchange.ends, exchange.sent)
    assert [FirstTokenCame(TICKET), Ended(TICKET, Outcome.COMPLETED, None, 3)] == desk.core.events[1:]
    desk.gateway.close()


def test_a_failed_attempt_asks_for_another(desk: Desk) -> None:
    """A failure before the first byte is told with its kind; the next dispatch sends the same body again."""
    desk.core.on_failure = lambda ticket: desk.core.dispatch(ticket, "e1")
    exchange = desk.request()
    desk.calls[0].sink.on_failure(CallFailure.CONNECT, "refused")
    first, second = desk.calls
    assert first.sent_body == second.sent_body
    assert b"host: 127.0.0.1:8001\r\n" in second.sent_head
    (failed,) = desk.core.told(AttemptFailed)
    assert isinstance(failed, AttemptFailed)
    assert failed.failure is Failure.CONNECT
    second.sink.on_head(plain_head(length=2))
    second.sink.on_data(b"{}")
    second.sink.on_end()
    assert exchange.status == 200


def test_an_endpoint_that_is_gone_is_a_failed_attempt(desk: Desk) -> None:
    """A dispatch to an endpoint that is not served any more comes back to the core at once."""
    desk.core.on_arrival = lambda ticket: desk.core.dispatch(ticket, "removed")
    desk.core.on_failure = desk.core.abort
    exchange = desk.request()
    assert desk.calls == []
    assert exchange.status == 502
    assert [Failure.CONNECT] == [e.failure for e in desk.core.events if isinstance(e, AttemptFailed)]


async def test_the_engines_error_is_kept_for_the_end(desk: Desk) -> None:
    """When no attempt helps, the answer is the last error that an engine gave, with our id and reason."""
    desk.core.on_failure = desk.core.abort
    exchange = desk.request(headers=[(b"x-request-id", b"r")])
    sink = desk.calls[0].sink
    sink.on_head(plain_head(503))
    sink.on_data(b'{"error":{}}')
    sink.on_end()
    assert (503, b'{"error":{}}') == (exchange.status, exchange.sent)
    assert exchange.headers[b"x-forebay-reason"] == b"upstream_failed"
    assert exchange.headers[b"x-request-id"] == b"r"
    assert b"retry-after" in exchange.headers
    desk.gateway.close()


def test_a_silent_engine_is_a_504(desk: Desk) -> None:
    """An attempt that the core gives up while the engine is silent is a timeout, not a broken answer."""
    exchange = desk.request()
    desk.core.abort(TICKET)
    assert (504, "upstream_failed") == (exchange.status, exchange.error()["code"])
    assert desk.calls[0].aborted


async def test_an_abort_in_mid_stream_is_told_in_the_stream(desk: Desk) -> None:
    """A running stream that the core ends gets an error event with the code, and no clean end."""
    exchange = desk.request(chat_body(stream=True))
    sink = desk.calls[0].sink
    sink.on_head(STREAM)
    sink.on_data(EVENT)
    desk.core.abort(TICKET, Outcome.STREAM_LIMIT)
    assert exchange.ends == ["abort"]
    assert exchange.sent.startswith(EVENT + b'data: {"error":')
    assert b'"code":"stream_limit"' in exchange.sent
    assert desk.calls[0].aborted
    desk.gateway.close()


def test_a_stalled_attempt_is_taken_back(desk: Desk) -> None:
    """A hold after a dispatch means that the core took the request back: the attempt is cut and nothing is told."""
    desk.request()
    desk.core.hold(TICKET)
    assert desk.calls[0].aborted
    desk.core.dispatch(TICKET, "e1")
    assert len(desk.calls) == 2
    assert [Arrived] == [type(event) for event in desk.core.events]


def test_waiting_bodies_are_counted_and_given_back(desk: Desk) -> None:
    """A body counts while it is read, while it waits, and otherwise while an engine has not begun to answer."""
    desk.core.on_arrival = lambda ticket: desk.core.hold(ticket, 3)
    exchange = desk.request(at_once=False)
    assert exchange.keep is not None
    assert exchange.keep(len(exchange.body))
    assert desk.bodies.taken_bytes == len(exchange.body)
    assert exchange.arrive is not None
    exchange.arrive(exchange.body)
    assert desk.bodies.taken_bytes == len(exchange.body)
    desk.core.dispatch(TICKET, waited_s=0.25)
    assert (0, len(exchange.body)) == (desk.bodies.taken_bytes, desk.bodies.sent_bytes)
    desk.core.hold(TICKET)  # the engine stalled, and the core takes it back
    assert (len(exchange.body), 0) == (desk.bodies.taken_bytes, desk.bodies.sent_bytes)
    desk.core.dispatch(TICKET, waited_s=0.25)
    sink = desk.calls[1].sink
    sink.on_head(plain_head(length=2))
    sink.on_data(b"{}")
    sink.on_end()
    assert (0, 0) == (desk.bodies.taken_bytes, desk.bodies.sent_bytes)
    assert (b"0.250", b"1.500", b"3") == tuple(
        exchange.headers[name] for name in (b"x-queue-time", b"x-queue-predict-wait", b"x-queue-position")
    )


async def test_the_body_of_a_running_stream_is_not_kept(desk: Desk) -> None:
    """With the first event the body is let go, long before the stream ends; a failed attempt keeps it for the next."""
    desk.core.on_failure = lambda ticket: desk.core.dispatch(ticket, "e1")
    exchange = desk.request(chat_body(stream=True))
    assert desk.bodies.sent_bytes == len(exchange.body)
    desk.calls[0].sink.on_failure(CallFailure.CONNECT, "refused")
    assert desk.bodies.sent_bytes == len(exchange.body)
    desk.calls[1].sink.on_head(STREAM)
    desk.calls[1].sink.on_data(EVENT)
    assert ([], 0) == (exchange.ends, desk.bodies.sent_bytes)
    desk.gateway.close()


def test_a_refusal_is_answered_and_nothing_is_told(desk: Desk) -> None:
    """A refusal of the core is its own last word: the client is answered, the core hears nothing."""
    desk.core.on_arrival = desk.core.refuse
    exchange = desk.request()
    assert (429, "queue_full") == (exchange.status, exchange.error()["code"])
    assert exchange.headers[b"retry-after"] == b"2"
    assert len(desk.core.events) == 1


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (BodyFailure.TOO_LARGE, 413, "request_too_large"),
        (BodyFailure.TIMEOUT, 408, "request_timeout"),
        (BodyFailure.MALFORMED, 400, "invalid_request"),
    ],
)
def test_bodies_that_cannot_be_read(failure: BodyFailure, status: int, code: str) -> None:
    """A body that is too large, too slow or broken never becomes a ticket, and its room is given back."""
    body = chat_body()
    desk = Desk(GatewaySettings(max_body_bytes=len(body)))
    exchange = desk.request(body, at_once=False)
    assert exchange.failure is not None
    exchange.failure(failure)
    assert (status, code) == (exchange.status, exchange.error()["code"])
    assert desk.bodies.taken_bytes == 0
    assert desk.core.events == []


def test_no_room_for_a_body_is_told_before_it_is_read() -> None:
    """What is over the rest of the room is refused unread; what can never fit is told so."""
    desk = Desk(GatewaySettings(max_waiting_bytes=100))
    first = desk.request(b"x" * 80, at_once=False)
    assert first.keep is not None
    assert first.keep(70)
    second = desk.request(b"x" * 80, at_once=False)
    assert (429, "queue_full", None) == (second.status, second.error()["code"], second.arrive)
    never = desk.request(b"x" * 200, at_once=False)
    assert (413, None) == (never.status, never.arrive)
    first.leave()
    assert desk.bodies.taken_bytes == 0


def test_an_announced_body_takes_no_room_before_it_comes() -> None:
    """Bodies that only say how long they will be keep nobody out; the one for which there is no room is refused."""
    desk = Desk(GatewaySettings(max_waiting_bytes=100))
    slow = [desk.request(b"x" * 80, at_once=False) for _ in range(5)]
    assert [None] * 5 == [exchange.status for exchange in slow]
    first, second = slow[0], slow[1]
    assert first.keep is not None
    assert second.keep is not None
    assert second.failure is not None
    assert (True, False) == (first.keep(60), second.keep(60))
    second.failure(BodyFailure.NO_ROOM)
    assert (429, "queue_full") == (second.status, second.error()["code"])
    for exchange in slow:
        exchange.leave()
    assert desk.bodies.taken_bytes == 0


async def test_a_paused_client_pauses_the_engine(desk: Desk) -> None:
    """Back-pressure reaches the engine's socket and is taken off again."""
    exchange = desk.request(chat_body(stream=True))
    (call,) = desk.calls
    call.sink.on_head(STREAM)
    call.sink.on_data(EVENT)
    assert exchange.on_drain_change is not None
    seen = []
    for paused in (True, False):
        exchange.on_drain_change(paused)
        seen.append(call.was_paused)
    assert seen == [True, False]
    desk.gateway.close()


async def test_a_slow_reader_is_cut_and_counted(desk: Desk) -> None:
    """A reader that takes nothing ends as slow_reader, with the engine's connection cut while it goes on."""
    exchange = desk.request(chat_body(stream=True))
    (call,) = desk.calls
    call.sink.on_head(STREAM)
    call.sink.on_data(EVENT)
    assert exchange.on_slow_reader is not None
    exchange.on_slow_reader()
    assert desk.core.events[-1] == Ended(TICKET, Outcome.SLOW_READER, None, 1, engine_goes_on=True)
    assert call.aborted
    assert exchange.ends == ["abort"]
    desk.gateway.close()


@pytest.mark.parametrize(
    ("pieces", "outcome", "goes_on"),
    [
        ([EVENT, LAST, USAGE, DONE], Outcome.COMPLETED, False),
        ([EVENT, ERROR], Outcome.UPSTREAM_INTERRUPTED, True),
    ],
)
async def test_a_client_that_closes_at_the_end_mark_was_served(
    desk: Desk, pieces: list[bytes], outcome: Outcome, goes_on: bool
) -> None:
    """A client that leaves at `[DONE]`, or at an error event, does not wait for the body's end: it has not fled."""
    exchange = desk.request(chat_body(stream=True))
    (call,) = desk.calls
    call.sink.on_head(STREAM)
    for piece in pieces:
        call.sink.on_data(piece)
    exchange.leave()
    usage = Usage(7, 3) if USAGE in pieces else None
    assert desk.core.events[-1] == Ended(
        TICKET, outcome, usage, len(pieces) - (DONE in pieces), engine_goes_on=goes_on
    )
    assert desk.core.told(ClientLeft) == []
    assert call.aborted
    desk.gateway.close()


async def test_a_client_that_closes_before_the_end_mark_has_left(desk: Desk) -> None:
    """Without `[DONE]` nobody knows that the answer was whole."""
    exchange = desk.request(chat_body(stream=True))
    (call,) = desk.calls
    call.sink.on_head(STREAM)
    call.sink.on_data(EVENT + LAST)
    exchange.leave()
    assert desk.core.events[-1] == ClientLeft(TICKET, 2)
    desk.gateway.close()


async def test_a_client_that_closes_with_all_bytes_of_a_plain_answer_was_served(desk: Desk) -> None:
    """Of an answer with a length, nothing is missing once as many bytes were relayed; before, the client has left."""
    body = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}'
    for ticket, pieces in enumerate(([body[:9], body[9:]], [body[:9]]), 1):
        exchange = desk.request()
        sink = desk.calls[-1].sink
        sink.on_head(plain_head(length=len(body)))
        for piece in pieces:
            sink.on_data(piece)
        exchange.leave()
        whole = len(pieces) == 2
        assert desk.core.events[-1] == (
            Ended(TICKET, Outcome.COMPLETED, Usage(3, 4)) if whole else ClientLeft(TicketId(ticket))
        )
    desk.gateway.close()


def test_a_wait_that_nobody_predicted_is_not_told(desk: Desk) -> None:
    """With no endpoint there is no prediction, and a zero would promise a place at once."""
    desk.core.on_arrival = lambda ticket: desk.core.refuse(ticket, Outcome.NO_ENDPOINTS)
    assert b"x-queue-predict-wait" not in desk.request().headers
    desk.core.on_arrival = desk.core.dispatch
    refused = desk.request()
    desk.core.abort(TicketId(2), Outcome.NO_ENDPOINTS)
    assert b"x-queue-predict-wait" not in refused.headers


class AnyOrder(RuleBasedStateMachine):
    """One request, with everything that can happen to it in any order."""

    @initialize(stream=st.booleans(), read_later=st.booleans())
    def begin(self, stream: bool, read_later: bool) -> None:
        """The request comes in."""
        # Timers need a loop; none of them ever fires here.
        self.loop = asyncio.new_event_loop()
        asyncio._set_running_loop(self.loop)
        self.desk = Desk()
        self.core = self.desk.core
        self.exchange: ScriptedExchange = self.desk.request(chat_body(stream=stream), at_once=not read_later)

    def teardown(self) -> None:
        """Whatever is open is ended by the core; then everything must be closed, once."""
        if not hasattr(self, "desk"):
            return
        if self.exchange.on_disconnect is not None and TICKET not in self.core.state:
            self.exchange.leave()
        state = self.core.state.get(TICKET)
        if state == "waiting":
            self.core.refuse(TICKET, evicted=True)
        elif state == "running":
            self.core.abort(TICKET)
        assert len(self.exchange.ends) == 1
        assert not any(call.live for call in self.desk.calls)
        assert (0, 0) == (self.desk.bodies.taken_bytes, self.desk.bodies.sent_bytes)
        self.desk.gateway.progress.flush()
        assert not self.desk.gateway.progress._paused
        self.desk.gateway.close()
        asyncio._set_running_loop(None)
        self.loop.close()

    @property
    def state(self) -> str | None:
        """The core's view."""
        return self.core.state.get(TICKET)

    @precondition(
        lambda self: self.exchange.arrive is not None and self.state is None and not self.exchange.ends
    )
    @rule()
    def body_arrives(self) -> None:
        """The body is complete."""
        assert self.exchange.arrive is not None
        self.exchange.arrive(self.exchange.body)

    @precondition(lambda self: self.state == "waiting")
    @rule(endpoint=st.sampled_from(["e0", "e1", "removed"]))
    def dispatched(self, endpoint: str) -> None:
        """The core sends it to an endpoint."""
        self.core.dispatch(TICKET, endpoint)

    @precondition(lambda self: self.state == "waiting")
    @rule()
    def held(self) -> None:
        """The core keeps it waiting."""
        self.core.hold(TICKET)

    @precondition(lambda self: self.state == "waiting")
    @rule()
    def evicted(self) -> None:
        """The core turns it away."""
        self.core.refuse(TICKET, evicted=True)

    @precondition(lambda self: self.state == "running")
    @rule()
    def aborted(self) -> None:
        """The core ends it."""
        self.core.abort(TICKET)

    @precondition(lambda self: self.state == "running" and not self.core.told(FirstTokenCame))
    @rule()
    def taken_back(self) -> None:
        """The core takes it back from a stalled endpoint."""
        self.core.hold(TICKET)

    @precondition(lambda self: bool(self.desk.calls) and self.desk.calls[-1].live)
    @rule(
        what=st.lists(
            st.sampled_from(
                [
                    "stream",
                    "plain",
                    "error",
                    "teapot",
                    "event",
                    "comment",
                    "refusal",
                    "done",
                    "part",
                    "end",
                    "fail",
                ]
            ),
            min_size=1,
            max_size=4,
        )
    )
    def engine_says(self, what: list[str]) -> None:
        """The engine's answer goes on, as far as the call is still open and HTTP allows it."""
        call = self.desk.calls[-1]
        heads = {"stream": STREAM, "plain": plain_head(), "error": plain_head(500), "teapot": plain_head(418)}
        pieces = {
            "event": EVENT,
            "comment": b": x\n\n",
            "refusal": b'data: {"error":{"code":503}}\n\n',
            "done": DONE,
            "part": b"data: {",
        }
        for word in what:
            if not call.live:
                return
            begun = getattr(call, "begun", False)
            if word in heads and not begun:
                call.begun = True  # type: ignore[attr-defined]
                call.sink.on_head(heads[word])
            elif word in pieces and begun:
                call.sink.on_data(pieces[word])
            elif word == "end" and begun:
                call.ended = True
                call.sink.on_end()
            elif word == "fail":
                call.ended = True
                call.sink.on_failure(CallFailure.CLOSED_IN_BODY if begun else CallFailure.CONNECT, "broke")

    @precondition(lambda self: not self.exchange.ends)
    @rule()
    def client_leaves(self) -> None:
        """The client goes away."""
        self.exchange.leave()

    @precondition(lambda self: self.exchange.on_drain_change is not None)
    @rule(paused=st.booleans())
    def drain_changes(self, paused: bool) -> None:
        """The client reads too slowly, or again."""
        if self.exchange.on_drain_change is not None:
            self.exchange.on_drain_change(paused)

    @precondition(lambda self: self.exchange.on_slow_reader is not None and self.exchange.status is not None)
    @rule()
    def reader_is_slow(self) -> None:
        """The client takes nothing."""
        if self.exchange.on_slow_reader is not None:
            self.exchange.on_slow_reader()

    @rule()
    def time_passes(self) -> None:
        """Reports are made."""
        self.core.clock_s += 20.0
        self.desk.gateway.progress.flush()

    @invariant()
    def the_core_and_the_client_agree(self) -> None:
        """An ended ticket has an ended exchange and no open call, and an ended exchange no open ticket."""
        if not hasattr(self, "desk") or self.state is None:
            return
        assert (self.state == "ended") == bool(self.exchange.ends)
        live = [call for call in self.desk.calls if call.live]
        assert len(live) == (1 if self.state == "running" else 0)
        endings = self.core.told(Ended) + self.core.told(ClientLeft)
        assert len(endings) <= 1
        assert len(self.core.told(FirstTokenCame)) <= 1


AnyOrder.TestCase.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)
TestAnyOrder = AnyOrder.TestCase
