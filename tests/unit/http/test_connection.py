"""Claims about how bytes of a client become requests, without a socket."""

from __future__ import annotations

from functools import partial

import pytest

from forebay.http.body import BodyFailure
from forebay.http.exchange import Exchange
from forebay.http.limits import ServerLimits
from tests.unit.http.peers import Bodies, Owner, Served, answers, echo, request


def respond(exchange: Exchange) -> None:
    """An owner that answers at once, without the body."""
    exchange.respond(200, [], exchange.head.path.encode())


def refuse(exchange: Exchange) -> None:
    """An owner that turns the request away, without the body."""
    exchange.respond(429, [(b"retry-after", b"1")], b"no")


# --- Requests in order ----------------------------------------------------------------------------------------


def test_a_request_is_answered_and_the_connection_lives_on() -> None:
    """Head and body in one piece give one exchange; the next request comes on the same connection."""
    served = Served(Owner(echo))
    served.feed(request(body=b"hello"))
    served.feed(request(b"GET", b"/y"))
    got = answers(served.transport.sent)
    assert [(200, b"POST /x hello"), (200, b"GET /y ")] == [(status, body) for status, _, body in got]
    assert served.transport.writes == 2
    assert b"connection" not in got[0][1]
    assert got[0][1][b"date"] == b"Thu, 01 Jan 1970 00:00:00 GMT"
    assert ("192.0.2.1", 4711) == served.owner.exchanges[0].peer


def test_every_byte_split_is_the_same_request() -> None:
    """One byte per read gives what one read gives, for declared and chunked bodies."""
    for wire in (
        request(body=b"hello"),
        request(body=b"5\r\nhello\r\n0\r\n\r\n", chunked=True),
        b"\r\n\r\n" + request(b"GET"),
    ):
        whole, split = Served(Owner(echo)), Served(Owner(echo))
        whole.feed(wire)
        split.feed(*[wire[at : at + 1] for at in range(len(wire))])
        assert whole.transport.sent == split.transport.sent != b""


def test_pipelined_requests_wait_while_answers_are_unread() -> None:
    """A client that does not take its answers gets no further ones made, and what it sends meanwhile is bounded."""
    served = Served(Owner(respond), ServerLimits(read_ahead_bytes=1000))
    served.feed(request(b"GET", b"/1"))
    served.connection.pause_writing()
    one = request(b"GET", b"/2")
    sent = 0
    while served.transport.reading:
        served.feed(one)
        sent += 1
    assert 1000 < sent * len(one) <= 1000 + len(one)
    assert len(served.owner.exchanges) == 1
    served.connection.resume_writing()
    assert len(served.owner.exchanges) == 1 + sent
    assert served.transport.reading


def test_f075_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    """The second of two pipelined requests reaches the handler when the first is answered, not before."""
    served = Served(Owner())
    served.feed(request(body=b"one") + request(b"POST", b"/2", b"two") + request(b"GET", b"/3"))
    assert len(served.owner.exchanges) == 1
    echo(served.owner.exchanges[0])
    assert len(served.owner.exchanges) == 2
    echo(served.owner.exchanges[1])
    echo(served.owner.exchanges[2])
    assert [b"POST /x one", b"POST /2 two", b"GET /3 "] == [
        body for _, _, body in answers(served.transport.sent)
    ]


def test_a_thousand_pipelined_requests_do_not_recurse() -> None:
    """Requests that are answered inside `on_request` are a loop, not a stack."""
    served = Served(Owner(echo))
    served.feed(request(b"GET") * 5000)
    assert len(served.owner.exchanges) == 5000


@pytest.mark.parametrize(
    "first", [request(b"GET", b"/1", b"", b"Connection: close"), b"GET /1 HTTP/1.0\r\n\r\n"]
)
def test_f075_nothing_after_close_is_answered(first: bytes) -> None:
    """What a client sends after a request that ends the connection is never taken for a request."""
    served = Served(Owner(respond))
    served.feed(first + request(b"GET", b"/2"))
    served.feed(request(b"GET", b"/3"))
    assert ["/1"] == [exchange.head.path for exchange in served.owner.exchanges]
    assert [b"close"] == [headers[b"connection"] for _, headers, _ in answers(served.transport.sent)]
    assert served.transport.closed or served.transport.half_closed


