"""`forebay size` as users run it: its settings into `forebay check`, its lengths from a trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """`forebay` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "forebay", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_settings_from_a_trace_can_be_used(tmp_path: Path) -> None:
    """From a recorded trace to a configuration that the gateway takes, in a pipe."""
    trace = tmp_path / "trace.csv"
    rows = "\n".join(f"{at / 4},{200 + at % 7 * 300},{20 + at % 5 * 60}" for at in range(200))
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    sized = run("size", "--profile", "llama3-8b-a100x1-bf16", "--trace", str(trace), "--only", "forebay")
    assert (0, "") == (sized.returncode, sized.stderr)
    checked = run("check", "-", given=sized.stdout)
    assert (0, "") == (checked.returncode, checked.stderr)
    assert "speed from its profile" in checked.stdout
