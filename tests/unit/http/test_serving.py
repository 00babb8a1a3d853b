"""Claims about what the connections of a server share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.http.body import BodyFailure
from forebay.http.connection import ServerConnection
from forebay.http.exchange import Exchange
from forebay.http.limits import ServerLimits
from forebay.http.serving import Serving
from tests.unit.http.peers import DATE, FakeTransport, Owner

WHOLE = b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 8\r\n\r\n"


def test_the_date_is_made_once_per_sweep() -> None:
    """The last lines of a head carry the date of the last refresh and what happens to the connection."""
    serving = Serving(Owner(), ServerLimits())
    serving.refresh(5.0, 0.0)
    assert serving.now == 5.0
    assert serving.keep_tail == DATE + b"\r\n"
    assert serving.close_tail == DATE + b"connection: close\r\n\r\n"
    assert serving.keep_tail_old == DATE + b"connection: keep-alive\r\n\r\n"
    serving.refresh(6.0, 1.0)
    assert b"00:00:01 GMT" in serving.keep_tail


def test_callbacks_need_a_started_server() -> None:
    """Before the server is started there is no loop to call back on, and that is said."""
    with pytest.raises(RuntimeError, match="not been started"):
        Serving(Owner(), ServerLimits()).call_soon(lambda: None)


class Full:
    """A server that keeps two connections, and what the loop is to call in its next round."""

    def __init__(self, owner: Owner | None = None, most: int = 2) -> None:
        self.serving = Serving(owner or Owner(), ServerLimits(connections=most))
        self.rounds: list[Callable[[], None]] = []
        self.serving.call_soon = self.rounds.append
        self.serving.refresh(0.0, 0.0)

    def connect(self, data: bytes = b"") -> tuple[ServerConnection, FakeTransport]:
        """One more client, which sends this much at once; what is closed by that is gone at once."""
        connection, transport = ServerConnection(self.serving), FakeTransport()
        connection.connection_made(transport)
        for callback in self.rounds:
            callback()
        self.rounds.clear()
        for known in tuple(self.serving.connections):
            assert isinstance(known, ServerConnection)
            if known._transport.is_closing():
                known.connection_lost(None)
        if data:
            connection.data_received(data)
        return connection, transport


def closed(*transports: FakeTransport) -> list[bool]:
    """Which of these are."""
    return [transport.is_closing() for transport in transports]


def test_an_idle_connection_gives_way() -> None:
    """At the bound a new connection takes the place of an idle one; while none is idle it is turned away."""
    full = Full()
    busy, idle, new = full.connect(WHOLE)[1], full.connect()[1], full.connect(WHOLE)[1]
    assert [False, True, False] == closed(busy, idle, new)
    turned_away = full.connect()[1]
    assert [False, False, True] == closed(busy, new, turned_away)


def test_one_idle_connection_among_many_is_found() -> None:
    """Wherever it is, and however many have a request with an owner."""
    full = Full(most=1000)
    some = [full.connect(WHOLE)[1] for _ in range(700)]
    idle = full.connect()[1]
    some += [full.connect(WHOLE)[1] for _ in range(299)]
    assert not full.connect(WHOLE)[1].is_closing()
    assert idle.aborted
    assert not any(closed(*some))


def test_who_has_been_idle_longest_gives_way_first() -> None:
    """Its client is the least likely to be about to use it; who may still take the rest of an answer comes last."""
    full = Full(most=3)
    unread, newer = full.connect()[1], full.connect()[1]
    unread.unsent_bytes = 10
    full.serving.refresh(-5.0, 0.0)
    older = full.connect()[1]
    full.serving.refresh(1.0, 0.0)
    for expected in ([True, False, False], [True, True, False], [True, True, True]):
        full.connect(WHOLE)
        assert expected == closed(older, newer, unread)


def test_clients_are_looked_through_once_a_sweep() -> None:
    """A flood of new connections costs one look at those there, not one each."""
    looks = 0

    class Watched(FakeTransport):
        def get_write_buffer_size(self) -> int:
            nonlocal looks
            looks += 1
            return 0

    full = Full(most=100)
    for _ in range(100):
        ServerConnection(full.serving).connection_made(Watched())
    for _ in range(50):
        assert not full.connect(WHOLE)[1].is_closing()
    assert looks == 100
    assert len(full.serving.connections) == 100


def test_who_keeps_its_requests_back_by_not_reading_gives_way() -> None:
    """A client that pipelines and takes no answers holds a place of which nobody has any use."""
    full = Full(most=1)
    connection, transport = full.connect()
    connection.pause_writing()
    connection.data_received(WHOLE * 3)
    assert not full.connect(WHOLE)[1].is_closing()
    assert transport.aborted


def test_an_answer_that_is_not_taken_holds_no_place() -> None:
    """A client whose connection is closed and that takes nothing of the rest is dropped for a new one."""
    full = Full(most=1)
    connection, transport = full.connect(WHOLE)
    transport.unsent_bytes = 1000
    connection.eof_received()
    assert not full.connect(WHOLE)[1].is_closing()
    assert transport.aborted


def test_the_oldest_half_sent_request_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    """It is told 408; what was whole goes on, and the log says it once a minute."""
    full = Full()
    done, slow = full.connect(b"GET / HT"), full.connect(b"GET / HT")
    done[0].data_received(b"TP/1.1\r\nhost: t\r\n\r\n")  # now its owner has it
    newer = full.connect(b"GET / HT")
    assert [False, True, False] == closed(done[1], slow[1], newer[1])
    assert slow[1].sent.startswith(b"HTTP/1.1 408 ")
    newest = full.connect(WHOLE)
    assert [False, True, False] == closed(done[1], newer[1], newest[1])
    assert closed(full.connect()[1]) == [True]  # the others are with their owners
    assert len(caplog.messages) == 1
    full.serving.refresh(61.0, 0.0)
    full.connect()
    assert len(caplog.messages) == 2


def test_a_half_sent_body_gives_way_and_is_forgotten_when_whole() -> None:
    """As heads do, from when it is asked for until it has come."""
    failures: list[BodyFailure] = []
    bodies: list[bytes] = []

    def respond(exchange: Exchange) -> None:
        if exchange.head.method == b"POST":
            exchange.read_body(100, bodies.append, failures.append)

    full = Full(Owner(respond))
    whole, half = full.connect(POST + b"1234"), full.connect(POST + b"1234")
    whole[0].data_received(b"5678")
    assert [b"12345678"] == bodies
    new = full.connect(WHOLE)
    assert [False, True, False] == closed(whole[1], half[1], new[1])
    assert [BodyFailure.TIMEOUT] == failures
    assert closed(full.connect()[1]) == [True]
    assert not full.serving.unfinished