def test_http_1_0_keeps_alive_when_asked() -> None:
    """An HTTP/1.0 client that asks for keep-alive is told that it has it."""
    served = Served(Owner(respond))
    served.feed(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2)
    assert [b"keep-alive"] * 2 == [headers[b"connection"] for _, headers, _ in answers(served.transport.sent)]


def test_reading_stops_beyond_the_read_ahead_and_goes_on_after_the_answer() -> None:
    """A client that pipelines much is read up to the bound, then not until its request is answered."""
    served = Served(Owner(), ServerLimits(read_ahead_bytes=1000))
    served.feed(request(b"GET"))
    reading = []
    served.feed(request(b"GET") * 10)
    reading.append(served.transport.reading)
    served.feed(request(b"GET") * 50)
    reading.append(served.transport.reading)
    while not served.owner.exchanges[-1].over:
        respond(served.owner.exchanges[-1])
    reading.append(served.transport.reading)
    assert reading == [True, False, True]
    assert len(served.owner.exchanges) == 61


# --- Heads that are refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "status", "code"),
    [
        (request(b"POST", b"/", b"", b"Content-Length: +5"), 400, "invalid_request"),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400, "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0", 400, "invalid_request"),
        (b"\x16\x03\x01\x00", 400, "invalid_request"),
        (b"\0" * 10, 400, "invalid_request"),
        (request(b"GET", b"/", b"", b"X: " + b"x" * 70000), 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70000, 431, "head_too_large"),
        (request(b"GET", b"/", b"", *[b"X: y"] * 101), 431, "head_too_large"),
        (request(b"POST", b"/", b"x", b"Expect: the unexpected"), 417, "invalid_request"),
    ],
)
def test_f075_bad_heads_are_answered_and_the_connection_closes(wire: bytes, status: int, code: str) -> None:
    """A bad head never becomes a request: it is answered in the handler's words, and nothing after it is read."""
    served = Served(Owner(respond))
    served.feed(wire)
    served.feed(request(b"GET", b"/next"))
    ((got, headers, body),) = answers(served.transport.sent)
    assert (status, code.encode(), b"close") == (got, body, headers[b"connection"])
    assert [(status, code)] == served.owner.errors
    assert served.owner.exchanges == []
    assert served.transport.half_closed


def test_the_bound_of_a_head_is_exact() -> None:
    """A head of exactly the bound is taken, one of a byte more is refused, in one read or byte by byte."""
    for size, status in ((500, 200), (501, 431)):
        wire = request(b"GET", b"/", b"", b"X: " + b"x" * (size - len(request(b"GET", b"/", b"", b"X: "))))
        assert len(wire) == size
        for pieces in ([wire], [wire[at : at + 1] for at in range(size)]):
            served = Served(Owner(respond), ServerLimits(head_bytes=500))
            served.feed(*pieces)
            assert [status] == [got for got, _, _ in answers(served.transport.sent)]


def test_bad_head_behind_a_good_request_waits_for_its_turn() -> None:
    """A malformed pipelined request is refused after the answer to the one before it."""
    served = Served(Owner())
    served.feed(request(b"GET") + b"BAD\r\n\r\n")
    assert served.owner.errors == []
    respond(served.owner.exchanges[0])
    assert [200, 400] == [status for status, _, _ in answers(served.transport.sent)]


def test_head_that_never_ends_is_408() -> None:
    """A head that is still incomplete when its time is over is answered 408, whatever trickled in meanwhile."""
    served = Served(Owner(respond))
    served.feed(b"GET / HT")
    for now in range(1, 10):
        served.sweep(float(now))
        served.feed(b"T")
    served.sweep(10.0)
    assert served.owner.errors == []
    served.sweep(11.0)
    assert [(408, "request_timeout")] == served.owner.errors
    assert served.transport.half_closed


def test_idle_connection_closes_silently() -> None:
    """A connection without a request is closed after its keep-alive time, without a word."""
    served = Served(Owner(respond))
    served.feed(request(b"GET"))
    served.transport.take()
    served.sweep(75.0)
    assert not served.transport.closed
    served.sweep(76.0)
    assert (b"", True) == (served.transport.sent, served.transport.closed)


