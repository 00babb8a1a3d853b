"""`vllm bench serve` as people run it, through the gateway: what it measures is what was asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from forebay.runtime.children import Children
from tests.engines.real import RealEngine, engines_folder, is_installed
from tests.integration.processes import ServeProcess, client, total, until_at_rest, until_up

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

PROMPTS = 20
OUTPUT_TOKENS = 16
BOUND_S = 300.0


@pytest.fixture(autouse=True)
def _installed() -> None:
    if not is_installed("vllm"):
        pytest.fail("vllm is not installed: run scripts/engines.sh vllm and scripts/engines.sh models")


async def measured(gateway: ServeProcess, folder: Path, backend: str, path: str) -> dict[str, Any]:
    """What the program writes down of a burst of requests, each with an answer of a fixed length."""
    arguments = {
        "--backend": backend,
        "--base-url": gateway.url,
        "--endpoint": path,
        "--model": "small",
        "--tokenizer": str(engines_folder() / "models" / "small"),
        "--dataset-name": "random",
        "--random-input-len": "50",
        "--random-output-len": str(OUTPUT_TOKENS),
        "--num-prompts": str(PROMPTS),
        "--result-dir": str(folder),
        "--result-filename": "result.json",
    }
    process = await asyncio.create_subprocess_exec(
        *(str(engines_folder() / "vllm" / "bin" / "vllm"), "bench", "serve"),
        *(word for pair in arguments.items() for word in pair),
        *("--ignore-eos", "--save-result", "--disable-tqdm"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(BOUND_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode(errors="replace")[-4000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


async def check(url: str, folder: Path, backend: str, path: str) -> None:
    """Every request of a burst is answered in full, and the gateway has counted each."""
    async with ServeProcess("--upstream", url) as gateway, client() as http:
        await until_up(http, gateway)
        result = await measured(gateway, folder, backend, path)
        assert (PROMPTS, 0) == (result["completed"], result["failed"])
        assert result["total_output_tokens"] == PROMPTS * OUTPUT_TOKENS
        assert result["median_ttft_ms"] > 0
        series = await until_at_rest(http, gateway)
        completed = total(series, "forebay_requests_total", 'outcome="completed"')
        assert completed == total(series, "forebay_requests_total") == PROMPTS


async def test_in_front_of_the_emulator(tmp_path: Path) -> None:
    """With streamed chats."""
    async with Children() as children:
        emulator = await children.start("engine", ("engine", "--port", "0", "--model", "small"))
        await check(emulator.url, tmp_path, "openai-chat", "/v1/chat/completions")


@pytest.mark.parametrize(
    ("backend", "path"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")]
)
async def test_in_front_of_vllm(vllm: RealEngine, tmp_path: Path, backend: str, path: str) -> None:
    """With streamed chats, and with completions."""
    await check(vllm.url, tmp_path, backend, path)
