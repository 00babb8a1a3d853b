"""`forebay engine` as a process: what it prints, how it stops, what it refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from forebay.cli.engine import command
from forebay.profiles import DEFAULT_PROFILE

COMMAND = [sys.executable, "-m", "forebay", "engine"]


@contextmanager
def _engine(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("engine listening on http://"), line
        yield process, line.split()[3]
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_it_prints_one_line_and_stops_on_sigterm() -> None:
    """The ready line tells the address; SIGTERM ends the stream under way and the process, with exit code 0."""
    with _engine("--model", "tiny", "--seed", "4") as (process, url):
        with httpx.Client(timeout=20) as client:
            assert client.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny"
            body = {"prompt": "hi", "max_tokens": 5000, "ignore_eos": True, "stream": True}
            with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                process.send_signal(signal.SIGTERM)
                rest = list(lines)
        assert "data: [DONE]" in rest
        assert any('"finish_reason":"abort"' in line for line in rest)
        assert process.wait(timeout=20) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_options_reach_the_engine() -> None:
    """KV tokens, sequences and context are seen from outside."""
    options = ("--kv-tokens", "8000", "--max-num-seqs", "3", "--context", "4000", "--speed", "20")
    with (
        _engine(*options, "--profile", "llama3-70b-h100x4-bf16") as (_, url),
        httpx.Client(timeout=20) as client,
    ):
        assert client.get(f"{url}/v1/models").json()["data"][0]["max_model_len"] == 4000
        assert 'kv_cache_size_tokens="8000"' in client.get(f"{url}/metrics").text


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--profile", "llama3-8b-h100"], 2, "llama3-70b-a100x4-bf16"),
        (["--profile", "missing.json"], 2, "no profile file missing.json"),
        (["--kv-tokens", "5000", "--context", "6000"], 2, "lower the context or raise kv_tokens"),
        (["--kv-tokens", "4"], 2, "at least one block"),
        (["--speed", "0"], 2, "--speed"),
        (["--max-num-seqs", "9", "--max-num-batched-tokens", "8"], 2, "max_num_seqs"),
        (["--host", "192.0.2.1"], 1, "choose one that it has as --host"),
    ],
)
def test_wrong_options_say_what_to_write(options: list[str], code: int, message: str) -> None:
    """Wrong usage exits 2, an address that cannot be had 1; the message names the fix, without a traceback."""
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_profiles_can_be_listed() -> None:
    """`--profile list` prints the thirteen names and exits 0."""
    done = subprocess.run(
        [*COMMAND, "--profile", "list"], capture_output=True, text=True, timeout=40, check=True
    )
    assert len(done.stdout.splitlines()) == 13


def test_the_default_profile_is_the_documented_one() -> None:
    """The command's default, written out so that help needs no imports, is the package's."""
    default = next(option.default for option in command.params if option.name == "profile_name")
    assert default == DEFAULT_PROFILE