def test_empty_lines_do_not_keep_a_connection() -> None:
    """Line ends between requests are ignored, and do not extend the keep-alive time."""
    served = Served(Owner(respond))
    for now in range(0, 85, 5):
        served.sweep(float(now))
        served.feed(b"\r\n")
    assert served.transport.closed


def test_connections_over_the_bound_are_dropped() -> None:
    """One connection more than allowed is closed as it comes."""
    served = Served(Owner(respond), ServerLimits(connections=0))
    assert served.transport.aborted
    assert len(served.serving.connections) == 0


# --- Bodies -------------------------------------------------------------------------------------------------------


def test_body_that_comes_later_is_read_whole() -> None:
    """A body in many reads is handed over when it is complete, and once."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 10"), b"012")
    bodies.read(served.owner.exchanges[0])
    served.feed(b"345")
    assert bodies.got == []
    served.feed(b"6789")
    assert bodies.got == [b"0123456789"]


def test_missing_body_is_empty() -> None:
    """A request without a body has an empty one."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(b"GET"))
    bodies.read(served.owner.exchanges[0])
    assert bodies.got == [b""]


def test_declared_length_over_the_limit_fails_before_reading() -> None:
    """A body that says it is too large is refused at once, and the answer closes the connection."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 100000000"))
    bodies.read(served.owner.exchanges[0], 1000)
    assert bodies.failed == [BodyFailure.TOO_LARGE]
    refuse(served.owner.exchanges[0])
    ((status, headers, _),) = answers(served.transport.sent)
    assert (429, b"close") == (status, headers[b"connection"])


def test_small_body_over_the_limit_leaves_the_connection_usable() -> None:
    """A body over the limit that has already arrived is dropped, and the next request is served."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(body=b"0123456789") + request(b"GET", b"/next"))
    bodies.read(served.owner.exchanges[0], 5)
    assert bodies.failed == [BodyFailure.TOO_LARGE]
    refuse(served.owner.exchanges[0])
    assert served.owner.exchanges[1].head.path == "/next"


def test_f074_chunked_body_is_read_whole_with_extensions_and_trailers() -> None:
    """A chunked body, one byte to a chunk, with extensions and trailers, is one plain body."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(chunked=True))
    bodies.read(served.owner.exchanges[0])
    served.feed(*[b"1;ext=1\r\n%c\r\n" % (65 + at % 26) for at in range(2048)], b"0\r\nX-T: 1\r\n\r\n")
    assert len(bodies.got[0]) == 2048


def test_f074_chunked_body_over_the_limit_is_refused_on_the_way() -> None:
    """An endless chunked body fails when the limit is passed; what follows is dropped and does not pile up."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(chunked=True))
    bodies.read(served.owner.exchanges[0], 10_000)
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    served.feed(chunk, chunk, chunk)
    assert bodies.failed == [BodyFailure.TOO_LARGE]
    refuse(served.owner.exchanges[0])
    served.feed(*[chunk] * 100)
    assert [429] == [status for status, _, _ in answers(served.transport.sent)]
    assert served.transport.half_closed


