"""What the tests of the commands share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.cli.admin import Admin


@pytest.fixture(name="admin")
def _admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    for variable in ("FOREBAY_ADMIN", "FOREBAY_ADMIN_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    server = Admin()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
