"""Claims about what the connections of a server share."""

from __future__ import annotations

import pytest

from forebay.http.limits import ServerLimits
from forebay.http.serving import Serving
from tests.unit.http.peers import DATE, Owner


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
