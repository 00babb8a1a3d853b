"""Signs of life for the client of a streamed request that waits."""

from __future__ import annotations

import asyncio
import json

import pytest

from forebay.admission.events import AttemptFailed, ClientLeft, Ended, FirstTokenCame, WaitTold
from forebay.admission.model import TicketId
from forebay.admission.outcomes import Outcome
from forebay.gateway.attempt import USAGE_BODY_BYTES
from forebay.gateway.ports import GatewaySettings
from forebay.gateway.waiting import COMMENT
from forebay.http.call import CallFailure
from tests.unit.gateway.doubles import STREAM, Desk, ScriptedExchange, chat_body, plain_head

TICKET = TicketId(1)
SOON_S = 0.005
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def desk() -> Desk:
    """A gateway that sends comments to whoever waits in class `standard`; its core lets everybody wait."""
    made = Desk(GatewaySettings(waiting_comments_s={"standard": SOON_S}))
    made.core.on_arrival = lambda ticket: made.core.hold(ticket, 3)
    return made


async def told(exchange: ScriptedExchange, count: int) -> None:
    """Wait until it was sent so many comments."""
    for _ in range(1000):
        if exchange.sent.count(COMMENT) >= count:
            return
        await asyncio.sleep(SOON_S)
    raise AssertionError("no comment came")


async def waiting(desk: Desk, *headers: tuple[bytes, bytes]) -> ScriptedExchange:
    """A stream that was sent a comment."""
    exchange = desk.request(chat_body(stream=True), list(headers))
    await told(exchange, 1)
    return exchange


async def test_an_answer_is_begun_with_a_comment(desk: Desk) -> None:
    """The head says which request it is, its position and its predicted wait; the core is told once."""
    exchange = await waiting(desk, (b"x-request-id", b"mine"), (b"x-forebay-explain", b"1"))
    assert (200, b"mine", b"3", b"1.500") == (
        exchange.status,
        exchange.headers[b"x-request-id"],
        exchange.headers[b"x-queue-position"],
        exchange.headers[b"x-queue-predict-wait"],
    )
    assert exchange.headers[b"content-type"].startswith(b"text/event-stream")
    assert "hold" == json.loads(exchange.headers[b"x-forebay-decision"])["action"]
    await told(exchange, 3)
    assert [WaitTold(TICKET)] == desk.core.told(WaitTold)
    exchange.leave()
    assert [ClientLeft(TICKET)] == desk.core.told(ClientLeft)
    sent = exchange.sent
    await asyncio.sleep(4 * SOON_S)
    assert sent == exchange.sent


async def test_the_engines_stream_follows(desk: Desk) -> None:
    """Without a second head; our comments go on until its first event and no longer."""
    exchange = await waiting(desk)
    desk.core.dispatch(TICKET, waited_s=0.5)
    await told(exchange, exchange.sent.count(COMMENT) + 2)
    sink = desk.calls[0].sink
    sink.on_head(STREAM)
    sink.on_data(LAST[:9])
    await told(exchange, exchange.sent.count(COMMENT) + 2)
    before = exchange.sent
    sink.on_data(LAST[9:])
    await asyncio.sleep(4 * SOON_S)
    sink.on_data(DONE)
    sink.on_end()
    assert (["finish"], before + LAST + DONE) == (exchange.ends, exchange.sent)
    assert [FirstTokenCame(TICKET), Ended(TICKET, Outcome.COMPLETED, None, 1)] == desk.core.events[-2:]
    desk.gateway.close()


async def test_a_refusal_is_an_event_with_its_code(desk: Desk) -> None:
    """And the connection is closed behind it, so that nobody takes it for a whole answer."""
    exchange = await waiting(desk)
    desk.core.refuse(TICKET, Outcome.QUEUE_TIMEOUT, evicted=True)
    assert ["abort"] == exchange.ends
    event = exchange.sent.rpartition(b"data: ")[2]
    assert "queue_timeout" == json.loads(event)["error"]["code"]


async def test_a_failure_of_all_engines_is_an_event(desk: Desk) -> None:
    """Of ours where there is none of the engine's."""
    exchange = await waiting(desk)
    desk.core.dispatch(TICKET)
    desk.core.abort(TICKET)
    assert ["abort"] == exchange.ends
    assert "upstream_failed" == json.loads(exchange.sent.rpartition(b"data: ")[2])["error"]["code"]


