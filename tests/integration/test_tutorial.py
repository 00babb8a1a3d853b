"""docs/tutorial/from-shadow-to-enforced.md, followed word for word but for the ports."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "from-shadow-to-enforced.md"
TEXT = PAGE.read_text(encoding="utf-8")
BOUND_S = 200.0
"""It takes 80 s on two free cores."""


def blocks(language: str) -> list[str]:
    """The page's blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def follow(directory: Path) -> list[str]:
    """Run all commands of the page in one shell there: what each block printed."""
    ports = dict(zip(("8000", "8080", "9321"), map(str, free_ports(3)), strict=True))
    commands = "echo =====\n".join(blocks("sh"))
    for written, real in ports.items():
        commands = re.sub(rf"(?<=:){written}\b|(?<=--port ){written}\b", real, commands)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
    shell = subprocess.Popen(
        ["bash", "-ec", commands],
        cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={
            **kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
            "XDG_STATE_HOME": str(directory / "state"), "COLUMNS": "150",
            "FOREBAY_LISTEN": f"127.0.0.1:{ports['8080']}", "FOREBAY_ADMIN": f"127.0.0.1:{ports['9321']}",
        },
    )  # fmt: skip
    try:
        printed, errors = shell.communicate(timeout=BOUND_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, printed + errors
    for written, real in ports.items():
        printed = printed.replace(real, written)
    return printed.split("=====\n")


def shape(line: str) -> str:
    """A line without its figures, and without how far it is indented."""
    return " ".join(re.sub(r"[\d.,]*\d[\d.,]*\s?(ms|s|%)?|–", " N ", line).split())


def on_time(printed: str) -> float:
    """Percentage on time of a replay."""
    (share,) = re.findall(r"on time \(([\d.]+)%\)", printed)
    return float(share)


def simulated(printed: str, policy: str) -> float:
    """Percentage on time of all, of one policy of a simulation."""
    found = re.findall(rf"^ {re.escape(policy)} +[\d.]+ +[\d.]+ +([\d.]+)%", printed, re.MULTILINE)
    return float(found[0])


@pytest.mark.slow
@pytest.mark.timeout(BOUND_S + 20)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Every command works, prints lines like those shown, and enforcing helps as the page has it."""
    (start, day, report, _, own, size, shadow, switch, enforced, metrics, _) = printed = follow(tmp_path)
    lines = {shape(line) for line in "".join(printed).splitlines()}
    shown = [line for block in blocks("text") for line in block.splitlines() if line.strip() not in {"", "…"}]
    assert [line for line in shown if shape(line) not in lines] == []

    assert "shadow where nothing else is said" in start
    assert on_time(day) >= 90
    assert report.startswith("You need admission control")
    assert simulated(own, "forebay") > simulated(own, "pass-through")
    assert "Asked for" in size
    assert "enforce where nothing else is said" in switch
    assert " 0 refused" in f" {shadow.splitlines()[-1]}"
    assert on_time(enforced) > on_time(shadow) + 5
    assert metrics.count("forebay_slo_attainment{") == 3
