"""docs/how-to/call-through-forebay.md, followed word for word but for the ports."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.processes import ServeProcess, client, metrics, total, until_up

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "call-through-forebay.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The page's blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def block(language: str, containing: str) -> str:
    """The one with these words."""
    (found,) = [text for text in blocks(language) if containing in text]
    return found


@asynccontextmanager
async def page_servers(folder: Path) -> AsyncIterator[ServeProcess]:
    """The page's engine and gateway, with free ports."""
    words = block("sh", "forebay engine").split()[1:]
    words[words.index("--port") + 1] = "0"
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert engine.stdout is not None
        async with asyncio.timeout(20):
            (port,) = re.findall(r":(\d+)\b", (await engine.stdout.readline()).decode())
        path = folder / "forebay.yaml"
        path.write_text(block("yaml", "pools:").replace(":8001", f":{port}"))
        async with client() as http, ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            yield gateway
    finally:
        engine.kill()
        await engine.wait()


async def run(gateway: ServeProcess, code: str) -> tuple[str, str]:
    """What a program of the page prints and logs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code.replace("http://127.0.0.1:8080", gateway.url),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(40):
            out, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert 0 == process.returncode, log.decode()
    return out.decode(), log.decode()


@pytest.mark.slow
async def test_forty_calls_make_few_retries(tmp_path: Path) -> None:
    """R33: the page's program is served within the budget that the page tells of, and logs the lines that it shows."""
    async with page_servers(tmp_path) as gateway, client() as http:
        out, log = await run(gateway, block("python", "range(40)"))
        series = await metrics(http, gateway)
    ends = {name: int(count) for name, count in re.findall(r"'(\w+)': (\d+)", out)}
    assert 40 == sum(ends.values())
    assert ends["answered"] >= 8
    assert ends["queue_full"] >= 10
    (left,) = re.findall(r"retries left: ([\d.]+)", out)
    assert float(left) < 1
    (shown,) = re.findall(r"`(POST .*; retry .*)`", TEXT)
    pattern = re.escape(shown).replace(re.escape("1.24"), r"\d+\.\d\d").replace("retry\\ 1", r"retry\ \d")
    retries = len(re.findall(rf"^{pattern}$", log, re.MULTILINE))
    assert 10 <= retries <= 14
    assert 40 + retries == total(series, "forebay_requests_total")


@pytest.mark.slow
async def test_the_other_programs_of_the_page_run(tmp_path: Path) -> None:
    """Each runs as it stands; where a library is not installed here it is at least one that can be compiled."""
    async with page_servers(tmp_path) as gateway:
        for code in blocks("python"):
            compile(code, str(PAGE), "exec")
            needed = set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE))
            if "range(40)" not in code and all(map(importlib.util.find_spec, needed)):
                await run(gateway, code)
