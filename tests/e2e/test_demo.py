"""`forebay demo` as a user runs it: a short run, and every way out of one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "forebay", "demo", "--no-browser"]
GONE_MS = 20_000

linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    """A demo under way: its first arm has begun, so its engines run."""
    process = subprocess.Popen(
        [*DEMO, "--seconds", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "warming up" in line:
                break
        else:
            pytest.fail("the demo never began")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            found.append(int(stat.parent.name))
    return found


def wait_until_gone(pids: list[int]) -> None:
    """Wait for processes that are not ours to end."""
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(watched, select.POLLIN)
            assert poll.poll(GONE_MS), f"process {pid} is still running"
        finally:
            os.close(watched)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_short_demo_gives_one_json_document() -> None:
    """`--json` prints one document; both arms got the same requests, and every refusal says when to come back."""
    done = subprocess.run(
        [*DEMO, "--seconds", "4", "--json"], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)

    assert result["load"] == 2.0
    for arm in ("direct", "forebay"):
        report = result[arm]
        assert {"goodput_rps", "slo_attainment", "admitted_attainment", "preemptions"} <= set(report)
        assert report["errors"] == 0
        assert report["refusals_with_retry_after"] == report["refusals"]
        assert report["refusals"] == sum(one["refused"] for one in report["classes"].values())
        assert 0 < report["slo_attainment"] <= report["admitted_attainment"] <= 1
    offered = [
        {name: one["offered"] for name, one in result[arm]["classes"].items()}
        for arm in ("direct", "forebay")
    ]
    assert offered[0] == offered[1]
    assert result["direct"]["refusals"] == 0
    assert "through Forebay" in done.stderr


@linux_only
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demo_and_all_it_started(
    demo: subprocess.Popen[str], number: signal.Signals
) -> None:
    """After Ctrl-C, SIGTERM or SIGHUP the exit code says so and no process is left."""
    started = children_of(demo.pid)
    assert len(started) == 2

    demo.send_signal(number)
    said = demo.communicate(timeout=30)[1]

    assert demo.returncode == 128 + number
    assert "nothing is left running" in said
    assert "Traceback" not in said
    wait_until_gone(started)


@linux_only
@pytest.mark.slow
def test_killing_the_demo_ends_what_it_started(demo: subprocess.Popen[str]) -> None:
    """Even SIGKILL leaves no engine behind."""
    started = children_of(demo.pid)
    assert len(started) == 2

    demo.kill()

    wait_until_gone(started)


@linux_only
@pytest.mark.slow
def test_an_engine_that_dies_fails_the_demo(demo: subprocess.Popen[str]) -> None:
    """If an engine ends by itself, the demo ends with status 1, names it, and ends the other."""
    started = children_of(demo.pid)
    assert len(started) == 2

    os.kill(started[0], signal.SIGKILL)
    said = demo.communicate(timeout=30)[1]

    assert demo.returncode == 1
    assert "engine" in said
    assert "Traceback" not in said
    wait_until_gone(started)


@pytest.mark.parametrize(
    "arguments", [["--seconds", "1"], ["--load", "0"], ["--load", "many"], ["--speed", "2"]]
)
def test_wrong_usage_is_refused_before_anything_starts(arguments: list[str]) -> None:
    """A value out of range or an unknown option ends with status 2 and a message."""
    done = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=50, check=False)

    assert done.returncode == 2
    assert "Error" in done.stderr
    assert done.stdout == ""