@pytest.mark.parametrize("pieces", [1, 3])
async def test_an_engines_own_error_is_an_event(desk: Desk, pieces: int) -> None:
    """Though it comes as an answer of its own, in one piece or several."""
    exchange = await waiting(desk)
    desk.core.dispatch(TICKET)
    error = b'{"error": {"message": "bad", "code": 400}}'
    sink = desk.calls[0].sink
    sink.on_head(plain_head(400, length=len(error)))
    step = len(error) // pieces
    for at in range(0, len(error), step):
        sink.on_data(error[at : at + step])
    sink.on_end()
    assert (["abort"], True) == (exchange.ends, exchange.sent.endswith(b"data: %b\n\n" % error))
    assert [Ended(TICKET, Outcome.ENGINE_REJECTED)] == desk.core.told(Ended)


async def test_an_answer_too_large_for_an_event_has_failed(desk: Desk) -> None:
    """A stream was promised; what an engine that gives none says is kept up to a bound."""
    await waiting(desk)
    desk.core.dispatch(TICKET)
    sink = desk.calls[0].sink
    sink.on_head(plain_head(200))
    for _ in range(3):
        sink.on_data(b"x" * (USAGE_BODY_BYTES // 2))
    sink.on_end()
    assert 1 == len(desk.core.told(AttemptFailed))


async def test_one_that_is_taken_back_is_told_again(desk: Desk) -> None:
    """After a failed attempt it waits as before; the head is not sent twice."""
    exchange = await waiting(desk)
    desk.core.dispatch(TICKET)
    desk.core.hold(TICKET)
    await told(exchange, exchange.sent.count(COMMENT) + 1)
    assert 1 == len(desk.core.told(WaitTold))
    exchange.leave()


@pytest.mark.parametrize(
    ("stream", "class_name"), [(False, b"standard"), (True, b"batch")], ids=["not a stream", "another class"]
)
async def test_others_are_told_nothing(desk: Desk, stream: bool, class_name: bytes) -> None:
    """Only streams can carry comments, and only in classes that ask for them."""
    if class_name == b"batch":
        desk = Desk(GatewaySettings(waiting_comments_s={"batch": SOON_S}))
        desk.core.on_arrival = desk.core.hold
    exchange = desk.request(chat_body(stream=stream))
    await asyncio.sleep(4 * SOON_S)
    assert (None, b"") == (exchange.status, exchange.sent)
    exchange.leave()


async def test_a_long_prompt_at_an_engine_is_company_too(desk: Desk) -> None:
    """Also of a request that never waited; another engine can be asked after it, since of an answer nothing passed."""
    desk.core.on_arrival = desk.core.dispatch
    exchange = desk.request(chat_body(stream=True), [])
    await told(exchange, 2)
    assert (200, b"0.000") == (exchange.status, exchange.headers[b"x-queue-time"])
    assert b"x-queue-position" not in exchange.headers
    assert [] == desk.core.told(FirstTokenCame)
    desk.calls[0].sink.on_failure(CallFailure.CLOSED_BEFORE_ANSWER, "")
    assert 1 == len(desk.core.told(AttemptFailed))
    desk.core.dispatch(TICKET)
    await told(exchange, exchange.sent.count(COMMENT) + 1)
    sink = desk.calls[1].sink
    sink.on_head(STREAM)
    sink.on_data(LAST + DONE)
    sink.on_end()
    assert ["finish"] == exchange.ends
    assert 1 == exchange.sent.count(LAST)


async def test_who_asks_for_no_stream_gets_no_comments(desk: Desk) -> None:
    """Nor does a stream whose answer comes at once."""
    desk.core.on_arrival = desk.core.dispatch
    whole, stream = desk.request(chat_body(), []), desk.request(chat_body(stream=True), [])
    sink = desk.calls[1].sink
    sink.on_head(STREAM)
    sink.on_data(LAST)
    await asyncio.sleep(4 * SOON_S)
    assert (None, LAST) == (whole.status, stream.sent)
