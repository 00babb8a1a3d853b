"""`forebay engine`: what is said of an address that cannot be had."""

from __future__ import annotations

import errno
import socket

import pytest
from click.testing import CliRunner

from forebay.cli.main import cli
from forebay.emulator import EmulatorServer


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "choose another --port"),
        (OSError(errno.EACCES, "no"), "choose another --port"),
        (OSError(errno.EADDRNOTAVAIL, "not here"), "choose one that it has as --host"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "unknown; choose an address of this machine as --host"),
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_had_names_the_option_to_change(
    monkeypatch: pytest.MonkeyPatch, error: OSError, option: str
) -> None:
    """A port that is taken is put right with another port, an address that is not ours with another host."""

    async def start(_: EmulatorServer) -> None:
        raise error

    monkeypatch.setattr(EmulatorServer, "start", start)
    result = CliRunner().invoke(cli, ["engine"])
    assert 1 == result.exit_code
    assert result.stderr.startswith("Error: cannot listen on 127.0.0.1:8000: ")
    assert result.stderr.endswith(f"{option}\n")