def test_broken_chunked_body_is_malformed() -> None:
    """A body in a broken coding fails, and the answer closes the connection."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(chunked=True))
    bodies.read(served.owner.exchanges[0])
    served.feed(b"xyz\r\n")
    assert bodies.failed == [BodyFailure.MALFORMED]
    served.owner.exchanges[0].respond(400, [], b"")
    assert answers(served.transport.sent)[0][1][b"connection"] == b"close"


def test_silent_body_times_out() -> None:
    """A body of which no byte comes for its time fails; a byte starts the time anew, a total bounds it."""
    served, bodies = Served(Owner(), ServerLimits(body_timeout_s=30, body_total_s=100)), Bodies()
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 1000"))
    bodies.read(served.owner.exchanges[0])
    for now in (29.0, 58.0, 87.0):
        served.sweep(now)
        served.feed(b"x")
    assert bodies.failed == []
    served.sweep(101.0)
    assert bodies.failed == [BodyFailure.TIMEOUT]


# --- Answers before the body ----------------------------------------------------------------------------------


def test_f073_little_unread_body_is_dropped_and_the_connection_lives_on() -> None:
    """An answer before a small body does not close: the rest is dropped, the next request served."""
    served = Served(Owner(refuse))
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 60000"), b"x" * 30000)
    assert b"connection" not in answers(served.transport.sent)[0][1]
    served.feed(b"x" * 30000 + request(b"GET", b"/next"))
    assert served.owner.exchanges[1].head.path == "/next"
    assert not served.transport.closed


def test_f073_a_rest_that_does_not_come_closes_the_connection() -> None:
    """Waiting for the rest of an answered body is bounded."""
    served = Served(Owner(refuse))
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 60000"))
    served.sweep(3.0)
    assert served.transport.half_closed
    served.sweep(6.0)
    assert served.transport.closed


def test_f073_large_unread_body_closes_after_lingering() -> None:
    """An answer before a large body says close; our side closes, and the body is dropped for a while."""
    served = Served(Owner(refuse), ServerLimits(linger_bytes=1_000_000))
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 50000000"))
    assert answers(served.transport.sent)[0][1][b"connection"] == b"close"
    assert served.transport.half_closed
    served.feed(*[b"x" * 100_000] * 10)
    assert not served.transport.closed
    served.feed(b"x")
    assert served.transport.closed


def test_f073_lingering_ends_with_the_client_or_its_time() -> None:
    """Lingering ends when the client closes, or when its time is over."""
    served = Served(Owner(refuse))
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 50000000"))
    served.sweep(1.0)
    assert not served.transport.closed
    served.sweep(1.5)
    assert served.transport.closed


def test_f073_chunked_body_that_has_already_come_does_not_close() -> None:
    """An unread chunked body whose end is in hand is dropped; one whose end is not known closes."""
    served = Served(Owner(refuse))
    served.feed(request(body=b"5\r\nhello\r\n0\r\n\r\n", chunked=True) + request(b"GET", b"/next"))
    assert served.owner.exchanges[1].head.path == "/next"
    open_ended = Served(Owner(refuse))
    open_ended.feed(request(body=b"5\r\nhello\r\n", chunked=True))
    assert answers(open_ended.transport.sent)[0][1][b"connection"] == b"close"


EXPECTING = request(b"POST", b"/", b"", b"Expect: 100-continue", b"Content-Length: 50000000")


def test_f073_expecting_client_is_refused_without_a_100_and_without_closing() -> None:
    """A refused client that waits for 100 gets only the final status, and its next request is served."""
    served = Served(Owner(refuse))
    served.feed(EXPECTING)
    ((status, headers, _),) = answers(served.transport.take())
    assert status == 429
    assert b"connection" not in headers
    served.feed(*[bytes([byte]) for byte in request(b"GET", b"/next")])
    assert served.owner.exchanges[1].head.path == "/next"
    assert not served.transport.half_closed


def test_f073_body_after_a_refused_expect_is_not_a_request() -> None:
    """A client that sends its body although it was refused gets no second answer; the connection ends."""
    served = Served(Owner(refuse))
    served.feed(EXPECTING)
    served.transport.take()
    served.feed(b'{"model": "m"}')
    assert (b"", True) == (served.transport.sent, served.transport.half_closed)
    assert served.owner.errors == []
    assert len(served.owner.exchanges) == 1


def test_f073_expecting_client_is_told_to_go_on_when_its_body_is_wanted() -> None:
    """100 Continue goes out as soon as the body is asked for, and only if none of it has come."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(b"POST", b"/", b"", b"Expect: 100-continue", b"Content-Length: 5"))
    assert served.transport.sent == b""
    bodies.read(served.owner.exchanges[0])
    assert served.transport.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    served.feed(b"hello")
    assert bodies.got == [b"hello"]
    impatient, more = Served(Owner()), Bodies()
    impatient.feed(request(b"POST", b"/", b"", b"Expect: 100-continue", b"Content-Length: 5") + b"he")
    more.read(impatient.owner.exchanges[0])
    impatient.feed(b"llo")
    assert (b"", [b"hello"]) == (impatient.transport.sent, more.got)


