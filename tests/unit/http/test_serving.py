"""Claims about what the connections of a server share."""

from __future__ import annotations

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
    """A server that keeps two connections, and what came of all that wanted to connect."""

    def __init__(self, owner: Owner | None = None) -> None:
        self.serving = Serving(owner or Owner(), ServerLimits(connections=2))
        self.serving.refresh(0.0, 0.0)

    def connect(self, data: bytes = b"") -> tuple[ServerConnection, FakeTransport]:
        """One more client, which sends this much at once; what is closed by that is gone at once."""
        connection, transport = ServerConnection(self.serving), FakeTransport()
        connection.connection_made(transport)
        for known in tuple(self.serving.connections):
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
