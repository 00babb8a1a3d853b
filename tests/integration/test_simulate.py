"""`forebay simulate` as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(250)

CONFIG = """
pools:
  - name: chat
    endpoints: [http://127.0.0.1:1, http://127.0.0.1:2]
    profile: llama3-8b-a100x1-bf16
classes:
  gold: {ttft: 1s, value: 5}
  lead: {ttft: 40s, tpot: 1s}
default_class: lead
"""


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-m", "forebay", "simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def runs(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What it printed."""
    assert 0 == done.returncode, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return found


def test_the_same_seed_is_the_same_run_under_any_hash_seed() -> None:
    """Byte for byte, with clients that leave and come back, and a replica that dies."""
    options = (
        "synthetic:mixed,seconds=20",
        "--load",
        "1.6",
        "--replicas",
        "2",
        "--fault",
        "lost:1@2-4",
        "--json",
    )
    first, second = (simulate(*options, hash_seed=seed) for seed in ("1", "4711"))
    assert runs(first)
    assert first.stdout == second.stdout


def test_forebay_beats_no_control_in_an_overload() -> None:
    """The point of it all, in one command."""
    controlled, plain = runs(
        simulate(
            "synthetic:documents,seconds=120",
            "--load",
            "1.5",
            "--policy",
            "forebay",
            "--policy",
            "pass-through",
            "--json",
        )
    )
    assert controlled["utility"] > 1.1 * plain["utility"]
    assert 0 == plain["refused"]


def test_a_configuration_and_a_trace_of_ones_own(tmp_path: Path) -> None:
    """Classes, pools and replicas are those of the file."""
    config, trace = tmp_path / "forebay.yaml", tmp_path / "trace.csv"
    config.write_text(CONFIG)
    rows = "".join(f"{n / 10},500,50,t{n % 3},,,\n" for n in range(200))
    trace.write_text(
        f"arrival_s,prompt_tokens,output_tokens,tenant,session_id,model,reusable_prefix_tokens\n{rows}"
    )
    (run,) = runs(simulate(str(trace), "-c", str(config), "--json"))
    assert 2 == run["replicas"]
    assert {"lead": 200} == {name: one["offered"] for name, one in run["classes"].items()}
    assert 1.0 == run["classes"]["lead"]["attainment"]
    (half,) = runs(simulate(str(trace), "-c", str(config), "--json", "--limit", "100"))
    assert 100 == half["offered"]


def test_what_is_wrong_is_said_with_exit_code_2(tmp_path: Path) -> None:
    """File, line, and what would be right."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,prompt_tokens,output_tokens,tenant,session_id,model,reusable_prefix_tokens\n0,x,1,,,,\n"
    )
    done = simulate(str(trace))
    assert (2, "") == (done.returncode, done.stdout)
    assert "trace.csv" in done.stderr
    assert "Traceback" not in done.stderr
