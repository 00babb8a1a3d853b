from __future__ import annotations

import json

import pytest

from forebay.gateway import passing
from forebay.gateway.ports import PoolView, Serving
from forebay.http.client import CallFailure
from forebay.http.message import Headers
from tests.unit.gateway.doubles import ENDPOINTS, Desk, ScriptedExchange, plain_head

BODY = b'{"model": "m", "prompt": "x"}'


class Bench:
    """A gateway that passes on what counts tokens, and one more path."""

    def __init__(self) -> None:
        self.desk = Desk()
        pool = PoolView("p", ENDPOINTS, ("m",), checks_model_names=True, passthrough=("/sleep",))
        self.desk.directory.serving = Serving((pool,))

    def ask(
        self, path: str = "/tokenize", body: bytes = BODY, headers: Headers | None = None
    ) -> ScriptedExchange:
        """A request comes in."""
        exchange = ScriptedExchange(body, headers, path)
        self.desk.gateway.on_request(exchange)
        return exchange

    def at_rest(self) -> bool:
        """Nothing is held any more."""
        return (0, 0) == (self.desk.gateway.passing, self.desk.bodies.taken_bytes)


@pytest.fixture
async def bench() -> Bench:
    """On a running loop, for the timers."""
    return Bench()


async def test_it_is_relayed_as_it_comes(bench: Bench) -> None:
    """Request and answer pass as they are, without the core."""
    exchange = bench.ask(headers=[(b"authorization", b"Bearer k")])
    (call,) = bench.desk.calls
    assert (BODY, True) == (call.sent_body, b"Bearer k" in call.sent_head)
    call.sink.on_head(plain_head(length=4))
    call.sink.on_data(b"ab")
    assert exchange.on_drain_change is not None
    exchange.on_drain_change(True)
    assert call.was_paused
    exchange.on_drain_change(False)
    call.sink.on_data(b"cd")
    call.sink.on_end()
    assert (200, b"abcd", ["finish"]) == (exchange.status, exchange.sent, exchange.ends)
    assert ([], True) == (bench.desk.core.events, bench.at_rest())


async def test_endpoints_take_turns_and_stand_in_for_each_other(bench: Bench) -> None:
    """One that fails before its answer is followed by another, three at most."""
    first = bench.ask()
    for _ in range(3):
        bench.desk.calls[-1].sink.on_failure(CallFailure.CLOSED_BEFORE_ANSWER, "")
    assert (502, 3) == (first.status, len(bench.desk.calls))
    hosts = {call.sent_head.partition(b"host: ")[2].partition(b"\r")[0] for call in bench.desk.calls}
    assert len(hosts) == 3
    assert bench.at_rest()


async def test_what_may_change_something_is_not_sent_twice(bench: Bench) -> None:
    """After an engine was reached there is no second attempt; where none was, there is."""
    exchange = bench.ask("/sleep")
    bench.desk.calls[-1].sink.on_failure(CallFailure.CONNECT, "")
    assert len(bench.desk.calls) == 2
    bench.desk.calls[-1].sink.on_failure(CallFailure.CLOSED_BEFORE_ANSWER, "")
    assert (502, 2, True) == (exchange.status, len(bench.desk.calls), bench.at_rest())


async def test_an_answer_that_breaks_is_cut(bench: Bench) -> None:
    """It has no clean end."""
    exchange = bench.ask()
    sink = bench.desk.calls[-1].sink
    sink.on_head(plain_head())
    sink.on_data(b"ab")
    sink.on_failure(CallFailure.CLOSED_IN_BODY, "")
    assert (["abort"], True) == (exchange.ends, bench.at_rest())


async def test_a_client_that_leaves_ends_it(bench: Bench) -> None:
    """The engine's connection is closed."""
    bench.ask().leave()
    assert (True, True) == (bench.desk.calls[-1].aborted, bench.at_rest())


async def test_silence_ends_it(bench: Bench) -> None:
    """504 while nothing was relayed, and a cut afterwards."""
    early, late = bench.ask(), bench.ask()
    bench.desk.calls[-1].sink.on_head(plain_head())
    for call in bench.desk.calls:
        assert isinstance(call.sink, passing.Passage)
        call.sink._too_late()
    assert (504, ["abort"], True) == (early.status, late.ends, bench.at_rest())


async def test_how_many_run_at_once_is_bounded(bench: Bench) -> None:
    """One more is told to come back, in the shape of its API."""
    exchanges = [bench.ask() for _ in range(passing.MOST_AT_ONCE)]
    refused = bench.ask("/v1/messages/count_tokens")
    error = json.loads(refused.sent)["error"]
    assert (429, "queue_full", "rate_limit_error") == (refused.status, error["code"], error["type"])
    assert b"retry-after" in refused.headers
    for exchange in exchanges:
        exchange.leave()
    assert bench.at_rest()


@pytest.mark.parametrize(("body", "status"), [(b"[", 400), (b'{"model": "other"}', 404)])
async def test_what_names_no_pool_is_told(bench: Bench, body: bytes, status: int) -> None:
    """As for what is admitted."""
    assert (status, True) == (bench.ask(body=body).status, bench.at_rest())