def test_answer_while_the_body_is_being_read() -> None:
    """An owner may answer in the middle of a body; its callbacks are then not called any more."""
    served, bodies = Served(Owner()), Bodies()
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 50000000"))
    bodies.read(served.owner.exchanges[0], 1 << 30)
    served.feed(b"x" * 1000)
    refuse(served.owner.exchanges[0])
    served.feed(b"x" * 1000)
    served.sweep(100.0)
    assert ([], []) == (bodies.got, bodies.failed)
    assert served.transport.closed


# --- Clients that leave ---------------------------------------------------------------------------------------


def test_disconnect_is_told_once() -> None:
    """A client that leaves while its request waits is noticed, once, by FIN or RST."""
    for lose in ("eof", "reset"):
        served, left = Served(Owner()), list[int]()
        served.feed(request(body=b"x"))
        exchange = served.owner.exchanges[0]
        exchange.on_disconnect = partial(left.append, 1)
        if lose == "eof":
            assert served.connection.eof_received() is None  # type: ignore[func-returns-value]
        served.connection.connection_lost(None if lose == "eof" else ConnectionResetError())
        assert left == [1]
        assert exchange.over
        assert len(served.serving.connections) == 0
        exchange.respond(200, [], b"late")
        exchange.abort()
        assert served.transport.sent == b""


def test_disconnect_in_mid_body_calls_only_on_disconnect() -> None:
    """A client that leaves in its own body is a disconnect, not a body failure."""
    served, bodies, left = Served(Owner()), Bodies(), []
    served.feed(request(b"POST", b"/", b"", b"Content-Length: 10"))
    exchange = served.owner.exchanges[0]
    exchange.on_disconnect = lambda: left.append(1)
    bodies.read(exchange)
    served.feed(b"123")
    served.connection.connection_lost(None)
    assert ([], [], [1]) == (bodies.got, bodies.failed, left)


def test_no_disconnect_after_the_answer() -> None:
    """A client that leaves after its answer is not a disconnect."""
    served, left = Served(Owner()), []
    served.feed(request(b"GET"))
    exchange = served.owner.exchanges[0]
    exchange.on_disconnect = lambda: left.append(1)
    respond(exchange)
    served.connection.eof_received()
    served.connection.connection_lost(None)
    assert left == []


# --- Readers ------------------------------------------------------------------------------------------------------


def test_slow_reader_is_reported_once_then_cut() -> None:
    """A reader that takes nothing is reported to the owner; if that helps nothing the connection is cut."""
    served, slow, left = Served(Owner()), [], []
    served.feed(request(b"GET"))
    exchange = served.owner.exchanges[0]
    exchange.on_slow_reader = lambda: slow.append(1)
    exchange.on_disconnect = lambda: left.append(1)
    exchange.start(200, [], content_length=None)
    exchange.write(b"x" * 1000)
    served.transport.unsent_bytes = 500
    served.sweep(1.0)
    served.sweep(30.0)
    assert slow == []
    served.sweep(31.0)
    served.sweep(32.0)
    assert (slow, served.transport.aborted) == ([1], False)
    served.sweep(62.0)
    assert (slow, served.transport.aborted) == ([1], True)


def test_slow_reader_of_a_finished_answer_is_cut() -> None:
    """What is left of a finished answer does not wait for ever."""
    served = Served(Owner(respond))
    served.feed(request(b"GET"))
    served.transport.unsent_bytes = 10
    served.sweep(1.0)
    served.sweep(31.0)
    assert served.transport.aborted


def test_drain_changes_reach_the_owner() -> None:
    """The transport's high-water mark is the owner's signal to pause and go on."""
    served, changes = Served(Owner()), list[bool]()
    assert served.transport.high_water_bytes == 65536
    served.feed(request(b"GET"))
    exchange = served.owner.exchanges[0]
    exchange.on_drain_change = changes.append
    served.connection.pause_writing()
    paused = exchange.write_paused
    served.connection.resume_writing()
    assert (True, False) == (paused, exchange.write_paused)
    assert changes == [True, False]
