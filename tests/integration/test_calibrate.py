"""`forebay calibrate` against the emulator: asks first, measures what it plays, and writes what others read."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from forebay.enginemodel import StepLaw
from forebay.profiles import load_profile
from forebay.runtime.calibration import mean_error
from forebay.runtime.children import Children

PROFILE = "llama3-8b-a100x1-bf16"


async def run(*arguments: str) -> tuple[int, str, str]:
    """`forebay` with these arguments, its input closed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(150):
            out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(), error.decode()


def step_s(law: StepLaw, prefill: int, sequences: int, context: int) -> float:
    """Time of a step with a prompt's chunk, or some that decode, or both."""
    return law.step_s(
        prefill_tokens=prefill,
        decoding=sequences,
        kv_tokens=sequences * context,
        prefill_attention=prefill * prefill / 2,
        sequences=sequences + (prefill > 0),
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_the_emulators_profile_is_found_again(tmp_path: Path) -> None:
    """On a grid of steps that were not measured, of prompts, decoding and both, the law is within 3 % on average."""
    path = tmp_path / "measured.json"
    async with Children() as children:
        engine = await children.start("engine", ["engine", "--port", "0", "--profile", PROFILE])
        code, out, error = await run(
            "calibrate", "--target", engine.url, "--yes", "-o", str(path), "--max-concurrency", "8", "--json"
        )
    assert 0 == code, error
    measured, true = load_profile(str(path)), load_profile(PROFILE)
    assert (true.kv_tokens, true.block_size) == pytest.approx(
        (measured.kv_tokens, measured.block_size), rel=0.01
    )
    assert true.model == measured.model
    errors = [
        step_s(measured.law, prefill, sequences, context) / step_s(true.law, prefill, sequences, context) - 1
        for prefill in (0, 100, 700, 1500)
        for sequences in (0, 1, 5, 8, 16)
        for context in (100, 800)
        if prefill + sequences
    ]
    assert mean_error(errors) < 0.03
    document = json.loads(out)
    assert document["held_out"] >= 8
    assert document["held_out_error_mean"] < 0.05
    assert "that it was not fitted to" in error
    code, out, error = await run("size", "--profile", str(path), "--prompt-tokens", "500")
    assert 0 == code, error


async def test_load_is_asked_for() -> None:
    """With nobody to ask and no --yes, nothing is sent."""
    async with Children() as children:
        engine = await children.start("engine", ["engine", "--port", "0"])
        code, out, error = await run("calibrate", "--target", engine.url)
    assert (2, "") == (code, out)
    assert "say --yes" in error


async def test_what_cannot_be_measured_says_so() -> None:
    """Nobody there, no URL, and no place for the file."""
    code, _, error = await run("calibrate", "--target", "http://127.0.0.1:1", "--yes")
    assert 1 == code
    assert "127.0.0.1:1" in error
    code, _, error = await run("calibrate", "--target", "http://host/path", "--yes")
    assert 2 == code
    assert "should look like" in error
