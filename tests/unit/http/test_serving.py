"""Claims about what the connections of a server share."""

from __future__ import annotations

import pytest

from forebay.http.connection import ServerConnection
from forebay.http.limits import ServerLimits
from forebay.http.serving import Serving
from tests.unit.http.peers import DATE, FakeTransport, Owner


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


def test_an_idle_connection_gives_way() -> None:
    """At the bound a new connection takes the place of an idle one; while none is idle it is turned away."""
    serving = Serving(Owner(), ServerLimits(connections=2))
    serving.refresh(0.0, 0.0)

    def connect() -> tuple[ServerConnection, FakeTransport]:
        connection, transport = ServerConnection(serving), FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    busy, kept = connect()
    busy.data_received(b"GET / HTTP/1.1\r\n")
    _, idle = connect()
    new, taken = connect()
    assert [False, True, False] == [transport.is_closing() for transport in (kept, idle, taken)]
    new.data_received(b"GET / HTTP/1.1\r\n")
    _, turned_away = connect()
    assert [False, False, True] == [transport.is_closing() for transport in (kept, taken, turned_away)]
